//! Findings: what the facts about a machine mean for a broker, and what to do about it. Nothing here reads the machine.

use serde::Serialize;

use super::facts::{Data, Facts, Plan, Port, PortState};
use crate::commands::units::bytes;

/// Importance of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing to do.
    Ok,
    /// It could not be checked, or is worth knowing.
    Note,
    /// The broker works, and is slower or takes less than it could.
    Warning,
    /// The broker does not start, or may lose data.
    Problem,
}

impl Severity {
    pub const ALL: [Self; 4] = [Self::Ok, Self::Note, Self::Warning, Self::Problem];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, the same in every version.
    pub check: &'static str,
    pub severity: Severity,
    /// Finding, and its effect.
    pub found: String,
    /// Advice; empty if there is nothing to do.
    pub action: String,
}

/// Open files that a process has in addition to its connections: files of topics, and of the journal.
const FILES_OF_TOPICS: u64 = 4096;
/// Limit of open files below which not even a test runs well.
const FILES_MIN: u64 = 256;
/// Buffers that the broker requests for each QUIC socket.
const SOCKET_BUFFER: u64 = 8 << 20;
/// Backlog that the broker requests for each TCP port.
const BACKLOG: u64 = 4096;
/// Median time of a sync from which a publisher that waits for each acknowledgement is slow.
const SYNC_MEDIAN_US: u64 = 10_000;
/// Time of a slow sync, the 99th percentile, from which acknowledgements stutter.
const SYNC_P99_US: u64 = 100_000;
/// Median time of a sync below which no disk can have written anything.
const SYNC_TOO_FAST_US: u64 = 10;
/// Space with which a broker starts: two files of its journal, and its reserve.
const FREE_MIN: u64 = 192 << 20;
/// Space below which a broker with traffic fills the disk soon.
const FREE_LOW: u64 = 5 << 30;
/// The kernel's default of `vm.max_map_count`.
const MAPPINGS: u64 = 65_530;
/// Threads of a broker in addition to those that serve connections.
const OTHER_THREADS: u64 = 64;

/// File systems in memory: their files are lost when the machine stops.
const VOLATILE: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems of a network or of a program: what a sync means there depends on another machine or on that program.
const REMOTE: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse"];
/// Clock sources that are read without leaving the program, or nearly so.
const SLOW_CLOCKS: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];

/// Decides what the facts mean. There is one finding per check, and one per door whose port is not free.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![
        open_files(facts),
        udp_buffers(facts),
        backlog(facts),
        memory(facts),
        swap(facts),
        huge_pages(facts),
        mappings(facts),
        threads(facts),
        clock_source(facts),
        clock(facts),
    ];
    if let Some(data) = &facts.data {
        found.extend(directory(data));
        found.push(file_system(data));
        found.push(free_space(data));
        found.push(sync_cost(data));
    }
    found.extend(ports(&facts.ports, facts.data.as_ref()));
    found
}

/// Returns the largest severity.
pub fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
}

fn finding(check: &'static str, severity: Severity, found: impl Into<String>, action: impl Into<String>) -> Finding {
    Finding { check, severity, found: found.into(), action: action.into() }
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    finding(check, Severity::Ok, found, "")
}

fn unknown(check: &'static str, what: &str) -> Finding {
    finding(check, Severity::Note, format!("{what} cannot be read on this system"), "")
}

fn open_files(facts: &Facts) -> Finding {
    let check = "open files";
    let Some(max) = facts.files_max else { return unknown(check, "the limit of open files") };
    let Plan { connections_max, doors, .. } = facts.plan;
    let wanted = connections_max.saturating_mul(doors.max(1)).saturating_add(FILES_OF_TOPICS);
    if max < FILES_MIN {
        let found = format!("a process may open only {max} files");
        return finding(check, Severity::Problem, found, raise_files(facts, wanted));
    }
    if max < connections_max.saturating_add(FILES_OF_TOPICS) {
        let found = format!("a process may open {max} files; connections_max allows {connections_max} per door");
        return finding(check, Severity::Warning, found, raise_files(facts, wanted));
    }
    ok(check, format!("a process may open {max} files"))
}

fn raise_files(facts: &Facts, wanted: u64) -> String {
    match facts.files_hard_max {
        Some(hard) if hard < wanted => {
            format!("set LimitNOFILE={wanted} in its systemd unit, or a hard limit for its user in limits.conf")
        }
        _ => {
            format!("run `ulimit -n {wanted}` before `thalweg serve`, or set LimitNOFILE={wanted} in its systemd unit")
        }
    }
}

fn udp_buffers(facts: &Facts) -> Finding {
    let check = "UDP buffers";
    if !facts.plan.is_quic_used {
        return ok(check, "not used: the native door is off");
    }
    let (Some(receive), Some(send)) = (facts.receive_buffer_max, facts.send_buffer_max) else {
        return unknown(check, "the limit of socket buffers");
    };
    let granted = receive.min(send);
    if granted < SOCKET_BUFFER {
        let found = format!(
            "QUIC gets buffers of {} instead of {}: under load it loses datagrams and sends them again",
            bytes(granted),
            bytes(SOCKET_BUFFER)
        );
        let action = format!("sysctl -w net.core.rmem_max={SOCKET_BUFFER} net.core.wmem_max={SOCKET_BUFFER}");
        return finding(check, Severity::Warning, found, action);
    }
    ok(check, format!("QUIC gets buffers of {}", bytes(SOCKET_BUFFER)))
}

