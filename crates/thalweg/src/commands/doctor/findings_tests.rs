//! Tables of facts with the findings that they lead to.

use std::net::SocketAddr;

use super::super::facts::{HugePages, Sync};
use super::*;

/// Returns a machine without anything to report.
fn sound() -> Facts {
    Facts {
        files_max: Some(1 << 20),
        files_hard_max: Some(1 << 20),
        receive_buffer_max: Some(8 << 20),
        send_buffer_max: Some(8 << 20),
        backlog_max: Some(4096),
        clock_source: Some("tsc".into()),
        is_clock_synchronised: Some(true),
        huge_pages: Some(HugePages { mode: "madvise".into(), is_on_here: Some(true) }),
        swap_bytes: Some(0),
        mappings_max: Some(65_530),
        memory_bytes: Some(8 << 30),
        memory_limit_bytes: None,
        threads_limit: None,
        cores: 4,
        plan: Plan { connections_max: 65_536, doors: 6, threads: 4, memory_bytes: 3 << 30, is_quic_used: true },
        data: Some(Data {
            path: "/srv/data".into(),
            exists: true,
            owner: None,
            file_system: Some("ext4".into()),
            free_bytes: Some(50 << 30),
            size_bytes: Some(100 << 30),
            write_error: None,
            sync: Some(Sync { count: 100, median_us: 840, p99_us: 2300 }),
        }),
        ports: vec![port(PortState::Free)],
    }
}

fn port(state: PortState) -> Port {
    let address = SocketAddr::from(([127, 0, 0, 1], 9092));
    Port { used_by: "kafka", option: "--kafka ".to_owned(), address, state }
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = sound();
    change(&mut facts);
    facts
}

fn with_data(change: impl FnOnce(&mut Data)) -> Facts {
    with(|facts| change(facts.data.as_mut().expect("a data directory")))
}

/// Returns the findings that are not `ok`.
fn reported(facts: &Facts) -> Vec<Finding> {
    findings(facts).into_iter().filter(|finding| finding.severity != Severity::Ok).collect()
}

#[test]
fn a_sound_machine_has_nothing_to_report() {
    assert_eq!(reported(&sound()), []);
    assert_eq!(worst(&findings(&sound())), Severity::Ok);
    let checks: Vec<&str> = findings(&sound()).iter().map(|finding| finding.check).collect();
    let expected = [
        "open files",
        "UDP buffers",
        "backlog",
        "memory",
        "swap",
        "huge pages",
        "mappings",
        "cores",
        "clock source",
        "clock",
        "data directory",
        "file system",
        "free space",
        "disk sync",
        "ports",
    ];
    assert_eq!(checks, expected);
}

