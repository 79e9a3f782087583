//! Minimal service, which returns all received bytes, over TCP and a Unix socket at the same time.
//!
//! ```console
//! $ cargo run -p thalweg-net --example echo
//! $ nc localhost 7002
//! $ nc -U /tmp/echo.socket
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use net::service::layer::from_fn;
use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};
use net::{Address, Listener, Server, Service, ServiceSettings};

/// Protocol that takes all received bytes as one request.
#[derive(Clone)]
struct Echo;

impl Protocol for Echo {
    type Codec = ();
    type Request<'a> = &'a [u8];
    type Message<'a> = Never;
    type Response = Bytes;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        Ok(Decoded::Request((), input.take(input.len())))
    }

    fn encode(&self, _codec: &mut (), _tag: (), response: Bytes, out: &mut Out) {
        out.put_bytes(response);
    }

    /// Sends nothing, because no peer could understand a fault.
    fn encode_fault(&self, _codec: &mut (), _tag: Option<()>, _fault: &Fault, _out: &mut Out) {}
}

/// Starts the server. Returns the bound addresses.
pub fn serve(tcp: SocketAddr, unix: &Path) -> io::Result<(Server, [Address; 2])> {
    let service = Service::new(Echo, from_fn(|bytes: &[u8]| Bytes::copy_from_slice(bytes)), ServiceSettings::default());
    let server = Server::on_every_core(service)?;
    let addresses = [server.listen(Listener::tcp(tcp)?)?, server.listen(Listener::unix(unix)?)?];
    Ok((server, addresses))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (_server, addresses) = serve(([127, 0, 0, 1], 7002).into(), &std::env::temp_dir().join("echo.socket"))?;
    for address in addresses {
        println!("listening on {address}");
    }
    std::future::pending().await
}
