//! `INFO`: state of the server, with the sections and names of Redis 7.0. A field for a feature that does not exist
//! here (replicas, functions, forks) has the value of a Redis without it; a field whose value is not known is left out.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use engine::cache::{Eviction, StripeStats};
use net::service::Reply;

use super::args::is;
use super::session::written;
use super::tools::saved_s;
use crate::redis::VERSION;
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, own};
use crate::redis::connection::{DATABASES, Session};
use crate::redis::door::Door;
use crate::redis::later::Later;
use crate::redis::names::{Tenant, cache_name};

pub(super) const COMMAND: Command = own("INFO", -1, Needs::View, info, ("1.0.0", "Returns statistics of the server"));

/// Sections that are returned only if they are requested by name, or with `all`.
const MORE: [&str; 2] = ["Commandstats", "Latencystats"];
/// Sections that clients of a tenant are shown, and the lines of the first of them: what says nothing of others.
const SECTIONS_OF_TENANTS: [&str; 2] = ["Server", "Keyspace"];
const SERVER_OF_TENANTS: [&str; 6] =
    ["redis_version", "redis_mode", "server_name", "thalweg_version", "uptime_in_seconds", "uptime_in_days"];
/// Latency percentiles that Redis shows by default.
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
/// Clock ticks per second of times in `/proc`, on every Linux.
const TICKS_PER_S: f64 = 100.0;

fn info(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let is_asked = |word: &str| args[1..].iter().any(|arg| is(arg, word));
    let is_all = is_asked("all") || is_asked("everything");
    let is_default = args.len() == 1 || is_asked("default");
    let tenant = session.tenant();
    let may_see = |section: &str| tenant.is_none() || SECTIONS_OF_TENANTS.contains(&section);
    let is_wanted =
        |section: &str| (is_all || is_asked(section) || is_default && !MORE.contains(&section)) && may_see(section);
    let mut text = String::new();
    for (section, lines) in SECTIONS.iter().filter(|(section, _)| is_wanted(section)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        text.push_str(&format!("# {section}\r\n"));
        let mut lines = lines(door, tenant);
        lines
            .retain(|(name, _)| tenant.is_none() || *section != "Server" || SERVER_OF_TENANTS.contains(&name.as_str()));
        for (name, value) in lines {
            text.push_str(&format!("{name}:{value}\r\n"));
        }
    }
    written(session, |writer| {
        writer.verbatim(&text);
        Ok(())
    })
}

type Lines = Vec<(String, String)>;

/// Section of the reply: its title, and the function that returns its lines.
type Section = (&'static str, fn(&Door, Tenant<'_>) -> Lines);

/// Sections in the order of Redis.
const SECTIONS: [Section; 13] = [
    ("Server", |door, _| server(door)),
    ("Clients", |door, _| clients(door)),
    ("Memory", |door, _| memory(door)),
    ("Persistence", |door, _| persistence(door)),
    ("Stats", |door, _| stats(door)),
    ("Replication", |door, _| replication(door)),
    ("CPU", |door, _| cpu(door)),
    ("Modules", |_, _| Vec::new()),
    ("Commandstats", |door, _| commands(door)),
    ("Errorstats", |door, _| errors(door)),
    ("Latencystats", |door, _| latencies(door)),
    ("Cluster", |_, _| vec![line("cluster_enabled", 0)]),
    ("Keyspace", keyspace),
];

fn line(name: &str, value: impl Display) -> (String, String) {
    (name.to_owned(), value.to_string())
}

