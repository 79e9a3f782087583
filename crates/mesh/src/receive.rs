//! Records from other sites: each stream of a topic is published here, or relayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::Wakes;
use bytes::{Bytes, BytesMut};
use engine::limits::BATCH_BYTES_MAX;
use engine::mesh::SiteRole;
use engine::{DraftBatch, Error, ErrorKind, Result};
use quinn::{RecvStream, SendStream};
use tokio::sync::Mutex;

use crate::frame::{BATCH_HEAD_BYTES, BatchHead, Frame, HEAD_BYTES_MAX, Head};
use crate::link::{Link, code, disconnected, within};
use crate::running::{Path, Running, Traffic};

/// Memory that is reserved for a batch before its bytes arrive.
const ROOM_BYTES: usize = 64 << 10;
/// Time in ms after which the position of a topic that is not live here is forgotten.
const INCOMING_IDLE_MS: u64 = 60_000;
/// Pause before a batch is published again for which there was no room.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Records of a topic that this site received from another one.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Held by the stream that publishes. The next one waits until it ends, which a stream does with its link.
    position: Mutex<Position>,
    pub records: AtomicU64,
    /// Time of the last batch.
    used_ms: AtomicU64,
}

impl Incoming {
    /// Returns `true` if no stream of the last minute needs the position.
    pub fn is_idle(self: &Arc<Self>, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.used_ms.load(Ordering::Relaxed));
        Arc::strong_count(self) == 1 && since_ms > INCOMING_IDLE_MS
    }
}

/// Position in the records of one run of the topic at the other site.
#[derive(Default)]
struct Position {
    run: u64,
    /// Number of the next record.
    next: u64,
}

/// Next step with a batch.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Batch is new, after this number of lost records.
    Publish { lost: u64 },
    /// Batch was received before.
    Skip,
}

impl Position {
    /// Notes that a batch has arrived whose first record has this number. Those of a run that this site has confirmed
    /// before are not lost if it does not know the run: it has restarted since, or has forgotten an idle topic.
    fn arrive(&mut self, (run, is_confirmed): (u64, bool), number: u64, count: u64) -> Step {
        if self.run != run {
            *self = Self { run, next: if is_confirmed { number } else { 0 } };
        }
        if number < self.next {
            return Step::Skip;
        }
        let lost = number - self.next;
        // No site counts so far; one that claims to has only itself to lose.
        self.next = number.saturating_add(count);
        Step::Publish { lost }
    }
}

impl Running {
    /// Accepts the streams of topics on a link until it ends.
    pub(crate) async fn receive_streams(self: Arc<Self>, link: Arc<Link>) {
        while let Ok(stream) = link.connection.accept_uni().await {
            let (running, link) = (self.clone(), link.clone());
            self.spawn(async move {
                if let Err(error) = running.receive(&link, stream).await {
                    tracing::debug!(site = %link.site, %error, "a stream of a topic ended");
                    if error.kind == ErrorKind::Malformed {
                        link.connection.close(code::PROTOCOL.into(), error.message.as_bytes());
                    }
                }
            });
        }
    }

    async fn receive(self: &Arc<Self>, link: &Arc<Link>, mut stream: RecvStream) -> Result<()> {
        let mut length = [0; 2];
        within(stream.read_exact(&mut length)).await?.map_err(|error| disconnected(&error))?;
        let length = usize::from(u16::from_be_bytes(length));
        if length > HEAD_BYTES_MAX {
            return Err(Error::malformed(format!("the head of a stream has {length} bytes, at most {HEAD_BYTES_MAX}")));
        }
        let mut head = BytesMut::zeroed(length);
        within(stream.read_exact(&mut head)).await?.map_err(|error| disconnected(&error))?;
        let head = Head::decode(head.freeze())?;
        if head.to != *self.site() {
            return self.relay(link, head, stream).await;
        }
        if head.from != link.site && link.role != SiteRole::Hub {
            return Err(Error::malformed("only a hub relays records of other sites"));
        }
        if self.members.lock().get(&head.from).is_none() {
            return Err(Error::new(ErrorKind::Denied, format!("{} is not a site of this mesh", head.from)));
        }
        match head.origin {
            Some(origin) => self.receive_copy(head, origin, stream).await,
            None => self.publish_all(head, stream).await,
        }
    }

