//! Decoder of frames into requests and encoder of responses into frames (<https://kafka.apache.org/protocol>).
//!
//! A frame is a length `n` (4 bytes) followed by `n` bytes. A request begins with its API key, the version of the API,
//! a correlation id and the client's name; a response begins with the correlation id. Responses are sent in the order
//! of their requests.

use std::rc::Rc;
use std::sync::Arc;

use broker::{Answers, Door, Doors};
use bytes::{BufMut, BytesMut};
use engine::{Acks, Result};
use net::service::{Decoded, Fault, FaultKind, Input, Order, Out, Peer, Protocol};

use super::errors::{self, Code};
use super::fetch::{FetchAnswer, FetchRequest};
use super::messages::api_versions::{ApiVersion, ApiVersionsResponse};
use super::messages::{self, APIS, Api, Message, Reader, Request, Response};
use super::parse::Fields;
use super::produce::{ProduceRequest, Produced};
use super::share::ShareFetched;
use crate::encoded;
use crate::strangers::Stranger;

/// Maximum size of a request; Kafka's default (`socket.request.max.bytes`).
pub(super) const FRAME_BYTES_MAX: usize = 100 << 20;
/// Maximum size of a request before the login, if one is required.
const FRAME_BYTES_BEFORE_LOGIN_MAX: usize = 64 << 10;
/// Size of the length at the beginning of a frame.
pub(super) const LENGTH_BYTES: usize = 4;
/// Minimum size of a frame: key, version, correlation id and the length of a name.
const HEADER_BYTES_MIN: usize = 10;
/// Keys of the APIs that are not handled by the table of APIs alone.
pub(super) const PRODUCE: i16 = 0;
pub(super) const FETCH: i16 = 1;
const API_VERSIONS: i16 = 18;

/// Protocol of Kafka's clients.
#[derive(Clone)]
pub(super) struct KafkaProtocol {
    /// Addresses of the other doors, to which clients of other protocols are redirected.
    pub(super) doors: Arc<Doors>,
    /// Memory budget of responses.
    pub(super) answers: Answers,
}

pub(super) struct Codec {
    /// Peer of the connection; frames of a peer that has not logged in have a lower limit.
    peer: Rc<Peer>,
    /// `true` until the first complete request: the peer may be a client of another door.
    is_new: bool,
    /// Response to a client of another door.
    to_stranger: Option<Vec<u8>>,
}

/// Fields of a request that its response needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticket {
    pub correlation: i32,
    pub key: i16,
    pub version: i16,
}

/// Request with its header.
#[derive(Debug)]
pub(super) struct Call {
    pub ticket: Ticket,
    /// Name that the client sends in the header.
    pub client: String,
    pub body: Body,
}

/// Records for which no acknowledgement is requested.
pub(super) struct OneWay {
    /// Name that the client sends in the header.
    pub client: String,
    pub request: ProduceRequest,
}

#[derive(Debug)]
pub(super) enum Body {
    Produce(ProduceRequest),
    Fetch(FetchRequest),
    Control(Request),
    /// `ApiVersions` in a newer version than this broker serves: the client retries with an older one.
    NewerApiVersions,
}

/// Response to a client.
#[derive(Debug)]
pub(super) enum Answer {
    Produced(Produced),
    Fetched(FetchAnswer),
    Shared(ShareFetched),
    Control(Response),
    /// Supported versions, in the format that every client understands.
    Versions(ApiVersionsResponse),
    /// No response: the connection is closed.
    Silence,
}

impl Protocol for KafkaProtocol {
    type Codec = Codec;
    type Request<'a> = Call;
    type Message<'a> = OneWay;
    type Response = Answer;
    type Tag = Ticket;

    const ORDER: Order = Order::Request;

    fn codec(&self, peer: &Rc<Peer>) -> Codec {
        Codec { peer: peer.clone(), is_new: true, to_stranger: None }
    }

