//! TLS handshakes: the choice of the certificate, the admission of clients, and the effect of a reload.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::tls::{ClientAuth, PeerIdentity, Reloaded, Tls, TlsSettings};
use net::{Shutdown, quic};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::certificates::{Authority, Folder, Made};

/// Time limit that only a hanging test reaches.
const PATIENCE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("this does not hang")
}

type Server = server::TlsStream<DuplexStream>;
type Client = client::TlsStream<DuplexStream>;

/// Returns both ends of a connection, after one byte in each direction.
async fn connect(config: Arc<rustls::ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> io::Result<Pair> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let accepted = TlsAcceptor::from(config).accept(far);
    let connected = TlsConnector::from(client.clone()).connect(name, near);
    let (mut server, mut client) = within(async { tokio::try_join!(accepted, connected) }).await?;
    echo(&mut server, &mut client).await?;
    Ok(Pair { server, client })
}

#[derive(Debug)]
struct Pair {
    server: Server,
    client: Client,
}

impl Pair {
    /// Returns the certificate that the server presented.
    fn shown(&self) -> &[u8] {
        &self.client.get_ref().1.peer_certificates().expect("a certificate")[0]
    }

    fn peer(&self) -> Option<PeerIdentity> {
        PeerIdentity::of_certificates(self.server.get_ref().1.peer_certificates())
    }

    fn is_resumed(&self) -> bool {
        self.server.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
    }
}

async fn echo(server: &mut Server, client: &mut Client) -> io::Result<()> {
    within(async {
        client.write_all(b"a").await?;
        client.flush().await?;
        assert_eq!(server.read_u8().await?, b'a');
        server.write_all(b"b").await?;
        server.flush().await?;
        assert_eq!(client.read_u8().await?, b'b');
        Ok(())
    })
    .await
}

fn settings(identities: Vec<net::tls::NamedIdentity>) -> TlsSettings {
    TlsSettings { identities, refuse_unknown_names: false, client_auth: None }
}

#[tokio::test]
async fn the_name_that_a_client_asks_for_picks_the_certificate() {
    let ca = Authority::new();
    let folder = Folder::new();
    // The first certificate also contains the name that the second one serves.
    let first = ca.issue("a", &["a.example", "b.example", "other.test"], 2100);
    let second = ca.issue("b", &["b.example"], 2100);
    let third = ca.issue("c", &["*.wild.example"], 2100);
    let identities = || {
        let mut named = folder.identity("first", &first);
        named.names = vec!["a.example".into()];
        vec![named, folder.identity("second", &second), folder.identity("third", &third)]
    };
    let tls = Tls::new(settings(identities())).expect("TLS");
    let config = tls.server_config(&[]).expect("a configuration");
    let client = ca.client(&[], None);
    for (name, expected) in [
        ("a.example", &first),
        ("b.example", &second),
        ("B.Example", &second),
        ("x.wild.example", &third),
        ("other.test", &first),
    ] {
        let pair = connect(config.clone(), &client, name).await.expect(name);
        assert_eq!(pair.shown(), &*expected.der, "{name}");
    }

    let strict = Tls::new(TlsSettings { refuse_unknown_names: true, ..settings(identities()) }).expect("TLS");
    let config = strict.server_config(&[]).expect("a configuration");
    assert!(connect(config.clone(), &client, "a.example").await.is_ok());
    for unknown in ["other.test", "127.0.0.1"] {
        assert!(connect(config.clone(), &client, unknown).await.is_err(), "{unknown}");
    }
}