    /// Passes a stream on to the site that it is for.
    async fn relay(&self, link: &Link, head: Head, mut stream: RecvStream) -> Result<()> {
        if head.from != link.site || self.settings.role != SiteRole::Hub {
            return Err(Error::malformed(format!(
                "this site does not relay records from {} to {}",
                head.from, head.to
            )));
        }
        let (mut next, mut send) = self.open_relayed(&head).await?;
        let mut place = Place::default();
        let is_live = head.origin.is_none();
        let (from, to) = (self.traffic_of(&head.from), self.traffic_of(&head.to));
        loop {
            let read = tokio::select! {
                read = stream.read_chunk(usize::MAX, true) => read.map_err(|error| disconnected(&error))?,
                reason = send.stopped() => {
                    match reason {
                        // The site that sends has to know why.
                        Ok(reason) => {
                            return stream.stop(reason.unwrap_or_default()).map_err(|error| disconnected(&error));
                        }
                        Err(_) if is_live && place.is_between_batches() => {
                            (next, send) = self.open_next_relayed(&head, &next).await?;
                            continue;
                        }
                        Err(error) => return Err(disconnected(&error)),
                    }
                }
            };
            let Some(chunk) = read else { break };
            if !is_live && next.is_replaced() {
                // A copy is asked for again on the other link, and does not keep this one.
                return Err(Error::new(ErrorKind::Disconnected, format!("there is another link to {}", head.to)));
            }
            let mut bytes = chunk.bytes;
            from.receives.take(bytes.len() as u64).await;
            to.sends.take(bytes.len() as u64).await;
            if is_live && next.is_replaced() {
                // The receiver publishes from the next stream when this one has ended, and none ends within a batch.
                let rest = bytes.split_to(place.pass_batch(&bytes));
                write_relayed(&mut send, rest).await?;
                if place.is_between_batches() {
                    send.finish().map_err(|error| disconnected(&error))?;
                    (next, send) = self.open_next_relayed(&head, &next).await?;
                }
            }
            place.pass_all(&bytes);
            write_relayed(&mut send, bytes).await?;
        }
        send.finish().map_err(|error| disconnected(&error))
    }

    /// Opens the stream on which another one is relayed further. Fails if the receiver has restarted since: the head
    /// does not tell it which records it had before. The site that sends opens another stream then.
    async fn open_next_relayed(&self, head: &Head, before: &Link) -> Result<(Arc<Link>, SendStream)> {
        let opened = self.open_relayed(head).await?;
        if opened.0.instance != before.instance {
            return Err(Error::new(ErrorKind::Disconnected, format!("{} has restarted", head.to)));
        }
        Ok(opened)
    }

    /// Opens the stream on which another one is relayed.
    async fn open_relayed(&self, head: &Head) -> Result<(Arc<Link>, SendStream)> {
        let Some(Path::Direct(next)) = self.path(&head.to) else {
            return Err(Error::new(ErrorKind::Disconnected, format!("there is no link to {}", head.to)));
        };
        let mut send = next.connection.open_uni().await.map_err(|error| disconnected(&error))?;
        let mut bytes = BytesMut::new();
        head.put(&mut bytes);
        send.write_all(&bytes).await.map_err(|error| disconnected(&error))?;
        Ok((next, send))
    }

    /// Publishes the batches of a stream.
    async fn publish_all(self: &Arc<Self>, head: Head, mut stream: RecvStream) -> Result<()> {
        let broker = self.broker()?;
        if !broker.takes_from_sites(&head.topic) {
            return Err(self.refuse_topic(&head, &mut stream));
        }
        // A reply is the only record of its stream.
        let incoming = if head.topic.is_inbox() {
            Arc::default()
        } else {
            self.incoming.lock().entry((head.from.clone(), head.topic.clone())).or_default().clone()
        };
        let traffic = self.traffic_of(&head.from);
        let mut position = incoming.position.lock().await;
        let mut wakes = Wakes::default();
        let mut is_confirmed = head.is_confirmed;
        while let Some((at, bytes)) = read_batch(&mut stream).await? {
            // A batch that another site cannot have read from its log harms no other topic of the link.
            let batch = DraftBatch::parse(BytesMut::from(&bytes[..])).map_err(|error| Error::invalid(error.message))?;
            let count = u64::from(batch.count());
            let step = position.arrive((head.run, is_confirmed), at.number, count);
            if !std::mem::replace(&mut is_confirmed, true) {
                self.send_to(&head.from, Frame::Begun { run: head.run, topic: head.topic.clone() });
            }
            let Step::Publish { lost } = step else { continue };
            note_loss(&traffic, lost);
            let mut has_failed = false;
            let mut next = Some(batch);
            while let Some(mut batch) = next.take() {
                batch.set_mesh();
                let groups = self.groups_here(&head.groups);
                match broker.publish_from_site(&head.topic, at.partition, groups, batch, &mut wakes).await {
                    Ok(_) => {
                        incoming.records.fetch_add(count, Ordering::Relaxed);
                        traffic.received_records.fetch_add(count, Ordering::Relaxed);
                        traffic.received_bytes.fetch_add(at.length as u64, Ordering::Relaxed);
                    }
                    Err(error) if error.kind == ErrorKind::NotFound => {
                        if has_failed || !broker.takes_from_sites(&head.topic) {
                            note_loss(&traffic, count);
                            return Err(self.refuse_topic(&head, &mut stream));
                        }
                        // A topic has just taken the place of a channel.
                        tracing::debug!(topic = %head.topic, %error, "a record is published again");
                        has_failed = true;
                        next = Some(DraftBatch::parse(BytesMut::from(&bytes[..]))?);
                    }
                    // It waits for room, and so do the records after it, at the other site.
                    Err(error) if error.kind == ErrorKind::Busy => {
                        tracing::debug!(site = %head.from, topic = %head.topic, %error, "records of another site wait");
                        tokio::time::sleep(BUSY_PAUSE).await;
                        next = Some(DraftBatch::parse(BytesMut::from(&bytes[..]))?);
                    }
                    Err(error) => {
                        note_loss(&traffic, count);
                        let Head { from, topic, .. } = &head;
                        tracing::warn!(site = %from, %topic, %error, "records of another site are lost");
                    }
                }
            }
            wakes.flush();
            incoming.used_ms.store(self.clock_ms(), Ordering::Relaxed);
            traffic.receives.take(at.length as u64).await;
        }
        Ok(())
    }