    fn decode<'a>(&self, codec: &mut Codec, input: &mut Input<'a>) -> std::result::Result<Decoded<'a, Self>, Fault> {
        let peer = &codec.peer;
        if codec.is_new
            && let Some(stranger) = Stranger::find(&self.doors, Door::Kafka, input.bytes(), peer.local)
        {
            codec.to_stranger = stranger.answer();
            return Err(Fault::new(FaultKind::Unsupported, stranger.words));
        }
        let Some(length) = input.bytes().first_chunk::<LENGTH_BYTES>() else {
            return Ok(Decoded::More(LENGTH_BYTES));
        };
        let length = i32::from_be_bytes(*length);
        let max = if peer.is_known.get() { FRAME_BYTES_MAX } else { FRAME_BYTES_BEFORE_LOGIN_MAX };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > max {
            return Err(Fault::too_large(format!("a request has at most {max} bytes, this one announces {length}")));
        }
        if length < HEADER_BYTES_MIN {
            return Err(Fault::malformed(format!("a request of {length} bytes is shorter than its header")));
        }
        if input.len() < LENGTH_BYTES + length {
            return Ok(Decoded::More(LENGTH_BYTES + length));
        }
        codec.is_new = false;
        input.take_owned(LENGTH_BYTES);
        let call = Call::parse(input.take_owned(length)).map_err(errors::to_fault)?;
        Ok(match call.body {
            Body::Produce(request) if request.acks == Some(Acks::None) => {
                Decoded::Message(OneWay { client: call.client, request })
            }
            _ => Decoded::Request(call.ticket, call),
        })
    }

    fn encode(&self, codec: &mut Codec, ticket: Ticket, answer: Answer, out: &mut Out) {
        if matches!(answer, Answer::Silence) {
            return;
        }
        let begin = out.len();
        let at = out.buf().len();
        let mut is_charged = false;
        out.buf().put_i32(0);
        out.buf().put_i32(ticket.correlation);
        if messages::response_header_is_flexible(ticket.key, ticket.version) {
            out.buf().put_u8(0);
        }
        match answer {
            Answer::Produced(produced) => produced.encode(ticket.version, out.buf()),
            Answer::Fetched(fetched) => fetched.encode(ticket.version, out),
            Answer::Shared(fetched) => fetched.encode(out),
            Answer::Control(response) => {
                response.encode(ticket.version, out.buf());
                is_charged = true;
            }
            Answer::Versions(versions) => versions.encode(0, out.buf()),
            Answer::Silence => {}
        }
        let length = (out.len() - begin - LENGTH_BYTES) as i32;
        out.buf()[at..at + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        if is_charged {
            encoded::charge(out, at, &self.answers, codec.peer.address.map(|at| at.ip()));
        }
    }

    /// Logs the fault. The protocol has no message for a fault of a connection.
    fn encode_fault(&self, codec: &mut Codec, ticket: Option<Ticket>, fault: &Fault, out: &mut Out) {
        let peer = &codec.peer;
        let (key, version) = ticket.map_or((-1, -1), |ticket| (ticket.key, ticket.version));
        tracing::warn!(%peer, key, version, %fault, "closed a Kafka connection");
        if let Some(answer) = codec.to_stranger.take() {
            out.put(&answer);
        }
    }
}

/// Parses one request, without its length, as the door does; entry point for fuzzing.
pub fn check_request(frame: BytesMut) -> Result<()> {
    Call::parse(frame).map(drop)
}

impl Call {
    fn parse(frame: BytesMut) -> Result<Self> {
        let mut fields = Fields::new(&frame, 0, false);
        let key = fields.i16()?;
        let version = fields.i16()?;
        let correlation = fields.i32()?;
        let ticket = Ticket { correlation, key, version };
        let api = match messages::served(key, version) {
            Ok(api) => api,
            Err(_) if key == API_VERSIONS => {
                return Ok(Self { ticket, client: String::new(), body: Body::NewerApiVersions });
            }
            Err(error) => return Err(error),
        };
        // The name is a string in the old format in all versions.
        let client = fields.nullable_string()?.unwrap_or_default().to_owned();
        fields.is_flexible = api.is_flexible(version);
        fields.tags()?;
        let at = fields.at();
        let body = Body::parse(api, version, frame, at)?;
        Ok(Self { ticket, client, body })
    }
}

impl Body {
    fn parse(api: &Api, version: i16, frame: BytesMut, at: usize) -> Result<Self> {
        let in_message = |error| messages::in_message(api, version, error);
        match api.key {
            PRODUCE => ProduceRequest::parse(frame, at, version).map(Self::Produce).map_err(in_message),
            FETCH => FetchRequest::parse(&frame, at, version).map(Self::Fetch).map_err(in_message),
            key => Request::decode(key, version, &mut Reader::new(frame.freeze().slice(at..))).map(Self::Control),
        }
    }
}

