//! Bytes into requests, and answers and deliveries into bytes.

use broker::SourceStart;
use bytes::buf::Limit;
use bytes::{Bytes, BytesMut};
use engine::{Delivery, DraftBatch, Error, ErrorKind, PartitionId, Result, SourceId, TopicName};
use net::read::{Input, ReadError, Reassemble};
use wire::response::{Push, SourceInfo, put_deliver_head};
use wire::{Assembler, Frame, Response};

/// A batch up to this size is copied behind its head, so that many small ones share a chunk.
const COPY_BYTES_MAX: usize = 4 << 10;

/// The frames that come in on a connection.
struct Incoming<'a> {
    assembler: &'a mut Assembler,
    frames: &'a mut Vec<Frame>,
}

impl Reassemble for Incoming<'_> {
    type Error = Error;

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.assembler.feed(bytes, self.frames)
    }

    fn rest(&mut self) -> Option<Limit<&mut BytesMut>> {
        self.assembler.large_rest()
    }

    fn rest_filled(&mut self) {
        self.assembler.close_frame(self.frames);
    }
}

/// Reads once and adds the frames that are whole. `false` at the end of the stream.
pub(super) async fn read_frames(
    input: &mut Input<'_>,
    assembler: &mut Assembler,
    frames: &mut Vec<Frame>,
) -> Result<bool, ReadError<Error>> {
    net::read::read(input, &mut Incoming { assembler, frames }).await
}

/// A batch that a client sent, checked whole.
pub(super) fn parse_batch(batch: BytesMut) -> Result<DraftBatch> {
    DraftBatch::parse(batch)
}

pub(super) fn encode(response: &Response, correlation: u32) -> Bytes {
    let mut buf = BytesMut::new();
    response.encode(correlation, &mut buf);
    buf.freeze()
}

pub(super) fn encode_push(push: &Push) -> Bytes {
    let mut buf = BytesMut::new();
    push.encode(&mut buf);
    buf.freeze()
}

pub(super) fn source_info(start: &SourceStart) -> SourceInfo {
    SourceInfo { topic: start.topic.to_string(), partition: start.partition, start: start.start, end: start.end }
}

/// Writes the deliveries of one subscription. The batches themselves are shared, not copied.
pub(super) struct DeliveryEncoder {
    subscription: u32,
    /// Only subscriptions of a pattern are told the topic each time.
    names_topics: bool,
    /// What each source is, as far as it was asked for.
    sources: Vec<Option<(TopicName, PartitionId)>>,
    buf: BytesMut,
}

impl DeliveryEncoder {
    pub(super) fn new(subscription: u32, names_topics: bool) -> Self {
        Self { subscription, names_topics, sources: Vec::new(), buf: BytesMut::new() }
    }

    /// Empties `deliveries` into chunks.
    pub(super) fn encode(
        &mut self,
        deliveries: &mut Vec<Delivery>,
        source_of: &dyn Fn(SourceId) -> (TopicName, PartitionId),
        chunks: &mut Vec<Bytes>,
    ) {
        for delivery in deliveries.drain(..) {
            let (Delivery::Batch { source, .. } | Delivery::Gap { source, .. }) = delivery;
            let at = source as usize;
            if self.sources.len() <= at {
                self.sources.resize(at + 1, None);
            }
            let (topic, partition) = self.sources[at].get_or_insert_with(|| source_of(source));
            let topic = if self.names_topics { topic.as_str() } else { "" };
            match delivery {
                Delivery::Batch { batch, .. } => {
                    put_deliver_head(&mut self.buf, self.subscription, *partition, topic, batch.len());
                    if batch.len() <= COPY_BYTES_MAX {
                        self.buf.extend_from_slice(batch.bytes());
                    } else {
                        chunks.push(self.buf.split().freeze());
                        chunks.push(batch.bytes().clone());
                    }
                }
                Delivery::Gap { from, to, .. } => {
                    let push = Push::Gap {
                        subscription: self.subscription,
                        partition: *partition,
                        topic: topic.to_owned(),
                        from,
                        to,
                    };
                    push.encode(&mut self.buf);
                }
            }
        }
        if !self.buf.is_empty() {
            chunks.push(self.buf.split().freeze());
        }
    }
}

/// How the protocol says that the broker goes away.
pub(super) fn go_away() -> Bytes {
    encode_push(&Push::GoAway { error: shutting_down() })
}

pub(super) fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the broker is shutting down; reconnect")
}
