//! gRPC over HTTP/2: messages out of bodies, answers and failures into them. REST has the same calls, in `rest.rs`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use broker::Held;
use bytes::{Buf, Bytes, BytesMut};
use flate2::read::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use net::http::RequestBody;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::errors::{Code, Failure, Result};

/// The bytes of one message: what the service takes in a publish, 10 MB, and a little for what is around them.
pub(super) const MESSAGE_BYTES_MAX: usize = 11 << 20;
/// The same of calls that publish nothing. The service takes half of it.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Fields of a message side by side. An empty one has 2 bytes, and is a hundred once it was read.
const FIELDS_MAX: usize = 1 << 18;
/// What is before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Messages that a client has not taken yet, on one stream.
pub(super) const STREAM_MESSAGES_MAX: usize = 16;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// How long the client waits for the answer: at most 8 digits and a unit.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let n: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

/// A message with room for the prefix before it: REST leaves that out.
pub(super) struct Encoded {
    bytes: BytesMut,
    /// The permit that it holds on its way to the client.
    held: Option<Held>,
}

impl Encoded {
    pub fn new(message: &impl Message) -> Self {
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
        bytes.resize(PREFIX_BYTES, 0);
        message.encode_raw(&mut bytes);
        Self { bytes, held: None }
    }

    /// The same, in memory that was taken for it.
    pub fn charged(message: &impl Message, held: Option<Held>) -> Self {
        let encoded = Self::new(message);
        let held = held.map(|mut held| {
            held.shrink(encoded.bytes.len());
            held
        });
        Self { held, ..encoded }
    }

    pub fn message(&self) -> &[u8] {
        &self.bytes[PREFIX_BYTES..]
    }

    fn into_frame(self) -> Bytes {
        let Self { mut bytes, held } = self;
        let len = (bytes.len() - PREFIX_BYTES) as u32;
        bytes[1..PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
        match held {
            Some(held) => held.charge(bytes),
            None => bytes.freeze(),
        }
    }
}

/// The messages of a body, each of them bounded.
pub(super) struct Messages {
    body: RequestBody,
    frames: Frames,
    /// What requests of all clients together may hold.
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

/// What came of a body and was not taken yet.
pub(super) struct Frames {
    has_gzip: bool,
    /// Of one message.
    bytes_max: usize,
    /// Invariant: at most one of the two has bytes.
    whole: Bytes,
    partial: BytesMut,
}

impl Messages {
    pub fn new(headers: &HeaderMap, body: RequestBody, all: Arc<Semaphore>, bytes_max: usize) -> Result<Self> {
        let has_gzip = match headers.get(ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return Err(Failure::new(Code::Unimplemented, "grpc-encoding is identity or gzip")),
        };
        Ok(Self { body, frames: Frames::new(has_gzip, bytes_max), all, held: None })
    }

    /// The next message; `None` at the end of the body.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(message) = self.frames.take()? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                return self.frames.end().map(|()| None);
            };
            let frame = frame.map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.hold(data.len())?;
                self.frames.push(data);
            }
        }
    }

    /// The only message of a body, and what it holds of the memory for requests.
    pub async fn only(mut self) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
        let message = self.next().await?.ok_or_else(|| Failure::new(Code::Internal, "Missing request message."))?;
        match self.next().await? {
            None => Ok((message, self.held.take())),
            Some(_) => Err(Failure::new(Code::Internal, "Too many request messages.")),
        }
    }

    fn hold(&mut self, bytes: usize) -> Result<()> {
        hold(&self.all, &mut self.held, bytes)
    }

    /// A dialogue holds what is on its way, and not all that ever came.
    pub fn let_go(&mut self) {
        self.held = None;
    }
}

impl Frames {
    pub fn new(has_gzip: bool, bytes_max: usize) -> Self {
        Self { has_gzip, bytes_max, whole: Bytes::new(), partial: BytesMut::new() }
    }

    pub fn push(&mut self, data: Bytes) {
        if self.partial.is_empty() && self.whole.is_empty() {
            self.whole = data;
            return;
        }
        if !self.whole.is_empty() {
            self.partial.extend_from_slice(&std::mem::take(&mut self.whole));
        }
        self.partial.extend_from_slice(&data);
    }