#[tokio::test]
async fn a_protocol_is_agreed_on_or_the_handshake_fails() {
    let ca = Authority::new();
    let folder = Folder::new();
    let tls = Tls::new(settings(vec![folder.identity("own", &ca.server("a.example"))])).expect("TLS");
    let config = tls.server_config(&[b"h2", b"http/1.1"]).expect("a configuration");
    let agreed = async |offered: &[&[u8]]| {
        let pair = connect(config.clone(), &ca.client(offered, None), "a.example").await?;
        io::Result::Ok(pair.server.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(agreed(&[b"http/1.1", b"h2"]).await.expect("agreed"), Some(b"h2".to_vec()));
    assert_eq!(agreed(&[b"http/1.1"]).await.expect("agreed"), Some(b"http/1.1".to_vec()));
    assert_eq!(agreed(&[]).await.expect("no protocol is offered"), None);
    assert!(agreed(&[b"thalweg/1"]).await.is_err());
}

/// Returns TLS for `server.example` that requires client certificates of this authority.
fn mutual(ca: &Authority, folder: &Folder, change: impl FnOnce(&mut ClientAuth)) -> Arc<Tls> {
    let roots = folder.write("roots.pem", &ca.pem);
    let mut auth = ClientAuth { roots, is_required: true, names: Vec::new(), fingerprints: Vec::new(), revoked: None };
    change(&mut auth);
    let identities = vec![folder.identity("own", &ca.server("server.example"))];
    Tls::new(TlsSettings { client_auth: Some(auth), ..settings(identities) }).expect("TLS")
}

/// Connects with this certificate. Returns the identity of the client, if it is admitted with one.
async fn enter(tls: &Tls, ca: &Authority, own: Option<&Made>) -> io::Result<Option<PeerIdentity>> {
    let config = tls.server_config(&[])?;
    Ok(connect(config, &ca.client(&[], own), "server.example").await?.peer())
}

#[tokio::test]
async fn clients_are_let_in_by_authority_name_or_fingerprint() {
    let ca = Authority::new();
    let other = Authority::new();
    let folder = Folder::new();
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| ca.issue(name, &[], 2100));
    let node = ca.issue("alice", &["node.example"], 2100);
    let expired = ca.issue("alice", &[], 2001);
    let stranger = other.issue("alice", &[], 2100);

    let everyone = mutual(&ca, &folder, |_| {});
    let entered = enter(&everyone, &ca, Some(&alice)).await.expect("let in").expect("an identity");
    assert_eq!((entered.names, entered.fingerprint), (vec!["alice".to_owned()], alice.fingerprint()));
    for refused in [None, Some(&expired), Some(&stranger)] {
        assert!(enter(&everyone, &ca, refused).await.is_err());
    }

    let listed = mutual(&ca, &folder, |auth| {
        auth.names = vec!["alice".into(), "node.example".into()];
        auth.fingerprints = vec![bob.fingerprint()];
    });
    for allowed in [&alice, &bob, &node] {
        assert!(enter(&listed, &ca, Some(allowed)).await.expect("let in").is_some());
    }
    assert!(enter(&listed, &ca, Some(&carol)).await.is_err());
    let by_common_name = mutual(&ca, &folder, |auth| auth.names = vec!["alice".into()]);
    assert!(enter(&by_common_name, &ca, Some(&node)).await.is_err(), "its host name has priority over its common name");

    let optional = mutual(&ca, &folder, |auth| auth.is_required = false);
    assert!(enter(&optional, &ca, None).await.expect("let in").is_none());
    assert!(enter(&optional, &ca, Some(&alice)).await.expect("let in").is_some());
    assert!(enter(&optional, &ca, Some(&stranger)).await.is_err());
}

/// A revoked client is refused, also one that resumes, and connected clients can be checked again.
#[tokio::test]
async fn a_revoked_client_is_refused() {
    let ca = Authority::new();
    let folder = Folder::new();
    let [alice, bob] = ["alice", "bob"].map(|name| ca.issue(name, &[], 2100));
    let list = folder.write("revoked.pem", &ca.revoke(&[]));
    let tls = mutual(&ca, &folder, |auth| auth.revoked = Some(list));
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = changes.clone();
    tls.observe_clients(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let resuming = ca.client(&[], Some(&alice));
    for _ in 0..2 {
        let config = tls.server_config(&[]).expect("a configuration");
        assert!(connect(config, &resuming, "server.example").await.is_ok());
    }
    let chains = [&alice, &bob].map(|made| PeerIdentity::of_certificates(Some(std::slice::from_ref(&made.der))));
    let admits = |who: usize| {
        let chain = chains[who].as_ref().expect("an identity").chain.clone();
        tls.admits(chain.iter().map(|part| &**part))
    };
    assert!(admits(0) && admits(1));
    assert!(!tls.admits([]) && !tls.admits([&b"no certificate"[..]]));
    folder.write("revoked.pem", &ca.revoke(&[&alice]));
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    assert_eq!(changes.load(Ordering::Relaxed), 1);
    assert!(!admits(0) && admits(1));
    let config = tls.server_config(&[]).expect("a configuration");
    assert!(connect(config, &resuming, "server.example").await.is_err());
    assert!(enter(&tls, &ca, Some(&alice)).await.is_err());
    assert!(enter(&tls, &ca, Some(&bob)).await.expect("let in").is_some());
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Same);
    for damaged in ["", "no list", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"] {
        folder.write("revoked.pem", damaged);
        assert!(tls.reload().is_err(), "{damaged}");
    }
    assert!(!admits(0) && admits(1), "the list before stays in force");
    assert_eq!(changes.load(Ordering::Relaxed), 1);
}

/// A damaged certificate of the server keeps no revoked client in.
#[tokio::test]
async fn a_client_is_revoked_whatever_the_own_certificate_is() {
    let ca = Authority::new();
    let folder = Folder::new();
    let alice = ca.issue("alice", &[], 2100);
    let list = folder.write("revoked.pem", &ca.revoke(&[]));
    let tls = mutual(&ca, &folder, |auth| auth.revoked = Some(list));
    assert!(enter(&tls, &ca, Some(&alice)).await.is_ok());
    folder.put("own", &ca.issue("server.example", &["server.example"], 2001));
    folder.write("revoked.pem", &ca.revoke(&[&alice]));
    assert!(tls.reload().is_err(), "the server's certificate has expired");
    assert!(enter(&tls, &ca, Some(&alice)).await.is_err() && !tls.admits([&alice.der[..]]));
    let bob = ca.issue("bob", &[], 2100);
    assert!(enter(&tls, &ca, Some(&bob)).await.is_ok(), "the server keeps its certificate of before");
}

#[tokio::test]
async fn tls_1_2_works_as_well() {
    let ca = Authority::new();
    let folder = Folder::new();
    let tls = mutual(&ca, &folder, |auth| auth.names = vec!["alice".into()]);
    let config = tls.server_config(&[]).expect("a configuration");
    for (name, is_allowed) in [("alice", true), ("bob", false)] {
        let client = ca.client_of(&[&rustls::version::TLS12], &[], Some(&ca.issue(name, &[], 2100)));
        let entered = connect(config.clone(), &client, "server.example").await;
        assert_eq!(entered.is_ok(), is_allowed, "{name}");
        if is_allowed {
            let again = connect(config.clone(), &client, "server.example").await.expect("let in");
            assert!(again.is_resumed());
            assert_eq!(again.peer().map(|peer| peer.names), Some(vec!["alice".to_owned()]));
        }
    }
}

#[tokio::test]
async fn quic_sees_the_same_names_and_reloads() {
    let ca = Authority::new();
    let folder = Folder::new();
    let alice = ca.issue("alice", &[], 2100);
    let tls = mutual(&ca, &folder, |_| {});
    let config = quic::server_config(tls.server_config(&[b"x"]).expect("TLS")).expect("a configuration");
    let server = quic::bind_server((Ipv4Addr::LOCALHOST, 0).into(), config, false).expect("a free port");
    let at = server.local_addr().expect("an address");
    let enter = async || {
        let socket = quic::bind_socket((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a free port");
        let endpoint = quic::endpoint_config().expect("a configuration");
        let client = quinn::Endpoint::new(endpoint, None, socket, Arc::new(quinn::TokioRuntime)).expect("an endpoint");
        let config = ca.client(&[b"x"], Some(&alice));
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).expect("TLS 1.3");
        let connecting = client.connect_with(quinn::ClientConfig::new(Arc::new(crypto)), at, "server.example");
        let accepted = async { server.accept().await.expect("the endpoint is open").await };
        let (near, far) = within(async { tokio::try_join!(connecting.expect("begun"), accepted) }).await.expect("both");
        let shown = near.peer_identity().expect("a certificate");
        let shown = shown.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().expect("certificates");
        (shown[0].clone(), PeerIdentity::of_quic(&far), client, near, far)
    };
    let (before, peer, _client, near, far) = enter().await;
    assert_eq!(peer.expect("an identity").fingerprint, alice.fingerprint());
    let new = ca.server("server.example");
    folder.put("own", &new);
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    let (after, ..) = enter().await;
    assert_ne!(before, after);
    assert_eq!(after, new.der);
    let mut stream = within(near.open_uni()).await.expect("the open connection keeps working");
    within(stream.write_all(b"a")).await.expect("sent");
    assert!(within(far.accept_uni()).await.is_ok());
}

#[tokio::test]
async fn a_reload_changes_new_connections_and_no_open_one() {
    let ca = Authority::new();
    let folder = Folder::new();
    let old = ca.server("a.example");
    let new = ca.issue("new", &["a.example"], 2090);
    let tls = Tls::new(settings(vec![folder.identity("own", &old)])).expect("TLS");
    let config = tls.server_config(&[]).expect("a configuration");
    let Pair { mut server, client } = connect(config.clone(), &ca.client(&[], None), "a.example").await.expect("old");
    let mut open = client;
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Same);
    let expires_at = tls.expires_at();

    folder.put("own", &new);
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    assert!(tls.expires_at() < expires_at);
    echo(&mut server, &mut open).await.expect("the open connection keeps working");
    let pair = connect(config, &ca.client(&[], None), "a.example").await.expect("new");
    assert_eq!(pair.shown(), &*new.der);
    assert_eq!((tls.reloads(), tls.failed_reloads()), (1, 0));
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_old_certificate_active() {
    let ca = Authority::new();
    let folder = Folder::new();
    let old = ca.server("a.example");
    let new = ca.server("a.example");
    let two = vec![folder.identity("other", &ca.server("b.example")), folder.identity("own", &old)];
    let tls = Tls::new(settings(two)).expect("TLS");
    let config = tls.server_config(&[]).expect("a configuration");
    let shown = async || connect(config.clone(), &ca.client(&[], None), "a.example").await.expect("shown");

    let garbage = || folder.write("own.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let empty = || folder.write("own.crt", "");
    let no_certificate = || folder.write("own.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let mismatched = || folder.write("own.crt", &new.certificate);
    let expired = || {
        folder.put("own", &ca.issue("a", &["a.example"], 2001));
        folder.path("own.crt")
    };
    let missing = || {
        std::fs::remove_file(folder.path("own.key")).expect("removed");
        folder.path("own.key")
    };
    let damages: [(&dyn Fn() -> std::path::PathBuf, &str); 6] = [
        (&garbage, "own.crt"),
        (&empty, "no certificate"),
        (&no_certificate, "own.crt"),
        (&mismatched, "the key does not belong to the certificate"),
        (&expired, "expired"),
        (&missing, "own.key"),
    ];
    for (n, (damage, why)) in (1..).zip(damages) {
        folder.put("own", &old);
        // The other identity is new and valid, and still not used: all or nothing.
        folder.put("other", &ca.server("b.example"));
        damage();
        let error = tls.reload().expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!((tls.reloads(), tls.failed_reloads()), (0, n));
        assert_eq!(shown().await.shown(), &*old.der, "{why}");
    }
    folder.put("own", &new);
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    assert_eq!(shown().await.shown(), &*new.der);
    // A certificate that a reload refuses is refused at startup, too.
    folder.put("own", &ca.issue("a", &["a.example"], 2001));
    let start = Tls::new(settings(vec![net::tls::NamedIdentity { source: folder.source("own"), names: vec![] }]));
    assert!(start.is_err_and(|error| error.to_string().contains("expired")));
}

#[tokio::test]
async fn changed_files_are_detected_automatically() {
    let ca = Authority::new();
    let folder = Folder::new();
    let new = ca.server("a.example");
    let tls = Tls::new(settings(vec![folder.identity("own", &ca.server("a.example"))])).expect("TLS");
    let shutdown = Shutdown::default();
    let watch = tokio::spawn(tls.clone().watch(Duration::from_millis(5), shutdown.drain()));
    let until = async |is_so: &dyn Fn() -> bool| {
        within(async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    // Half of a change is an error, and the other half fixes it.
    folder.write("own.crt", &new.certificate);
    until(&|| tls.failed_reloads() > 0).await;
    assert_eq!(tls.reloads(), 0);
    folder.write("own.key", &new.key);
    until(&|| tls.reloads() == 1).await;
    let config = tls.server_config(&[]).expect("a configuration");
    let pair = connect(config, &ca.client(&[], None), "a.example").await.expect("new");
    assert_eq!(pair.shown(), &*new.der);
    // Checks continue after the folder has disappeared and returned.
    let aside = folder.root().with_extension("aside");
    let root = folder.root().to_owned();
    let failed = tls.failed_reloads();
    std::fs::rename(&root, &aside).expect("moved away");
    until(&|| tls.failed_reloads() > failed).await;
    std::fs::rename(&aside, &root).expect("moved back");
    folder.put("own", &ca.server("a.example"));
    until(&|| tls.reloads() == 2).await;
    assert!(within(shutdown.run(PATIENCE)).await.is_clean());
    within(watch).await.expect("no panic");
}

#[tokio::test]
async fn sessions_are_resumed_but_not_past_other_roots() {
    let ca = Authority::new();
    let other = Authority::new();
    let folder = Folder::new();
    let alice = ca.issue("alice", &[], 2100);
    let tls = mutual(&ca, &folder, |_| {});
    let config = tls.server_config(&[]).expect("a configuration");
    let client = ca.client(&[], Some(&alice));
    let first = connect(config.clone(), &client, "server.example").await.expect("let in");
    let again = connect(config.clone(), &client, "server.example").await.expect("let in");
    assert!(!first.is_resumed() && again.is_resumed());
    assert_eq!(again.peer().map(|peer| peer.names), Some(vec!["alice".to_owned()]));

    // Sessions stay valid if only the certificate of the server changes, and not the roots.
    folder.put("own", &ca.server("server.example"));
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    assert!(connect(config.clone(), &client, "server.example").await.expect("let in").is_resumed());

    folder.write("roots.pem", &other.pem);
    assert_eq!(tls.reload().expect("reloaded"), Reloaded::Changed);
    assert!(
        connect(config, &client, "server.example").await.is_err(),
        "no root has issued the certificate of alice any more"
    );
}
