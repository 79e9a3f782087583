//! Tunnel through TLS, so that test clients without TLS reach a door with a client certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// Listens on a free port, and connects each client to a door over TLS.
pub async fn open(door: SocketAddr, config: Arc<ClientConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let connector = TlsConnector::from(config.clone());
            tokio::spawn(async move {
                let far = TcpStream::connect(door).await.expect("connected");
                let name = ServerName::try_from("127.0.0.1").expect("a name");
                // A refused certificate ends the client's connection.
                if let Ok(mut far) = connector.connect(name, far).await {
                    copy_bidirectional(&mut near, &mut far).await.unwrap_or_default();
                }
            });
        }
    });
    address
}
