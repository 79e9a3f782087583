//! Request and reply: a record with an inbox's name in it, and the answer that comes there.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::ids::INBOX_PREFIX;
use engine::{Acks, Error, ErrorKind, Record, Result};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::AbortHandle;

use crate::client::Client;
use crate::publisher::publish_once;

/// The header that names where the answer goes.
const REPLY_TO: &str = "reply-to";
/// The header that tells the answers of one inbox apart.
const CORRELATION_ID: &str = "correlation-id";

/// The requests of one client that wait for their answers, all at one inbox.
#[derive(Default)]
pub(crate) struct Requester {
    inbox: OnceCell<String>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Record>>>>,
    ids: AtomicU64,
    /// Reads the inbox for as long as the client lives.
    task: Mutex<Option<AbortHandle>>,
}

impl Requester {
    pub(crate) async fn request(
        &self,
        client: &Client,
        topic: &str,
        record: Record,
        timeout: Duration,
    ) -> Result<Record> {
        let inbox = self.inbox.get_or_try_init(|| self.open_inbox(client)).await?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        let record = record.with_header(REPLY_TO, inbox.clone()).with_header(CORRELATION_ID, id.to_string());
        let result = async {
            let published = publish_once(&client.shared, topic, record, Acks::Accepted).await?;
            if published.receivers == 0 {
                return Err(Error::new(ErrorKind::NoResponders, format!("nobody answers at '{topic}'")));
            }
            let answer = tokio::time::timeout(timeout, answer).await.map_err(|e| {
                Error::new(ErrorKind::Timeout, format!("no answer at '{topic}' within {} ms: {e}", timeout.as_millis()))
            })?;
            answer.map_err(|e| Error::new(ErrorKind::Disconnected, format!("the inbox was closed: {e}")))
        };
        let result = result.await;
        self.waiting.lock().remove(&id);
        result
    }

    async fn open_inbox(&self, client: &Client) -> Result<String> {
        let name = format!("{INBOX_PREFIX}{:016x}", RandomState::new().hash_one(self as *const Self as usize));
        // On connections of its own, so that it does not keep alive the client that owns it.
        let mut inbox = client.sibling().subscribe(&name).open().await?;
        let waiting = self.waiting.clone();
        let task = tokio::spawn(async move {
            while let Ok(message) = inbox.next().await {
                let id =
                    message.record.header(CORRELATION_ID).and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
                let waiter = id.and_then(|id: u64| waiting.lock().remove(&id));
                if let Some(waiter) = waiter {
                    // One that gave up does not need it any more.
                    drop(waiter.send(message.record));
                }
            }
        });
        *self.task.lock() = Some(task.abort_handle());
        Ok(name)
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

/// Sends an answer to where the request asks for it.
pub(crate) async fn reply(client: &Client, request: &Record, mut answer: Record) -> Result<()> {
    let to = request.header(REPLY_TO).ok_or_else(|| Error::invalid("this record asks for no answer"))?;
    let to = std::str::from_utf8(to).map_err(|e| Error::malformed(format!("the reply-to header is not text: {e}")))?;
    if let Some(id) = request.header(CORRELATION_ID) {
        answer = answer.with_header(CORRELATION_ID, id.clone());
    }
    publish_once(&client.shared, to, answer, Acks::Accepted).await.map(drop)
}
