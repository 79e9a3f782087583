//! Decodes requests and encodes responses and deliveries.

use std::rc::Rc;
use std::sync::Arc;

use broker::{Answers, Door, Doors, Held, SourceStart};
use bytes::{Bytes, BytesMut};
use engine::security::TenantName;
use engine::{Acks, Delivery, DraftBatch, Error, ErrorKind, PartitionId, Result, SourceId, TopicName};
use net::service::{Decoded, Fault, FaultKind, Input, Order, Out, Peer, Protocol};
use wire::frame::{BODY_BYTES_BEFORE_HELLO_MAX, BODY_BYTES_BEFORE_LOGIN_MAX, BODY_BYTES_MAX, HEADER_BYTES};
use wire::response::{Push, SourceInfo, put_deliver_head};
use wire::{Frame, Header, Request, Response};

use super::errors;
use super::login::address_of;
use crate::encoded;
use crate::strangers::Stranger;

/// Maximum size of a batch that is copied after its head, so that many small batches share a chunk.
const COPY_BYTES_MAX: usize = 4 << 10;
/// Correlation id of frames that answer no request: pushes, and the final error of a stream.
const NO_CORRELATION: u32 = 0;

/// The frames of the native protocol; see `docs/reference/protocol.md`.
#[derive(Clone)]
pub(super) struct NativeProtocol {
    /// Addresses of the other doors, to which clients of other protocols are directed.
    pub(super) doors: Arc<Doors>,
    /// Memory budget of responses.
    pub(super) answers: Answers,
}

pub(super) struct Codec {
    /// Peer that sends the frames. Until its hello and its login, its frames are limited to a smaller size.
    peer: Rc<Peer>,
    /// Response to a client of another door.
    to_stranger: Option<Vec<u8>>,
}

/// Outcome of a request, as it is sent to the peer.
pub(super) enum Answer {
    Response(Response),
    /// Response with the memory that was reserved for it.
    Charged(Response, Held),
    /// Error that is sent before the stream is closed.
    LastWords(Error),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}

impl<T: Into<Answer>> From<Result<T>> for Answer {
    fn from(result: Result<T>) -> Self {
        result.map_or_else(|error| Self::Response(Response::Error(error)), Into::into)
    }
}

impl Protocol for NativeProtocol {
    type Codec = Codec;
    /// Decoded request, or the decoding error, which is answered like the error of any other request.
    type Request<'a> = Result<Request>;
    /// Request without a response: a grant of credit or a publish without acknowledgement.
    type Message<'a> = Request;
    type Response = Answer;
    /// Correlation id.
    type Tag = u32;

    const ORDER: Order = Order::Completion;

    fn codec(&self, peer: &Rc<Peer>) -> Codec {
        Codec { peer: peer.clone(), to_stranger: None }
    }