    /// Stops a stream whose topic this site does not take, and withdraws the topic.
    fn refuse_topic(self: &Arc<Self>, head: &Head, stream: &mut RecvStream) -> Error {
        {
            // A channel that is listened to again is advertised again.
            let mut channels = self.channels.lock();
            channels.remove(&head.topic);
            self.retract(&head.topic);
        }
        self.note_refusal(&head.topic);
        stream.stop(code::NOT_TAKEN.into()).unwrap_or_default();
        Error::not_found(format!("{} is not a live topic here, nor a channel", head.topic))
    }
}

/// Place in a stream of batches that is relayed.
#[derive(Default)]
struct Place {
    /// Beginning of the frame of a batch.
    head: [u8; BATCH_HEAD_BYTES],
    head_bytes: usize,
    /// Bytes to the end of the batch.
    left: usize,
}

impl Place {
    fn is_between_batches(&self) -> bool {
        self.head_bytes == 0 && self.left == 0
    }

    /// Passes over bytes to the end of the batch, if the place is in one. Returns their number.
    fn pass_batch(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() && !self.is_between_batches() {
            passed += self.pass_some(&bytes[passed..]);
        }
        passed
    }

    fn pass_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[self.pass_some(bytes)..];
        }
    }

    /// Passes over bytes to the end of the frame of a batch, or of the batch. Returns their number.
    fn pass_some(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let count = self.left.min(bytes.len());
            self.left -= count;
            return count;
        }
        let count = bytes.len().min(BATCH_HEAD_BYTES - self.head_bytes);
        self.head[self.head_bytes..self.head_bytes + count].copy_from_slice(&bytes[..count]);
        self.head_bytes += count;
        if self.head_bytes == BATCH_HEAD_BYTES {
            (self.head_bytes, self.left) = (0, BatchHead::decode(&self.head).length);
        }
        count
    }
}

/// Passes bytes on. The window of the next link slows down the one before. A stream that was stopped is noticed when
/// the next bytes are waited for.
async fn write_relayed(send: &mut SendStream, bytes: Bytes) -> Result<()> {
    match send.write_chunk(bytes).await {
        Err(quinn::WriteError::Stopped(_)) => Ok(()),
        written => written.map_err(|error| disconnected(&error)),
    }
}

/// Reads a batch with its frame. Returns `None` at the end of the stream.
async fn read_batch(stream: &mut RecvStream) -> Result<Option<(BatchHead, BytesMut)>> {
    let mut at = [0; BATCH_HEAD_BYTES];
    match stream.read_exact(&mut at).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(disconnected(&error)),
    }
    let at = BatchHead::decode(&at);
    if at.length > BATCH_BYTES_MAX {
        return Err(Error::malformed(format!("a batch has {} bytes, at most {BATCH_BYTES_MAX}", at.length)));
    }
    Ok(Some((at, read_exactly(stream, at.length).await?)))
}

/// Reads the bytes of a batch.
pub(crate) async fn read_exactly(stream: &mut RecvStream, length: usize) -> Result<BytesMut> {
    let mut bytes = BytesMut::with_capacity(length.min(ROOM_BYTES));
    while bytes.len() < length {
        match stream.read_chunk(length - bytes.len(), true).await.map_err(|error| disconnected(&error))? {
            Some(chunk) => bytes.extend_from_slice(&chunk.bytes),
            None => return Err(Error::new(ErrorKind::Disconnected, "a batch is cut short")),
        }
    }
    Ok(bytes)
}

fn note_loss(traffic: &Traffic, records: u64) {
    if records > 0 {
        traffic.lost_records.fetch_add(records, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
