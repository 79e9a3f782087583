//! Peeking at the messages of a queue without receiving them, at the path that LocalStack uses.

use std::collections::HashSet;

use broker::Peeked;
use bytes::Bytes;
use engine::queue::Phase;
use engine::security::Operation;
use hyper::HeaderMap;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::http::request::Parts;
use serde_json::Value;

use super::address::{Home, Place};
use super::codec::{Answer, Protocol, TARGET, TARGET_PREFIX};
use super::documents::Form as JsonForm;
use super::errors::{Failure, INVALID_ADDRESS, INVALID_REQUEST, NO_QUEUE_TO_PEEK, Result, SERIALIZATION};
use super::map::{RequestContext, Sqs};
use super::messages::{Known, Origin, View};
use super::model::Text;
use super::query::Form;
use super::{codec, header};

pub(super) const PATH: &str = "/_aws/sqs/messages";
/// Operation on the queue that a peek requires.
pub(super) const OPERATION: Operation = Operation::Read;
/// Maximum number of messages in one response, and of their bytes.
const MESSAGES_MAX: usize = 1000;
const BYTES_MAX: usize = 11 << 20;
/// Maximum number of messages that one request reads to find those to show, in pages of [`MESSAGES_MAX`]. A queue may
/// have any number of leased or delayed messages before them.
const PAGES_MAX: usize = 16;
/// Placeholder for a receipt, which is not valid.
const NO_RECEIPT: &str = "SQS/BACKDOOR/ACCESS";
/// The only action that may be requested here.
const RECEIVE: &str = "ReceiveMessage";

/// Parameters of a peek.
pub(super) struct Wanted {
    queue: Queue,
    shows_leased: bool,
    shows_delayed: bool,
}

/// Queue as the request names it.
enum Queue {
    Place(Place),
    Url(String),
}

