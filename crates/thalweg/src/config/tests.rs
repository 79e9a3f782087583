//! Tests of the configuration, source by source.

use std::io::Write;

use doors::sqs::sigv4::Auth;

use super::*;
use crate::door_table::sqs_auth;

fn load(file: &str, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config> {
    let mut path = tempfile::NamedTempFile::new().expect("a temporary file");
    path.write_all(file.as_bytes()).expect("written");
    Config::load(&Sources {
        file: Some(path.path().to_owned()),
        context: None,
        env: env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        flags: flags.iter().map(|(n, v)| (*n, (*v).to_owned())).collect(),
    })
}

fn message(result: Result<Config>) -> String {
    result.expect_err("must be refused").0
}

#[test]
fn flags_win_over_variables_over_file_over_size_over_profile() {
    let config = load("pub_queue_depth = 7\nprofile = \"latency\"", &[], &[]).expect("valid");
    assert_eq!(config.broker().pub_queue_depth, 7);
    assert_eq!(config.broker().event_batch_max_events, 8, "the profile decides the rest");
    let env = [("THALWEG_PUB_QUEUE_DEPTH", "8")];
    assert_eq!(load("pub_queue_depth = 7", &env, &[]).expect("valid").broker().pub_queue_depth, 8);
    let flags = [("pub_queue_depth", "9")];
    let config = load("pub_queue_depth = 7", &env, &flags).expect("valid");
    let (_, value, origin) = config.entries().find(|(key, ..)| key.name == "pub_queue_depth").expect("a key");
    assert_eq!((value, origin), ("9", &Origin::Flag("pub-queue-depth".into())));
    assert_eq!(origin.to_string(), "--set pub_queue_depth", "there is no flag of that name");
    assert_eq!(Origin::Flag("ca-file".into()).to_string(), "--ca-file");
    let wrong = load("", &[], &[("retention_ms", "soon")]).expect_err("no time").to_string();
    assert!(wrong.starts_with("retention_ms (--set retention_ms): 'soon'"), "{wrong}");
    let sized = load("size = \"small\"\nprofile = \"throughput\"", &[], &[]).expect("valid");
    assert_eq!(sized.broker().event_batch_max_events, 32);
    assert_eq!(sized.broker().fanout_batch_size, 256, "the size says nothing of it");
}

#[test]
fn the_three_profiles_are_those_of_the_table() {
    let rows = PROFILES.map(|profile| load(&format!("profile = \"{profile}\""), &[], &[]).expect("valid"));
    let lanes = rows.each_ref().map(|config| config.broker().writer_lanes);
    let delay = rows.each_ref().map(|config| config.broker().event_batch_max_delay.as_micros());
    let window = rows.each_ref().map(|config| config.client().event_conn_recv_window >> 20);
    assert_eq!((lanes, delay, window), ([4, 2, 8], [250, 100, 2000], [256, 64, 512]));
    let caches = rows.each_ref().map(|config| {
        let client = config.client();
        (client.cache_conn_recv_window >> 20, client.cache_stream_recv_window >> 20)
    });
    assert_eq!(caches, [(256, 64), (64, 16), (512, 128)]);
}

#[test]
fn commands_find_the_broker_of_their_configuration() {
    let server = |file: &str, env: &[(&str, &str)]| {
        let config = load(&format!("insecure = true\n{file}"), env, &[]).expect("valid");
        let (_, value, origin) = config.entries().find(|(key, ..)| key.name == "server").expect("a key");
        (value.to_owned(), matches!(origin, Origin::File(_)))
    };
    for (file, wanted, is_of_file) in [
        ("", "127.0.0.1:7400", false),
        ("native = \"7500\"", "127.0.0.1:7500", true),
        ("native = \"0.0.0.0:7500\"", "127.0.0.1:7500", true),
        ("native = \"[::]:7500\"", "[::1]:7500", true),
        ("native = \"192.0.2.1:7500\"", "192.0.2.1:7500", true),
        ("native = \"localhost:7500\"", "localhost:7500", true),
        // These name no port.
        ("native = \"off\"", "127.0.0.1:7400", false),
        ("native = \"0.0.0.0:0\"", "127.0.0.1:7400", false),
        ("native = \"7500\"\n[client]\nserver = \"a.lan\"", "a.lan", true),
    ] {
        assert_eq!(server(file, &[]), (wanted.to_owned(), is_of_file), "{file}");
    }
    let env = [("THALWEG_SERVER", "b.lan")];
    assert_eq!(server("native = \"7500\"", &env), ("b.lan".to_owned(), false));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest() {
    assert!(message(load("pub_queue_deph = 1", &[], &[])).contains("did you mean pub_queue_depth?"));
    assert!(message(load("zzzzzzzz = 1", &[], &[])).contains("config show"));
    for (old, new) in [("shards", "threads"), ("subscriber_lane_shard", "subscriber_lane_policy")] {
        let renamed = format!("the key {old} is now called {new}");
        assert!(message(load(&format!("{old} = 1"), &[], &[])).contains(&renamed));
        assert!(message(load("", &[(&format!("THALWEG_{}", old.to_uppercase()), "1")], &[])).contains(&renamed));
    }
    assert!(message(load("", &[("THALWEG_THREAD", "1")], &[])).contains("did you mean threads?"));
    assert!(message(load("pub_conn_pool = 1", &[], &[])).contains("under [client]"));
    assert!(message(load("[client]\nthreads = 1", &[], &[])).contains("top of the file"));
}

#[test]
fn a_wrong_value_names_its_key_and_its_range() {
    for (file, expected) in [
        ("pub_queue_depth = 0", "1 to 65536"),
        ("pub_queue_depth = \"many\"", "'many' is not a whole number"),
        ("memory_max = \"1 XiB\"", "write 4096, 64KiB, 16MiB or 1GiB"),
        ("memory_max = 1", "1 is not within 1MiB to 16TiB"),
        ("retention_ms = \"1y\"", "write 500ms, 90s, 5m, 2h or 7d, or a number of milliseconds"),
        ("hello_timeout_ms = \"2d\"", "2d is not within 1ms to 1d"),
        ("[broker]\nthreads = 1", "remove the line [broker]"),
        ("ack_on_commit = \"yes\"", "neither true nor false"),
        ("subscriber_lane_policy = \"best\"", "auto, subscriber_id_hash"),
        ("native = \"nowhere\"", "host:port"),
        ("tls_cert = \"a.pem\"", "belong together"),
        ("native = \"0.0.0.0:1\"", "--insecure"),
        ("http = \"0.0.0.0:1\"", "--insecure"),
        ("http_hosts = \"http://a\"", "*.domain"),
        ("http_trusted_proxies = \"10.0.0.0/8, proxy\"", "'proxy'"),
        ("[client]\nevent_stream_recv_window = \"1GiB\"", "larger than event_conn_recv_window, which bounds it"),
        ("[client]\ncache_conn_recv_window = \"1MiB\"", "larger than cache_conn_recv_window, which bounds it"),
        ("native = [1]", "a text, a number or a bool"),
        ("native =", "expected"),
    ] {
        let message = message(load(file, &[], &[]));
        assert!(message.contains(expected), "{file}: {message}");
    }
}

#[test]
fn http_is_reachable_from_elsewhere_with_a_certificate_and_logins() {
    let file = "http = \"0.0.0.0:1\"\nnative = \"0.0.0.0:2\"\ntls_cert = \"a.pem\"\ntls_key = \"a.key\"\n\
                auth = \"required\"\nhttp_hosts = \"a, *.b:1 ,\"\nhttp_trusted_proxies = \"10.0.0.0/8,::1\"";
    let config = load(file, &[], &[]).expect("valid");
    assert!(!config.server().allow_plain);
    assert_eq!(config.http_hosts().expect("valid"), ["a", "*.b:1"]);
    assert_eq!(config.trusted_proxies().expect("valid").len(), 2);
}

#[test]
fn a_file_that_is_shown_can_be_read_and_says_the_same() {
    let file = "retention_ms = \"90m\"\nmemory_max = 3_000_000_000\nnative = \"off\"\nkafka = \":9999\"\n\
                event_batch_max_delay_us = \"2ms\"\nhttp_hosts = \"a,\\\"b\\\"\"\nusers = \"billing:geheim\"\n\
                retention_bytes = 0\ndisk_retention_ms = \"18446744073709551615\"\n\
                [client]\nca_file = \"C:\\\\ca.pem\"\n\
                [[topics]]\nname = \"orders\"\npartitions = 4\nretention_ms = \"7d\"\n\
                [[queues]]\nname = \"jobs\"\nlease_ms = \"90s\"";
    let config = load(file, &[], &[]).expect("valid");
    let shown = config.to_toml(Remark::Origin);
    assert!(!shown.contains("geheim"), "{shown}");
    for line in [
        "retention_ms = \"90m\"",
        "memory_max = 3000000000",
        "kafka = \"127.0.0.1:9999\"",
        "sqs_region = \"us-east-1\"",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line}: {shown}");
    }
    let again = load(&shown, &[], &[]).expect("valid");
    let values = |config: &Config| -> Vec<(&str, String)> {
        let entries = config.entries().filter(|(key, ..)| !matches!(key.kind, Kind::Secret));
        entries.map(|(key, value, _)| (key.name, value.to_owned())).collect()
    };
    assert_eq!(values(&again), values(&config));
    let definitions = |text: &str| text.find("[[").map(|begin| text[begin..].to_owned());
    assert!(definitions(&shown).is_some_and(|text| text.contains("name = \"jobs\"")), "{shown}");
    assert_eq!(definitions(&again.to_toml(Remark::Origin)), definitions(&shown));
}

#[test]
fn a_share_of_traced_records_is_a_number_in_the_file_and_in_flags() {
    let collector = "tracing = true\notlp_endpoint = \"http://localhost:4318\"\n";
    let ratio = |file: &str, flags: &[(&'static str, &str)]| {
        let config = load(&format!("{collector}{file}"), &[], flags)?;
        Ok::<_, ConfigError>(config.broker().tracing.expect("it traces").ratio)
    };
    assert_eq!(ratio("", &[]).expect("valid"), 0.0);
    assert_eq!(ratio("tracing_sample_ratio = 0.01", &[]).expect("valid"), 0.01);
    assert_eq!(ratio("tracing_sample_ratio = 1", &[]).expect("valid"), 1.0);
    assert_eq!(ratio("", &[("tracing_sample_ratio", "0.25")]).expect("valid"), 0.25);
    for wrong in ["-0.1", "1.1", "nan", "\"some\""] {
        let error = ratio(&format!("tracing_sample_ratio = {wrong}"), &[]).expect_err("not a share").to_string();
        assert!(error.contains("is not a number from 0 to 1"), "{error}");
    }
    assert!(load("tracing_sample_ratio = 0.5", &[], &[]).expect("valid").broker().tracing.is_none(), "it is off");
}

#[test]
fn a_value_that_no_profile_changes_is_a_default() {
    let config = load("", &[], &[]).expect("valid");
    let origin = |name: &str| {
        let (.., origin) = config.entries().find(|(key, ..)| key.name == name).expect("a key");
        origin.to_string()
    };
    assert_eq!(origin("sqs_region"), "default");
    assert_eq!(origin("fanout_batch_size"), "profile balanced");
}

#[test]
fn a_port_alone_is_one_of_this_machine() {
    for text in ["7501", ":7501", "127.0.0.1:7501"] {
        let config = load("", &[], &[("http", text)]).expect("valid");
        assert_eq!(config.address("http").expect("valid"), Some(([127, 0, 0, 1], 7501).into()), "{text}");
    }
}

#[test]
fn times_have_units_wherever_they_are_written() {
    let config = load("retention_ms = 5000", &[("THALWEG_HELLO_TIMEOUT_MS", "2s")], &[("shutdown_timeout_ms", "1m")]);
    let config = config.expect("valid");
    assert_eq!(config.broker().topic_defaults.retention_ms, 5000);
    assert_eq!(config.server().hello_timeout.as_millis(), 2000);
    assert_eq!(config.server().shutdown_timeout.as_secs(), 60);
}

#[test]
fn lanes_are_clamped_by_their_maximum() {
    let config = load("subscriber_writer_lanes = 16", &[], &[]).expect("valid");
    assert_eq!(config.broker().writer_lanes, 8);
    let config = load("subscriber_writer_lanes = 16\nmax_subscriber_writer_lanes = 16", &[], &[]).expect("valid");
    assert_eq!(config.broker().writer_lanes, 16);
}

#[test]
fn topics_and_queues_are_defined_key_by_key() {
    let file = "
        memory_max = \"2GiB\"
        [[topics]]
        name = \"orders\"
        partitions = 4
        mesh = \"live\"
        [[topics]]
        name = \"audit\"
        mesh = \"mirror\"
        [[queues]]
        name = \"jobs\"
        lease_ms = 60_000
        order = \"groups\"
        dead_letter = \"dead\"
        is_strict = true
        [[queues]]
        name = \"billing\"
        topic = \"orders\"
        start = \"live\"
    ";
    load(file, &[], &[]).expect("valid");
    for (file, why) in [
        ("queues = 1", "queues is a list: begin each with [[queues]]"),
        ("[[queues]]\nlease_ms = 1", "[[queues]] number 1: name is missing"),
        ("[[queues]]\nname = \"a\"\n[[queues]]\nname = \"a\"", "[[queues]] a: it is defined twice"),
        ("[[queues]]\nname = \"a/b\"", "[[queues]] a/b: name: "),
        ("[[queues]]\nname = \"a\"\nlease = 1", "[[queues]] a: a queue has no setting 'lease'; it has lease_ms, "),
        ("[[queues]]\nname = \"a\"\nlease_ms = 1.5", "[[queues]] a: lease_ms is a text, a number or a bool, not 1.5"),
        ("[[queues]]\nname = \"a\"\nlease_ms = -1", "[[queues]] a: lease_ms: '-1' is not valid here: "),
        ("[[queues]]\nname = \"a\"\nlease_ms = 999999999999", "[[queues]] a: lease_ms is at most 43200000"),
        ("[[queues]]\nname = \"a\"\nstart = \"now\"", "[[queues]] a: start is earliest or live, not 'now'"),
        ("[[topics]]\nname = \"a\"\nparts = 1", "[[topics]] a: a topic has no setting 'parts'; it has partitions, "),
        ("[[topics]]\nname = \"a\"\npartitions = 0", "[[topics]] a: "),
        (
            "[[topics]]\nname = \"a\"\nmesh = \"on\"",
            "[[topics]] a: mesh: 'on' is not valid here: mesh is off, live, mirror or source, not 'on'",
        ),
        ("[[topics]]\nname = \"a\"\nmesh = \"copy\"", "[[topics]] a: mesh: the mode copy of a topic is not chosen"),
        (
            "[[topics]]\nname = \"a\"\nstorage = \"memory\"\nmesh = \"source\"",
            "[[topics]] a: a topic in memory is not ",
        ),
    ] {
        let told = message(load(file, &[], &[]));
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn sqs_requests_are_checked_if_credentials_are_set() {
    let auth = |file: &str| load(file, &[], &[]).and_then(|config| sqs_auth(&config));
    assert!(matches!(auth(""), Ok(Auth::Off)));
    let both = "sqs_auth = \"verify\"\nsqs_credentials = \"AKIDEXAMPLE:geheim, 111122223333:test\"";
    let Ok(Auth::Verify(known)) = auth(both) else { panic!("it is valid") };
    let shown = format!("{known:?}");
    assert!(shown.contains("AKIDEXAMPLE") && !shown.contains("geheim"), "{shown}");
    assert!(matches!(auth("sqs_auth = \"verify\""), Ok(Auth::Verify(_))), "the broker may have keys of its own");
    let wrong = message(load("sqs_credentials = \"AKIDEXAMPLE\"", &[], &[]));
    assert!(wrong.starts_with("sqs_credentials: write key:secret"), "{wrong}");
}

/// All checks of listen addresses iterate over the doors, so every listen address of clients must belong to a door.
/// Other nodes and other sites have their own certificates, and the state of a node has no login.
#[test]
fn each_key_of_an_address_to_listen_on_is_a_door() {
    let addresses: Vec<&str> = KEYS
        .iter()
        .filter(|key| key.scope == Scope::Broker && matches!(key.kind, Kind::Address))
        .filter(|key| !["cluster", "cluster_status", "mesh"].contains(&key.name))
        .map(|key| key.name)
        .collect();
    let mut doors: Vec<&str> = Door::ALL.into_iter().map(Door::key).collect();
    doors.sort_unstable_by_key(|door| addresses.iter().position(|address| address == door));
    assert_eq!(addresses, doors);
}

/// Returns a configuration with only this door open, at this address, and with additional lines.
fn only(door: Door, address: &str, more: &[&str]) -> Result<Config> {
    let doors = Door::ALL.into_iter().map(|other| {
        if other == door { format!("{} = \"{address}\"", other.key()) } else { format!("{} = \"off\"", other.key()) }
    });
    let lines: Vec<String> = doors.chain(more.iter().map(|line| (*line).to_owned())).collect();
    load(&lines.join("\n"), &[], &[])
}

#[test]
fn no_door_is_left_out_of_the_checks_of_binds() {
    let tls = ["tls_cert = \"a.pem\"", "tls_key = \"a.key\""];
    let login = "auth = \"required\"";
    let lists = "authorization = true";
    let insecure = "insecure = true";
    for door in Door::ALL {
        let key = door.key();
        for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let refused = message(only(door, address, &[]));
            assert!(refused.contains(&format!("{key} = {address} can be reached")), "{refused}");
            assert!(only(door, address, &[insecure]).is_ok(), "{key} {address}");
            let open = message(only(door, address, &tls));
            assert!(open.contains(&format!("{key} = {address} can be reached")) && open.contains("auth"), "{open}");
            assert!(only(door, address, &[&tls[..], &[login]].concat()).is_ok(), "{key}");
        }
        assert!(only(door, "127.0.0.1:1", &[login, lists]).is_ok(), "{key}");
        assert!(only(door, "[::1]:1", &[lists]).is_ok(), "{key}");
    }
}
