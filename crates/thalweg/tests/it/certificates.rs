//! Whom a client believes: the certificates that it was given, and nobody else.

use std::path::PathBuf;

use client::{Address, Client, ClientSettings, ErrorKind, Record};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::bystander::kind_of;
use crate::command::thalweg;
use crate::server::{Server, connect, metric, until, within};

/// A certificate for this name and its key, as files.
struct Identity {
    folder: TempDir,
}

impl Identity {
    fn of(name: &str) -> Self {
        let identity = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        identity.renew(name);
        identity
    }

    /// Another certificate in the same files.
    fn renew(&self, name: &str) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        std::fs::write(self.file("key.pem"), made.signing_key.serialize_pem()).expect("written");
        std::fs::write(self.file("cert.pem"), made.cert.pem()).expect("written");
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

/// A renewed certificate is taken up without a restart, at a hangup or after a while; connections that are
/// open go on, and files that cannot be used change nothing.
#[tokio::test]
async fn a_renewed_certificate_needs_no_restart() {
    let identity = Identity::of("127.0.0.1");
    let server = identity.serve();
    let open = connect(&server.url("tls"), identity.trusted()).await;
    let expiry = metric(&open, "thalweg_tls_certificate_expiry_timestamp_seconds").await;
    assert!(expiry > 1_800_000_000, "{expiry}");

    let good = std::fs::read(identity.file("cert.pem")).expect("read");
    std::fs::write(identity.file("cert.pem"), "no certificate").expect("written");
    server.signal(Signal::HUP);
    until("the refusal", async || metric(&open, "thalweg_tls_reload_errors_total").await > 0).await;
    std::fs::write(identity.file("cert.pem"), good).expect("written");
    let _still = connect(&server.url("tls"), identity.trusted()).await;
    assert_eq!(metric(&open, "thalweg_tls_reloads_total").await, 0);

    for (reload, is_told) in [(1, true), (2, false)] {
        identity.renew("127.0.0.1");
        if is_told {
            server.signal(Signal::HUP);
        }
        until("the reload", async || metric(&open, "thalweg_tls_reloads_total").await == reload).await;
        for scheme in ["tls", "quic"] {
            let client = connect(&server.url(scheme), identity.trusted()).await;
            within("publish", client.publish("t", Record::new("x"))).await.expect("published");
        }
    }
    within("publish", open.publish("t", Record::new("x"))).await.expect("published");
}