    /// The next message, if it is whole.
    pub fn take(&mut self) -> Result<Option<Bytes>> {
        let there: &[u8] = if self.partial.is_empty() { &self.whole } else { &self.partial };
        let Some(&[flag, a, b, c, d]) = there.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        if there.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        if !self.partial.is_empty() {
            self.whole = std::mem::take(&mut self.partial).freeze();
        }
        self.whole.advance(PREFIX_BYTES);
        let message = self.whole.split_to(len);
        match flag {
            0 => Ok(Some(message)),
            1 if self.has_gzip => inflate(&message, self.bytes_max).map(Some),
            _ => Err(Failure::new(Code::Internal, "a message is compressed, and grpc-encoding does not say how")),
        }
    }

    /// Nothing comes any more.
    pub fn end(&self) -> Result<()> {
        match self.whole.is_empty() && self.partial.is_empty() {
            true => Ok(()),
            false => Err(Failure::invalid("the request ends within a message")),
        }
    }
}

/// Takes room for bytes that came. Nobody waits for it: those who have some wait for their clients.
fn hold(all: &Arc<Semaphore>, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<()> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    let more = all.clone().try_acquire_many_owned(permits).map_err(|full| {
        Failure::new(Code::ResourceExhausted, format!("too many bytes of requests are on their way ({full})"))
    })?;
    match held {
        Some(held) => held.merge(more),
        none => *none = Some(more),
    }
    Ok(())
}

/// A whole body, and what it holds of the memory for requests.
pub(super) async fn collect(
    mut body: RequestBody,
    all: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let (mut whole, mut held) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            hold(all, &mut held, data.len())?;
            whole.extend_from_slice(&data);
        }
    }
    Ok((whole.freeze(), held))
}

fn too_large(bytes_max: usize) -> Failure {
    Failure::invalid(format!("Request payload size exceeds the limit: {bytes_max} bytes."))
}

/// A request out of its message.
pub(super) fn decode<Q: Message + Default>(message: Bytes) -> Result<Q> {
    let invalid = |error: DecodeError| Failure::invalid(format!("this is no message: {error}"));
    let (mut rest, mut fields) = (&message[..], 0);
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(invalid)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(invalid)?;
        fields += 1;
        if fields > FIELDS_MAX {
            return Err(Failure::invalid(format!("a message has more than {FIELDS_MAX} fields")));
        }
    }
    Q::decode(message).map_err(invalid)
}

fn inflate(message: &[u8], bytes_max: usize) -> Result<Bytes> {
    let mut out = Vec::new();
    let mut limited = GzDecoder::new(message).take(bytes_max as u64 + 1);
    limited.read_to_end(&mut out).map_err(|error| Failure::invalid(format!("a message is no gzip: {error}")))?;
    if out.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(out.into()) }
}

/// The body of an answer.
pub(super) enum Answer {
    /// What is still to be said: data, then trailers.
    Frames(VecDeque<Frame<Bytes>>),
    /// Messages as they come, until the stream ends or fails.
    Stream(mpsc::Receiver<Result<Encoded>>),
    Ended,
}

impl Answer {
    /// Bytes that are there to be sent.
    pub fn len(&self) -> usize {
        match self {
            Self::Frames(frames) => frames.iter().filter_map(Frame::data_ref).map(Bytes::len).sum(),
            Self::Stream(_) | Self::Ended => 0,
        }
    }

    pub fn of_bytes(bytes: impl Into<Bytes>) -> Self {
        Self::Frames([Frame::data(bytes.into())].into())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Frames(frames) => Poll::Ready(frames.pop_front().map(Ok)),
            Self::Stream(messages) => {
                let end = match std::task::ready!(messages.poll_recv(cx)) {
                    Some(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(message.into_frame())))),
                    Some(Err(failure)) => trailers(Err(&failure)),
                    None => trailers(Ok(())),
                };
                *self = Self::Ended;
                Poll::Ready(Some(Ok(Frame::trailers(end))))
            }
            Self::Ended => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Frames(frames) => frames.is_empty(),
            Self::Stream(_) => false,
            Self::Ended => true,
        }
    }
}

