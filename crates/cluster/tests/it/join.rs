//! Joining: a program with a good token becomes a node, and any other is refused in words.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cluster::identity::Identity;
use cluster::join::{Answer, Granted, JOIN_BYTES_MAX, REDIRECTS_MAX, Request, TOKEN_PREFIX, Token};
use cluster::link::FRAME_HEAD_BYTES;
use cluster::transport::Links;
use engine::{ErrorKind, Result};
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::support::{IDS, Node, Nodes, PROGRAM, SEAL_KEY, beat, join, join_as};

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Returns why a token is refused. Nothing is written then.
fn refused(token: &str) -> String {
    let data = dir();
    let error = join(token, data.path()).expect_err("it is refused");
    assert_eq!(data.path().read_dir().expect("a directory").count(), 0);
    error.message
}

#[test]
fn a_program_with_a_token_becomes_a_node() {
    let all = Nodes::strangers(1);
    let founder = &all.nodes[0];
    founder.cluster.nodes.lock().expect("no panic").insert(1, founder.address().to_string());
    let data = dir();
    let joined = join(&founder.token(), data.path()).expect("admitted");
    assert_eq!((joined.node(), joined.ids()), (2, IDS));
    assert_eq!((joined.cluster(), joined.fingerprint()), (founder.identity.cluster(), founder.identity.fingerprint()));
    assert_eq!(joined.nodes(), [(1, founder.address().to_string()), (2, "127.0.0.1:1".to_owned())]);
    let seal = data.path().join("seal.key");
    assert_eq!(std::fs::read(&seal).expect("a key"), SEAL_KEY);
    assert_eq!(seal.metadata().expect("it exists").permissions().mode() & 0o777, 0o600);
    let candidate = founder.cluster.candidates.lock().expect("no panic")[0].clone();
    assert_eq!((candidate.advertise.as_str(), candidate.program.as_str()), ("127.0.0.1:1", PROGRAM));
    // It is one of them, and can issue tokens itself.
    let second = Node::start(data.path(), founder.cluster.clone());
    second.know(&[founder]);
    founder.know(&[&second]);
    founder.wait_connected(2);
    second.wait_connected(1);
    second.transport.send(1, beat(2, 1, 1));
    assert_eq!(founder.received(), [beat(2, 1, 1)]);
    let third = join(&second.token(), dir().path()).expect("admitted by the second one");
    assert_eq!(third.node(), 3);
    let token = Token::parse(&founder.token()).expect("a token");
    assert_eq!(token.check(&third, SystemTime::now(), &*founder.cluster), Ok(()));
}

#[test]
fn a_token_admits_one_node() {
    let all = Nodes::strangers(1);
    let token = all.nodes[0].token();
    join(&token, dir().path()).expect("admitted");
    let why = refused(&token);
    assert!(why.contains("was used already") && why.contains("cluster token"), "{why}");
}

#[test]
fn of_two_programs_with_one_token_one_is_admitted() {
    let all = Nodes::strangers(1);
    let token = all.nodes[0].token();
    let admitted = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..6).map(|_| scope.spawn(|| join(&token, dir().path()).is_ok())).collect();
        tries.into_iter().map(|one| one.join().expect("no panic")).filter(|is_in| *is_in).count()
    });
    assert_eq!(admitted, 1);
}

#[test]
fn a_late_token_is_refused() {
    let all = Nodes::strangers(1);
    let node = &all.nodes[0];
    let past = SystemTime::now() - Duration::from_secs(90);
    let token = Token::issue(&node.identity, &node.address().to_string(), past).expect("a token").reveal();
    let why = refused(&token);
    assert!(why.contains("expired 9") && why.contains("issue another"), "{why}");
    assert_eq!(node.cluster.decisions.load(Ordering::Relaxed), 0);
}