/// Returns the section about the server process.
fn server(door: &Door) -> Lines {
    let up_s = door.began.elapsed().as_secs();
    let now_ms = door.broker.now_ms();
    vec![
        line("redis_version", VERSION),
        line("redis_git_sha1", "00000000"),
        line("redis_git_dirty", 0),
        line("redis_build_id", "0000000000000000"),
        line("redis_mode", "standalone"),
        line("server_name", "thalweg"),
        line("thalweg_version", env!("CARGO_PKG_VERSION")),
        line("os", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        line("arch_bits", usize::BITS),
        line("process_id", std::process::id()),
        line("process_supervised", "no"),
        line("run_id", run_id(door)),
        line("tcp_port", door.port),
        line("server_time_usec", u128::from(now_ms) * 1000),
        line("uptime_in_seconds", up_s),
        line("uptime_in_days", up_s / 86_400),
        line("hz", super::config::frequency(door)),
        line("configured_hz", super::config::frequency(door)),
        line("lru_clock", (now_ms / 1000) & 0x00ff_ffff),
        line("executable", executable()),
        line("config_file", ""),
        line("io_threads_active", 0),
    ]
}

/// Returns forty digits that change with each restart, as tools expect.
fn run_id(door: &Door) -> String {
    format!("{:016x}{:016x}{:08x}", door.broker.instance(), door.began_ms, std::process::id())
}

fn executable() -> String {
    std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default()
}

fn clients(door: &Door) -> Lines {
    let clients = door.clients.all();
    let [tracking_clients, _, _] = door.notices.tracking.counts();
    vec![
        line("connected_clients", clients.len()),
        line("cluster_connections", 0),
        line("maxclients", door.connections.max()),
        line(
            "client_recent_max_input_buffer",
            clients.iter().map(|it| it.unread.load(Ordering::Relaxed)).max().unwrap_or_default(),
        ),
        line("client_recent_max_output_buffer", clients.iter().map(|it| it.outbox.waiting()).max().unwrap_or_default()),
        line("blocked_clients", clients.iter().filter(|client| client.is_blocked()).count()),
        line("tracking_clients", tracking_clients),
        line("clients_in_timeout_table", 0),
    ]
}

/// Memory use in bytes.
pub(super) struct Memory {
    /// Memory of the caches, including their indexes.
    pub(super) used: u64,
    pub(super) peak: u64,
    pub(super) max: u64,
    /// Memory of the entries of the databases.
    pub(super) dataset: u64,
    pub(super) keys: u64,
    /// Memory of connections and their pending data.
    pub(super) clients: u64,
    /// Resident memory of the whole process.
    pub(super) resident: u64,
}

impl Memory {
    pub(super) fn of(door: &Door) -> Self {
        let used = door.broker.caches.bytes();
        let databases = databases(door, None);
        let sum = |of: fn(&StripeStats) -> u64| databases.iter().map(|(_, stats, _)| of(stats)).sum::<u64>();
        let clients = door.clients.all().iter().map(|client| client.bytes() as u64).sum();
        Self {
            used,
            peak: door.stats.memory_peak(used),
            max: door.broker.caches.bytes_max(),
            dataset: sum(|stats| stats.bytes).min(used),
            keys: sum(|stats| stats.entries),
            clients,
            resident: resident().unwrap_or(used),
        }
    }

    pub(super) fn percentage(&self, part: u64, of: u64) -> f64 {
        if of == 0 { 0.0 } else { part as f64 * 100.0 / of as f64 }
    }

    pub(super) fn fragmentation(&self) -> f64 {
        if self.used == 0 { 0.0 } else { self.resident as f64 / self.used as f64 }
    }
}

fn memory(door: &Door) -> Lines {
    let memory = Memory::of(door);
    let sized = |name: &str, bytes: u64| [line(name, bytes), line(&format!("{name}_human"), human(bytes))];
    let mut lines = Vec::new();
    lines.extend(sized("used_memory", memory.used));
    lines.extend(sized("used_memory_rss", memory.resident));
    lines.extend(sized("used_memory_peak", memory.peak));
    lines.extend([
        line("used_memory_peak_perc", format!("{:.2}%", memory.percentage(memory.used, memory.peak))),
        line("used_memory_overhead", memory.used - memory.dataset),
        line("used_memory_startup", 0),
        line("used_memory_dataset", memory.dataset),
        line("used_memory_dataset_perc", format!("{:.2}%", memory.percentage(memory.dataset, memory.used))),
    ]);
    lines.extend(
        proc_kib("/proc/meminfo", "MemTotal:").map(|bytes| sized("total_system_memory", bytes)).into_iter().flatten(),
    );
    lines.extend(sized("used_memory_lua", 0));
    let (scripts, script_bytes) = door.scripts.cache.size();
    let functions = door.scripts.functions.of(None).ok();
    lines.extend([
        line("used_memory_scripts_eval", script_bytes),
        line("number_of_cached_scripts", scripts),
        line("used_memory_scripts", script_bytes),
        line("number_of_functions", functions.as_ref().map_or(0, |all| all.function_count())),
        line("number_of_libraries", functions.map_or(0, |all| all.all().len())),
    ]);
    lines.extend(
        ["used_memory_vm_eval", "used_memory_vm_functions", "used_memory_vm_total", "used_memory_functions"]
            .map(|name| line(name, 0)),
    );
    lines.extend(sized("maxmemory", memory.max));
    lines.extend([
        line("maxmemory_policy", policy(door)),
        line("mem_fragmentation_ratio", format!("{:.2}", memory.fragmentation())),
        line("mem_fragmentation_bytes", memory.resident.saturating_sub(memory.used)),
        line("mem_not_counted_for_evict", 0),
        line("mem_replication_backlog", 0),
        line("mem_total_replication_buffers", 0),
        line("mem_clients_slaves", 0),
        line("mem_clients_normal", memory.clients),
        line("mem_cluster_links", 0),
        line("mem_aof_buffer", 0),
        line("active_defrag_running", 0),
        line("lazyfree_pending_objects", 0),
        line("lazyfreed_objects", 0),
    ]);
    lines
}

fn persistence(door: &Door) -> Lines {
    let zeros = ["rdb_changes_since_last_save", "rdb_bgsave_in_progress"].map(|name| line(name, 0));
    let mut lines = vec![line("loading", 0), line("async_loading", 0)];
    lines.extend(zeros);
    lines.extend(["current_cow_peak", "current_cow_size", "current_cow_size_age"].map(|name| line(name, 0)));
    lines.extend([
        line("rdb_last_save_time", saved_s(door)),
        line("rdb_last_bgsave_status", "ok"),
        line("rdb_last_bgsave_time_sec", -1),
        line("rdb_current_bgsave_time_sec", -1),
        line("rdb_saves", 0),
        line("rdb_last_cow_size", 0),
        line("aof_enabled", u8::from(door.is_durable)),
        line("aof_rewrite_in_progress", 0),
        line("aof_rewrite_scheduled", 0),
        line("aof_last_rewrite_time_sec", -1),
        line("aof_current_rewrite_time_sec", -1),
        line("aof_last_bgrewrite_status", "ok"),
        line("aof_last_write_status", "ok"),
        line("aof_last_cow_size", 0),
        line("module_fork_in_progress", 0),
        line("module_fork_last_cow_size", 0),
    ]);
    lines
}

/// Returns the hits, misses, expired and evicted entries of all databases.
pub(super) fn keyspace_counts(door: &Door) -> [u64; 4] {
    let mut sums = [0; 4];
    for (_, stats, _) in databases(door, None) {
        let more = [stats.hits, stats.misses, stats.expired, stats.evicted];
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    sums
}

fn stats(door: &Door) -> Lines {
    let totals = door.stats.totals();
    let base = door.stats.baseline();
    let rates = door.stats.rates();
    let commands: u64 = door.stats.commands().values().map(|counted| counted.calls()).sum();
    let errors: u64 = door.stats.errors().values().sum();
    let keyspace = keyspace_counts(door);
    // Deleting a cache also removes its counts.
    let [hits, misses, expired, evicted] = [0, 1, 2, 3].map(|at| keyspace[at].saturating_sub(base.keyspace[at]));
    let kib = |bytes: f64| format!("{:.2}", bytes / 1024.0);
    let [_, tracked_keys, tracked_items] = door.notices.tracking.counts();
    let prefixes = door.notices.tracking.prefixes();
    vec![
        line("total_connections_received", totals.connections_opened - base.totals.connections_opened),
        line("total_commands_processed", commands),
        line("instantaneous_ops_per_sec", rates[0].round() as u64),
        line("total_net_input_bytes", totals.bytes_read - base.totals.bytes_read),
        line("total_net_output_bytes", totals.bytes_written - base.totals.bytes_written),
        line("instantaneous_input_kbps", kib(rates[1])),
        line("instantaneous_output_kbps", kib(rates[2])),
        line("total_net_repl_input_bytes", 0),
        line("total_net_repl_output_bytes", 0),
        line("instantaneous_input_repl_kbps", kib(0.0)),
        line("instantaneous_output_repl_kbps", kib(0.0)),
        line("rejected_connections", door.connections.refused() - base.refused),
        line("sync_full", 0),
        line("sync_partial_ok", 0),
        line("sync_partial_err", 0),
        line("expired_keys", expired),
        line("evicted_keys", evicted),
        line("evicted_clients", 0),
        line("evicted_scripts", door.scripts.cache.evicted()),
        line("keyspace_hits", hits),
        line("keyspace_misses", misses),
        line("pubsub_channels", door.channels.len()),
        line("pubsub_patterns", door.channels.patterns(None)),
        line("pubsubshard_channels", door.shard_channels.len()),
        line("latest_fork_usec", 0),
        line("total_forks", 0),
        line("migrate_cached_sockets", 0),
        line("slave_expires_tracked_keys", 0),
        line("active_defrag_hits", 0),
        line("active_defrag_misses", 0),
        line("active_defrag_key_hits", 0),
        line("active_defrag_key_misses", 0),
        line("tracking_total_keys", tracked_keys),
        line("tracking_total_items", tracked_items),
        line("tracking_total_prefixes", prefixes),
        line("unexpected_error_replies", 0),
        line("total_error_replies", errors),
    ]
}

fn replication(door: &Door) -> Lines {
    vec![
        line("role", "master"),
        line("connected_slaves", 0),
        line("master_failover_state", "no-failover"),
        line("master_replid", run_id(door)),
        line("master_replid2", "0".repeat(40)),
        line("master_repl_offset", 0),
        line("second_repl_offset", -1),
        line("repl_backlog_active", 0),
        line("repl_backlog_size", 1 << 20),
        line("repl_backlog_first_byte_offset", 0),
        line("repl_backlog_histlen", 0),
    ]
}

/// Returns the CPU times of the process and its children in seconds, if the system reports them.
fn cpu(_door: &Door) -> Lines {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else {
        return Vec::new();
    };
    // The name of the process may contain spaces. After it comes the state, which is field number 3.
    let fields: Vec<f64> = text
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split(' ').map(|it| it.parse().unwrap_or_default()).collect())
        .unwrap_or_default();
    let seconds = |field: usize| format!("{:.6}", fields.get(field - 3).copied().unwrap_or_default() / TICKS_PER_S);
    vec![
        line("used_cpu_sys", seconds(15)),
        line("used_cpu_user", seconds(14)),
        line("used_cpu_sys_children", seconds(17)),
        line("used_cpu_user_children", seconds(16)),
    ]
}

fn commands(door: &Door) -> Lines {
    let row = |(name, counted): (&str, crate::redis::stats::Counted)| {
        let calls = counted.calls();
        let us = counted.ns / 1000;
        let mean = if calls == 0 { 0.0 } else { us as f64 / calls as f64 };
        let rejected = counted.rejected;
        let failed = counted.failed;
        let value =
            format!("calls={calls},usec={us},usec_per_call={mean:.2},rejected_calls={rejected},failed_calls={failed}");
        (format!("cmdstat_{name}"), value)
    };
    door.stats.commands().into_iter().map(row).collect()
}

fn errors(door: &Door) -> Lines {
    let row = |(word, count): (Box<str>, u64)| (format!("errorstat_{word}"), format!("count={count}"));
    door.stats.errors().into_iter().map(row).collect()
}

fn latencies(door: &Door) -> Lines {
    let row = |(name, counted): (&str, crate::redis::stats::Counted)| {
        let calls = counted.calls() as f64;
        let histogram = counted.histogram();
        let within = |part: f64| {
            let us = histogram.iter().find(|(_, count)| *count as f64 >= (calls * part).ceil()).map(|(us, _)| *us);
            us.unwrap_or_default() as f64
        };
        let shown = PERCENTILES.map(|(name, part)| format!("{name}={:.3}", within(part)));
        (format!("latency_percentiles_usec_{name}"), shown.join(","))
    };
    door.stats.commands().into_iter().filter(|(_, counted)| counted.calls() > 0).map(row).collect()
}

/// Returns all databases of a tenant that exist with their statistics, and the number and mean remaining time of their
/// expiring entries.
fn databases(door: &Door, tenant: Tenant<'_>) -> Vec<(usize, StripeStats, (u64, u64))> {
    let found =
        (0..DATABASES).filter_map(|number| Some((number, door.broker.caches.find(&cache_name(tenant, number)).ok()?)));
    found.map(|(number, cache)| (number, cache.status().stats, cache.expiring())).collect()
}

fn keyspace(door: &Door, tenant: Tenant<'_>) -> Lines {
    let used = databases(door, tenant).into_iter().filter(|(_, stats, _)| stats.entries > 0);
    let row = |(number, stats, (expires, mean_ms)): (usize, StripeStats, (u64, u64))| {
        line(&format!("db{number}"), format!("keys={},expires={expires},avg_ttl={mean_ms}", stats.entries))
    };
    used.map(row).collect()
}

/// Returns the eviction policy of the first database in the terms of Redis.
pub(super) fn policy(door: &Door) -> &'static str {
    match door.broker.caches.find("db0").map_or(Eviction::None, |cache| cache.eviction()) {
        Eviction::None => "noeviction",
        Eviction::S3Fifo => "allkeys-lfu",
        Eviction::TtlFirst => "volatile-ttl",
    }
}

/// Returns the resident memory of the process, if the system reports it.
fn resident() -> Option<u64> {
    proc_kib("/proc/self/status", "VmRSS:")
}

/// Reads a number of KiB from a file of the system, and returns it in bytes.
fn proc_kib(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

/// Formats a size as Redis does for people.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.2}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_redis_writes_them() {
        let written = [(0, "0B"), (1023, "1023B"), (941_032, "918.98K"), (25_276_514_304, "23.54G")];
        for (bytes, text) in written {
            assert_eq!(human(bytes), text);
        }
    }
}
