//! Clients that speak the protocol of another door: how they are recognized and answered.
//!
//! A stranger gets a response in its own protocol if that can express an error (HTTP, Redis, native), otherwise in the
//! protocol of the door. The Redis door answers HTTP in its own protocol, as Redis does.

use std::net::SocketAddr;
use std::sync::Arc;

use broker::{Door, Doors, Family};
use bytes::BytesMut;
use engine::limits::BATCH_BYTES_MAX;
use engine::{Error, ErrorKind};
use net::http::FirstBytes;
use wire::frame::{BODY_BYTES_BEFORE_HELLO_MAX, HEADER_BYTES};
use wire::{Header, Response};

/// Words that begin an HTTP request; `PRI` begins the preface of HTTP/2.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PRI"];
/// Commands that people and tools usually send first on a connection to Redis.
const INLINE: [&str; 8] = ["PING", "AUTH", "HELLO", "INFO", "COMMAND", "SELECT", "CLIENT", "QUIT"];
/// Beginnings of the paths that only the HTTP door has.
const HTTP_PATHS: [&str; 13] = [
    "/v1/topics",
    "/v1/queues",
    "/v1/caches",
    "/v1/groups",
    "/v1/connections",
    "/v1/users",
    "/v1/roles",
    "/v1/tokens",
    "/v1/acls",
    "/v1/audit",
    "/v1/cluster",
    "/v1/mesh",
    "/v1/openapi.json",
];
/// Bytes that identify a Kafka request: length, key, version, correlation id and the length of the client id.
pub(crate) const KAFKA_HEAD_BYTES: usize = 14;
/// Exclusive upper bounds of the keys and versions of Kafka requests. Kafka 4.1 has 93 keys, and versions up to 18.
const KAFKA_KEYS: i16 = 128;
const KAFKA_VERSIONS: i16 = 32;
/// Maximum size of a first Kafka request that is recognized. First requests of Kafka clients have some dozens of bytes.
const KAFKA_BYTES_MAX: i32 = BATCH_BYTES_MAX as i32;
const KAFKA_NAME_BYTES_MAX: i16 = 1024;

/// A client that connected to the wrong door.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stranger {
    here: Door,
    /// Door for the protocol of the client.
    wanted: Door,
    /// Error message, which includes the address of the right door.
    pub words: String,
}

impl Stranger {
    /// Returns the stranger if a connection to `here` that begins with these bytes is for another door. `local` is the
    /// local address of the connection.
    pub(crate) fn find(doors: &Doors, here: Door, first: &[u8], local: Option<SocketAddr>) -> Option<Self> {
        Self::new(doors, here, door_of(first)?, local)
    }

    /// Returns the stranger if an HTTP request to `here` is for another door.
    pub(crate) fn find_request(doors: &Doors, here: Door, head: &hyper::http::request::Parts) -> Option<Self> {
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let wanted = door_of_request(&Asked {
            path: head.uri.path(),
            query,
            target: header("x-amz-target"),
            authorization: header("authorization"),
            content_type: header("content-type"),
        });
        Self::new(doors, here, wanted?, None)
    }

    fn new(doors: &Doors, here: Door, wanted: Door, local: Option<SocketAddr>) -> Option<Self> {
        if wanted == here {
            return None;
        }
        let spoken = wanted.protocol();
        let way = match doors.address(wanted) {
            Some(address) => format!("the {wanted} door is at {}", shown(wanted, address, local)),
            None => format!("the {wanted} door is closed: start the broker with --{} HOST:PORT", wanted.key()),
        };
        let words = format!("this is the {here} door and the client speaks {spoken}; {way}");
        tracing::warn!("a client at the wrong door: {words}");
        Some(Self { here, wanted, words })
    }

    /// Returns the response, after which the connection is closed; `None` if neither protocol can express the error, or
    /// if the door has to encode it.
    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        match (self.wanted.family(), self.here.family()) {
            (Family::Native, _) | (Family::Kafka, Family::Native) => Some(native_error(&self.words)),
            (Family::Resp, _) | (_, Family::Resp) => Some(format!("-ERR {}\r\n", self.words).into_bytes()),
            (Family::Http, Family::Native | Family::Kafka) | (Family::Kafka, Family::Http) => {
                Some(http_error(&self.words))
            }
            (Family::Kafka, Family::Kafka) | (Family::Http, Family::Http) => None,
        }
    }
}

