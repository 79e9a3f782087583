//! Writers of messages, which also receive and acknowledge them: native, HTTP and SQS clients of a queue each, and a
//! client of a Pub/Sub subscription.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{LeaseAnswer, NewQueue, OutMessage, Queue, Receive};
use serde_json::{Value, json};

use super::site::{Miss, Site, number, succeeded, text};
use super::{Outcome, Tally, Writer};
use crate::door::pubsub::push::{done, try_call};
use crate::door::sqs::client::Sqs;

/// Size of a message.
const BODY_BYTES: usize = 200;
/// Messages that are sent before some are received. More are received, so that those of expired leases do not add up.
const SENDS: usize = 4;
const RECEIVE_MAX: usize = 10;
/// One in this number of received messages is not acknowledged; another cycle acknowledges it.
const KEPT_ONE_IN: u64 = 8;
/// Messages that one peek returns.
const PEEK: u32 = 1000;

/// Receipt and body of a received message.
type Received = (String, String);

/// Door to a queue.
trait Door: Send {
    fn create(&self, site: &Site, queue: &str);
    fn open<'s>(&self, site: &'s Site, queue: &str) -> Box<dyn Connection + 's>;
}

/// Connection to a door.
trait Connection {
    fn send(&mut self, body: &str) -> Result<(), Miss>;
    fn receive(&mut self) -> Result<Vec<Received>, Miss>;
    fn ack(&mut self, receipt: &str) -> Result<(), Miss>;
}

/// Returns a writer for each door.
pub fn writers() -> Vec<Box<dyn Writer>> {
    let writer = |name, door| Box::new(QueueWriter::new(name, door)) as Box<dyn Writer>;
    vec![
        writer("queue-native", Box::new(Native)),
        writer("queue-http", Box::new(Http)),
        writer("queue-sqs", Box::new(SqsDoor)),
        writer("queue-pubsub", Box::new(Pubsub)),
    ]
}

/// Knowledge of a message that was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its send was not answered.
    Sending,
    Sent,
    /// Its acknowledgement was not answered.
    Acking,
}

/// Writer of messages.
struct QueueWriter {
    tally: Arc<Tally>,
    door: Box<dyn Door>,
    /// Number of the next message.
    next: u64,
    /// Messages that may exist. All others were acknowledged, or were never stored.
    messages: BTreeMap<u64, Fate>,
}

impl QueueWriter {
    fn new(name: &'static str, door: Box<dyn Door>) -> Self {
        Self { tally: Tally::new(name), door, next: 0, messages: BTreeMap::new() }
    }

    /// Returns the number of a message that the queue has, after checking that the message may exist.
    fn existing(&self, body: &str) -> Outcome<u64> {
        let number = number(self.tally.name, body).filter(|number| *number < self.next);
        let number = number.ok_or_else(|| format!("a message was never sent: {body}"))?;
        if self.messages.contains_key(&number) {
            Ok(number)
        } else {
            Err(format!("message {number} is back after its acknowledgement"))
        }
    }

    fn send(&mut self, connection: &mut dyn Connection) -> Result<(), Miss> {
        let number = self.next;
        self.next += 1;
        self.messages.insert(number, Fate::Sending);
        connection.send(&text(self.tally.name, number, BODY_BYTES))?;
        self.messages.insert(number, Fate::Sent);
        self.tally.add(1);
        Ok(())
    }

    fn receive(&mut self, connection: &mut dyn Connection, cycle: u64) -> Result<(), Miss> {
        for (receipt, body) in connection.receive()? {
            let number = self.existing(&body).map_err(Miss::Wrong)?;
            if (number + cycle).is_multiple_of(KEPT_ONE_IN) {
                continue;
            }
            self.messages.insert(number, Fate::Acking);
            connection.ack(&receipt)?;
            self.messages.remove(&number);
            self.tally.add(1);
        }
        Ok(())
    }
}

impl Writer for QueueWriter {
    fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn prepare(&mut self, site: &Site) {
        self.door.create(site, self.tally.name);
    }

    fn write(&mut self, site: &Site) -> Outcome {
        let mut connection = self.door.open(site, self.tally.name);
        while !site.has_ended() {
            for _ in 0..SENDS {
                let sent = self.send(&mut *connection);
                if let ControlFlow::Break(outcome) = site.proceed(sent) {
                    return outcome;
                }
            }
            let received = self.receive(&mut *connection, site.cycle);
            if let ControlFlow::Break(outcome) = site.proceed(received) {
                return outcome;
            }
        }
        Ok(())
    }

