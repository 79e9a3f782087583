//! RESP, the protocol of Redis: requests as arrays of strings, or as lines that people type.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use broker::{Door, Doors};
use bytes::Bytes;
use net::service::{Decoded, Fault, FaultKind, Input, Order, Out, Peer, Protocol};
use smallvec::SmallVec;

use super::channels::Unconfirmed;
use super::clients::Clients;
use super::command::Command;
use super::commands;
use super::pause::Pause;
use super::scripts::Scripts;
use super::tracking::Replying;
use crate::strangers::{self, KAFKA_HEAD_BYTES, Stranger};

/// Maximum number of arguments of one request, including its name.
const ARGS_MAX: usize = 1 << 20;
/// Maximum size of one argument: the largest value, and some more, so that a slightly larger value is refused with a
/// specific error.
const ARG_BYTES_MAX: usize = engine::cache::VALUE_BYTES_MAX + 1024;
/// Maximum size of a request.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Maximum size of a request that is typed as a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a line that states a count or a length.
const LENGTH_BYTES_MAX: usize = 32;
/// Limits of requests from a client that has not logged in yet.
const UNKNOWN_ARGS_MAX: usize = 10;
const UNKNOWN_ARG_BYTES_MAX: usize = 16 << 10;
/// Minimum number of arguments for which the position in an incomplete request is remembered.
const RESUMED_ARGS: usize = 16;
/// Size of the shortest argument, an empty one: `$0\r\n\r\n`.
const SHORTEST_ARG_BYTES: usize = 6;
/// Maximum number of bytes requested before the next argument. One read then returns many short arguments, and an
/// announced count reserves no more than this.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// Words that begin lines of HTTP and name no command. Redis closes a connection that sends one, since 3.2.7:
/// otherwise, a web page that posts to this port would have the lines of its body executed as commands.
const HTTP_WORDS: [&[u8]; 2] = [b"POST", b"HOST:"];

#[derive(Clone, Default)]
pub(super) struct RedisProtocol {
    pub(super) clients: Arc<Clients>,
    pub(super) pause: Arc<Pause>,
    /// Addresses of the other doors, to which clients of other protocols are directed.
    pub(super) doors: Arc<Doors>,
    /// `true` once the warning about HTTP inside a connection was logged.
    has_warned: Arc<AtomicBool>,
    /// Scripts for which requests wait.
    pub(super) scripts: Arc<Scripts>,
}

impl RedisProtocol {
    pub(super) fn new(clients: Arc<Clients>, pause: Arc<Pause>, doors: Arc<Doors>, scripts: Arc<Scripts>) -> Self {
        Self { clients, pause, doors, has_warned: Arc::default(), scripts }
    }
}

/// Message that precedes a request which has to wait because clients are paused, or because a script runs.
#[derive(Debug)]
pub(super) struct Paused;

pub(super) struct Codec {
    peer: Rc<Peer>,
    /// Number of bytes of the incomplete request, which other connections may read.
    unread: Arc<AtomicUsize>,
    /// `true` if the next request has already waited for the pause.
    has_paused: bool,
    /// `true` until the first complete request: the client may belong to another door.
    is_new: bool,
    /// Response to a client of another door.
    to_stranger: Option<Vec<u8>>,
    /// Parser state of a long incomplete request.
    partial: Option<Box<Partial>>,
}

/// Positions of arguments, counted from the first byte of their request.
type Spans = SmallVec<[(u32, u32); 8]>;

/// State of a request that is incomplete.
#[derive(Debug, Default)]
struct Partial {
    spans: Spans,
    /// Number of arguments that are still missing.
    left: usize,
    /// Position of the next argument.
    at: usize,
}

/// Name and arguments of a request.
#[derive(Debug)]
pub(super) struct Request<'a> {
    frame: Cow<'a, [u8]>,
    spans: Spans,
}

/// Name and arguments of a request, as commands receive them.
pub(super) type Args<'a> = SmallVec<[&'a [u8]; 8]>;

