//! `bench stream`: its workloads, its tables, and its detection of errors.

use std::time::Duration;

use bench::Program;
use bench::stream::{Consumer, Length, Plan, StreamReport, run};
use client::{Acks, Address, ClientSettings, Record, TopicSettings};
use serde_json::Value;

use crate::support::command::{on, thalweg};
use crate::support::server::{PATIENCE, Server, within};

/// Returns the reports of some runs, one per line.
fn reports(args: &[&str]) -> Vec<Value> {
    let out = thalweg(["bench", "stream", "--json"].into_iter().chain(args.iter().copied())).ok();
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("no {key} in {report}"))
}

/// Without options, the workload is exactly that of the report. Figures of other machines are in the documentation.
#[test]
fn the_reports_workload_has_its_six_tables() {
    let text = thalweg(["bench", "stream"]).ok();
    for title in [
        "Producer throughput ",
        "Consumer throughput ",
        "Producer latency, ms ",
        "Consumer latency, ms ",
        "End-to-end latency, ms ",
        "Memory and CPU ",
    ] {
        let table = text.split("\n\n").find(|table| table.starts_with(title)).unwrap_or_else(|| panic!("{text}"));
        let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with("this run")).collect();
        assert_eq!(rows.len(), 1, "{table}");
    }
    assert!(!text.contains("Fluvio"), "{text}");
    assert!(!text.contains("known from"), "{text}");
    let sent = text.lines().find(|line| line.starts_with("this run")).expect("a first row");
    assert!(sent.contains("10358890"), "{sent}");
    assert!(text.contains("all 10000 records arrived exactly once, in order, with their bytes"), "{text}");
}

/// Each mode can be reduced and have another shape; a report describes the run and its duration.
#[test]
fn workloads_are_run_as_they_are_asked_for() {
    let found = reports(&["--mode", "pipelined,3m-100b", "--records", "3000", "--partitions", "3"]);
    assert_eq!(found.len(), 2);
    for (report, (mode, batch)) in found.iter().zip([("pipelined", 64), ("3m-100b", 512)]) {
        assert_eq!((report["mode"].as_str(), report["batch"].as_u64()), (Some(mode), Some(batch)), "{report}");
        assert_eq!((number(report, "consumed"), number(report, "partitions")), (3000.0, 3.0));
        assert!(number(&report["producer_us"], "p50") <= number(&report["producer_us"], "p999"));
        assert_eq!(number(&report["producer_us"], "count"), (3000 / batch + 1) as f64, "a sample a batch");
        assert_eq!(number(&report["e2e_us"], "count"), 3000.0, "a sample a record");
        assert!(number(report, "server_resident_bytes_max") > 0.0 && number(report, "client_cpu_seconds") > 0.0);
        assert!(!report["charts"]["producer"].as_array().expect("points").is_empty());
    }
    assert_eq!(number(&found[0], "bytes"), 3000.0 * 1032.0 + 10.0 + 180.0 + 2700.0 + 8000.0);

    let [report] = &reports(&["--records", "400", "--record-bytes", "32", "--rate", "4000", "--transport", "quic"])[..]
    else {
        panic!("one report");
    };
    assert_eq!((number(report, "bytes"), number(report, "rate_per_s")), (400.0 * 32.0, 4000.0));
    assert!(number(report, "produced_seconds") >= 399.0 / 4000.0, "no record is sent before it is due");

    let [report] = &reports(&["--records", "2000", "--batch", "0", "--consumer", "after"])[..] else {
        panic!("one report");
    };
    assert_eq!(number(report, "consumed"), 2000.0);
    assert_eq!((&report["producer_us"], &report["e2e_us"]), (&Value::Null, &Value::Null), "they are not known");

    let [report] = &reports(&["--mode", "pipelined", "--records", "2000", "--consumer", "none"])[..] else {
        panic!("one report");
    };
    assert_eq!((number(report, "produced"), &report["consumed_per_s"]), (2000.0, &Value::Null));
}