    /// Peeks at all messages through the native door, including those that are leased.
    fn check(&mut self, site: &Site, _is_complete: bool) -> Outcome {
        let queue = site.client().queue(self.tally.name);
        let mut found = BTreeMap::new();
        let mut after = None;
        loop {
            let peeked = site.wait("messages", queue.peek(after, PEEK)).map_err(|error| error.to_string())?;
            let Some(last) = peeked.last() else {
                break;
            };
            after = Some((last.message.partition, last.message.offset));
            for one in &peeked {
                let number = self.existing(&String::from_utf8_lossy(&one.message.body))?;
                if found.insert(number, Fate::Sent).is_some() {
                    return Err(format!("message {number} is twice in the queue"));
                }
            }
        }
        let is_lost = |(number, fate): &(&u64, &Fate)| **fate == Fate::Sent && !found.contains_key(*number);
        let lost: Vec<&u64> = self.messages.iter().filter(is_lost).map(|(number, _)| number).collect();
        if !lost.is_empty() {
            return Err(format!("acknowledged messages are lost: {lost:?}"));
        }
        self.messages = found;
        Ok(())
    }
}

/// Native client.
struct Native;

struct NativeConnection<'s> {
    site: &'s Site,
    queue: Queue,
}

impl Door for Native {
    fn create(&self, site: &Site, queue: &str) {
        site.wait("a queue", site.client().create_queue(NewQueue::new(queue))).expect("created");
    }

    fn open<'s>(&self, site: &'s Site, queue: &str) -> Box<dyn Connection + 's> {
        Box::new(NativeConnection { site, queue: site.client().queue(queue) })
    }
}

impl Connection for NativeConnection<'_> {
    fn send(&mut self, body: &str) -> Result<(), Miss> {
        let message = OutMessage { body: body.to_owned().into(), ..OutMessage::default() };
        Ok(self.site.wait("a send", self.queue.send(message)).map(drop)?)
    }

    fn receive(&mut self) -> Result<Vec<Received>, Miss> {
        let receive = Receive { count_max: RECEIVE_MAX as u32, ..Receive::default() };
        let received = self.site.wait("messages", self.queue.receive(&receive))?.messages;
        let body = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
        Ok(received.into_iter().map(|one| (one.receipt, body(&one.message.body))).collect())
    }

    fn ack(&mut self, receipt: &str) -> Result<(), Miss> {
        match self.site.wait("an acknowledgement", self.queue.ack(&[receipt.to_owned()]))?[..] {
            [LeaseAnswer::Done] => Ok(()),
            ref other => Err(Miss::Wrong(format!("an acknowledgement was answered with {other:?}"))),
        }
    }
}

/// Client of the HTTP door.
struct Http;

struct HttpConnection<'s> {
    site: &'s Site,
    path: String,
}

impl HttpConnection<'_> {
    fn post(&self, action: &str, body: &Value) -> Result<Value, Miss> {
        let path = format!("{}/{action}", self.path);
        succeeded(self.site.wait("an answer", try_call(self.site.http, "POST", &path, body)))
    }
}

impl Door for Http {
    fn create(&self, site: &Site, queue: &str) {
        Native.create(site, queue);
    }

    fn open<'s>(&self, site: &'s Site, queue: &str) -> Box<dyn Connection + 's> {
        Box::new(HttpConnection { site, path: format!("/v1/queues/{queue}") })
    }
}

impl Connection for HttpConnection<'_> {
    fn send(&mut self, body: &str) -> Result<(), Miss> {
        self.post("messages", &json!({ "messages": [{ "body": body }] })).map(drop)
    }

    fn receive(&mut self) -> Result<Vec<Received>, Miss> {
        let received = self.post(&format!("receive?max={RECEIVE_MAX}"), &json!({}))?;
        Ok(messages(&received["messages"], |one| (word(&one["receipt"]), word(&one["body"]))))
    }

    fn ack(&mut self, receipt: &str) -> Result<(), Miss> {
        let settled = self.post("acks", &json!({ "receipts": [receipt] }))?;
        if settled["done"] == 1 { Ok(()) } else { Err(Miss::Wrong(settled.to_string())) }
    }
}

/// Client of SQS.
struct SqsDoor;

