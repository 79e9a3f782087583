//! The dashboard to begin with: what to look at first, chosen by hand.

use super::{Panel, Query, Row, SELECTED};

/// Doors with a metric for their open connections.
const DOORS: [&str; 6] = ["native", "http", "kafka", "redis", "sqs", "pubsub"];

/// Returns an expression with the selection of brokers in place of each `{}`.
fn select(of: &str) -> String {
    of.replace("{}", &format!("{{{SELECTED}}}")).replace("RANGE", "$__rate_interval")
}

fn queries(queries: &[(&str, &str)]) -> Vec<Query> {
    queries.iter().map(|(of, legend)| Query { of: select(of), legend: (*legend).to_owned() }).collect()
}

/// Returns a panel that shows the last value of an expression.
fn stat(title: &str, unit: &'static str, of: &str, about: &str) -> Panel {
    let queries = queries(&[(of, "")]);
    Panel { title: title.to_owned(), about: about.to_owned(), unit, is_stat: true, queries }
}

fn plot(title: &str, unit: &'static str, of: &[(&str, &str)], about: &str) -> Panel {
    Panel { title: title.to_owned(), about: about.to_owned(), unit, is_stat: false, queries: queries(of) }
}

fn row(title: &str, panels: Vec<Panel>) -> Row {
    Row { title: title.to_owned(), is_collapsed: false, panels }
}

/// Returns a plot of the median and the 99th percentile of a histogram.
fn quantiles(title: &str, of: &str, about: &str) -> Panel {
    let quantile =
        |of_100: &str| format!("histogram_quantile({of_100}, sum by (le, instance) (rate({of}_bucket{{}}[RANGE])))");
    plot(title, "s", &[(&quantile("0.5"), "p50 {{instance}}"), (&quantile("0.99"), "p99 {{instance}}")], about)
}

pub fn rows() -> Vec<Row> {
    vec![state(), records(), disk(), consumers(), queues(), caches(), clients(), cluster(), process()]
}

fn state() -> Row {
    row(
        "State",
        vec![
            stat("Brokers", "short", "count(thalweg_build{})", "Brokers and nodes that Prometheus has scraped."),
            stat("Records in", "cps", "sum(rate(thalweg_published_records_total{}[RANGE]))", "Records published."),
            stat(
                "Records out",
                "cps",
                "sum(rate(thalweg_delivered_records_total{}[RANGE]))",
                "Records delivered; one for ten subscribers counts ten times.",
            ),
            stat(
                "Publish p99",
                "s",
                "histogram_quantile(0.99, sum by (le) (rate(thalweg_publish_seconds_bucket{}[RANGE])))",
                "99 of 100 publishes took at most this long in the broker.",
            ),
            stat("Largest lag", "short", "max(thalweg_group_lag{})", "Records by which the slowest group is behind."),
            stat(
                "Alerts",
                "short",
                r#"count(ALERTS{alertstate="firing", alertname=~"Thalweg.*"}) or vector(0)"#,
                "Alerts of docs/alerts/thalweg.rules.yml that are firing.",
            ),
        ],
    )
}

fn records() -> Row {
    row(
        "Records",
        vec![
            plot(
                "Records per second",
                "cps",
                &[
                    ("sum by (instance) (rate(thalweg_published_records_total{}[RANGE]))", "in {{instance}}"),
                    ("sum by (instance) (rate(thalweg_delivered_records_total{}[RANGE]))", "out {{instance}}"),
                ],
                "Published and delivered records.",
            ),
            plot(
                "Bytes per second",
                "Bps",
                &[
                    ("sum by (instance) (rate(thalweg_published_bytes_total{}[RANGE]))", "in {{instance}}"),
                    ("sum by (instance) (rate(thalweg_delivered_bytes_total{}[RANGE]))", "out {{instance}}"),
                ],
                "Size of the published and delivered batches, compressed as received.",
            ),
            quantiles(
                "Time of a publish",
                "thalweg_publish_seconds",
                "From the start of a publish in the broker until it is acknowledged, with all waits.",
            ),
            quantiles(
                "Wait of subscribers",
                "thalweg_delivery_wait_seconds",
                "How long a queue of a subscription was not empty before batches were taken from it.",
            ),
            plot(
                "Refused and lost publishes",
                "cps",
                &[
                    ("sum by (instance) (rate(thalweg_publish_errors_total{}[RANGE]))", "refused {{instance}}"),
                    ("sum by (instance) (rate(thalweg_publish_lost_total{}[RANGE]))", "lost {{instance}}"),
                    ("sum by (instance) (rate(thalweg_publish_waits_total{}[RANGE]))", "waited {{instance}}"),
                ],
                "Lost ones were sent with acks = none, so that no client knows. Investigate when refused or lost rise.",
            ),
            plot(
                "Records that subscribers missed",
                "cps",
                &[("sum by (instance) (rate(thalweg_dropped_records_total{}[RANGE]))", "{{instance}}")],
                "Their queue was full and their policy drops, or retention was faster than they.",
            ),
        ],
    )
}

