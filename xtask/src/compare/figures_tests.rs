//! Tests of the table of figures, with shortened outputs of the programs that it runs.

use super::*;

const PUBSUB: &str = r#"{"system":"thalweg","host":{"cpu":"Intel(R) Xeon(R) Processor","cores":2,"kernel":"6.18.44"},
"mode":"end-to-end","transport":"tcp","published":5000,"delivered":5000,"lost":0,"seconds":0.117,
"published_per_s":42702.5,"delivered_per_s":42703.5,
"delivery_us":{"count":5000,"mean":23.2,"p50":21.7,"p90":32.5,"p95":36.2,"p99":62.6,"p999":135.6,"max":173.7},
"ack_us":{"count":5000,"mean":24.2,"p50":22.7,"p90":33.5,"p95":37.2,"p99":63.6,"p999":136.6,"max":174.7},
"client_cpu_seconds":0.0704,"server_cpu_seconds":0.0706,"cpu_us_per_message":28.2,"server_resident_bytes":43536384}"#;
const STREAM: &str = r#"{"system":"thalweg","mode":"3m-100b","produced":100000,"consumed":100000,"lost":0,
"produced_seconds":0.0411,"consumed_seconds":0.0165,"produced_per_s":2432190.8,"consumed_per_s":6065806.1,
"producer_us":{"count":196,"mean":2764.1,"p50":2672.6,"p99":4939.8},"consumer_us":{"count":196,"mean":36.5,"p50":5.7},
"e2e_us":{"count":196,"p50":3672.6},"server_resident_bytes_start":43552768,"server_resident_bytes_max":50393088,
"server_cpu_percent_max":28.6,"server_cpu_seconds":0.0167,"client_cpu_seconds":0.0436,
"charts":{"producer":[{"at_s":0.005,"mb_per_s":5.12}]}}"#;
const CACHE: &str = r#"{"system":"thalweg","transport":"quic","rows":[
{"operation":"put","value_bytes":256,"operations":5000,"operations_per_s":50700.3,"latency_us":{"p50":582.7},
"client_cpu_us_per_operation":10.2,"server_cpu_us_per_operation":9.54,"errors":0},
{"operation":"get-hit","value_bytes":256,"operations":5000,"operations_per_s":54558.8,"latency_us":{"p50":523.3},
"client_cpu_us_per_operation":9.45,"server_cpu_us_per_operation":8.9,"errors":0}]}"#;
const RPC_LOAD: &str = r#"{"requests":1100058,"seconds":1.0,"rps":1100058.0,"errors":0,"p50_us":471.3,"p99_us":648.2}"#;
const IDLE_BROKER: &str =
    r#"{"bytes_per_connection":3637,"connections":500,"first_publish_ms":58.1,"idle_bytes":20959232,"ready_ms":57.1}"#;
const COSTS: &str = "\
send: 2.00 allocations per call (or message of the batch), 416ns at the fastest
send_1k: 2.00 allocations per call (or message of the batch), 808ns at the fastest
batch: 0.00 allocations per call (or message of the batch), 51ns at the fastest
receive: 3.90 allocations per call (or message of the batch), 408ns at the fastest
receive_10: 3.90 allocations per call (or message of the batch), 2.22µs at the fastest
ack: 1.00 allocations per call (or message of the batch), 279ns at the fastest
counts: 0.00 allocations per call (or message of the batch), 182ns at the fastest
round_trip: 7.00 allocations per call (or message of the batch), 1.08µs at the fastest
";
const LOAD: &str = "\
a message of 100 B that waits: 251 B requested, 263 B resident
a lease in addition to its message: 201 B requested, 248 B resident
receive, p50: alone 480ns, among 10000 queues 499ns, 1.04 times
";
const SPEED: &str = "\
nothing evicted, 1 thread(s): get 3.8, put 3.0, of another length 2.1 M/s per thread
nothing evicted, 2 thread(s): get 3.7, put 2.4, of another length 2.0 M/s per thread
s3-fifo, 1 thread(s): get 4.8, put 3.5, of another length 2.2 M/s per thread
s3-fifo, 2 thread(s): get 3.9, put 2.5, of another length 1.9 M/s per thread
quick_cache, 1 thread(s): get 7.3, put 6.5 M/s per thread
";

fn output(run: &Run) -> String {
    let (command, _) = run.load.split_once(' ').unwrap_or((run.load, ""));
    let json = match (run.kind, command) {
        (Kind::Bench("queue_load"), "costs") => return COSTS.to_owned(),
        (Kind::Bench("queue_load"), "") => return LOAD.to_owned(),
        (Kind::TimedBench("cache_load"), "speed") => return SPEED.to_owned(),
        (Kind::Broker(_), "pubsub") => PUBSUB,
        (Kind::Broker(_), "stream") => STREAM,
        (Kind::Broker(_), "cache") => CACHE,
        (Kind::Rpc(_), "rpc") => RPC_LOAD,
        (Kind::Own, "idle") => IDLE_BROKER,
        other => panic!("no output of {other:?}: add a sample of it"),
    };
    // The programs write one line.
    json.replace('\n', "") + "\n"
}

