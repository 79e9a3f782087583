//! Certificates that a client trusts: those that it was configured with, and no others.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use client::{Address, Client, ClientSettings, ErrorKind, Record};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::bystander::kind_of;
use crate::support::command::thalweg;
use crate::support::server::{Server, connect, metric, program, until, within};

/// Certificate for a name, and its key, in files.
struct Identity {
    folder: TempDir,
}

impl Identity {
    fn of(name: &str) -> Self {
        let identity = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        identity.renew(name);
        identity
    }

    /// Replaces the certificate in the files.
    fn renew(&self, name: &str) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        std::fs::write(self.file("key.pem"), made.signing_key.serialize_pem()).expect("written");
        std::fs::write(self.file("cert.pem"), made.cert.pem()).expect("written");
    }

    /// Creates a certificate in the files with `openssl req -x509` and further arguments.
    fn openssl(&self, arguments: &[&str]) {
        let made = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=thalweg"])
            .args(["-keyout", &self.file("key.pem").display().to_string()])
            .args(["-out", &self.file("cert.pem").display().to_string()])
            .args(arguments)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
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

/// A broker with its own certificate is trusted by clients that trust this certificate, over TLS and QUIC, and not by
/// clients that trust another.
#[tokio::test]
async fn a_certificate_has_to_be_trusted() {
    let own = Identity::of("127.0.0.1");
    let other = Identity::of("127.0.0.1");
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

/// A certificate for another name is refused, even by a client that trusts it.
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

/// A renewed certificate is loaded without a restart, on a hangup signal or after a while; open connections continue,
/// and invalid files have no effect.
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

/// HTTP serves TLS with the same certificate, in addition to plaintext on this machine, and logs the clients.
#[tokio::test]
async fn http_speaks_tls_on_its_port() {
    let identity = Identity::of("127.0.0.1");
    let ready_file = identity.file("ready.json");
    let set = |key: &str, value: &str| ["--set".to_owned(), format!("{key}={value}")];
    let mut command = program();
    command
        .args([
            "serve",
            "--native",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--kafka",
            "off",
            "--sqs",
            "off",
            "--ready-file",
        ])
        .arg(&ready_file);
    command.args(set("tls_cert", &identity.file("cert.pem").display().to_string()));
    command.args(set("tls_key", &identity.file("key.pem").display().to_string()));
    command.args(set("http_hosts", "broker.example")).args(set("http_access_log", "true"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    until("it is ready", async || ready_file.exists()).await;
    let ready = std::fs::read_to_string(&ready_file).expect("whole");
    let ready: serde_json::Value = serde_json::from_str(&ready).expect("JSON");
    let http = ready["http"].as_str().expect("an address");

    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(identity.file("cert.pem")).expect("a certificate");
    roots.add(certificate).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let connect = async || within("http", TcpStream::connect(http)).await.expect("connected");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let tls = TlsConnector::from(Arc::new(config)).connect(name, connect().await);
    let mut tls = within("a handshake", tls).await.expect("trusted");
    let mut plain = connect().await;
    // Browsers that came by TLS keep to it for a week.
    let bound = "\r\nstrict-transport-security: max-age=604800\r\n";
    let answer = ask(&mut tls, "broker.example").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(bound), "{answer}");
    let answer = ask(&mut plain, "broker.example").await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("strict-transport-security"), "{answer}");
    assert!(ask(&mut connect().await, "elsewhere").await.starts_with("HTTP/1.1 421"));

    child.kill().expect("killed");
    let log = child.wait_with_output().expect("ended").stderr;
    let log = String::from_utf8_lossy(&log);
    let entries = log.lines().filter(|line| line.contains("net::access") && line.contains("path=\"/healthz\""));
    assert_eq!(entries.count(), 3, "{log}");
}

/// Returns the response to a request for this host, up to the end of the connection.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str) -> String {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    within("a request", stream.write_all(request.as_bytes())).await.expect("written");
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.expect("text");
    answer
}

/// A certificate that is created as in the guide, by `openssl req -x509`, which marks it as a CA.
#[tokio::test]
async fn a_certificate_of_openssl_works_as_the_guide_says() {
    let identity = Identity { folder: tempfile::tempdir().expect("a temporary folder") };
    identity.openssl(&["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]);
    let server = identity.serve();
    for scheme in ["tls", "quic"] {
        let client = connect(&server.url(scheme), identity.trusted()).await;
        within("publish", client.publish("t", Record::new("x"))).await.expect("published");
    }
    let stranger = Identity::of("127.0.0.1");
    let other = stranger.file("cert.pem").display().to_string();
    let own = identity.file("cert.pem").display().to_string();
    for (scheme, ca, told) in [
        (
            "quic",
            &other,
            "self-signed, or signed by an issuer that is not trusted; trust it, or its issuer, with --ca-file",
        ),
        ("tls", &other, "connections without TLS, at tcp://127.0.0.1:"),
    ] {
        let failed = thalweg(["--server", &server.url(scheme), "--ca-file", ca, "topic", "list"]).failed(3);
        assert!(failed.contains(told) && !failed.contains("thalweg serve"), "{failed}");
    }
    let port = server.url("tls").rsplit(':').next().map(str::to_owned).expect("a port");
    assert!(
        thalweg(["--server", &format!("tls://localhost:{port}"), "--ca-file", &own, "topic", "list"])
            .ok()
            .contains('t')
    );
}

/// Errors of a certificate are reported, with the names in it.
#[tokio::test]
async fn a_certificate_that_names_no_host_or_another_says_so() {
    let identity = Identity { folder: tempfile::tempdir().expect("a temporary folder") };
    for (names, told) in [
        (&[][..], "names no host, so it is not valid for 127.0.0.1: it needs a subjectAltName"),
        (&["-addext", "subjectAltName=DNS:a.example,IP:10.0.0.1"], "is for a.example, 10.0.0.1, not for 127.0.0.1"),
    ] {
        identity.openssl(names);
        let server = identity.serve();
        let ca = identity.file("cert.pem").display().to_string();
        for scheme in ["tls", "quic"] {
            let failed = thalweg(["--server", &server.url(scheme), "--ca-file", &ca, "topic", "list"]).failed(3);
            assert!(failed.contains(told), "{failed}");
        }
    }
}
