//! A whole protocol of one's own: a line with numbers is answered by a line with their sum.
//!
//! `cargo run -p thalweg-net --example custom_protocol`, then `printf '1 2 3\n4 x\n' | nc 127.0.0.1 7000`.

use std::rc::Rc;
use std::sync::Arc;

use net::service::layer::from_fn;
use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};
use net::{ConnectionLimits, Connections, Listener, Server, Service, ServiceSettings, Shards, Shutdown};

#[derive(Clone)]
struct Lines;

impl Protocol for Lines {
    type Codec = ();
    type Request<'a> = &'a [u8];
    type Message<'a> = Never;
    type Response = String;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        Ok(match input.bytes().iter().position(|byte| *byte == b'\n') {
            Some(end) => Decoded::Request((), &input.take(end + 1)[..end]),
            None => Decoded::More(input.len() + 1),
        })
    }

    fn encode(&self, _codec: &mut (), _tag: (), line: String, out: &mut Out) {
        out.put(line.as_bytes());
        out.put(b"\n");
    }

    fn encode_fault(&self, _codec: &mut (), _tag: Option<()>, fault: &Fault, out: &mut Out) {
        out.put(format!("error: {fault}\n").as_bytes());
    }
}

fn sum(line: &[u8]) -> String {
    let words = str::from_utf8(line).unwrap_or("?").split_whitespace();
    match words.map(str::parse::<i64>).sum::<Result<i64, _>>() {
        Ok(sum) => sum.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let (shards, shutdown) = (Arc::new(Shards::start(1)?), Shutdown::default());
    let settings = ServiceSettings { frame_bytes_max: 64 << 10, ..ServiceSettings::default() };
    let service = Service::new(Lines, from_fn::<Lines, _>(sum), settings);
    let server = Server::start(service, &shards, Connections::new(ConnectionLimits::default()), &shutdown);
    println!("listening on {}", server.listen(Listener::tcp(([127, 0, 0, 1], 7000).into())?)?);
    std::future::pending().await
}
