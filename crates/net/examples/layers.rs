//! Layers: handlers around a handler, of which one refuses some requests and one numbers the responses.
//!
//! ```console
//! $ cargo run -p thalweg-net --example layers
//! $ nc localhost 7004
//! hello
//! 1: HELLO
//! DROP TABLE
//! REFUSED: that is shouting
//! ```

mod lines;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lines::Lines;
use net::service::layer::{Guard, Layer, MapResponse, from_fn};
use net::{Address, Listener, Server, Service, ServiceSettings};

pub fn serve(address: SocketAddr) -> io::Result<(Server, Address)> {
    let upper = from_fn(|line: &str| line.to_uppercase());
    let count = Arc::new(AtomicU64::new(1));
    let number = MapResponse(move |line| format!("{}: {line}", count.fetch_add(1, Ordering::Relaxed)));
    let polite = Guard(|line: &&str| {
        let is_shouting = line.chars().any(char::is_alphabetic) && !line.chars().any(char::is_lowercase);
        is_shouting.then(|| "REFUSED: that is shouting".to_owned())
    });
    // From the inside out: a refusal of the guard gets no number.
    let handler = polite.wrap(number.wrap(upper));
    let server = Server::on_every_core(Service::new(Lines, handler, ServiceSettings::default()))?;
    let address = server.listen(Listener::tcp(address)?)?;
    Ok((server, address))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (_server, address) = serve(([127, 0, 0, 1], 7004).into())?;
    println!("listening on {address}");
    std::future::pending().await
}