fn disk() -> Row {
    row(
        "Disk",
        vec![
            plot(
                "Time of a sync",
                "s",
                &[(
                    "sum by (instance) (rate(thalweg_journal_sync_nanoseconds_total{}[RANGE])) / 1e9 / \
                     sum by (instance) (rate(thalweg_journal_syncs_total{}[RANGE]))",
                    "{{instance}}",
                )],
                "Mean time of a sync of the journal. Investigate above a few milliseconds.",
            ),
            plot(
                "Written bytes per second",
                "Bps",
                &[
                    ("sum by (instance) (rate(thalweg_journal_bytes_total{}[RANGE]))", "journal {{instance}}"),
                    ("sum by (instance) (rate(thalweg_segment_bytes_written_total{}[RANGE]))", "segments {{instance}}"),
                ],
                "To the journal at once, and to segments later.",
            ),
            plot(
                "Queued for the disk",
                "bytes",
                &[
                    ("max by (instance) (thalweg_journal_queued_bytes{})", "journal {{instance}}"),
                    ("max by (instance) (thalweg_unflushed_bytes{})", "not in a segment {{instance}}"),
                ],
                "Publishes are refused with busy when one of them reaches 64 MiB.",
            ),
            plot(
                "Disk full, journal full or broken",
                "bool",
                &[
                    ("max by (instance) (thalweg_disk_is_full{})", "disk full {{instance}}"),
                    ("max by (instance) (thalweg_journal_is_full{})", "journal full {{instance}}"),
                    ("max by (instance) (thalweg_journal_is_broken{})", "journal broken {{instance}}"),
                ],
                "Investigate when one of them is 1.",
            ),
            plot(
                "Logs in memory",
                "percentunit",
                &[(
                    "max by (instance) (thalweg_log_bytes{}) / max by (instance) (thalweg_log_bytes_max{})",
                    "{{instance}}",
                )],
                "Share of memory_max. Above 85 %, partitions in memory are about to lose their oldest records.",
            ),
        ],
    )
}

fn consumers() -> Row {
    row(
        "Consumer groups",
        vec![
            plot(
                "Lag by group",
                "short",
                &[("topk(10, max by (group) (thalweg_group_lag{}))", "{{group}}")],
                "Records between the committed offsets of a group and the ends of their partitions: the ten largest.",
            ),
            plot(
                "Members",
                "short",
                &[("max by (instance) (thalweg_group_members{})", "{{instance}}")],
                "Members of all groups. Investigate when there are fewer than programs that should read.",
            ),
            plot(
                "Rebalances and commits",
                "cps",
                &[
                    ("sum by (instance) (rate(thalweg_group_rebalances_total{}[RANGE]))", "rebalances {{instance}}"),
                    ("sum by (instance) (rate(thalweg_offset_commits_total{}[RANGE]))", "commits {{instance}}"),
                ],
                "Investigate when rebalances rise steadily: members keep joining and leaving.",
            ),
        ],
    )
}

fn queues() -> Row {
    row(
        "Queues",
        vec![
            plot(
                "Messages in queues",
                "short",
                &[
                    ("max by (instance) (thalweg_queue_visible{})", "waiting {{instance}}"),
                    ("max by (instance) (thalweg_queue_in_flight{})", "leased {{instance}}"),
                    ("max by (instance) (thalweg_queue_delayed{})", "delayed {{instance}}"),
                ],
                "Over all queues. Investigate when waiting messages rise: there are too few receivers.",
            ),
            plot(
                "Messages per second",
                "cps",
                &[
                    ("sum by (instance) (rate(thalweg_queue_sent_total{}[RANGE]))", "sent {{instance}}"),
                    ("sum by (instance) (rate(thalweg_queue_received_total{}[RANGE]))", "received {{instance}}"),
                    (
                        "sum by (instance) (rate(thalweg_queue_acknowledged_total{}[RANGE]))",
                        "acknowledged {{instance}}",
                    ),
                    ("sum by (instance) (rate(thalweg_queue_dead_total{}[RANGE]))", "dead {{instance}}"),
                ],
                "Investigate when many more are received than acknowledged, or when any become dead letters.",
            ),
            plot(
                "Age of the oldest message",
                "s",
                &[("max by (instance) (thalweg_queue_oldest_age_seconds{})", "{{instance}}")],
                "Near the retention of a queue, messages are about to expire unread.",
            ),
        ],
    )
}