/// A page has the plots and tables of each run, and no external resources.
#[test]
fn a_page_stands_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("<page>.html").display().to_string();
    thalweg(["bench", "stream", "--mode", "one-in-flight,pipelined", "--html", &path]).ok();
    let page = std::fs::read_to_string(&path).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for bad in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("&lt;page&gt;.html") && !page.contains("<page>"), "the command line is text");
    // For each run: three latencies over time and by percentile, throughput, memory and CPU; six tables.
    assert_eq!((page.matches("<svg").count(), page.matches("<table>").count()), (18, 12));
    assert_eq!(page.matches("all 10000 records arrived exactly once").count(), 2);
    assert!(page.contains("prefers-color-scheme: dark"));
    let told = thalweg(["bench", "pubsub", "--count", "1000", "--fanout", "1", "--html", &path]).ok();
    assert!(told.contains(&format!(", commit {}\n", thalweg::COMMIT)), "{told}");
    let page = std::fs::read_to_string(&path).expect("a page");
    assert!(page.contains("<svg") && page.contains("<div class=\"row\">\n<div class=\"table\">"), "{page}");
    let commit = page.split("<dt>Commit</dt><dd>").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(commit, Some(thalweg::COMMIT));
    let nowhere = folder.path().join("no/page.html").display().to_string();
    let message = thalweg(["bench", "stream", "--html", &nowhere]).failed(1);
    assert!(message.contains("no/page.html"), "{message}");
}

/// The storage of the topic is part of the report; a topic on disk needs no memory for its records.
#[test]
fn a_topic_on_disk_is_measured_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let below = folder.path().display().to_string();
    let args = ["--mode", "pipelined", "--records", "3000", "--set", "memory_max=1MiB", "--data", &below];
    let [report] = &reports(&args)[..] else {
        panic!("one report");
    };
    assert_eq!((&report["storage"], number(report, "consumed")), (&Value::from("disk"), 3000.0));
    assert!(std::fs::read_dir(&below).expect("a folder").next().is_none(), "its data is gone");
    assert_eq!(reports(&["--records", "100"])[0]["storage"], "memory");
}

/// Impossible measurements are refused before any request is sent.
#[test]
fn impossible_measurements_are_refused() {
    let message = thalweg(["bench", "stream", "--acks", "none"]).failed(2);
    assert!(message.contains("no acknowledgement to measure"), "{message}");
    thalweg(["bench", "stream", "--record-bytes", "31"]).failed(2);
    thalweg(["bench", "stream", "--mode", "everything"]).failed(2);
    let server = Server::with(&["memory_max=1MiB"]);
    let message = on(&server, ["bench", "stream", "--mode", "1m-1kb"]).failed(2);
    assert!(message.contains("memory_max is 1048576; raise it"), "{message}");
}

/// Returns a plan for an existing server, whose records may be lost or mixed with others before they are read.
fn plan(server: &Server, settings: TopicSettings, consumer: Consumer) -> Plan {
    Plan {
        mode: "test".to_owned(),
        addresses: Address::parse(&server.url("tcp")).expect("an address").into(),
        settings: ClientSettings::default(),
        topic: "load".to_owned(),
        topic_settings: settings,
        records: 2000,
        length: Length::Fixed(100),
        batch: 1,
        in_flight: 4,
        acks: Acks::Accepted,
        rate: None,
        consumer,
        patience: PATIENCE,
        server_pid: None,
    }
}

async fn report(plan: Plan) -> StreamReport {
    let run = tokio::task::spawn_blocking(move || run(&plan, Program::this("test", "none", "none")));
    within("the run", run).await.expect("no panic").expect("a report")
}

/// Records that retention deleted before they were read count as lost, and the run is reported as incomplete.
#[tokio::test(flavor = "multi_thread")]
async fn lost_records_are_counted() {
    let server = Server::start();
    let settings =
        TopicSettings { partitions: 1, retention_bytes: 20_000, retention_ms: 0, ..TopicSettings::default() };
    let report = report(plan(&server, settings, Consumer::After)).await;
    let faults = report.faults();
    assert!(faults.any() && faults.lost > 0, "{faults:?}");
    assert_eq!(report.consumed + faults.lost, 2000);
    assert_eq!((faults.damaged, faults.repeated, faults.disordered), (0, 0, 0));
    assert!(report.to_string().contains("this run is incomplete"), "{report}");
}

/// A record that the run did not send is detected by its bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_record_is_noticed() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = TopicSettings { partitions: 1, retention_bytes: 0, retention_ms: 0, ..TopicSettings::default() };
    let plan = Plan { rate: Some(10_000.0), ..plan(&server, settings, Consumer::Together) };
    // The topic is created before the first record of the run, which finds it existing.
    within("create", client.create_topic("load", settings)).await.expect("created");
    let running = tokio::spawn(report(plan));
    within("a subscriber", async {
        while client.describe_topic("load").await.expect("a topic").partitions[0].subscribers == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    within("publish", client.publish("load", Record::new(vec![b'x'; 100]))).await.expect("published");
    let report = within("the run", running).await.expect("no panic");
    assert_eq!(report.faults().damaged, 1, "{report}");
}