fn backlog(facts: &Facts) -> Finding {
    let check = "backlog";
    match facts.backlog_max {
        None => unknown(check, "net.core.somaxconn"),
        Some(max) if max < BACKLOG => finding(
            check,
            Severity::Warning,
            format!("only {max} connections may wait at a port: a storm of reconnects is refused"),
            format!("sysctl -w net.core.somaxconn={BACKLOG}"),
        ),
        Some(max) => ok(check, format!("{max} connections may wait at a port")),
    }
}

fn memory(facts: &Facts) -> Finding {
    let check = "memory";
    let Some(machine) = facts.memory_bytes else { return unknown(check, "the size of the memory") };
    let (available, owner) = match facts.memory_limit_bytes {
        Some(limit) if limit < machine => (limit, "its control group"),
        _ => (machine, "the machine"),
    };
    let planned = facts.plan.memory_bytes;
    if planned > available {
        let found = format!(
            "logs, caches and responses may use {}, and {owner} has {}: under load the system ends the broker",
            bytes(planned),
            bytes(available)
        );
        let action = "lower memory_max, cache_memory_max or response_memory_max, or add memory";
        return finding(check, Severity::Warning, found, action);
    }
    ok(check, format!("{owner} has {}; logs, caches and responses use at most {}", bytes(available), bytes(planned)))
}

fn swap(facts: &Facts) -> Finding {
    let check = "swap";
    match facts.swap_bytes {
        None => unknown(check, "the size of the swap space"),
        Some(0) => ok(check, "off"),
        Some(size) => finding(
            check,
            Severity::Note,
            format!("{}: swapped memory makes latency uneven, and may have secrets in it", bytes(size)),
            "on a server, turn swap off (swapoff -a) or encrypt it",
        ),
    }
}

