//! Session of the native client, as lines: the number of the connection, `>` from the client or `<` from the broker,
//! and a frame in hex.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use client::{
    Acks, CacheSettings, Codec, Condition, Missing, NewQueue, OutMessage, Receive, Record, SettingsChange, Start,
    TopicPartition, TopicSettings, Ttl, WatchFrom,
};
use engine::TopicName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};
use wire::kind::response::{CACHE_CREATED, CACHE_OPENED};
use wire::{Assembler, Frame, Header, Push, Response};

use super::recorder::{self, From, Recorded};
use crate::support::server::{Server, connect, within};

/// Records what the client and the broker of this tree send each other in a session that uses most kinds of requests.
pub async fn record(path: &Path) {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::with(&[&format!("data={}", data.path().display())]);
    let recorded = Recorded::default();
    let proxy = recorder::start(server.address, recorded.clone()).await;
    run(&format!("tcp://{proxy}")).await;
    let mut text = String::new();
    for (number, from, frame) in recorded.lock().iter() {
        let sign = if *from == From::Client { '>' } else { '<' };
        let hex = encode(frame).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a text");
            hex
        });
        writeln!(text, "{number} {sign} {hex}").expect("a text");
    }
    let folder = path.parent().expect("a folder");
    std::fs::create_dir_all(folder).expect("made");
    std::fs::write(path, text).expect("written");
}

async fn run(url: &str) {
    let client = connect(url, client::ClientSettings::default()).await;
    macro_rules! done {
        ($call:expr) => {
            within("an answer", $call).await.expect("done")
        };
    }
    done!(client.ping());
    done!(client.create_topic("orders", TopicSettings { partitions: 2, ..TopicSettings::on_disk() }));
    let mut subscription = done!(client.subscribe("orders").start(Start::Earliest).missing(Missing::Create).open());
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let publisher = done!(client.publisher("orders").acks(Acks::Committed).compression(codec).open());
        done!(publisher.send(&Record::new(codec.name()).with_key("key").with_header("name", "value")));
        done!(publisher.flush());
        done!(subscription.next());
    }
    // Long before its topic is deleted, which would end it.
    drop(subscription);
    done!(client.fetch("orders", 0, 0, Duration::ZERO));
    done!(client.describe_topic("orders"));
    done!(client.list_topics());
    done!(client.grow_topic("orders", 3));
    let change = SettingsChange { retention_ms: Some(3_600_000), ..SettingsChange::default() };
    done!(client.alter_topic("orders", change));
    let at = TopicPartition { topic: TopicName::parse("orders").expect("a name"), partition: 0 };
    done!(client.commit_offsets("billing", &[(at.clone(), 0)]));
    done!(client.committed_offsets("billing", &[at]));
    done!(client.list_groups());
    done!(client.describe_group("billing"));

    done!(client.create_queue(NewQueue::new("jobs")));
    let queue = client.queue("jobs");
    done!(queue.send(OutMessage { body: "now".into(), ..OutMessage::default() }));
    done!(queue.send(OutMessage { body: "later".into(), delay_ms: Some(60_000), ..OutMessage::default() }));
    done!(queue.receive(&Receive::default()));
    done!(queue.peek(None, 10));
    done!(queue.describe());
    done!(client.list_queues(""));
    done!(queue.purge());

    done!(client.create_cache("sessions", CacheSettings { is_durable: true, ..CacheSettings::default() }));
    let cache = client.cache("sessions");
    let mut watch = cache.watch_from("", WatchFrom::default());
    done!(cache.put("alice", "one coffee"));
    done!(cache.put_with("bob", "one tea", Ttl::Default, Condition::Always));
    done!(cache.get("alice"));
    done!(cache.multi_get(["alice", "nobody"]));
    done!(cache.add("visits", 1, Ttl::Default));
    done!(watch.next());
    done!(cache.delete("bob"));
    done!(client.list_caches());

    done!(client.list_users());
    done!(client.list_acls(client::security::AclFilter::default()));
    done!(client.list_tokens());
    done!(client.list_quotas());
    done!(client.delete_records("orders", 0, u64::MAX));
    done!(client.delete_group("billing"));
    done!(queue.delete());
    done!(client.delete_cache("sessions"));
    done!(client.delete_topic("orders"));
    client.close().await;
}

