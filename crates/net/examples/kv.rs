//! Key-value store that all workers share.
//!
//! ```console
//! $ cargo run -p thalweg-net --example kv
//! $ nc localhost 7003
//! SET greeting hello world
//! OK
//! GET greeting
//! hello world
//! DEL greeting
//! 1
//! GET greeting
//! NONE
//! ```

mod lines;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use lines::Lines;
use net::service::layer::from_fn;
use net::{Address, Listener, Server, Service, ServiceSettings};
use parking_lot::RwLock;

/// Entries of the store. Every worker has a clone of the handler, which shares them. The lock is held for a lookup,
/// never across a wait.
#[derive(Clone, Default)]
struct Store(Arc<RwLock<HashMap<String, String>>>);

impl Store {
    fn answer(&self, line: &str) -> String {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("GET"), Some(key), None) => self.0.read().get(key).cloned().unwrap_or_else(|| "NONE".to_owned()),
            (Some("SET"), Some(key), Some(value)) => {
                self.0.write().insert(key.to_owned(), value.to_owned());
                "OK".to_owned()
            }
            (Some("DEL"), Some(key), None) => u8::from(self.0.write().remove(key).is_some()).to_string(),
            _ => "ERROR it is GET key, SET key value or DEL key".to_owned(),
        }
    }
}

pub fn serve(address: SocketAddr) -> io::Result<(Server, Address)> {
    let store = Store::default();
    let handler = from_fn(move |line: &str| store.answer(line));
    let server = Server::on_every_core(Service::new(Lines, handler, ServiceSettings::default()))?;
    let address = server.listen(Listener::tcp(address)?)?;
    Ok((server, address))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (_server, address) = serve(([127, 0, 0, 1], 7003).into())?;
    println!("listening on {address}");
    std::future::pending().await
}