impl Stranger {
    /// Returns the response of a door that speaks HTTP to a client of Amazon SQS, in the only form whose message its
    /// SDKs show; `None` for other clients.
    pub(crate) fn answer_to_sqs(&self) -> Option<Vec<u8>> {
        let body = serde_json::json!({ "__type": "com.amazonaws.sqs#InvalidAddress", "message": self.words });
        (self.wanted == Door::Sqs).then(|| body.to_string().into_bytes())
    }
}

/// Returns the check of the first bytes of a connection, which runs before the connection is read as HTTP.
pub(crate) fn at_http_door(doors: Arc<Doors>, here: Door) -> FirstBytes {
    FirstBytes::new(move |first| {
        let wanted = door_of(first).filter(|wanted| wanted.family() != Family::Http)?;
        Stranger::new(&doors, here, wanted, None)?.answer()
    })
}

/// Formats an address as users of that door write it.
fn shown(door: Door, address: SocketAddr, local: Option<SocketAddr>) -> String {
    let address = match (address.ip().is_unspecified(), local) {
        (true, Some(local)) => SocketAddr::new(local.ip(), address.port()),
        (true, None) => return format!("port {} of this machine", address.port()),
        (false, _) => address,
    };
    match door.scheme() {
        Some(scheme) => format!("{scheme}://{address}"),
        None => address.to_string(),
    }
}

fn http_error(words: &str) -> Vec<u8> {
    let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{words}\n", words.len() + 1).into_bytes()
}

fn native_error(words: &str) -> Vec<u8> {
    let mut buf = BytesMut::new();
    Response::Error(Error::new(ErrorKind::Unsupported, words.to_owned())).encode(0, &mut buf);
    buf.to_vec()
}

/// Returns `true` if the bytes may begin an HTTP request: a known method in upper case and a space.
#[cfg(feature = "redis")]
pub(crate) fn begins_with_method(first: &[u8]) -> bool {
    METHODS.iter().any(|method| first.strip_prefix(method.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' ')))
}

/// Returns the door for a connection that begins with these bytes; `None` if they do not identify a protocol.
fn door_of(first: &[u8]) -> Option<Door> {
    match first {
        [0, ..] => door_of_frame(first),
        [b'*', b'1'..=b'9', ..] => Some(Door::Redis),
        _ => {
            let mut words = first.split(|byte| byte.is_ascii_whitespace());
            let word = words.next()?;
            let is_whole = word.len() < first.len();
            let is = |words: &[&str]| is_whole && words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
            // The target of an HTTP request: a path, a whole URL, or the server itself.
            let is_target = matches!(words.next().and_then(|target| target.first()), Some(b'/' | b'h' | b'*'));
            if is_target && is(&METHODS) {
                return Some(door_of_head(&String::from_utf8_lossy(first)));
            }
            is(&INLINE).then_some(Door::Redis)
        }
    }
}

/// Returns the door for a connection that begins with a length, as both Kafka requests and native frames do.
fn door_of_frame(first: &[u8]) -> Option<Door> {
    let native = first.first_chunk::<HEADER_BYTES>().and_then(|head| Header::parse(*head).ok());
    if native.is_some_and(|head| head.kind != 0 && head.length as usize <= BODY_BYTES_BEFORE_HELLO_MAX) {
        return Some(Door::Native);
    }
    let head = first.first_chunk::<KAFKA_HEAD_BYTES>()?;
    let i16_at = |at: usize| i16::from_be_bytes([head[at], head[at + 1]]);
    let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let is_kafka = (10..=KAFKA_BYTES_MAX).contains(&length)
        && (0..KAFKA_KEYS).contains(&i16_at(4))
        && (0..KAFKA_VERSIONS).contains(&i16_at(6))
        && (-1..=KAFKA_NAME_BYTES_MAX).contains(&i16_at(12));
    is_kafka.then_some(Door::Kafka)
}