#[test]
fn a_damaged_token_is_noticed_before_anything_is_sent() {
    let all = Nodes::strangers(1);
    let token = all.nodes[0].token();
    assert!(Token::parse(&format!("  {token}\n")).is_ok());
    for cut in 0..token.len() {
        assert!(Token::parse(&token[..cut]).is_err(), "{cut}");
    }
    let why = refused(&token[..token.len() - 7]);
    assert!(why.contains("incomplete") && why.contains("copy the whole line"), "{why}");
    let why = refused("thalweg");
    assert!(why.contains(TOKEN_PREFIX), "{why}");
}

#[test]
fn a_token_of_another_cluster_is_refused_by_the_program_and_by_the_node() {
    let (all, others) = (Nodes::strangers(1), Nodes::strangers(1));
    let (node, other) = (&all.nodes[0], &others.nodes[0]);
    let expires = SystemTime::now() + Duration::from_secs(60);
    let token = Token::issue(&other.identity, &node.address().to_string(), expires).expect("a token");
    // The program does not even send it.
    let why = refused(&token.reveal());
    assert!(why.contains("no node of the token's cluster"), "{why}");
    assert_eq!(node.cluster.decisions.load(Ordering::Relaxed), 0);
    let denied = token.check(&node.identity, SystemTime::now(), &*node.cluster).expect_err("another key");
    assert!(denied.message.contains("not issued by this cluster"), "{denied}");
    // A changed token has another signature.
    let mut longer = Token::parse(&node.token()).expect("a token");
    longer.expires += 1;
    let denied = longer.check(&node.identity, SystemTime::now(), &*node.cluster).expect_err("changed");
    assert!(denied.message.contains("not issued by this cluster"), "{denied}");
    let why = refused(&longer.reveal());
    assert!(why.contains("not issued by this cluster"), "{why}");
}

