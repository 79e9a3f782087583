//! Request and reply: a record that names an inbox, and the reply that arrives there.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use engine::ids::INBOX_PREFIX;
use engine::{Acks, Error, ErrorKind, Record, Result};

use crate::client::Client;
use crate::pool::is_transient;
use crate::publisher::publish_once;
use crate::replies::Replies;
use crate::session::Session;
use crate::subscription::SubscriptionBuilder;

/// Header that names the topic of the reply.
const REPLY_TO: &str = "reply-to";
/// Header that distinguishes the replies in one inbox.
const CORRELATION_ID: &str = "correlation-id";

impl Client {
    /// Publishes a record and waits up to `timeout` for a reply. If the topic has no subscriber, returns
    /// `no_responders` immediately.
    pub async fn request(&self, topic: &str, record: Record, timeout: Duration) -> Result<Record> {
        let replies = &self.replies;
        let inbox = replies.inbox.get_or_try_init(|| open_inbox(&self.session, replies)).await?;
        let (id, answer) = replies.begin();
        let record = record.with_header(REPLY_TO, inbox.clone()).with_header(CORRELATION_ID, id.to_string());
        let result = async {
            let published = publish_once(&self.session, topic, record, Acks::Accepted).await?;
            if published.receivers == 0 {
                return Err(Error::new(ErrorKind::NoResponders, format!("no subscriber of '{topic}' can answer")));
            }
            let answer = tokio::time::timeout(timeout, answer).await.map_err(|e| {
                Error::new(ErrorKind::Timeout, format!("no answer at '{topic}' within {} ms: {e}", timeout.as_millis()))
            })?;
            answer.map_err(|e| Error::new(ErrorKind::Disconnected, format!("the inbox was closed: {e}")))
        };
        let result = result.await;
        replies.give_up(id);
        result
    }

    /// Replies to a request that was received as a message. A record without a `reply-to` header is refused.
    pub async fn reply(&self, request: &Record, mut answer: Record) -> Result<()> {
        let to = request
            .header(REPLY_TO)
            .ok_or_else(|| Error::invalid("this record requests no answer: it has no reply-to header"))?;
        let to =
            std::str::from_utf8(to).map_err(|e| Error::malformed(format!("the reply-to header is not text: {e}")))?;
        if let Some(id) = request.header(CORRELATION_ID) {
            answer = answer.with_header(CORRELATION_ID, id.clone());
        }
        publish_once(&self.session, to, answer, Acks::Accepted).await.map(drop)
    }
}

/// Opens the inbox of a client and reads it in a task.
async fn open_inbox(session: &Session, replies: &Replies) -> Result<String> {
    let name = format!("{INBOX_PREFIX}{:016x}", RandomState::new().hash_one(replies as *const Replies as usize));
    // The inbox uses separate connections, which it shares with no subscription that the program reads slowly.
    let mut inbox = SubscriptionBuilder::new(session.sibling(), &name).open().await?;
    let waiting = replies.waiting();
    let task = tokio::spawn(async move {
        loop {
            let message = match inbox.next().await {
                Ok(message) => message,
                // The next call resumes the subscription.
                Err(error) if is_transient(&error) => continue,
                Err(_) => return,
            };
            let id = message.record.header(CORRELATION_ID).and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
            if let Some(id) = id {
                waiting.arrived(id, message.record);
            }
        }
    });
    replies.own_task(task.abort_handle());
    Ok(name)
}