/// Each row changes one fact of a sound machine, and names the only finding that results, with a part of its text.
#[test]
fn each_fact_leads_to_its_finding_alone() {
    use Severity::{Note, Problem, Warning};
    let rows = [
        (with(|facts| facts.files_max = Some(255)), "open files", Problem, "only 255 files"),
        (with(|facts| facts.files_max = Some(1024)), "open files", Warning, "1024 files; connections_max allows 65536"),
        (with(|facts| facts.files_max = None), "open files", Note, "cannot be read"),
        (with(|facts| facts.receive_buffer_max = Some(212_992)), "UDP buffers", Warning, "208 KiB instead of 8 MiB"),
        (with(|facts| facts.send_buffer_max = Some((8 << 20) - 1)), "UDP buffers", Warning, "loses datagrams"),
        (with(|facts| facts.backlog_max = Some(128)), "backlog", Warning, "only 128 connections"),
        (
            with(|facts| facts.memory_bytes = Some(2 << 30)),
            "memory",
            Warning,
            "may use 3 GiB, and the machine has 2 GiB",
        ),
        (with(|facts| facts.memory_limit_bytes = Some(1 << 30)), "memory", Warning, "its control group has 1 GiB"),
        (with(|facts| facts.swap_bytes = Some(1 << 30)), "swap", Note, "1 GiB"),
        (
            with(|facts| facts.huge_pages = Some(HugePages { mode: "always".into(), is_on_here: Some(true) })),
            "huge pages",
            Warning,
            "several times its size",
        ),
        (with(|facts| facts.mappings_max = Some(65_529)), "mappings", Warning, "only 65529"),
        (
            with(|facts| facts.threads_limit = Some(67)),
            "cores",
            Problem,
            "allows 67 threads, and the broker may need 68",
        ),
        (with(|facts| facts.cores = 3), "cores", Warning, "4 threads serve connections on 3 cores"),
        (with(|facts| facts.clock_source = Some("hpet".into())), "clock source", Warning, "hpet"),
        (with(|facts| facts.is_clock_synchronised = Some(false)), "clock", Warning, "not synchronised"),
        (with(|facts| facts.is_clock_synchronised = None), "clock", Note, "not known"),
        (with_data(|data| data.write_error = Some("denied".into())), "data directory", Problem, "/srv/data: denied"),
        (with_data(|data| data.file_system = Some("tmpfs".into())), "file system", Problem, "in memory"),
        (with_data(|data| data.file_system = Some("nfs4".into())), "file system", Problem, "not a local"),
        (with_data(|data| data.file_system = Some("overlay".into())), "file system", Problem, "with the container"),
        (with_data(|data| data.free_bytes = Some(191 << 20)), "free space", Problem, "191 MiB of 100 GiB"),
        (with_data(|data| data.free_bytes = Some(1 << 30)), "free space", Warning, "soon used up"),
        (
            with_data(|data| data.sync = Some(Sync { count: 100, median_us: 12_500, p99_us: 90_000 })),
            "disk sync",
            Warning,
            "median 12.5 ms, p99 90.0 ms: a publisher that waits for each acknowledgement sends at most 80 per second",
        ),
        (
            with_data(|data| data.sync = Some(Sync { count: 100, median_us: 800, p99_us: 150_000 })),
            "disk sync",
            Warning,
            "some acknowledgements wait",
        ),
        (
            with_data(|data| data.sync = Some(Sync { count: 100, median_us: 9, p99_us: 20 })),
            "disk sync",
            Warning,
            "faster than any disk",
        ),
        (with_data(|data| data.sync = None), "disk sync", Note, "not measured"),
        (
            with(|facts| facts.ports = vec![port(PortState::Taken)]),
            "ports",
            Problem,
            "127.0.0.1:9092 (kafka) is in use",
        ),
        (
            with(|facts| facts.ports = vec![port(PortState::Refused("not here".into()))]),
            "ports",
            Problem,
            "cannot be opened: not here",
        ),
    ];
    for (facts, check, severity, part) in rows {
        let found = reported(&facts);
        let [only] = found.as_slice() else { panic!("{check}: {found:?}") };
        assert_eq!((only.check, only.severity), (check, severity), "{only:?}");
        assert!(only.found.contains(part), "{part}: {only:?}");
        assert_eq!(only.action.is_empty(), severity == Note && check != "swap", "{only:?}");
    }
}

#[test]
fn facts_that_do_not_matter_are_not_reported() {
    let quiet = [
        with(|facts| {
            facts.plan.is_quic_used = false;
            facts.receive_buffer_max = Some(1);
        }),
        with(|facts| facts.huge_pages = Some(HugePages { mode: "always".into(), is_on_here: Some(false) })),
        with(|facts| facts.memory_limit_bytes = Some(16 << 30)),
        with(|facts| facts.threads_limit = Some(68)),
        with(|facts| {
            facts.data = None;
            facts.files_max = Some(65_536 + FILES_OF_TOPICS);
        }),
        with_data(|data| data.exists = false),
    ];
    for facts in quiet {
        assert_eq!(reported(&facts), []);
    }
}

/// Ports that the broker of the same directory has are no obstacle.
#[test]
fn a_running_broker_is_not_another_program() {
    let facts = with(|facts| {
        facts.ports = vec![port(PortState::Taken), port(PortState::Free)];
        facts.data.as_mut().expect("a data directory").owner = Some(77);
    });
    let found = reported(&facts);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].severity == Severity::Note && found[0].found.contains("process 77"), "{found:?}");
}

#[test]
fn a_low_hard_limit_of_files_needs_an_administrator() {
    let action = |hard| {
        let facts = with(|facts| {
            facts.files_max = Some(1024);
            facts.files_hard_max = Some(hard);
        });
        reported(&facts).pop().expect("a finding").action
    };
    assert!(action(1 << 20).contains("ulimit -n 397312"), "{}", action(1 << 20));
    assert!(action(4096).starts_with("set LimitNOFILE=397312"), "{}", action(4096));
}

#[test]
fn the_worst_finding_decides() {
    let both = with(|facts| {
        facts.swap_bytes = Some(1);
        facts.ports = vec![port(PortState::Taken)];
    });
    assert_eq!(worst(&findings(&both)), Severity::Problem);
    assert_eq!(worst(&findings(&with(|facts| facts.swap_bytes = Some(1)))), Severity::Note);
}