/// Returns the body of an `ApiVersions` response: the supported versions, with a code that is an error if the client
/// has to retry with an older version.
pub(super) fn versions(code: Code) -> ApiVersionsResponse {
    let api_keys = APIS.iter().map(|api| ApiVersion {
        api_key: api.key,
        min_version: api.version_min,
        max_version: api.version_max,
    });
    ApiVersionsResponse { error_code: code.0, api_keys: api_keys.collect(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Produce and Fetch in their first and their last version, with one partition of the topic `t`.
    const WHOLE: [&[u8]; 4] = [
        b"\0\0\0\x03\0\0\0\x07\xff\xff\xff\xff\xff\xff\0\0\x03\xe8\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0\0\0\0\x02hi",
        b"\0\0\0\x0c\0\0\0\x07\0\x01c\0\0\xff\xff\0\0\x03\xe8\x02\x02t\x02\0\0\0\0\x03hi\x01\0\x01x\0\0",
        b"\0\x01\0\x04\0\0\0\x07\xff\xff\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\x04\0\x01\0\0\0\x01\0\x01t\0\0\0\x01\
          \0\0\0\0\0\0\0\0\0\0\0\x05\0\0\x04\0",
        b"\0\x01\0\x0c\0\0\0\x07\xff\xff\0\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\x04\0\x01\0\0\0\0\xff\xff\xff\xff\
          \x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\x05\xff\xff\xff\xff\0\0\0\0\0\0\0\0\
          \0\0\x04\0\0\0\x01\x01\0",
    ];

    #[test]
    fn batches_and_places_are_found() {
        for frame in WHOLE {
            let call = Call::parse(BytesMut::from(frame)).expect("a request");
            assert_eq!(call.ticket.correlation, 7);
            match call.body {
                Body::Produce(produce) => {
                    let topic = &produce.topics[0];
                    assert_eq!((topic.name.as_str(), &topic.partitions[0].1[..]), ("t", &b"hi"[..]));
                    assert_eq!(produce.acks, Some(Acks::Committed));
                }
                Body::Fetch(fetch) => {
                    let (name, partitions) = &fetch.topics[0];
                    assert_eq!((name.as_str(), partitions[0].offset, partitions[0].bytes_max), ("t", 5, 1024));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A parsed element takes about fifty times as much memory as its bytes.
    #[test]
    fn more_elements_than_a_message_may_have_are_refused() {
        let wanted = |count: usize, head: &[u8], element: &[u8]| {
            let count = (count as u32).to_be_bytes();
            [head, &count, &element.repeat(u32::from_be_bytes(count) as usize)].concat()
        };
        // Topics without a partition.
        for (head, element) in [
            (&b"\0\0\0\x03\0\0\0\x07\xff\xff\xff\xff\xff\xff\0\0\x03\xe8"[..], &b"\0\0\0\0\0\0"[..]),
            (
                &b"\0\x01\0\x04\0\0\0\x07\xff\xff\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\x04\0\x01"[..],
                &b"\0\0\0\0\0\0"[..],
            ),
        ] {
            let max = messages::ELEMENTS_MAX;
            check_request(BytesMut::from(&wanted(max, head, element)[..])).expect("as many as there may be");
            let refused = check_request(BytesMut::from(&wanted(max + 1, head, element)[..])).expect_err("one too many");
            assert!(refused.message.contains("have at most"), "{refused}");
        }
    }

    #[test]
    fn a_text_that_is_too_long_to_be_answered_is_cut() {
        let mut out = BytesMut::new();
        crate::kafka::write::Write::new(&mut out, false).string(&"\u{e4}".repeat(40_000));
        assert_eq!((out.len(), &out[..2]), (2 + 32_766, &32_766i16.to_be_bytes()[..]));
    }

    #[test]
    fn every_beginning_is_refused() {
        for frame in WHOLE {
            for length in 0..frame.len() {
                let refused = check_request(BytesMut::from(&frame[..length]));
                assert!(refused.is_err(), "{length} bytes of {frame:?}");
            }
        }
    }
}