/// Reply to one request.
#[derive(Debug)]
pub(super) enum Answer {
    Fixed(&'static [u8]),
    Written(Vec<u8>),
    /// Reply with the memory that was reserved for it.
    Charged(Bytes),
    /// No reply: the client does not want any, or it is sent as a push.
    Nothing,
    /// Reply after which messages may be written to the connection.
    Followed(Box<(Answer, Follow)>),
}

/// Messages that may be written once a reply is.
#[derive(Debug)]
pub(super) enum Follow {
    /// Dropping it lets the invalidations of keys follow.
    Invalidations(Replying),
    /// Dropping it lets the messages of new subscriptions follow.
    Subscribed(Unconfirmed),
}

/// Outcome of parsing the first bytes of the input.
#[derive(Debug)]
enum Parsed {
    /// A request, and its length.
    Request(Spans, usize),
    /// A typed line of this many bytes, including its line end.
    Line(usize),
    /// Number of bytes to skip, which have no meaning.
    Skip(usize),
    /// Minimum number of bytes that are needed.
    More(usize),
}

impl Request<'_> {
    /// Returns the length in bytes as sent, or without quotes if the request was typed.
    pub(super) fn len(&self) -> usize {
        self.frame.len()
    }

    pub(super) fn name(&self) -> &[u8] {
        self.spans.first().map_or(&[], |(from, until)| &self.frame[*from as usize..*until as usize])
    }

    pub(super) fn args(&self) -> Args<'_> {
        self.spans.iter().map(|(from, until)| &self.frame[*from as usize..*until as usize]).collect()
    }
}

impl Protocol for RedisProtocol {
    type Codec = Codec;
    type Request<'a> = Request<'a>;
    type Message<'a> = Paused;
    type Response = Answer;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, peer: &Rc<Peer>) -> Codec {
        Codec {
            peer: peer.clone(),
            unread: self.clients.unread(peer.id),
            has_paused: false,
            is_new: true,
            to_stranger: None,
            partial: None,
        }
    }

    fn decode<'a>(&self, codec: &mut Codec, input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        if codec.is_new
            && let Some(stranger) = self.stranger(codec, input.bytes())
        {
            codec.to_stranger = stranger.answer();
            return Err(Fault::new(FaultKind::Unsupported, stranger.words));
        }
        // No request begins like this. More bytes may show whose it is, even if these have a line end among them. A
        // client that sends no more gets no answer before the time limit for its first request.
        if codec.is_new && input.bytes().first() == Some(&0) && input.len() < KAFKA_HEAD_BYTES {
            return Ok(Decoded::More(KAFKA_HEAD_BYTES));
        }
        loop {
            let parsed = codec.parse(input.bytes())?;
            codec.is_new &= matches!(parsed, Parsed::More(_));
            match parsed {
                Parsed::Request(spans, _) if is_http_word(input.bytes(), spans.first()) => {
                    return Err(self.http_inside(codec));
                }
                Parsed::Request(spans, _) if self.holds(codec, input.bytes(), &spans) => {
                    return Ok(Decoded::Message(Paused));
                }
                Parsed::Request(spans, length) => {
                    codec.begin_request();
                    return Ok(Decoded::Request((), Request { frame: Cow::Borrowed(input.take(length)), spans }));
                }
                Parsed::Line(length) => {
                    let (frame, spans) = split_line(&input.bytes()[..length])?;
                    if is_http_word(&frame, spans.first()) || is_http_line(&frame, &spans) {
                        return Err(self.http_inside(codec));
                    }
                    if !spans.is_empty() && self.holds(codec, &frame, &spans) {
                        return Ok(Decoded::Message(Paused));
                    }
                    let _line = input.take(length);
                    if !spans.is_empty() {
                        codec.begin_request();
                        return Ok(Decoded::Request((), Request { frame: Cow::Owned(frame), spans }));
                    }
                }
                Parsed::Skip(length) => drop(input.take(length)),
                Parsed::More(wanted) => {
                    codec.unread.store(input.len(), Ordering::Relaxed);
                    return Ok(Decoded::More(wanted));
                }
            }
        }
    }

    fn encode(&self, _codec: &mut Codec, (): (), answer: Answer, out: &mut Out) {
        answer.encode(out);
    }

    fn encode_fault(&self, codec: &mut Codec, _tag: Option<()>, fault: &Fault, out: &mut Out) {
        if let Some(answer) = codec.to_stranger.take() {
            return out.put(&answer);
        }
        out.put(b"-ERR ");
        out.put(fault.message.replace(['\r', '\n'], " ").as_bytes());
        out.put(b"\r\n");
    }
}