/// The certificate of the authority is no secret: a server can show it beside its own.
#[test]
fn a_server_that_only_shows_the_authority_gets_no_token() {
    let all = Nodes::strangers(1);
    let authority = std::fs::read(all.dirs[0].path().join("cluster/ca.pem")).expect("a file");
    let own = rcgen::generate_simple_self_signed(vec!["join.thalweg".to_owned()]).expect("a certificate");
    let chain = vec![own.cert.der().clone(), CertificateDer::from_pem_slice(&authority).expect("a certificate")];
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key"))
        .expect("an identity");
    config.alpn_protocols = vec![b"thalweg-cluster".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address").to_string();
    let expires = SystemTime::now() + Duration::from_secs(60);
    let token = Token::issue(&all.nodes[0].identity, &address, expires).expect("a token").reveal();
    let server = std::thread::spawn(move || {
        let (socket, _) = listener.accept().expect("a connection");
        let connection = rustls::ServerConnection::new(Arc::new(config)).expect("a server");
        rustls::StreamOwned::new(connection, socket).read(&mut [0; 512]).map_err(|error| error.to_string())
    });
    let why = refused(&token);
    assert!(why.contains("no node of the token's cluster"), "{why}");
    let read = server.join().expect("no panic");
    assert!(read.as_ref().is_err_and(|error| error.contains("alert")), "{read:?}");
}

#[test]
fn a_directory_with_data_does_not_join() {
    let all = Nodes::strangers(1);
    let token = all.nodes[0].token();
    for name in ["checkpoint", "topics", "journal"] {
        let data = dir();
        std::fs::write(data.path().join(name), b"x").expect("written");
        let error = join(&token, data.path()).expect_err("it has data");
        assert_eq!(error.kind, ErrorKind::AlreadyExists);
        assert!(error.message.contains(name) && error.message.contains("empty directory"), "{error}");
    }
    let error = join(&token, all.dirs[0].path()).expect_err("it has an identity");
    assert_eq!(error.kind, ErrorKind::AlreadyExists);
    assert!(error.message.contains("belongs to a node of a cluster"), "{error}");
    // What a killed attempt left is no obstacle, and the token is still good.
    let data = dir();
    std::fs::create_dir(data.path().join("cluster.new")).expect("created");
    std::fs::write(data.path().join("cluster.new/ca.key"), b"half").expect("written");
    std::fs::write(data.path().join("seal.key"), [1; 32]).expect("written");
    join(&token, data.path()).expect("admitted");
    assert_eq!(std::fs::read(data.path().join("seal.key")).expect("a key"), SEAL_KEY);
    assert!(!data.path().join("cluster.new").exists());
}

#[test]
fn a_program_follows_to_the_leader() {
    let all = Nodes::strangers(2);
    let [leader, follower] = &all.nodes[..] else { unreachable!("two nodes") };
    // Each has its own state here, so the follower refers to the leader.
    let alone = Arc::new(crate::support::Cluster::default());
    *alone.leader.lock().expect("no panic") = Some(leader.address().to_string());
    let follower = Node::start_as(follower.identity.clone(), alone.clone());
    let joined = join(&follower.token(), dir().path()).expect("admitted");
    assert_eq!((joined.node(), alone.decisions.load(Ordering::Relaxed)), (3, 1));
    // Two nodes that name each other are left after some rounds.
    *alone.leader.lock().expect("no panic") = Some(follower.address().to_string());
    let why = refused(&follower.token());
    assert!(why.contains("named another one as their leader"), "{why}");
    assert_eq!(alone.decisions.load(Ordering::Relaxed), 1 + 1 + REDIRECTS_MAX as u64);
}

#[test]
fn the_reason_of_the_cluster_is_told() {
    let all = Nodes::strangers(1);
    let token = all.nodes[0].token();
    let data = dir();
    let error = join_as(&token, data.path(), "old").expect_err("too old");
    assert!(error.message.ends_with("the program is too old: update it to 1.2"), "{error}");
    // A refusal uses no token up.
    join(&token, data.path()).expect("admitted");
}

#[test]
fn an_address_where_no_node_listens_is_named() {
    let all = Nodes::strangers(1);
    let expires = SystemTime::now() + Duration::from_secs(60);
    let free = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address");
    let token = Token::issue(&all.nodes[0].identity, &free.to_string(), expires).expect("a token").reveal();
    let why = refused(&token);
    assert!(why.contains(&free.to_string()) && why.contains("check that the node runs"), "{why}");
    let error = crate::support::runtime()
        .block_on(cluster::join::join(&token, "nowhere", dir().path(), PROGRAM))
        .expect_err("no address");
    assert_eq!(error.kind, ErrorKind::Invalid);
}

fn granted() -> Granted {
    Granted {
        cluster: 7 << 100,
        node: 3,
        ids: IDS,
        certificate: vec![1, 2, 3],
        key: Zeroizing::new(vec![4, 5]),
        seal_key: Zeroizing::new(SEAL_KEY),
        nodes: vec![(1, "a:1".to_owned()), (3, "[2001:db8::3]:7402".to_owned())],
    }
}

/// One frame of each kind on a connection for joining.
fn vectors() -> Vec<(&'static str, Vec<Bytes>)> {
    let token = format!("{TOKEN_PREFIX}AQID");
    let request = Request { token, advertise: "b:2".to_owned(), program: PROGRAM.to_owned(), format: 2 };
    vec![
        ("request", request.encode()),
        ("granted", Answer::Granted(granted()).encode()),
        ("not_leader", Answer::NotLeader { address: "c:3".to_owned() }.encode()),
    ]
}

/// The bytes are fixed: programs of two versions have to understand each other.
/// `UPDATE=1 cargo test -p thalweg-cluster` writes the file again after an intended change.
#[test]
fn the_bytes_of_each_message_are_those_of_the_vectors() {
    let mut text = "# Name, and the frame: its head and its body.\n".to_owned();
    for (name, chunks) in vectors() {
        let bytes = chunks.concat();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (head, body) = bytes.split_at(FRAME_HEAD_BYTES);
        text += &format!("{name} {} {}\n", hex(head), hex(body));
        assert!(is_whole(head[4], &Bytes::copy_from_slice(body)), "{name}");
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/join.txt");
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        std::fs::write(&path, &text).expect("the vectors can be written");
    }
    assert_eq!(text, std::fs::read_to_string(&path).expect("the vectors"));
}

fn encoded(result: Result<Vec<Bytes>>) -> Option<Vec<u8>> {
    result.ok().map(|chunks| chunks.concat())
}

/// Returns `true` if a body decodes, and encodes to its own bytes.
fn is_whole(kind: u8, body: &Bytes) -> bool {
    let request = encoded(Request::decode(kind, body.clone()).map(|request| request.encode()));
    let answer = Answer::decode(kind, body.clone()).map(|answer| match answer {
        Ok(answer) => answer.encode(),
        Err(refusal) => cluster::link::Frame::Refusal(refusal).encode(),
    });
    let again = request.or(encoded(answer));
    again.is_some_and(|again| again[FRAME_HEAD_BYTES..] == body[..] && again[4] == kind)
}

#[test]
fn a_granted_admission_has_no_room_for_more() {
    let largest = Granted {
        certificate: vec![1; 2000],
        key: Zeroizing::new(vec![1; 2000]),
        nodes: (1..=256).map(|node| (node, format!("{}:7402", "a".repeat(255)))).collect(),
        ..granted()
    };
    assert!(Answer::Granted(largest).encode().concat().len() <= JOIN_BYTES_MAX);
    let decode = |granted: Granted| {
        let bytes = Bytes::from(Answer::Granted(granted).encode().concat());
        Answer::decode(bytes[4], bytes.slice(FRAME_HEAD_BYTES..)).is_ok()
    };
    assert!(decode(granted()));
    assert!(!decode(Granted { nodes: granted().nodes.into_iter().rev().collect(), ..granted() }));
    assert!(!decode(Granted { node: 0, ..granted() }));
}

proptest! {
    #[test]
    fn cut_or_changed_messages_are_refused_or_whole(
        kind in 0..8_usize,
        cut: prop::sample::Index,
        at: prop::sample::Index,
        byte: u8,
    ) {
        let all = vectors();
        let (name, chunks) = &all[kind % all.len()];
        let mut bytes = chunks.concat();
        let cut = FRAME_HEAD_BYTES + cut.index(bytes.len() - FRAME_HEAD_BYTES);
        // Without its format it is the request of an earlier version.
        let is_earlier = *name == "request" && bytes.len() - cut == 4;
        prop_assert_eq!(is_whole(bytes[4], &Bytes::copy_from_slice(&bytes[FRAME_HEAD_BYTES..cut])), is_earlier);
        let at = FRAME_HEAD_BYTES + at.index(bytes.len() - FRAME_HEAD_BYTES);
        bytes[at] = byte;
        let body = Bytes::copy_from_slice(&bytes[FRAME_HEAD_BYTES..]);
        let is_read = Request::decode(bytes[4], body.clone()).is_ok() || Answer::decode(bytes[4], body.clone()).is_ok();
        prop_assert_eq!(is_read, is_whole(bytes[4], &body));
    }

    #[test]
    fn any_text_is_a_token_or_refused(text in "(thalweg-join-)?[A-Za-z0-9_-]{0,200}") {
        if let Ok(token) = Token::parse(&text) {
            prop_assert_eq!(token.reveal(), text);
        }
    }
}

#[test]
fn a_key_is_not_shown() {
    let data = dir();
    let identity = Identity::found(data.path(), IDS, "a:1").expect("founded");
    let token = Token::issue(&identity, "a:1", SystemTime::now()).expect("a token");
    assert!(!token.reveal().contains(&format!("{token:?}")));
    assert!(!format!("{token:?}").contains("signature"));
}