    fn decode<'a>(&self, codec: &mut Codec, input: &mut Input<'a>) -> std::result::Result<Decoded<'a, Self>, Fault> {
        let peer = &codec.peer;
        if !peer.is_known.get()
            && let Some(stranger) = Stranger::find(&self.doors, Door::Native, input.bytes(), peer.local)
        {
            codec.to_stranger = stranger.answer();
            return Err(Fault::new(FaultKind::Unsupported, stranger.words));
        }
        let Some(head) = input.bytes().first_chunk::<HEADER_BYTES>() else {
            return Ok(Decoded::More(HEADER_BYTES));
        };
        let header = Header::parse(*head).map_err(errors::to_fault)?;
        let length = header.length as usize;
        let (max, when) = match (peer.is_known.get(), peer.owes_login.get()) {
            (false, _) => (BODY_BYTES_BEFORE_HELLO_MAX, " before the hello"),
            (true, true) => (BODY_BYTES_BEFORE_LOGIN_MAX, " before the login"),
            (true, false) => (BODY_BYTES_MAX, ""),
        };
        if length > max {
            let message = format!("a frame has at most {max} bytes{when}, this one announces {length}");
            return Err(Fault::too_large(message));
        }
        if input.len() < HEADER_BYTES + length {
            return Ok(Decoded::More(HEADER_BYTES + length));
        }
        input.take_owned(HEADER_BYTES);
        let body = input.take_owned(length);
        let request = Request::decode(Frame { kind: header.kind, correlation: header.correlation, body });
        Ok(match request {
            // A peer that has not sent its hello always gets a response, at least the error that a hello is required.
            Ok(message) if peer.is_known.get() && asks_for_nothing(&message) => Decoded::Message(message),
            request => Decoded::Request(header.correlation, request),
        })
    }

    fn encode(&self, codec: &mut Codec, correlation: u32, answer: Answer, out: &mut Out) {
        match answer {
            Answer::Response(response) => {
                let at = out.buf().len();
                response.encode(correlation, out.buf());
                encoded::charge(out, at, &self.answers, address_of(&codec.peer));
            }
            Answer::Charged(response, held) => {
                let mut bytes = BytesMut::with_capacity(held.bytes());
                response.encode(correlation, &mut bytes);
                out.put_shared(held.charge(bytes));
            }
            Answer::LastWords(error) => out.put(&last_words(error)),
        }
    }

    fn encode_fault(&self, codec: &mut Codec, correlation: Option<u32>, fault: &Fault, out: &mut Out) {
        if let Some(answer) = codec.to_stranger.take() {
            return out.put(&answer);
        }
        let error = errors::of_fault(fault);
        Response::Error(error).encode(correlation.unwrap_or(NO_CORRELATION), out.buf());
    }

    fn close_code(&self, kind: net::service::FaultKind) -> u32 {
        errors::kind_of(kind).code().into()
    }
}

fn asks_for_nothing(request: &Request) -> bool {
    matches!(request, Request::Publish { acks: Acks::None, .. } | Request::Credit { .. })
}

/// Validates the whole batch that a client sent.
pub(super) fn parse_batch(batch: BytesMut) -> Result<DraftBatch> {
    DraftBatch::parse(batch)
}

pub(super) fn encode_push(push: &Push) -> Bytes {
    let mut buf = BytesMut::new();
    push.encode(&mut buf);
    buf.freeze()
}

pub(super) fn source_info(start: &SourceStart) -> SourceInfo {
    SourceInfo { topic: start.topic.to_string(), partition: start.partition, start: start.start, end: start.end }
}

/// Encodes the deliveries of one subscription. Batches larger than [`COPY_BYTES_MAX`] are shared, not copied.
pub(super) struct DeliveryEncoder {
    subscription: u32,
    /// `true` if each delivery names its topic, as only the deliveries of pattern subscriptions do.
    names_topics: bool,
    /// Tenant of the subscriber, whose prefix the topics lose.
    tenant: Option<TenantName>,
    /// Topic and partition of each source, filled on the first delivery from that source.
    sources: Vec<Option<(TopicName, PartitionId)>>,
    buf: BytesMut,
}

impl DeliveryEncoder {
    pub(super) fn new(subscription: u32, names_topics: bool, tenant: Option<TenantName>) -> Self {
        Self { subscription, names_topics, tenant, sources: Vec::new(), buf: BytesMut::new() }
    }

    /// Encodes and removes all `deliveries` and appends the bytes to `chunks`.
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
            let outer = || self.tenant.as_ref().and_then(|tenant| tenant.outer(topic.as_str()));
            let topic = if self.names_topics { outer().unwrap_or(topic.as_str()) } else { "" };
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

/// Returns the push that announces the shutdown of the broker.
/// Encodes the error with which a connection ends.
pub(super) fn last_words(error: Error) -> Bytes {
    let mut bytes = BytesMut::new();
    Response::Error(error).encode(NO_CORRELATION, &mut bytes);
    bytes.freeze()
}

pub(super) fn go_away() -> Bytes {
    encode_push(&Push::GoAway { error: shutting_down() })
}

pub(super) fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the broker is shutting down; reconnect")
}