impl RedisProtocol {
    /// Returns `true` if the request has to wait for the end of a pause or of a script. It is decoded again afterwards.
    fn holds(&self, codec: &mut Codec, bytes: &[u8], spans: &[(u32, u32)]) -> bool {
        let args = || spans.iter().map(|(from, until)| &bytes[*from as usize..*until as usize]);
        let command = || args().next().and_then(commands::find);
        let is_write = || command().is_some_and(Command::waits_with_writes);
        let tenant = || self.clients.get(codec.peer.id).and_then(|client| client.about.lock().tenant.clone());
        let waits_for_script =
            || command().is_some_and(|command| self.scripts.holds(command, &args().collect::<Args<'_>>(), tenant));
        let is_held =
            !codec.has_paused && (self.pause.holds(is_write) || self.scripts.may_hold() && waits_for_script());
        codec.has_paused |= is_held;
        is_held
    }

    /// Closes a connection that sends HTTP after its first request, without a reply, as Redis does.
    fn http_inside(&self, codec: &mut Codec) -> Fault {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                peer = ?codec.peer.address,
                "closed a Redis connection that sent a line of HTTP to the Redis door. A web page or another program \
                 may be trying to run commands through HTTP. This is logged once"
            );
        }
        codec.to_stranger = Some(Vec::new());
        Fault::new(FaultKind::Unsupported, "an HTTP request is not a command: this door does not serve HTTP")
    }

    /// Returns the stranger if the bytes belong to another door. An HTTP request is a line too, and `GET` is a command:
    /// only the HTTP version at the end of the line distinguishes them.
    fn stranger(&self, codec: &Codec, bytes: &[u8]) -> Option<Stranger> {
        let is_http = || {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                return false;
            };
            let line = bytes[..end].trim_ascii_end();
            line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") || line.ends_with(b" HTTP/2.0")
        };
        if bytes.first() != Some(&0) && !(strangers::begins_with_method(bytes) && is_http()) {
            return None;
        }
        Stranger::find(&self.doors, Door::Redis, bytes, codec.peer.local)
    }
}

impl Answer {
    fn encode(self, out: &mut Out) {
        match self {
            Self::Fixed(bytes) => out.put(bytes),
            Self::Written(bytes) => out.put_vec(bytes),
            Self::Charged(bytes) => out.put_shared(bytes),
            Self::Nothing => {}
            Self::Followed(followed) => {
                let (answer, follow) = *followed;
                answer.encode(out);
                drop(follow);
            }
        }
    }

    /// Returns the reply after which messages may be written.
    pub(super) fn before(self, follow: Follow) -> Self {
        Self::Followed(Box::new((self, follow)))
    }

    /// Returns the line of the error, if the reply is an error.
    pub(super) fn error(&self) -> Option<&[u8]> {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Written(bytes) => bytes.as_slice(),
            Self::Charged(bytes) => bytes,
            Self::Nothing => return None,
            Self::Followed(followed) => return followed.0.error(),
        };
        (bytes.first() == Some(&b'-')).then_some(bytes)
    }
}