fn chosen(name: &str) -> f64 {
    let figure = FIGURES.iter().find(|figure| figure.name == name).expect("a figure");
    figure.number.choose(&output(&figure.run)).expect("a number")
}

fn names(figures: &[&Figure]) -> Vec<&'static str> {
    figures.iter().map(|figure| figure.name).collect()
}

#[test]
fn each_figure_finds_its_number_in_the_output_of_its_run() {
    for figure in FIGURES {
        let found = figure.number.choose(&output(&figure.run));
        assert!(found.is_ok(), "{}: {found:?}", figure.name);
    }
}

#[test]
fn each_figure_takes_the_right_number_from_its_output() {
    assert_eq!((chosen("publish"), chosen("fanout-1"), chosen("fanout-1-cpu")), (42702.5, 42703.5, 0.0706));
    assert_eq!((chosen("one-tcp-p50"), chosen("one-tcp-p99"), chosen("one-quic-p50")), (21.7, 62.6, 22.7));
    assert_eq!((chosen("one-disk-p50"), chosen("one-disk-e2e-p50")), (2672.6, 3672.6));
    assert_eq!((chosen("stream-disk-produce"), chosen("stream-disk-consume")), (2432190.8, 6065806.1));
    assert_eq!(chosen("stream-disk-memory"), 50393088.0);
    assert_eq!((chosen("cache-tcp-put"), chosen("cache-tcp-get-cpu")), (50700.3, 8.9));
    assert_eq!((chosen("rpc-1"), chosen("idle-memory"), chosen("idle-ready")), (1100058.0, 20959232.0, 57.1));
    assert_eq!((chosen("queue-send"), chosen("queue-send-1k"), chosen("queue-receive-10")), (416.0, 808.0, 2220.0));
    assert_eq!((chosen("queue-memory"), chosen("queue-memory-lease")), (251.0, 201.0));
    assert_eq!((chosen("cache-call-get"), chosen("cache-call-put-2")), (3.8, 2.5));
}

#[test]
fn rows_have_names_of_their_own_and_equal_runs_follow_each_other() {
    let all = Selection::new(&[], false, true).expect("all");
    let mut unique = names(&all.figures);
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), FIGURES.len());
    for figure in FIGURES {
        assert!(figure.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{figure:?}");
    }
    let runs: Vec<_> = all.runs().map(|figures| figures[0].run).collect();
    let is_repeated = |run: &&Run| runs.iter().filter(|other| other == run).count() > 1;
    assert_eq!(runs.iter().find(is_repeated), None, "its figures are not consecutive, so that it would run twice");
}

#[test]
fn a_name_selects_the_figure_and_its_parts() {
    let named = |only: &[&str]| names(&Selection::new(only, false, true).expect("figures").figures);
    assert_eq!(named(&["fanout-1"]), ["fanout-1", "fanout-1-cpu"]);
    assert_eq!(named(&["idle-ready", "rpc-8"]), ["rpc-8", "rpc-8-tls", "idle-ready"]);
    assert_eq!(named(&["one-disk"]), ["one-disk-p50", "one-disk-p99", "one-disk-e2e-p50"]);
    assert_eq!(named(&[]).len(), FIGURES.len());
}

#[test]
fn an_unknown_figure_is_refused_with_those_that_exist() {
    for name in ["fan", "", "fanout-1-", "fanout-1-cpus"] {
        let refused = Selection::new(&["rpc-1", name], false, true).expect_err("no figure");
        assert!(refused.contains(&format!("figure '{name}' does not exist: choose one of fanout-1, ")), "{refused}");
    }
}

#[test]
fn figures_that_an_option_excludes_are_omitted_or_refused_if_named() {
    let quick = Selection::new(&[], true, true).expect("figures");
    assert_eq!(names(&quick.omitted), ["cache-call-get", "cache-call-put", "cache-call-get-2", "cache-call-put-2"]);
    let given = Selection::new(&[], false, false).expect("figures");
    assert!(given.benches().is_empty() && names(&given.omitted).contains(&"queue-send"));
    let refused = Selection::new(&["cache-call"], true, true).expect_err("it takes too long");
    assert!(refused.contains("figure 'cache-call-get'") && refused.contains("leave out --quick"), "{refused}");
    assert!(Selection::new(&["queue-ack"], false, false).is_err());
}

#[test]
fn only_the_programs_of_selected_figures_are_built() {
    let needs = |only: &[&str]| {
        let selection = Selection::new(only, false, true).expect("figures");
        (selection.needs_thalweg(), selection.benches().into_iter().collect::<Vec<_>>())
    };
    assert_eq!(needs(&["rpc-1"]), (true, vec![]));
    assert_eq!(needs(&["queue-ack"]), (false, vec!["queue_load"]));
    assert_eq!(needs(&[]), (true, vec!["cache_load", "queue_load"]));
}
