//! `bench cache`: its rows, its counts, and its detection of errors.

use std::time::Duration;

use bench::Program;
use bench::cache::{CacheReport, LADDER, Operation, Plan, Row, run};
use client::{Address, ClientSettings};
use serde_json::{Value, json};

use crate::support::command::{Done, on, thalweg};
use crate::support::server::{Server, until, within};

/// Options for a short run.
const SMALL: [&str; 9] = ["bench", "cache", "--json", "--connections", "2", "--samples", "200", "--warm-up", "20"];

fn small(args: &[&str]) -> Done {
    thalweg(SMALL.into_iter().chain(args.iter().copied()))
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().unwrap_or_else(|| panic!("no rows in {report}"))
}

/// Returns operation, bytes of values and concurrency of each row.
fn shapes(report: &Value) -> Vec<Value> {
    rows(report).iter().map(|row| json!([row["operation"], row["value_bytes"], row["concurrency"]])).collect()
}

/// Checks that every operation was timed once, without errors.
fn assert_whole(report: &Value, samples: u64) {
    for row in rows(report) {
        assert_eq!((&row["operations"], &row["errors"]), (&json!(samples), &json!(0)), "{row}");
        let latency = ["p50", "p95", "p99", "p999", "max"].map(|name| row["latency_us"][name].as_f64().expect("known"));
        assert!(latency.is_sorted() && row["latency_us"]["count"] == samples, "{row}");
        let [low, rate, high] = ["operations_per_s_min", "operations_per_s", "operations_per_s_max"]
            .map(|name| row[name].as_f64().expect("a rate"));
        assert!(0.0 < low && low <= rate && rate <= high, "{row}");
        assert!(row["client_cpu_us_per_operation"].as_f64() > Some(0.0), "{row}");
    }
}

/// Without options, the rows are those of the default table, over QUIC; the report describes the run and its host.
#[test]
fn the_usual_rows_are_measured() {
    let report = small(&["--streams", "2", "--keys", "16"]).json();
    let usual = [("put", json!(0)), ("put", json!(256)), ("put", json!(4096)), ("get-hit", json!(256))];
    let mut expected: Vec<Value> = usual.into_iter().map(|(name, bytes)| json!([name, bytes, 32])).collect();
    expected.push(json!(["get-miss", null, 32]));
    assert_eq!(shapes(&report), expected);
    assert_whole(&report, 200);
    assert!(rows(&report).iter().all(|row| row["server_cpu_us_per_operation"].is_number()), "{report}");
    assert_eq!((&report["transport"], &report["streams"], &report["keys"]), (&json!("quic"), &json!(2), &json!(16)));
    assert!(report["command"].as_str().is_some_and(|command| command.contains("bench cache --json")), "{report}");
    assert!(report["commit"].is_string() && report["kernel"].is_string() && report["cores"].is_number());
}

/// Each row can have another shape, and more streams than the broker's default limit are served.
#[test]
fn rows_are_run_as_they_are_asked_for() {
    let report =
        small(&["--operation", "get-hit,put", "--value-bytes", "1,9000", "--concurrency", "3", "--streams", "6"])
            .json();
    let expected = [("get-hit", 1), ("get-hit", 9000), ("put", 1), ("put", 9000)];
    assert_eq!(shapes(&report), expected.map(|(name, bytes)| json!([name, bytes, 3])));
    assert_whole(&report, 200);

    let args = ["--operation", "get-miss", "--ladder", "--rounds", "3", "--transport", "tcp", "--threads", "2"];
    let report = small(&args).json();
    assert_eq!(shapes(&report), LADDER.map(|concurrency| json!(["get-miss", null, concurrency])));
    assert_whole(&report, 200);
    assert_eq!((&report["rounds"], &report["streams"]), (&json!(3), &json!(1)), "over TCP a connection is a stream");
}

/// An existing broker is left unchanged. Its processor time is reported if its process is named.
#[test]
fn a_broker_that_is_named_is_measured() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html").display().to_string();
    let text =
        on(&server, ["bench", "cache", "--samples", "100", "--warm-up", "0", "--rounds", "2", "--html", &path]).ok();
    let row = |name: &str, bytes: &str| {
        let cells =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
        let mut lines = text.lines().map(cells).filter(|cells: &Vec<String>| cells.len() > 11);
        lines.find(|cells| cells[0] == name && cells[1] == bytes).unwrap_or_else(|| panic!("no {name} {bytes}: {text}"))
    };
    assert_eq!(row("Latency and CPU an operation, us", "value B")[4..9], ["p50", "p95", "p99", "p99.9", "max"]);
    for (name, bytes) in [("put", "0"), ("put", "256"), ("put", "4096"), ("get hit", "256"), ("get miss", "-")] {
        let cells = row(name, bytes);
        assert_eq!((cells[2].as_str(), cells[10].as_str(), cells[11].as_str()), ("32", "-", "0"), "{cells:?}");
        assert!(cells[12].contains(" to "), "both rounds: {cells:?}");
    }
    assert!(text.contains("100 samples a row after 0 of warm-up, medians of 2 rounds"), "{text}");
    assert!(text.contains("every operation was answered"), "{text}");
    assert!(text.contains("commit ") && text.contains("bench cache --samples 100"), "{text}");
    let page = std::fs::read_to_string(&path).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.contains("<td>get miss</td>"), "{page}");
    assert_eq!(on(&server, ["--json", "cache", "list"]).ok().trim(), "[]", "its cache is gone");

    let pid = server.pid().to_string();
    let args = ["--operation", "put", "--server-pid", &pid];
    let report = on(&server, SMALL.into_iter().chain(args)).json();
    assert!(rows(&report)[0]["server_cpu_us_per_operation"].is_number(), "{report}");
}