impl Codec {
    /// Resets the state of the incomplete request.
    fn begin_request(&mut self) {
        self.has_paused = false;
        self.unread.store(0, Ordering::Relaxed);
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Parsed, Fault> {
        if let Some(partial) = self.partial.take() {
            return self.parse_args(bytes, *partial);
        }
        match bytes {
            [] => Ok(Parsed::More(1)),
            [b'*', rest @ ..] => {
                let Some((count, length)) = number(rest, "invalid multibulk length", "too big mbulk count string")?
                else {
                    return Ok(Parsed::More(bytes.len() + 1));
                };
                let count = match usize::try_from(count) {
                    Ok(0) | Err(_) => return Ok(Parsed::Skip(1 + length)),
                    Ok(count) if count > ARGS_MAX => return Err(protocol_error("invalid multibulk length")),
                    Ok(count) if count > UNKNOWN_ARGS_MAX && !self.peer.is_known.get() => {
                        return Err(protocol_error("unauthenticated multibulk length"));
                    }
                    Ok(count) => count,
                };
                self.parse_args(bytes, Partial { spans: Spans::new(), left: count, at: 1 + length })
            }
            _ => match bytes.iter().position(|byte| *byte == b'\n') {
                Some(at) if at <= LINE_BYTES_MAX => Ok(Parsed::Line(at + 1)),
                None if bytes.len() <= LINE_BYTES_MAX => Ok(Parsed::More(bytes.len() + 1)),
                _ => Err(protocol_error("too big inline request")),
            },
        }
    }

    fn parse_args(&mut self, bytes: &[u8], mut partial: Partial) -> Result<Parsed, Fault> {
        let wanted = loop {
            if partial.left == 0 {
                return Ok(Parsed::Request(partial.spans, partial.at));
            }
            match bytes.get(partial.at) {
                None => break partial.at + 1,
                Some(b'$') => {}
                Some(other) => {
                    let other = char::from(*other).escape_default();
                    return Err(protocol_error(&format!("expected '$', got '{other}'")));
                }
            }
            let rest = &bytes[partial.at + 1..];
            let Some((length, taken)) = number(rest, "invalid bulk length", "too big bulk count string")? else {
                break bytes.len() + 1;
            };
            let Some(length) = usize::try_from(length).ok().filter(|length| *length <= ARG_BYTES_MAX) else {
                let max = engine::cache::VALUE_BYTES_MAX;
                return Err(protocol_error(&format!("invalid bulk length, a value has at most {max} bytes")));
            };
            if length > UNKNOWN_ARG_BYTES_MAX && !self.peer.is_known.get() {
                return Err(protocol_error("unauthenticated bulk length"));
            }
            let from = partial.at + 1 + taken;
            let end = from + length + 2;
            if end > REQUEST_BYTES_MAX {
                return Err(protocol_error(&format!("a request has at most {REQUEST_BYTES_MAX} bytes")));
            }
            if end > bytes.len() {
                break end;
            }
            partial.spans.push((from as u32, (from + length) as u32));
            partial.left -= 1;
            partial.at = end;
        };
        let partial_at = partial.at;
        let left = partial.left;
        if partial.spans.len() >= RESUMED_ARGS {
            self.partial = Some(Box::new(partial));
        }
        // Each missing argument needs at least these bytes, so the codec never waits for more than the request has.
        let least = partial_at + left * SHORTEST_ARG_BYTES;
        Ok(Parsed::More(wanted.max(least.min(bytes.len() + AHEAD_BYTES_MAX))))
    }
}

fn is_http_word(frame: &[u8], name: Option<&(u32, u32)>) -> bool {
    let name = name.and_then(|(from, until)| frame.get(*from as usize..*until as usize));
    name.is_some_and(|name| HTTP_WORDS.iter().any(|word| name.eq_ignore_ascii_case(word)))
}

/// Returns `true` if a line is the first line of an HTTP request with any method: `PUT / HTTP/1.1`. A line that begins
/// with the name of a Redis command is not one, except for `GET`, which is followed by one argument in Redis.
fn is_http_line(frame: &[u8], spans: &Spans) -> bool {
    let word = |at: usize| spans.get(at).and_then(|(from, until)| frame.get(*from as usize..*until as usize));
    let (Some(method), Some(version), 3) = (word(0), word(2), spans.len()) else {
        return false;
    };
    let is_version = version.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case(b"HTTP/"));
    is_version && (method.eq_ignore_ascii_case(b"GET") || commands::find(method).is_none())
}

/// Parses a number and the end of its line. Returns the number and the total length; `None` if the line is incomplete.
fn number(bytes: &[u8], wrong: &str, too_long: &str) -> Result<Option<(i64, usize)>, Fault> {
    // Nearly all numbers are small.
    match bytes {
        [digit @ b'0'..=b'9', b'\r', _, ..] => return Ok(Some((i64::from(digit - b'0'), 3))),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] => {
            return Ok(Some((i64::from(ten - b'0') * 10 + i64::from(one - b'0'), 4)));
        }
        _ => {}
    }
    let Some(end) = bytes.iter().take(LENGTH_BYTES_MAX).position(|byte| *byte == b'\r') else {
        return if bytes.len() < LENGTH_BYTES_MAX { Ok(None) } else { Err(protocol_error(too_long)) };
    };
    if bytes.len() < end + 2 {
        return Ok(None);
    }
    match engine::cache::parse_number(&bytes[..end]) {
        Some(number) => Ok(Some((number, end + 2))),
        None => Err(protocol_error(wrong)),
    }
}

fn protocol_error(what: &str) -> Fault {
    Fault::malformed(format!("Protocol error: {what}"))
}