/// Returns the door for an HTTP request, as far as its first bytes identify one of the doors that speak HTTP.
fn door_of_head(text: &str) -> Door {
    if text.starts_with("PRI ") {
        // Only gRPC clients begin with HTTP/2 over plaintext.
        return Door::Pubsub;
    }
    let uri = text.split_whitespace().nth(1).unwrap_or_default();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let header = |name: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    };
    let asked = Asked {
        path,
        query,
        target: header("x-amz-target").unwrap_or_default(),
        authorization: header("authorization").unwrap_or_default(),
        content_type: header("content-type").unwrap_or_default(),
    };
    door_of_request(&asked).unwrap_or(Door::Http)
}

/// Parts of an HTTP request that identify its door.
struct Asked<'t> {
    path: &'t str,
    query: &'t str,
    target: &'t str,
    authorization: &'t str,
    content_type: &'t str,
}

fn door_of_request(asked: &Asked<'_>) -> Option<Door> {
    let is_form = asked.content_type.starts_with("application/x-www-form-urlencoded");
    let is_sqs = asked.target.starts_with("AmazonSQS.")
        || asked.authorization.contains("/sqs/aws4_request")
        || asked.query.split('&').any(|part| part.starts_with("Action="))
        || (is_form && asked.path == "/");
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| asked.path.starts_with(prefix));
    if is_sqs {
        Some(Door::Sqs)
    } else if asked.content_type.starts_with("application/grpc") || begins(&["/v1/projects/", "/google.pubsub."]) {
        Some(Door::Pubsub)
    } else if begins(&HTTP_PATHS) {
        Some(Door::Http)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_the_protocol() {
        let mut hello = BytesMut::new();
        Header { length: 40, kind: 1, correlation: 1 }.put(&mut hello);
        let cases: [(&[u8], Option<Door>); 18] = [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Some(Door::Http)),
            (b"PUT /v1/topics/a HTTP/1.1\r\n", Some(Door::Http)),
            (b"POST / HTTP/1.1\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n", Some(Door::Sqs)),
            (b"GET /?Action=ListQueues HTTP/1.1\r\n", Some(Door::Sqs)),
            (b"PUT /v1/projects/p/topics/t HTTP/1.1\r\n", Some(Door::Pubsub)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Door::Pubsub)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Door::Redis)),
            (b"ping\r\n", Some(Door::Redis)),
            (b"HELLO 3\r\n", Some(Door::Redis)),
            // ApiVersions, version 3, of a client with the id `c`.
            (b"\0\0\0\x14\0\x12\0\x03\0\0\0\x01\0\x01c", Some(Door::Kafka)),
            // ApiVersions without a client id; a Metadata request.
            (b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff", Some(Door::Kafka)),
            (b"\0\0\0\x0e\0\x03\0\x01\0\0\0\x01\0\0\0\0\0\0", Some(Door::Kafka)),
            (&hello, Some(Door::Native)),
            (b"", None),
            (b"GET", None),
            // A Redis command that only the Redis door can tell from other texts.
            (b"GET key\r\n", None),
            (b"\0\0\0\x0a\0\x12\0", None),
            (b"\x7fELF\x02\x01\x01 ", None),
        ];
        for (first, door) in cases {
            assert_eq!(door_of(first), door, "{}", first.escape_ascii());
        }
    }

    #[test]
    fn a_stranger_is_told_the_way() {
        let doors = Doors::default();
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        doors.opened(Door::Http, address("0.0.0.0:7401"));
        let first = b"GET / HTTP/1.1\r\n";
        let words = |local| Stranger::find(&doors, Door::Kafka, first, local).expect("a stranger").words;
        let told = "this is the Kafka door and the client speaks HTTP; the HTTP door is at ";
        assert_eq!(words(None), format!("{told}port 7401 of this machine"));
        assert_eq!(words(Some(address("10.1.2.3:9092"))), format!("{told}http://10.1.2.3:7401"));
        let closed = Stranger::find(&doors, Door::Http, b"PING\r\n", None).expect("a stranger");
        assert!(closed.words.ends_with("the Redis door is closed: start the broker with --redis HOST:PORT"));
        assert!(closed.answer().expect("words").starts_with(b"-ERR this is the HTTP door"));
        assert_eq!(Stranger::find(&doors, Door::Http, first, None), None);
    }
}