struct SqsConnection<'s> {
    site: &'s Site,
    sqs: Sqs,
    url: String,
}

impl SqsConnection<'_> {
    fn call(&self, action: &str, mut request: Value) -> Result<Value, Miss> {
        request["QueueUrl"] = self.url.as_str().into();
        let answer = self.site.runtime.block_on(self.sqs.try_call(action, request)).ok_or(Miss::Lost)?;
        // An acknowledgement has no body.
        let body = if answer.body.is_empty() { Value::Null } else { answer.json() };
        succeeded(Some((answer.status, body)))
    }
}

impl Door for SqsDoor {
    fn create(&self, site: &Site, queue: &str) {
        site.runtime.block_on(Sqs::at(site.sqs).create(queue, json!({})));
    }

    fn open<'s>(&self, site: &'s Site, queue: &str) -> Box<dyn Connection + 's> {
        let sqs = Sqs::at(site.sqs);
        let answer = site.runtime.block_on(sqs.call("GetQueueUrl", json!({ "QueueName": queue }))).ok();
        Box::new(SqsConnection { site, sqs, url: word(&answer["QueueUrl"]) })
    }
}

impl Connection for SqsConnection<'_> {
    fn send(&mut self, body: &str) -> Result<(), Miss> {
        self.call("SendMessage", json!({ "MessageBody": body })).map(drop)
    }

    fn receive(&mut self) -> Result<Vec<Received>, Miss> {
        let received = self.call("ReceiveMessage", json!({ "MaxNumberOfMessages": RECEIVE_MAX }))?;
        Ok(messages(&received["Messages"], |one| (word(&one["ReceiptHandle"]), word(&one["Body"]))))
    }

    fn ack(&mut self, receipt: &str) -> Result<(), Miss> {
        self.call("DeleteMessage", json!({ "ReceiptHandle": receipt })).map(drop)
    }
}

/// Client of Pub/Sub: it publishes to a topic and pulls from a subscription.
struct Pubsub;

/// Topic of the subscription.
const TOPIC: &str = "projects/thalweg/topics/events";

struct PubsubConnection<'s> {
    site: &'s Site,
    subscription: String,
}

impl PubsubConnection<'_> {
    fn post(&self, path: &str, body: &Value) -> Result<Value, Miss> {
        succeeded(self.site.wait("an answer", try_call(self.site.pubsub, "POST", path, body)))
    }
}

impl Pubsub {
    fn subscription(queue: &str) -> String {
        format!("/v1/projects/thalweg/subscriptions/{queue}")
    }
}

impl Door for Pubsub {
    fn create(&self, site: &Site, queue: &str) {
        site.runtime.block_on(async {
            done(site.pubsub, "PUT", &format!("/v1/{TOPIC}"), json!({})).await;
            done(site.pubsub, "PUT", &Self::subscription(queue), json!({ "topic": TOPIC })).await;
        });
    }

    fn open<'s>(&self, site: &'s Site, queue: &str) -> Box<dyn Connection + 's> {
        Box::new(PubsubConnection { site, subscription: Self::subscription(queue) })
    }
}

impl Connection for PubsubConnection<'_> {
    fn send(&mut self, body: &str) -> Result<(), Miss> {
        let messages = json!({ "messages": [{ "data": STANDARD.encode(body) }] });
        self.post(&format!("/v1/{TOPIC}:publish"), &messages).map(drop)
    }

    fn receive(&mut self) -> Result<Vec<Received>, Miss> {
        let pull = json!({ "maxMessages": RECEIVE_MAX, "returnImmediately": true });
        let pulled = self.post(&format!("{}:pull", self.subscription), &pull)?;
        let body = |data: &Value| {
            let data = STANDARD.decode(word(data)).expect("base64");
            String::from_utf8_lossy(&data).into_owned()
        };
        Ok(messages(&pulled["receivedMessages"], |one| (word(&one["ackId"]), body(&one["message"]["data"]))))
    }

    fn ack(&mut self, receipt: &str) -> Result<(), Miss> {
        self.post(&format!("{}:acknowledge", self.subscription), &json!({ "ackIds": [receipt] })).map(drop)
    }
}

/// Returns the messages of a list, which is missing if it is empty.
fn messages(list: &Value, message: impl Fn(&Value) -> Received) -> Vec<Received> {
    list.as_array().map_or(Vec::new(), |list| list.iter().map(message).collect())
}

fn word(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}
