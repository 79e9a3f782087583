//! A key-value server over lines: `GET key`, `SET key value`, `DEL key`, and `WAIT key`, which is answered once the
//! key is there.
//!
//! `cargo run -p thalweg-net --example kv`, then `nc 127.0.0.1 7001`. The same over a Unix socket: `nc -U /tmp/kv.sock`
//! if it is given as an argument.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::service::{Decoded, Fault, Handler, Held, Input, Never, Order, Out, Peer, Protocol, Reply, Service, once};
use net::{ConnectionLimits, Connections, Listener, Outbox, Server, ServiceSettings, Shards, Shutdown};
use tokio::sync::Notify;

#[derive(Clone)]
struct Lines;

enum Command<'a> {
    Get(&'a str),
    Set(&'a str, &'a str),
    Del(&'a str),
    Wait(&'a str),
    Unknown,
}

impl Protocol for Lines {
    type Codec = ();
    type Request<'a> = Command<'a>;
    type Message<'a> = Never;
    type Response = String;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        let Some(end) = input.bytes().iter().position(|byte| *byte == b'\n') else {
            return Ok(Decoded::More(input.len() + 1));
        };
        let line = str::from_utf8(&input.take(end + 1)[..end]).map_err(|error| Fault::malformed(error.to_string()))?;
        let mut words = line.trim_end().splitn(3, ' ');
        let command = match (words.next(), words.next(), words.next()) {
            (Some("GET"), Some(key), None) => Command::Get(key),
            (Some("SET"), Some(key), Some(value)) => Command::Set(key, value),
            (Some("DEL"), Some(key), None) => Command::Del(key),
            (Some("WAIT"), Some(key), None) => Command::Wait(key),
            _ => Command::Unknown,
        };
        Ok(Decoded::Request((), command))
    }

    fn encode(&self, _codec: &mut (), _tag: (), line: String, out: &mut Out) {
        out.put(line.as_bytes());
        out.put(b"\n");
    }

    fn encode_fault(&self, _codec: &mut (), _tag: Option<()>, fault: &Fault, out: &mut Out) {
        out.put(format!("ERROR {fault}\n").as_bytes());
    }
}

/// What all shards share. A clone of the handler is another way to it.
#[derive(Clone, Default)]
struct Store(Arc<(Mutex<HashMap<String, String>>, Notify)>);

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<String, String>) -> T) -> T {
        look(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn wait(self, key: String) -> String {
        loop {
            let changed = self.0.1.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = self.with(|map| map.get(&key).cloned()) {
                return value;
            }
            changed.await;
        }
    }
}

impl Handler<Lines> for Store {
    type Connection = ();
    type Session = ();
    type Later = futures_util::stream::Once<LocalBoxFuture<'static, String>>;

    fn connect(&self, _peer: &Rc<Peer>) {}

    fn open(&self, _connection: &Rc<()>, _outbox: &Arc<Outbox>) {}

    fn call(&self, _session: &mut (), command: Command<'_>) -> Reply<String, Self::Later> {
        Reply::Now(match command {
            Command::Get(key) => self.with(|map| map.get(key).cloned()).unwrap_or_else(|| "NONE".to_owned()),
            Command::Set(key, value) => {
                self.with(|map| map.insert(key.to_owned(), value.to_owned()));
                self.0.1.notify_waiters();
                "OK".to_owned()
            }
            Command::Del(key) => u8::from(self.with(|map| map.remove(key)).is_some()).to_string(),
            Command::Wait(key) => return Reply::Later(once(self.clone().wait(key.to_owned()).boxed_local())),
            Command::Unknown => "ERROR write GET key, SET key value, DEL key or WAIT key".to_owned(),
        })
    }

    fn tell(&self, _session: &mut (), message: Never) -> Option<Held> {
        match message {}
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let (shards, shutdown) = (Arc::new(Shards::start(2)?), Shutdown::default());
    let settings = ServiceSettings { frame_bytes_max: 1 << 20, ..ServiceSettings::default() };
    let service = Service::new(Lines, Store::default(), settings);
    let server = Server::start(service, &shards, Connections::new(ConnectionLimits::default()), &shutdown);
    println!("listening on {}", server.listen(Listener::tcp(([127, 0, 0, 1], 7001).into())?)?);
    if let Some(path) = std::env::args().nth(1) {
        println!("listening on {}", server.listen(Listener::unix(Path::new(&path))?)?);
    }
    std::future::pending().await
}