fn caches() -> Row {
    row(
        "Caches",
        vec![
            plot(
                "Hit ratio by cache",
                "percentunit",
                &[(
                    "sum by (cache) (rate(thalweg_cache_hits_total{}[RANGE])) / \
                     (sum by (cache) (rate(thalweg_cache_hits_total{}[RANGE])) + \
                     sum by (cache) (rate(thalweg_cache_misses_total{}[RANGE])))",
                    "{{cache}}",
                )],
                "Share of the gets that found an entry.",
            ),
            plot(
                "Memory",
                "percentunit",
                &[(
                    "max by (instance) (thalweg_cache_memory_bytes{}) / \
                     max by (instance) (thalweg_cache_memory_bytes_max{})",
                    "{{instance}}",
                )],
                "Share of cache_memory_max.",
            ),
            plot(
                "Expired and evicted entries",
                "cps",
                &[
                    ("sum by (cache) (rate(thalweg_cache_expired_total{}[RANGE]))", "expired {{cache}}"),
                    ("sum by (cache) (rate(thalweg_cache_evicted_total{}[RANGE]))", "evicted {{cache}}"),
                ],
                "Investigate when evictions rise together with misses.",
            ),
        ],
    )
}

fn clients() -> Row {
    let doors = DOORS.map(|door| (format!("sum(thalweg_{door}_connections{{}})"), door));
    let doors = doors.each_ref().map(|(of, door)| (of.as_str(), *door));
    row(
        "Clients",
        vec![
            plot("Connections by door", "short", &doors, "Open connections."),
            plot(
                "Refused logins and requests",
                "cps",
                &[
                    ("sum by (door) (rate(thalweg_logins_refused_total{}[RANGE]))", "logins {{door}}"),
                    ("sum by (door) (rate(thalweg_logins_missing_total{}[RANGE]))", "without a login {{door}}"),
                    ("sum(rate(thalweg_denied_total{}[RANGE]))", "denied by access control"),
                ],
                "Investigate when one rises: the log names the address and the user.",
            ),
            plot(
                "Memory of unread responses",
                "percentunit",
                &[(
                    "max by (instance) (thalweg_response_bytes{}) / max by (instance) (thalweg_response_bytes_max{})",
                    "{{instance}}",
                )],
                "Share of response_memory_max. Above a half for long, clients request much and do not read it.",
            ),
        ],
    )
}

fn cluster() -> Row {
    row(
        "Cluster and mesh",
        vec![
            plot(
                "Leader, as each node knows it",
                "short",
                &[("max by (instance) (thalweg_cluster_leader{})", "{{instance}}")],
                "Number of the node that leads. 0 for more than a few seconds: nothing is served.",
            ),
            plot(
                "Entries that a node lacks",
                "short",
                &[("max by (node) (thalweg_cluster_node_behind{})", "node {{node}}")],
                "Log that the node does not have on disk yet, as the leader knows it.",
            ),
            plot(
                "Elections",
                "cps",
                &[("sum by (instance) (rate(thalweg_cluster_elections_total{}[RANGE]))", "{{instance}}")],
                "Elections won. Investigate when there are many: leaders change.",
            ),
            plot(
                "Records of other sites",
                "cps",
                &[
                    ("sum by (site) (rate(thalweg_mesh_sent_records_total{}[RANGE]))", "to {{site}}"),
                    ("sum by (site) (rate(thalweg_mesh_received_records_total{}[RANGE]))", "from {{site}}"),
                    ("sum by (site) (rate(thalweg_mesh_lost_records_total{}[RANGE]))", "lost from {{site}}"),
                ],
                "Records that the mesh has sent and received.",
            ),
            plot(
                "Records that a copy lacks",
                "short",
                &[("max by (topic) (thalweg_mesh_copy_behind_records{})", "{{topic}}")],
                "Records of the origin that are not copied, at the last contact.",
            ),
            plot(
                "Sites out of reach",
                "bool",
                &[("1 - min by (site) (thalweg_mesh_site_reachable{})", "{{site}}")],
                "1: no records reach the site, neither on a link nor through a hub.",
            ),
        ],
    )
}

fn process() -> Row {
    row(
        "Process",
        vec![
            plot(
                "CPU",
                "short",
                &[("sum by (instance) (rate(process_cpu_seconds_total{}[RANGE]))", "{{instance}}")],
                "Cores in use. Investigate above 80 % of the cores.",
            ),
            plot(
                "Memory",
                "bytes",
                &[("max by (instance) (process_resident_memory_bytes{})", "{{instance}}")],
                "Resident memory.",
            ),
            plot(
                "Open files",
                "short",
                &[("max by (instance) (process_open_fds{})", "{{instance}}")],
                "File descriptors. Investigate above 85 % of the maximum.",
            ),
        ],
    )
}
