//! Custom protocol, from its bytes to a server: lines of numbers are answered with their sum.
//!
//! ```console
//! $ cargo run -p thalweg-net --example custom_protocol
//! $ nc localhost 7001
//! 1 2 39
//! 42
//! one two
//! error: 'one': invalid digit found in string
//! ```

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use net::service::layer::from_fn;
use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};
use net::{Address, Listener, Server, Service, ServiceSettings};

#[derive(Clone)]
struct Sums;

impl Protocol for Sums {
    type Codec = ();
    /// Numbers of a line. The handler answers invalid numbers; only bytes that are not text end the connection.
    type Request<'a> = Result<Vec<i64>, String>;
    type Message<'a> = Never;
    type Response = String;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        let Some(end) = input.bytes().iter().position(|byte| *byte == b'\n') else {
            return Ok(Decoded::More(input.len() + 1));
        };
        let line = std::str::from_utf8(input.take(end + 1)).map_err(|error| Fault::malformed(error.to_string()))?;
        let number = |word: &str| word.parse().map_err(|error| format!("error: '{word}': {error}"));
        Ok(Decoded::Request((), line.split_whitespace().map(number).collect()))
    }

    fn encode(&self, _codec: &mut (), _tag: (), response: String, out: &mut Out) {
        out.put(response.as_bytes());
        out.put(b"\n");
    }

    fn encode_fault(&self, codec: &mut (), _tag: Option<()>, fault: &Fault, out: &mut Out) {
        self.encode(codec, (), format!("error: {fault}"), out);
    }
}

fn answer(numbers: Result<Vec<i64>, String>) -> String {
    numbers.map_or_else(|error| error, |numbers| numbers.iter().sum::<i64>().to_string())
}

pub fn serve(address: SocketAddr) -> io::Result<(Server, Address)> {
    let service = Service::new(Sums, from_fn(answer), ServiceSettings::default());
    let server = Server::on_every_core(service)?;
    let address = server.listen(Listener::tcp(address)?)?;
    Ok((server, address))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (_server, address) = serve(([127, 0, 0, 1], 7001).into())?;
    println!("listening on {address}");
    std::future::pending().await
}