impl Wanted {
    /// Parses a request. The queue is in the rest of the path, or a parameter: in the query, in a form or in a JSON
    /// body.
    pub fn read(head: &Parts, body: &[u8], rest: &str) -> Result<Self> {
        // No form begins with a brace, and many clients declare every body as a form.
        let is_json = header(&head.headers, CONTENT_TYPE).is_some_and(|value| value.contains("json"))
            || body.trim_ascii_start().starts_with(b"{");
        let (form_body, json) = if is_json && !body.trim_ascii().is_empty() {
            match serde_json::from_slice(body) {
                Ok(json) => (&b""[..], json),
                Err(error) => return Err(Failure::new(&SERIALIZATION, error.to_string())),
            }
        } else {
            (body, Value::Null)
        };
        let form = Form::parse(&[head.uri.query().unwrap_or_default().as_bytes(), form_body])?;
        let get = |name: &str| match &json[name] {
            Value::String(text) => Some(text.clone()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => form.get(name).map(str::to_owned),
        };
        let action = match header(&head.headers, TARGET) {
            Some(target) => Some(target.strip_prefix(TARGET_PREFIX).unwrap_or(target).to_owned()),
            None => get("Action"),
        };
        if action.is_some_and(|action| action != RECEIVE) {
            return Err(Failure::new(&INVALID_REQUEST, "This endpoint only accepts ReceiveMessage calls"));
        }
        let is_set = |name: &str| get(name).is_some_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
        let segments: Vec<&str> = rest.trim_matches('/').split('/').collect();
        let queue = match segments[..] {
            [region, account, name] => {
                let home = Home { account: account.to_owned(), region: region.to_owned() };
                Queue::Place(Place::new(&home, name))
            }
            [""] => match get("QueueUrl").filter(|url| !url.is_empty()) {
                Some(url) => Queue::Url(url),
                None => return Err(no_queue("name one by QueueUrl, or as /_aws/sqs/messages/REGION/ACCOUNT/NAME")),
            },
            _ => return Err(invalid_address(head.uri.path())),
        };
        Ok(Self { queue, shows_leased: is_set("ShowInvisible"), shows_delayed: is_set("ShowDelayed") })
    }
}

fn no_queue(hint: &str) -> Failure {
    Failure::new(&NO_QUEUE_TO_PEEK, format!("The specified queue does not exist: {hint}."))
}

fn invalid_address(address: &str) -> Failure {
    Failure::new(&INVALID_ADDRESS, format!("The address {address} is not valid for this endpoint."))
}

/// Returns the protocol of the response: that of SDKs that have this path as their endpoint, otherwise XML, or JSON
/// made from it.
pub(super) fn protocol(headers: &HeaderMap) -> Protocol {
    let content_type = header(headers, CONTENT_TYPE).unwrap_or_default();
    let accept = header(headers, ACCEPT).filter(|accept| *accept != "*/*");
    match accept.unwrap_or(content_type) {
        _ if headers.contains_key(TARGET) || content_type.starts_with(codec::JSON) => Protocol::Json,
        wanted if wanted.contains("json") => Protocol::Query(Some(JsonForm::Elements)),
        _ => Protocol::Query(None),
    }
}

impl Sqs {
    pub async fn peek(&self, context: &RequestContext<'_>, wanted: &Wanted) -> Result<Answer> {
        let found = match &wanted.queue {
            Queue::Place(place) => self.find_place(context, place.clone()).await,
            // A URL contains the account of the queue; a name alone means a queue of the client's account.
            Queue::Url(url) if is_short(url) => return Err(invalid_address(url)),
            Queue::Url(url) => self.find(context, &Some(Text(url.as_str().into()))).await,
        };
        let found = found.map_err(|failure| {
            if failure == Failure::no_queue() { no_queue("create it, or list the existing queues") } else { failure }
        })?;
        self.check_account(context, OPERATION, Some(&found.place))?;
        self.broker.authorize_queue(&context.identity, OPERATION, found.name()).await?;
        let mut shown = Vec::new();
        let mut bytes = 0;
        let mut after = None;
        // Groups of a FIFO queue that are blocked by an earlier message.
        let mut held: HashSet<Bytes> = HashSet::new();
        'pages: for _ in 0..PAGES_MAX {
            let page = self.broker.queues.peek(found.name(), after, MESSAGES_MAX).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some((last.partition, last.message.offset()));
            for peeked in &page {
                let group = peeked.message.group().filter(|_| found.place.is_fifo());
                let is_shown = match peeked.phase {
                    Phase::Leased => wanted.shows_leased,
                    Phase::Delayed => wanted.shows_delayed,
                    Phase::Waiting => wanted.shows_leased || !group.is_some_and(|group| held.contains(group)),
                };
                if matches!(peeked.phase, Phase::Leased | Phase::Delayed) {
                    held.extend(group.cloned());
                }
                if !is_shown {
                    continue;
                }
                bytes += peeked.message.body().len();
                if shown.len() == MESSAGES_MAX || (bytes > BYTES_MAX && !shown.is_empty()) {
                    break 'pages;
                }
                let Peeked { id, message, attempts, first_received_ms, .. } = peeked;
                let first_received_ms = Some(first_received_ms.unwrap_or(0));
                let known = Known { id: *id, attempts: *attempts, first_received_ms };
                let origin = Origin { place: &found.place, names: self.names(context) };
                let mut message = self.show(origin, &View::all(), message, &known, NO_RECEIPT.to_owned());
                if wanted.shows_leased {
                    message.system.push(("IsVisible", (peeked.phase != Phase::Leased).to_string()));
                }
                if wanted.shows_delayed {
                    message.system.push(("IsDelayed", (peeked.phase == Phase::Delayed).to_string()));
                }
                shown.push(message);
            }
        }
        Ok(Answer::Messages(shown))
    }
}

/// Returns `true` if a URL has a name and no account.
fn is_short(url: &str) -> bool {
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    path.is_some_and(|(_, path)| !path.trim_matches('/').contains('/'))
}
