//! gRPC over HTTP/2: decoding of messages from bodies, and encoding of responses and failures. REST is in `rest.rs`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
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
use tokio::time::Instant;

use super::errors::{Code, Failure, Result};

/// Maximum bytes of a message: Google's limit for a publish, 10 MB, plus a margin for its envelope.
pub(super) const MESSAGE_BYTES_MAX: usize = 11 << 20;
/// Maximum bytes of a request that publishes nothing. Google's service accepts half of it.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Maximum number of top-level fields of a message. An empty field has 2 bytes, and takes a hundred once it is decoded.
const FIELDS_MAX: usize = 1 << 18;
/// Bytes before each message: its compression flag and its length.
const PREFIX_BYTES: usize = 5;
/// Maximum number of queued messages of a stream that the client has not read yet.
pub(super) const STREAM_MESSAGES_MAX: usize = 16;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns `true` if a request is a gRPC request.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Returns the client's timeout, which has at most 8 digits and a unit.
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

/// Encoded message with room for the gRPC prefix, which REST omits.
pub(super) struct Encoded {
    bytes: BytesMut,
    /// Memory permit that it holds until it is sent.
    held: Option<Held>,
}

impl Encoded {
    pub fn new(message: &impl Message) -> Self {
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
        bytes.resize(PREFIX_BYTES, 0);
        message.encode_raw(&mut bytes);
        Self { bytes, held: None }
    }

    /// Encodes a message and charges it to a permit that was acquired for it.
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

/// Messages of a body, each with a limited size.
pub(super) struct Messages<B = RequestBody> {
    body: B,
    frames: Frames,
    /// Maximum time from the first bytes of a message to its last, for a body that has no limits of its own.
    message_wait: Option<Duration>,
    /// Budget for the requests of all clients.
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

/// Received bytes of a body that were not yet taken as messages.
pub(super) struct Frames {
    has_gzip: bool,
    /// Maximum bytes of one message.
    bytes_max: usize,
    /// Invariant: at most one of the two contains bytes.
    whole: Bytes,
    partial: BytesMut,
}

impl<B: Body<Data = Bytes, Error: fmt::Display> + Unpin> Messages<B> {
    pub fn new(headers: &HeaderMap, body: B, all: Arc<Semaphore>, bytes_max: usize) -> Result<Self> {
        let has_gzip = match headers.get(ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return Err(Failure::new(Code::Unimplemented, "grpc-encoding is identity or gzip")),
        };
        Ok(Self { body, frames: Frames::new(has_gzip, bytes_max), message_wait: None, all, held: None })
    }

    /// Limits the time from the first bytes of a message to its last. The client may be silent between messages.
    pub fn within(self, message_wait: Duration) -> Self {
        Self { message_wait: Some(message_wait), ..self }
    }

    /// Returns the next message; `None` at the end of the body.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let mut until = None;
        loop {
            if let Some(message) = self.frames.take()? {
                return Ok(Some(message));
            }
            if let Some(wait) = self.message_wait.filter(|_| until.is_none() && !self.frames.is_empty()) {
                until = Some(Instant::now() + wait);
            }
            let frame = match until {
                None => self.body.frame().await,
                Some(until) => tokio::time::timeout_at(until, self.body.frame()).await.map_err(|elapsed| {
                    let message = format!("a message did not arrive in time ({elapsed})");
                    Failure::new(Code::DeadlineExceeded, message)
                })?,
            };
            let Some(frame) = frame else {
                return self.frames.end().map(|()| None);
            };
            let frame = frame.map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.hold(data.len())?;
                self.frames.push(data);
            }
        }
    }

    /// Returns the only message of a body, and its permit on the budget for requests.
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

    /// Releases the permit: a stream is charged only for bytes in flight, and not for all that it ever received.
    pub fn let_go(&mut self) {
        self.held = None;
    }
}