/// Splits a line into words as a shell does: quoted words may contain spaces, and double-quoted ones escapes.
pub(super) fn split_line(line: &[u8]) -> Result<(Vec<u8>, Spans), Fault> {
    let mut words = Vec::new();
    let mut spans = Spans::new();
    let mut rest = line.trim_ascii();
    while !rest.is_empty() {
        let from = words.len();
        rest = take_word(rest, &mut words).ok_or_else(|| protocol_error("unbalanced quotes in request"))?.trim_ascii();
        spans.push((from as u32, words.len() as u32));
    }
    Ok((words, spans))
}

/// Takes one word and returns the rest of the line; `None` if the quotes do not match.
fn take_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return Some(rest),
            [space, ..] if space.is_ascii_whitespace() || *space == 0 => return Some(&rest[1..]),
            [quote @ (b'"' | b'\''), inner @ ..] => {
                let after = take_quoted(*quote, inner, word)?;
                // Only a space may follow the closing quote.
                match after {
                    [next, ..] if !next.is_ascii_whitespace() => return None,
                    after => return Some(after),
                }
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        };
    }
}

fn take_quoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (byte, after) = match rest {
            [] => return None,
            [end, after @ ..] if *end == quote => return Some(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => (b'\'', after),
            [b'\\', b'x', high, low, after @ ..] if quote == b'"' && is_hex(*high) && is_hex(*low) => {
                (hex(*high) << 4 | hex(*low), after)
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                let byte = match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (byte, after)
            }
            [byte, after @ ..] => (*byte, after),
        };
        word.push(byte);
        rest = after;
    }
}

fn is_hex(digit: u8) -> bool {
    digit.is_ascii_hexdigit()
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or_default() as u8
}

/// Decodes bytes as a connection would, in pieces of `piece` bytes. Returns the requests, and `true` if they end with
/// an error. For fuzzing.
pub fn check_requests(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, bool) {
    let peer = peer(bytes.first().is_none_or(|first| first % 2 == 0));
    let protocol = RedisProtocol::default();
    let mut codec = protocol.codec(&peer);
    let mut requests = Vec::new();
    let mut from = 0;
    let mut until = 0;
    loop {
        let mut input = Input::new(&bytes[from..until]);
        let decoded = protocol.decode(&mut codec, &mut input);
        let taken = until - from - input.len();
        match decoded {
            Ok(Decoded::Request((), request)) => {
                requests.push(request.args().iter().map(|arg| arg.to_vec()).collect());
            }
            Ok(Decoded::More(wanted)) => {
                assert!(wanted > until - from - taken, "it has what it wants");
                if until == bytes.len() {
                    return (requests, false);
                }
                until = (until + piece.max(1)).min(bytes.len());
            }
            Ok(_) => unreachable!("invariant: requests are whole"),
            Err(_) => return (requests, true),
        }
        from += taken;
    }
}

