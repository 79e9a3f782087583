//! Facts about a machine that matter to a broker, as plain values. `None` is a fact that could not be read.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

/// All facts that the findings depend on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// Soft limit of open files of a process.
    pub files_max: Option<u64>,
    /// Hard limit of open files, up to which the soft limit can be raised without a privilege.
    pub files_hard_max: Option<u64>,
    /// Maximum bytes of the receive buffer of a socket, `net.core.rmem_max`.
    pub receive_buffer_max: Option<u64>,
    /// Maximum bytes of the send buffer of a socket, `net.core.wmem_max`.
    pub send_buffer_max: Option<u64>,
    /// Maximum connections that wait to be accepted at one port, `net.core.somaxconn`.
    pub backlog_max: Option<u64>,
    /// Source from which the kernel reads the time.
    pub clock_source: Option<String>,
    /// Whether a time service keeps the clock right.
    pub is_clock_synchronised: Option<bool>,
    pub huge_pages: Option<HugePages>,
    /// Bytes of swap space.
    pub swap_bytes: Option<u64>,
    /// Maximum memory mappings of a process, `vm.max_map_count`.
    pub mappings_max: Option<u64>,
    /// Bytes of memory of the machine.
    pub memory_bytes: Option<u64>,
    /// Limit of the memory of this process and its group, if a control group sets one.
    pub memory_limit_bytes: Option<u64>,
    /// Limit of the threads of this process and its group, if a control group sets one.
    pub threads_limit: Option<u64>,
    /// Cores that this process may use.
    pub cores: u64,
    pub plan: Plan,
    pub data: Option<Data>,
    pub ports: Vec<Port>,
}

/// Setting of transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// The active word of `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub mode: String,
    /// Whether the kernel gives this process huge pages at all: the allocator of the program refuses them.
    pub is_on_here: Option<bool>,
}

/// Needs of a broker with the configuration that was checked.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plan {
    /// Maximum connections per door.
    pub connections_max: u64,
    /// Doors that are not off.
    pub doors: u64,
    /// Threads that serve connections.
    pub threads: u64,
    /// Bytes of memory that logs, caches and responses may use together.
    pub memory_bytes: u64,
    /// Whether the native door, which speaks QUIC, is open.
    pub is_quic_used: bool,
}

/// Data directory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Data {
    /// The directory, or its nearest parent that exists.
    pub path: PathBuf,
    /// Whether the directory itself exists.
    pub exists: bool,
    /// Process that holds the lock of the directory.
    pub owner: Option<u32>,
    /// Type of the file system, as the kernel calls it.
    pub file_system: Option<String>,
    /// Bytes that are free for the user of the broker.
    pub free_bytes: Option<u64>,
    /// Bytes of the whole file system.
    pub size_bytes: Option<u64>,
    /// Error of the first file that could not be written.
    pub write_error: Option<String>,
    pub sync: Option<Sync>,
}

/// Times of synchronous writes of 4 KiB into a file that exists, as the journal makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sync {
    pub count: u64,
    pub median_us: u64,
    pub p99_us: u64,
}

impl Sync {
    /// Summarises times in microseconds; `None` if there are none.
    pub fn of(mut times_us: Vec<u64>) -> Option<Self> {
        times_us.sort_unstable();
        let at = |percent: usize| times_us.get((times_us.len() * percent).div_ceil(100).max(1) - 1).copied();
        Some(Self { count: times_us.len() as u64, median_us: at(50)?, p99_us: at(99)? })
    }
}

/// Address of a door, and whether it can be bound.
#[derive(Clone, Debug, Serialize)]
pub struct Port {
    /// Door, or key of the configuration.
    pub used_by: &'static str,
    /// Beginning of the option that sets the address.
    #[serde(skip)]
    pub option: String,
    pub address: SocketAddr,
    pub state: PortState,
}

/// Result of an attempt to bind an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    Free,
    Taken,
    /// The system refused it for another reason.
    Refused(String),
}

/// Returns the word in brackets, which is how the kernel marks the active one of several: `always [madvise] never`.
pub fn active_word(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// Returns the number in the line of `name` in a file such as `/proc/meminfo`: `MemTotal: 123 kB`.
pub fn number_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the type of the file system of a path from `/proc/self/mountinfo`: that of the longest mount point which
/// contains the path, and of the last one if several are mounted over each other.
pub fn file_system_of(mounts: &str, path: &std::path::Path) -> Option<String> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let (mount, source) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        if path.starts_with(&point) && found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), source.split(' ').next()?));
        }
    }
    found.map(|(_, kind)| kind.to_owned())
}

/// Replaces the escapes of mount points that have spaces in their names.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(active_word("always [madvise] never\n"), Some("madvise"));
        assert_eq!(active_word("always"), None);
        let memory = "MemTotal:       24649872 kB\nSwapTotal:             0 kB\n";
        assert_eq!((number_of(memory, "MemTotal"), number_of(memory, "SwapTotal")), (Some(24_649_872), Some(0)));
        assert_eq!(number_of(memory, "Mem"), None, "a prefix of a name is another name");
        assert_eq!(number_of("THP_enabled:\t1\n", "THP_enabled"), Some(1));
    }

    #[test]
    fn a_path_is_on_the_innermost_and_last_mount() {
        let mounts = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:25 / /srv rw - xfs /dev/vdb rw
31 30 0:26 / /srv/my\\040data rw - nfs4 host:/x rw
32 21 0:27 / /tmp rw - ext4 /dev/vdc rw
33 32 0:28 / /tmp rw - tmpfs tmpfs rw
";
        for (path, kind) in [
            ("/", "ext4"),
            ("/var/lib/thalweg", "ext4"),
            ("/srv", "xfs"),
            ("/srv2", "ext4"),
            ("/srv/my data/a", "nfs4"),
            ("/tmp/x", "tmpfs"),
        ] {
            assert_eq!(file_system_of(mounts, Path::new(path)).as_deref(), Some(kind), "{path}");
        }
        assert_eq!(file_system_of("", Path::new("/")), None);
    }

    #[test]
    fn times_of_syncs_are_summarised() {
        assert_eq!(Sync::of(Vec::new()), None);
        assert_eq!(Sync::of(vec![7]), Some(Sync { count: 1, median_us: 7, p99_us: 7 }));
        let times = (1..=100).rev().collect();
        assert_eq!(Sync::of(times), Some(Sync { count: 100, median_us: 50, p99_us: 99 }));
    }
}