impl Frames {
    pub fn new(has_gzip: bool, bytes_max: usize) -> Self {
        Self { has_gzip, bytes_max, whole: Bytes::new(), partial: BytesMut::new() }
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.partial.is_empty()
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

    /// Returns the next message, if it is complete.
    pub fn take(&mut self) -> Result<Option<Bytes>> {
        let buffered: &[u8] = if self.partial.is_empty() { &self.whole } else { &self.partial };
        let Some(&[flag, a, b, c, d]) = buffered.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        if buffered.len() < PREFIX_BYTES + len {
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
            _ => Err(Failure::new(Code::Internal, "a message is compressed, but grpc-encoding is missing")),
        }
    }

    /// Checks the end of the body, which must not be within a message.
    pub fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(Failure::invalid("the request ends in the middle of a message")) }
    }
}

/// Acquires room for received bytes without waiting: the holders of permits may be waiting for their clients.
fn hold(all: &Arc<Semaphore>, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<()> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    let more = all.clone().try_acquire_many_owned(permits).map_err(|full| {
        Failure::new(Code::ResourceExhausted, format!("too many bytes of requests are in flight ({full})"))
    })?;
    match held {
        Some(held) => held.merge(more),
        none => *none = Some(more),
    }
    Ok(())
}

/// Reads a whole body. Returns it with its permit on the budget for requests.
pub(super) async fn collect(
    mut body: RequestBody,
    all: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let mut whole = BytesMut::new();
    let mut held = None;
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

/// Decodes a request from its message.
pub(super) fn decode<Q: Message + Default>(message: Bytes) -> Result<Q> {
    let invalid = |error: DecodeError| Failure::invalid(format!("the message cannot be decoded: {error}"));
    let mut rest = &message[..];
    let mut fields = 0;
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
    limited.read_to_end(&mut out).map_err(|error| Failure::invalid(format!("the message is not gzip: {error}")))?;
    if out.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(out.into()) }
}

/// Body of a response.
pub(super) enum Answer {
    /// Frames that are still to be sent: data, then trailers.
    Frames(VecDeque<Frame<Bytes>>),
    /// Messages of a stream, until it ends or fails.
    Stream(mpsc::Receiver<Result<Encoded>>),
    Ended,
}

impl Answer {
    /// Returns the number of bytes that are ready to be sent.
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

/// Returns the response to a unary call.
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

/// Builds a response; all gRPC responses have the HTTP status 200.
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

/// Encodes a string for a gRPC header: bytes that are not printable ASCII, and the percent sign, are percent-encoded.
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

    /// A client may be silent between the messages of a stream, but not within one: its bytes are taken from the budget
    /// of all clients.
    #[tokio::test(start_paused = true)]
    async fn a_message_of_a_stream_arrives_in_time_or_releases_its_bytes() {
        let (sender, receiver) = mpsc::channel::<Bytes>(1);
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
            let data = receiver.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(data)), receiver))
        });
        let all = Arc::new(Semaphore::new(1000));
        let body = http_body_util::StreamBody::new(Box::pin(frames));
        let messages = Messages::new(&HeaderMap::new(), body, all.clone(), 100).expect("messages");
        let mut messages = messages.within(Duration::from_secs(60));
        let silent = tokio::time::timeout(Duration::from_secs(3600), messages.next()).await;
        assert!(silent.is_err(), "silence between messages has no limit");
        let slowly = async {
            for part in [&[0, 0, 0, 0][..], &[2, 7], &[8, 0, 0]] {
                sender.send(Bytes::copy_from_slice(part)).await.expect("open");
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        };
        let (message, ()) = tokio::join!(messages.next(), slowly);
        assert_eq!(message, Ok(Some(Bytes::from_static(&[7, 8]))));
        messages.let_go();
        assert_eq!(all.available_permits(), 1000);
        // Two bytes of the next message have arrived.
        sender.send(Bytes::from_static(&[0])).await.expect("open");
        let failure = messages.next().await.expect_err("unfinished");
        assert_eq!(failure.code, Code::DeadlineExceeded);
        drop(messages);
        assert_eq!(all.available_permits(), 1000);
    }

    #[test]
    fn messages_of_failures_are_printable_ascii() {
        assert_eq!(percent_encoded("100% of ä\n"), "100%25 of %C3%A4%0A");
    }

    #[test]
    fn decompressed_messages_are_bounded() {
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
