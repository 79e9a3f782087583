//! Whom a client believes: the certificates that it was given, and nobody else.

use std::path::PathBuf;

use client::{Address, Client, ClientSettings, ErrorKind, Record};
use tempfile::TempDir;

use crate::bystander::kind_of;
use crate::command::thalweg;
use crate::server::{Server, connect, within};

/// A certificate for this name and its key, as files.
struct Identity {
    folder: TempDir,
}

impl Identity {
    fn of(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).expect("written");
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).expect("written");
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Server {
        let set = |key: &str, file: &str| format!("{key}={}", self.file(file).display());
        Server::with(&[&set("tls_cert", "cert.pem"), &set("tls_key", "key.pem")])
    }

    fn trusted(&self) -> ClientSettings {
        ClientSettings { ca_file: Some(self.file("cert.pem")), ..ClientSettings::default() }
    }
}

/// A broker with its own certificate is believed by who trusts that, over TLS and QUIC, and by nobody who
/// trusts another.
#[tokio::test]
async fn a_certificate_has_to_be_trusted() {
    let (own, other) = (Identity::of("127.0.0.1"), Identity::of("127.0.0.1"));
    let server = own.serve();
    for scheme in ["tls", "quic"] {
        let client = connect(&server.url(scheme), own.trusted()).await;
        within("publish", client.publish("t", Record::new("x"))).await.expect("published");
        let address = Address::parse(&server.url(scheme)).expect("an address");
        let refused = Client::connect_with(address, other.trusted());
        assert_eq!(kind_of("a refusal", refused).await, Err(ErrorKind::Disconnected), "{scheme}");
    }
    let ca = own.file("cert.pem").display().to_string();
    let other = other.file("cert.pem").display().to_string();
    let url = server.url("tls");
    assert!(thalweg(["--server", &url, "--ca-file", &ca, "topic", "list"]).ok().contains('t'));
    assert!(thalweg(["--server", &url, "--ca-file", &other, "topic", "list"]).failed(3).contains("certificate"));
    let missing = thalweg(["--server", &url, "--ca-file", "/nowhere/ca.pem", "topic", "list"]).failed(2);
    assert!(missing.contains("/nowhere/ca.pem"), "{missing}");
}

/// A certificate for another name is not believed, even by who trusts it.
#[tokio::test]
async fn a_certificate_has_to_carry_the_name() {
    let elsewhere = Identity::of("broker.example");
    let server = elsewhere.serve();
    for scheme in ["tls", "quic"] {
        let address = Address::parse(&server.url(scheme)).expect("an address");
        let refused = Client::connect_with(address, elsewhere.trusted());
        assert_eq!(kind_of("a refusal", refused).await, Err(ErrorKind::Disconnected), "{scheme}");
    }
}