fn huge_pages(facts: &Facts) -> Finding {
    let check = "huge pages";
    let Some(pages) = &facts.huge_pages else { return unknown(check, "the setting of transparent huge pages") };
    match (pages.mode.as_str(), pages.is_on_here) {
        ("always", Some(false)) => ok(check, "always, and turned off for this program by itself"),
        ("always", _) => finding(
            check,
            Severity::Warning,
            "always: memory that is used in small parts takes several times its size",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (mode, _) => ok(check, mode.to_owned()),
    }
}

fn mappings(facts: &Facts) -> Finding {
    let check = "mappings";
    match facts.mappings_max {
        None => unknown(check, "vm.max_map_count"),
        Some(max) if max < MAPPINGS => finding(
            check,
            Severity::Warning,
            format!("a process may have only {max} memory mappings: a large heap can need more"),
            format!("sysctl -w vm.max_map_count={MAPPINGS}"),
        ),
        Some(max) => ok(check, format!("a process may have {max} memory mappings")),
    }
}

fn threads(facts: &Facts) -> Finding {
    let check = "cores";
    let Plan { threads, .. } = facts.plan;
    let cores = facts.cores;
    if let Some(limit) = facts.threads_limit.filter(|limit| *limit < threads + OTHER_THREADS) {
        return finding(
            check,
            Severity::Problem,
            format!("its control group allows {limit} threads, and the broker may need {}", threads + OTHER_THREADS),
            format!("raise pids.max of the group (TasksMax= of a unit) to {}", threads + OTHER_THREADS),
        );
    }
    if threads > cores {
        let found = format!("{threads} threads serve connections on {cores} cores: they wait for each other");
        return finding(check, Severity::Warning, found, "set threads = 0, which is one per core");
    }
    ok(check, format!("{cores}, and {threads} threads serve connections"))
}

fn clock_source(facts: &Facts) -> Finding {
    let check = "clock source";
    match facts.clock_source.as_deref() {
        None => unknown(check, "the clock source"),
        Some(name) if SLOW_CLOCKS.contains(&name) => finding(
            check,
            Severity::Warning,
            format!("{name}: reading the time takes a microsecond or more, and every record is timed"),
            "use tsc or the clock of the hypervisor: see \
             /sys/devices/system/clocksource/clocksource0/available_clocksource",
        ),
        Some(name) => ok(check, name),
    }
}

fn clock(facts: &Facts) -> Finding {
    let check = "clock";
    match facts.is_clock_synchronised {
        None => finding(
            check,
            Severity::Note,
            "no time service of this machine answers: it is not known whether the clock is right",
            "",
        ),
        Some(true) => ok(check, "synchronised"),
        Some(false) => finding(
            check,
            Severity::Warning,
            "not synchronised: the times of records, retention and the expiry of tokens are wrong with it",
            "run a time service: systemd-timesyncd, chrony or ntpd",
        ),
    }
}

/// Checks that files can be written.
fn directory(data: &Data) -> Option<Finding> {
    let check = "data directory";
    let path = data.path.display();
    if let Some(error) = &data.write_error {
        let action = "run the broker as the owner of the directory, or name another one with --data";
        return Some(finding(check, Severity::Problem, format!("cannot write to {path}: {error}"), action));
    }
    match data.owner {
        Some(pid) => Some(ok(check, format!("in use by process {pid}"))),
        None if data.exists => Some(ok(check, "writable")),
        None => Some(ok(check, format!("does not exist yet; {path} is writable"))),
    }
}

fn file_system(data: &Data) -> Finding {
    let check = "file system";
    match data.file_system.as_deref() {
        None => unknown(check, "the type of the file system"),
        Some(kind) if VOLATILE.contains(&kind) => finding(
            check,
            Severity::Problem,
            format!("{kind} is in memory: everything is lost when the machine stops"),
            "choose a directory on a disk",
        ),
        Some(kind) if REMOTE.contains(&kind) => finding(
            check,
            Severity::Problem,
            format!("{kind} is not a local file system: a sync there may not mean that data is on a disk"),
            "choose a directory on a local disk",
        ),
        Some("overlay") => finding(
            check,
            Severity::Problem,
            "overlay is the layer of a container: everything is lost with the container",
            "mount a volume at the data directory",
        ),
        Some(kind) => ok(check, kind),
    }
}

fn free_space(data: &Data) -> Finding {
    let check = "free space";
    let (Some(free), Some(size)) = (data.free_bytes, data.size_bytes) else {
        return unknown(check, "the free space");
    };
    let found = format!("{} of {}", bytes(free), bytes(size));
    let action = "free some space, or set disk_retention_bytes";
    if free < FREE_MIN {
        let found = format!("{found}: a broker needs {} to start", bytes(FREE_MIN));
        return finding(check, Severity::Problem, found, action);
    }
    if free < FREE_LOW {
        return finding(check, Severity::Warning, format!("{found}: it is soon used up"), action);
    }
    ok(check, found)
}

fn sync_cost(data: &Data) -> Finding {
    let check = "disk sync";
    let Some(sync) = data.sync else {
        return finding(check, Severity::Note, "not measured, as no file could be written", "");
    };
    let [median, p99] = [sync.median_us, sync.p99_us].map(micros);
    let measured = format!("median {median}, p99 {p99}");
    if sync.median_us < SYNC_TOO_FAST_US {
        let found = format!("{measured}: faster than any disk. Data may not be on it after a sync");
        let action = "check the write cache of the disk, or the cache mode of the virtual disk";
        return finding(check, Severity::Warning, found, action);
    }
    if sync.median_us > SYNC_MEDIAN_US {
        let found = format!(
            "{measured}: a publisher that waits for each acknowledgement sends at most {} per second",
            1_000_000 / sync.median_us
        );
        let action = "use a disk with a protected write cache (NVMe, or a provisioned volume), or publish in batches";
        return finding(check, Severity::Warning, found, action);
    }
    if sync.p99_us > SYNC_P99_US {
        let found = format!("{measured}: some acknowledgements wait that long");
        let action = "find the programs that write to the same disk, or give the broker its own";
        return finding(check, Severity::Warning, found, action);
    }
    ok(check, measured)
}

/// Formats a time: `840 us`, `1.3 ms`.
fn micros(us: u64) -> String {
    if us < 1000 { format!("{us} us") } else { format!("{:.1} ms", us as f64 / 1000.0) }
}

fn ports(ports: &[Port], data: Option<&Data>) -> Vec<Finding> {
    let check = "ports";
    let owner = data.and_then(|data| data.owner);
    let found: Vec<Finding> = ports.iter().filter_map(|port| port_finding(port, owner)).collect();
    if !found.is_empty() {
        return found;
    }
    vec![ok(
        check,
        format!("free: {}", ports.iter().map(|port| port.address.port().to_string()).collect::<Vec<_>>().join(", ")),
    )]
}

fn port_finding(port: &Port, owner: Option<u32>) -> Option<Finding> {
    let check = "ports";
    let Port { used_by, option, address, state } = port;
    match (state, owner) {
        (PortState::Free, _) => None,
        (PortState::Taken, Some(pid)) => {
            let found = format!("{address} ({used_by}) is in use; process {pid} uses the data directory");
            Some(finding(check, Severity::Note, found, ""))
        }
        (PortState::Taken, None) => Some(finding(
            check,
            Severity::Problem,
            format!("{address} ({used_by}) is in use by another program"),
            format!("move it with {option}ADDR, turn it off with {option}off, or stop the other program"),
        )),
        (PortState::Refused(error), _) => Some(finding(
            check,
            Severity::Problem,
            format!("{address} ({used_by}) cannot be opened: {error}"),
            format!("choose another address with {option}ADDR; ports below 1024 need a privilege"),
        )),
    }
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