/// Returns a peer without a transport, for checks.
fn peer(is_known: bool) -> Rc<Peer> {
    Rc::new(Peer {
        id: 0,
        entry: Arc::new(net::OpenConnection::new(None)),
        transport: net::service::Transport::Pipe,
        address: None,
        local: None,
        worker: 0,
        certificates: Vec::new(),
        process: None,
        quic: None,
        is_known: std::cell::Cell::new(is_known),
        owes_login: std::cell::Cell::new(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, bool) {
        let whole = check_requests(bytes, usize::MAX >> 1);
        for piece in [1, 2, 3, 7] {
            assert_eq!(check_requests(bytes, piece), whole, "in pieces of {piece}: {}", bytes.escape_ascii());
        }
        whole
    }

    fn words(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn requests_are_arrays_or_lines() {
        let (found, is_error) =
            requests(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n\r\n*0\r\n*-1\r\n  set  a 'b c' \"\\x41\\n\"\n");
        assert!(!is_error);
        assert_eq!(found, [words(&["GET", "k"]), words(&["PING"]), words(&["set", "a", "b c", "A\n"])]);
        let long: Vec<u8> = [b"*40\r\n".to_vec(), b"$2\r\nab\r\n".repeat(40)].concat();
        assert_eq!(requests(&long), (vec![words(&["ab"; 40])], false));
    }

    /// `securityWarningCommand` of Redis (src/networking.c) closes on `POST` and `Host:`, in lines and in arrays.
    #[test]
    fn lines_of_http_end_the_connection_before_the_commands_after_them() {
        let heads: [&[u8]; 4] = [b"POST /\r\n", b"host: 127.0.0.1:6379\r\n", b"*1\r\n$4\r\npost\r\n", b"Host:\r\n"];
        for head in heads {
            let (found, is_error) = requests(&[b"PING\r\n", head, b"FLUSHALL\r\n"].concat());
            assert!(is_error, "{}", head.escape_ascii());
            assert_eq!(found, [words(&["PING"])], "{}", head.escape_ascii());
        }
        // The first line is recognized with any method, also if no header follows that would be recognized.
        let lines: [&[u8]; 6] = [
            b"PUT / HTTP/1.1\r\n",
            b"delete /a?b HTTP/1.0\r\n",
            b"get / http/1.1\r\n",
            b"BREW pot HTTP/1.1\n",
            b"OPTIONS * HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n",
        ];
        for line in lines {
            for before in [&b"PING\r\n"[..], b""] {
                let (found, is_error) = requests(&[before, line, b"FLUSHALL\r\n"].concat());
                assert!(is_error, "{}", line.escape_ascii());
                assert_eq!(found.len(), usize::from(!before.is_empty()), "{}", line.escape_ascii());
            }
        }
        assert!(!requests(b"SET version HTTP/1.1\r\n").1);
        // Only the name of a command matters.
        assert!(!requests(b"*2\r\n$4\r\nECHO\r\n$4\r\nPOST\r\n").1);
    }

    /// Inputs that a fuzzer found: in pieces, the first line end came before the client was recognized.
    #[test]
    fn a_client_of_another_door_is_recognized_in_any_pieces() {
        let found: [&[u8]; 4] = [
            b"\0\0\0\n\0\0\0\0\0\xb7 y\x02\x8d\x9e\x9bd' e",
            b"\0\x02\x01\x01\0\0\0\0\0\0\n\r\0\0s=\0",
            b"\0\0\n\0\0\0\0\0\0\0\0\0\0\0iytfloa\0\0\0\0\0\0\0\0\0\0\x07\0sadd s a b 1\nsadd t b\nsint*6\r\n\
              $13\r\nSET\x0ce\0",
            b"\0\0B\xf6\0\n\0\0\0\0\0\0\0\0\0\xdb\xc9\r\n0\r2\0\0",
        ];
        for bytes in found {
            assert_eq!(requests(bytes), (vec![], true), "{}", bytes.escape_ascii());
        }
        // Too short to be recognized, and no request of Redis.
        assert_eq!(requests(b"\0\0\0\nPING\n"), (vec![], false));
        assert_eq!(requests(b"GET / HTTP/1.1"), (vec![], false));
        assert_eq!(requests(b"GET / HTTP/1.11\r\n"), (vec![], true));
    }

    #[test]
    fn many_short_arguments_cost_few_reads() {
        let request: Vec<u8> = [b"*50000\r\n".to_vec(), b"$20\r\nabcdefghijabcdefghij\r\n".repeat(50_000)].concat();
        let peer = peer(true);
        let protocol = RedisProtocol::default();
        let mut codec = protocol.codec(&peer);
        let mut until = 1;
        let mut reads = 0;
        loop {
            reads += 1;
            match protocol.decode(&mut codec, &mut Input::new(&request[..until])).expect("well formed") {
                Decoded::More(wanted) => {
                    assert!(wanted > until && wanted <= request.len(), "{wanted} bytes after {until}");
                    assert!(wanted <= until + AHEAD_BYTES_MAX + 1, "an announcement reserves too much");
                    until = wanted;
                }
                Decoded::Request((), request) => {
                    assert_eq!(request.args().len(), 50_000);
                    break;
                }
                _ => panic!("neither a request nor a part of one"),
            }
        }
        assert!(reads < 200, "{reads} reads for 50,000 arguments");
    }

    #[test]
    fn an_invalid_request_ends_the_connection() {
        let wrong: [&[u8]; 9] = [
            b"*x\r\n",
            b"*2000000\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$536870912\r\n",
            b"*1\r\n$9999999999999999999\r\n",
            b"get 'a\r\n",
            b"get 'a'b\r\n",
            b"*00000000000000000000000000000000001\r\n",
        ];
        for bytes in wrong {
            let (found, is_error) = requests(bytes);
            assert!(is_error && found.is_empty(), "{}", bytes.escape_ascii());
        }
        // A client that has not logged in may send less.
        assert!(!requests(b"*11\r\n").1 || b'*' % 2 == 1);
        assert!(requests(&[b'g'; LINE_BYTES_MAX + 2]).1);
    }
}
