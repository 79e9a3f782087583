//! An echo of lines behind two layers: one refuses shouting, the other signs every answer. It ends in order on Ctrl-C.
//!
//! `cargo run -p thalweg-net --example echo`, then `printf 'hello\nHEY\n' | nc 127.0.0.1 7002`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use net::service::layer::{Guard, Layer, MapResponse, from_fn};
use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};
use net::{ConnectionLimits, Connections, Listener, Server, Service, ServiceSettings, Shards, Shutdown};

#[derive(Clone)]
struct Lines;

impl Protocol for Lines {
    type Codec = ();
    type Request<'a> = &'a [u8];
    type Message<'a> = Never;
    type Response = Vec<u8>;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        Ok(match input.bytes().iter().position(|byte| *byte == b'\n') {
            Some(end) => Decoded::Request((), &input.take(end + 1)[..end]),
            None => Decoded::More(input.len() + 1),
        })
    }

    fn encode(&self, _codec: &mut (), _tag: (), line: Vec<u8>, out: &mut Out) {
        out.put(&line);
        out.put(b"\n");
    }

    fn encode_fault(&self, _codec: &mut (), _tag: Option<()>, fault: &Fault, out: &mut Out) {
        out.put(format!("error: {fault}\n").as_bytes());
    }
}

fn is_shouted(line: &[u8]) -> bool {
    line.iter().any(u8::is_ascii_alphabetic) && !line.iter().any(u8::is_ascii_lowercase)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let (shards, shutdown) = (Arc::new(Shards::start(1)?), Shutdown::default());
    let echo = from_fn::<Lines, _>(|line: &[u8]| line.to_vec());
    let polite = Guard(|line: &&[u8]| is_shouted(line).then(|| b"there is no need to shout".to_vec())).wrap(echo);
    let signed = MapResponse(|mut line: Vec<u8>| {
        line.extend(b" -- echo");
        line
    });
    let service = Service::new(Lines, signed.wrap(polite), ServiceSettings::default());
    let server = Server::start(service, &shards, Connections::new(ConnectionLimits::default()), &shutdown);
    println!("listening on {}", server.listen(Listener::tcp(([127, 0, 0, 1], 7002).into())?)?);
    tokio::signal::ctrl_c().await?;
    let ended = shutdown.run(Duration::from_secs(5)).await;
    println!("ended in {:?}, {} connections cut off", ended.took, ended.aborted);
    Ok(())
}
