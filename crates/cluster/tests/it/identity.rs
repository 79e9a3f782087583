//! The folder of an identity: what is written is read, and by its user only.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use cluster::identity::{FOUNDER, Identity, RENEWAL, check_address};
use engine::ErrorKind;

use crate::support::IDS;

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn what_is_founded_is_loaded() {
    let data = tempfile::tempdir().expect("a directory");
    assert!(Identity::load(data.path()).expect("empty").is_none());
    let founded = Identity::found(data.path(), IDS, "broker-1.example:7402").expect("founded");
    let loaded = Identity::load(data.path()).expect("readable").expect("an identity");
    let facts = |identity: &Identity| {
        (
            identity.cluster(),
            identity.node(),
            identity.ids(),
            identity.advertise(),
            identity.nodes(),
            identity.fingerprint(),
        )
    };
    assert_eq!(facts(&founded), facts(&loaded));
    assert_eq!((loaded.node(), loaded.ids()), (FOUNDER, IDS));
    assert_eq!(loaded.nodes(), [(1, "broker-1.example:7402".to_owned())]);
    let life = loaded.expires_at().duration_since(SystemTime::now()).expect("in the future");
    assert!((364 * DAY..=365 * DAY).contains(&life), "{life:?}");
    assert!(!format!("{loaded:?}").contains("PRIVATE"));
}

#[test]
fn only_the_user_of_the_broker_can_read_it() {
    let data = tempfile::tempdir().expect("a directory");
    Identity::found(data.path(), IDS, "a:1").expect("founded");
    let folder = data.path().join("cluster");
    let mode = |path: &std::path::Path| path.metadata().expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut names = Vec::new();
    for entry in folder.read_dir().expect("a folder") {
        let entry = entry.expect("an entry");
        assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
        names.push(entry.file_name().into_string().expect("a name"));
    }
    names.sort();
    assert_eq!(names, ["ca.key", "ca.pem", "node.key", "node.pem", "node.toml"]);
    for name in ["ca.key", "node.key"] {
        let path = folder.join(name);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        let refused = Identity::load(data.path()).expect_err("others can read it");
        assert_eq!(refused.kind, ErrorKind::Denied);
        assert!(refused.message.contains("chmod 600"), "{refused}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
    }
}

#[test]
fn nodes_and_the_address_survive_a_restart() {
    let data = tempfile::tempdir().expect("a directory");
    let identity = Identity::found(data.path(), IDS, "a:1").expect("founded");
    let nodes = vec![(1, "a:1".to_owned()), (3, "[2001:db8::3]:7402".to_owned()), (u64::MAX >> 1, "c:3".to_owned())];
    identity.save_nodes(&nodes).expect("saved");
    identity.save_advertise("a:2").expect("saved");
    let loaded = Identity::load(data.path()).expect("readable").expect("an identity");
    assert_eq!(loaded.advertise(), "a:2");
    assert_eq!(loaded.nodes(), [(1, "a:2".to_owned()), nodes[1].clone(), nodes[2].clone()]);
    for bad in [vec![(2, "no port".to_owned())], vec![(0, "a:1".to_owned())], vec![(2, "a:1".to_owned()); 257]] {
        assert!(identity.save_nodes(&bad).is_err(), "{:?}", bad[0]);
    }
    assert_eq!(Identity::load(data.path()).expect("readable").expect("an identity").nodes(), loaded.nodes());
}

#[test]
fn a_directory_with_an_identity_founds_no_second_cluster() {
    let data = tempfile::tempdir().expect("a directory");
    let first = Identity::found(data.path(), IDS, "a:1").expect("founded");
    let refused = Identity::found(data.path(), IDS, "a:1").expect_err("a second time");
    assert_eq!(refused.kind, ErrorKind::AlreadyExists);
    let loaded = Identity::load(data.path()).expect("readable").expect("an identity");
    assert_eq!(loaded.cluster(), first.cluster());
}

#[test]
fn a_certificate_is_renewed_before_it_expires_and_not_earlier() {
    let data = tempfile::tempdir().expect("a directory");
    let identity = Identity::found(data.path(), IDS, "a:1").expect("founded");
    let read = |name| std::fs::read(data.path().join("cluster").join(name)).expect("a file");
    let (certificate, key, expires) = (read("node.pem"), read("node.key"), identity.expires_at());
    assert_eq!(identity.renew(expires - RENEWAL - DAY), Ok(false));
    assert_eq!(read("node.pem"), certificate);
    assert_eq!(identity.renew(expires - RENEWAL + DAY), Ok(true));
    assert!(identity.expires_at() > expires + 300 * DAY);
    assert_ne!(read("node.pem"), certificate);
    assert_eq!(read("node.key"), key);
    let loaded = Identity::load(data.path()).expect("readable").expect("an identity");
    assert_eq!(loaded.expires_at(), identity.expires_at());
}

#[test]
fn damaged_files_are_named() {
    let data = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    Identity::found(data.path(), IDS, "a:1").expect("founded");
    Identity::found(other.path(), IDS, "a:1").expect("founded");
    let path = |name: &str| data.path().join("cluster").join(name);
    for name in ["ca.key", "ca.pem", "node.key", "node.pem", "node.toml"] {
        let good = std::fs::read(path(name)).expect("a file");
        std::fs::write(path(name), &good[..good.len() / 2]).expect("written");
        let refused = Identity::load(data.path()).expect_err("cut");
        assert!(refused.message.contains("cluster/") && refused.message.contains("restore"), "{name}: {refused}");
        std::fs::remove_file(path(name)).expect("removed");
        assert_eq!(Identity::load(data.path()).expect_err("missing").kind, ErrorKind::NotFound, "{name}");
        std::fs::write(path(name), &good).expect("written");
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(0o600)).expect("set");
    }
    std::fs::copy(other.path().join("cluster/ca.key"), path("ca.key")).expect("copied");
    let refused = Identity::load(data.path()).expect_err("the key of another cluster");
    assert!(refused.message.contains("does not belong to the certificate"), "{refused}");
}

#[test]
fn addresses_are_hosts_with_ports() {
    for good in ["a:1", "broker-1.example:65535", "10.0.0.1:7402", "[2001:db8::1]:7402", "[fe80::1%eth0]:7402"] {
        assert_eq!(check_address(good), Ok(()), "{good}");
    }
    let long = format!("{}:1", "a".repeat(300));
    for bad in
        ["", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "2001:db8::1:7402", "a b:1", "a\n:1", "http://a:1", &long]
    {
        assert!(check_address(bad).is_err(), "{bad}");
    }
}