/// The answer to a call of one message.
pub(super) fn unary(answer: Result<Encoded>) -> Response<Answer> {
    match answer {
        Ok(message) => {
            let frames = [Frame::data(message.into_frame()), Frame::trailers(trailers(Ok(())))];
            respond(HeaderMap::new(), Answer::Frames(frames.into()))
        }
        Err(failure) => respond(trailers(Err(&failure)), Answer::Ended),
    }
}

pub(super) fn stream(messages: Result<mpsc::Receiver<Result<Encoded>>>) -> Response<Answer> {
    match messages {
        Ok(messages) => respond(HeaderMap::new(), Answer::Stream(messages)),
        Err(failure) => respond(trailers(Err(&failure)), Answer::Ended),
    }
}

/// Of gRPC every answer has the status 200.
fn respond(mut headers: HeaderMap, body: Answer) -> Response<Answer> {
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity,gzip"));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = headers;
    response
}

fn trailers(end: Result<(), &Failure>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(3);
    let Err(failure) = end else {
        trailers.insert(STATUS, HeaderValue::from_static("0"));
        return trailers;
    };
    trailers.insert(STATUS, HeaderValue::from(failure.code as u16));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&failure.message)) {
        trailers.insert(MESSAGE, message);
    }
    let details = failure.details().map(|details| HeaderValue::try_from(STANDARD_NO_PAD.encode(details)));
    if let Some(Ok(details)) = details {
        trailers.insert(DETAILS, details);
    }
    trailers
}

/// A text as gRPC has it in a header: bytes that are not printable ASCII, and the percent sign, by their number.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_in_every_unit() {
        let given = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(TIMEOUT, HeaderValue::from_static(text));
            timeout(&headers)
        };
        assert_eq!(given("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(given("3M"), Some(Duration::from_secs(180)));
        assert_eq!(given("4S"), Some(Duration::from_secs(4)));
        assert_eq!(given("5m"), Some(Duration::from_millis(5)));
        assert_eq!(given("6u"), Some(Duration::from_micros(6)));
        assert_eq!(given("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for bad in ["", "S", "5", "-1S", "123456789S", "1x"] {
            assert_eq!(given(bad), None, "{bad}");
        }
    }

    #[test]
    fn messages_of_failures_are_printable_ascii() {
        assert_eq!(percent_encoded("100% of ä\n"), "100%25 of %C3%A4%0A");
    }

    #[test]
    fn what_is_compressed_is_bounded_when_it_is_whole() {
        let gzip = |bytes: &[u8]| {
            let mut out = Vec::new();
            std::io::copy(&mut flate2::read::GzEncoder::new(bytes, flate2::Compression::fast()), &mut out)
                .expect("gzip");
            out
        };
        assert_eq!(inflate(&gzip(b"hello"), 5), Ok(Bytes::from_static(b"hello")));
        assert_eq!(inflate(&gzip(b"hello!"), 5), Err(too_large(5)));
        let zeros = gzip(&vec![0; MESSAGE_BYTES_MAX + 1]);
        assert_eq!(inflate(&zeros, MESSAGE_BYTES_MAX), Err(too_large(MESSAGE_BYTES_MAX)));
        assert!(inflate(b"hello", 5).is_err());
    }

    #[test]
    fn a_message_of_many_empty_fields_is_refused_before_it_is_read() {
        use super::super::proto::PublishRequest;
        let of = |fields: usize| decode::<PublishRequest>(b"\x12\0".repeat(fields).into());
        assert_eq!(of(2000).expect("a request").messages.len(), 2000);
        let refused = of(FIELDS_MAX + 1).expect_err("half a MiB, and some 30 MiB as a request");
        assert_eq!(refused, Failure::invalid("a message has more than 262144 fields"));
        assert!(decode::<PublishRequest>(Bytes::from_static(b"\x12\x05a")).is_err());
    }
}