/// A durable cache is measured on a broker with a data directory, which is empty afterwards.
#[test]
fn puts_that_last_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let report = small(&["--operation", "put", "--value-bytes", "256", "--durable", "--data", &path]).json();
    assert_whole(&report, 200);
    assert_eq!(report["is_durable"], json!(true));
    assert!(std::fs::read_dir(&path).expect("the folder").next().is_none(), "the run removes what it made");
    let message = small(&["--durable"]).failed(2);
    assert!(message.contains("--data DIR"), "{message}");
}

/// Refused operations are counted and reported.
#[test]
fn a_cache_without_room_is_no_whole_run() {
    let done = small(&["--operation", "put", "--value-bytes", "0,16384", "--set", "cache_memory_max=1MiB"]);
    let report: Value = serde_json::from_str(&done.out).expect("a report");
    let message = done.failed(1);
    assert!(message.contains("this run is incomplete") && message.contains("operations refused"), "{message}");
    let [empty, long] = rows(&report) else { panic!("{report}") };
    assert_eq!((&empty["operations"], &empty["errors"]), (&json!(200), &json!(0)));
    let count = |of: &Value| of.as_u64().expect("a count");
    let [refused, lost, wrong] = ["refused", "lost", "wrong"].map(|name| count(&long["faults"][name]));
    assert!(refused > 0 && lost == 0 && wrong > 0, "what was refused is not there: {long}");
    assert_eq!(count(&long["errors"]), refused + wrong);
    // Operations of the warm-up count, too.
    assert!((1..200).contains(&count(&long["operations"])) && count(&long["operations"]) + refused <= 220, "{long}");
}

/// Impossible measurements are refused before any request is sent.
#[test]
fn impossible_measurements_are_refused() {
    let message = small(&["--keys", "10000000"]).failed(2);
    assert!(message.contains("at most 1073741824"), "{message}");
    for wrong in [["--concurrency", "0"], ["--value-bytes", "8388609"], ["--operation", "scan"], ["--streams", "65"]] {
        small(&wrong).failed(2);
    }
    small(&["--ladder", "--concurrency", "8"]).failed(2);
    let nowhere = small(&["--html", "/no/such/folder/page.html"]).failed(1);
    assert!(nowhere.contains("page.html"), "{nowhere}");
}

/// Returns a plan with one operation in flight, so that another client has time to interfere.
fn plan(server: &Server, samples: usize, operations: &[Operation]) -> Plan {
    Plan {
        addresses: Address::parse(&server.url("tcp")).expect("an address").into(),
        settings: ClientSettings { request_timeout: Duration::from_secs(2), ..ClientSettings::default() },
        cache: "load".to_owned(),
        cache_settings: client::CacheSettings::default(),
        rows: Row::all(operations, &[100], &[1]),
        keys: 50,
        samples,
        warm_up: 0,
        rounds: 1,
        threads: 1,
        server_pid: None,
    }
}

/// Runs a plan, and calls `disturb` as soon as its keys exist.
async fn disturbed(
    server: &mut Server,
    plan: Plan,
    disturb: impl AsyncFnOnce(&mut Server, client::Client),
) -> CacheReport {
    let client = server.client("tcp").await;
    let running = tokio::task::spawn_blocking(move || run(&plan, Program::this("test", "none", "none")));
    until("its keys", async || {
        let caches = client.list_caches().await.expect("caches");
        caches.first().is_some_and(|cache| cache.stats.entries == 50)
    })
    .await;
    disturb(server, client).await;
    within("the run", running).await.expect("no panic").expect("a report")
}

/// Values that are deleted during the run are noticed.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_answers_are_counted() {
    let mut server = Server::start();
    let plan = plan(&server, 20_000, &[Operation::GetHit, Operation::GetMiss]);
    let report =
        disturbed(&mut server, plan, async |_, client| client.delete_cache("load").await.expect("deleted")).await;
    let [hit, miss] = &report.rows[..] else { panic!("{report}") };
    assert!(hit.faults.wrong > 0 && hit.operations + hit.faults.wrong == 20_000, "{report}");
    assert_eq!((hit.errors, miss.errors, miss.operations), (hit.faults.wrong, 0, 20_000));
    assert!(
        report.to_string().contains("this run is incomplete") && report.verdict().contains("which was put"),
        "{report}"
    );
}

/// A broker that stops ends the run, which reports the results so far.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_end_the_run() {
    let mut server = Server::start();
    let plan = plan(&server, 1_000_000, &[Operation::Put, Operation::GetMiss]);
    let report = disturbed(&mut server, plan, async |server, _| server.crash()).await;
    let [put] = &report.rows[..] else { panic!("{report}") };
    assert_eq!((put.faults.lost, put.errors), (1, 1), "{report}");
    assert!(put.operations < 1_000_000 && report.verdict().contains("1 without an answer"), "{report}");
}