/// Sends what a client has sent to the broker of this tree, and checks that each request has an answer of the kind that
/// it had. What the broker has sent then is read by the client of this tree.
pub async fn repeat(path: &Path) {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::with(&[&format!("data={}", data.path().display())]);
    let text = std::fs::read_to_string(path).expect("a session");
    let mut connections: BTreeMap<&str, Connection> = BTreeMap::new();
    let mut caches: Vec<([u8; 8], [u8; 8])> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let [number, sign, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("line {i} is no frame") };
        let mut bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal digits"))
            .collect();
        if !connections.contains_key(number) {
            let socket = within("a connection", TcpStream::connect(server.address)).await.expect("connected");
            connections.insert(number, Connection::new(socket));
        }
        let connection = connections.get_mut(number).expect("it is there");
        if sign == ">" {
            // A client sends back the number with which the broker has opened a cache.
            for (then, now) in &caches {
                if let Some(at) = bytes.windows(8).position(|part| part == then) {
                    bytes[at..at + 8].copy_from_slice(now);
                }
            }
            within("a request", connection.socket.write_all(&bytes)).await.expect("sent");
            continue;
        }
        let then = decode(&bytes);
        let what = format!("{}, line {}", path.display(), i + 1);
        let is_push = Push::is_push(then.kind);
        if is_push {
            drop(Push::decode(clone(&then)).expect("a push of then"));
        } else {
            drop(Response::decode(clone(&then)).expect("an answer of then"));
        }
        let now = connection.frame(&then).await;
        if let Ok(Response::Error(error)) = Response::decode(clone(&now)) {
            assert_eq!(now.kind, then.kind, "{what}: {error}");
        }
        assert_eq!((now.kind, now.correlation), (then.kind, then.correlation), "{what}");
        if [CACHE_CREATED, CACHE_OPENED].contains(&now.kind) {
            let number = |frame: &Frame| *frame.body.first_chunk::<8>().expect("a number");
            caches.push((number(&then), number(&now)));
        }
    }
}

struct Connection {
    socket: TcpStream,
    assembler: Assembler,
    frames: VecDeque<Frame>,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Self { socket, assembler: Assembler::new(BODY_BYTES_MAX), frames: VecDeque::new() }
    }

    /// Waits for the answer that corresponds to a recorded one, or for a push of its kind.
    async fn frame(&mut self, then: &Frame) -> Frame {
        let is_it = |now: &Frame| {
            if Push::is_push(then.kind) {
                now.kind == then.kind
            } else {
                now.correlation == then.correlation && !Push::is_push(now.kind)
            }
        };
        loop {
            if let Some(at) = self.frames.iter().position(is_it) {
                return self.frames.remove(at).expect("it was found");
            }
            let mut bytes = BytesMut::new();
            let read = within("an answer", self.socket.read_buf(&mut bytes)).await.expect("readable");
            assert!(read > 0, "the broker has disconnected before an answer of kind {:#04x}", then.kind);
            let mut frames = Vec::new();
            self.assembler.feed(&bytes, &mut frames).expect("frames");
            self.frames.extend(frames);
        }
    }
}

fn encode(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    Header { length: frame.body.len() as u32, kind: frame.kind, correlation: frame.correlation }.put(&mut bytes);
    bytes.put_slice(&frame.body);
    bytes
}

fn decode(bytes: &[u8]) -> Frame {
    let header = Header::parse(*bytes.first_chunk::<HEADER_BYTES>().expect("a header")).expect("a header");
    Frame { kind: header.kind, correlation: header.correlation, body: bytes[HEADER_BYTES..].into() }
}

fn clone(frame: &Frame) -> Frame {
    Frame { kind: frame.kind, correlation: frame.correlation, body: frame.body.clone() }
}
