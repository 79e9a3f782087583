//! Collection of facts from this machine: files of the kernel, limits of the process, and short measurements.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use thalweg::Door;
use thalweg::config::Config;

use super::facts::{Data, Facts, HugePages, Plan, Port, PortState, Sync, active_word, file_system_of, number_of};
use crate::output::Result;

/// Bytes of one timed write.
const WRITE_BYTES: usize = 4096;
/// Maximum number of timed writes.
const WRITES_MAX: u64 = 100;
/// Time after which no further write is timed.
const WRITES_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for which a program that knows about the clock may run.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(2);
/// Memory for Kafka fetches, which has no key.
const KAFKA_FETCH_BYTES: u64 = 1 << 30;
/// Maximum bytes that are read of one file of the kernel.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of control groups that contain each other.
const GROUPS_MAX: usize = 64;
/// Limits of control groups of version 1 that mean that there is none.
const NO_LIMIT: u64 = 1 << 60;

/// Root of the files of the kernel; tests have their own.
pub struct Kernel {
    root: PathBuf,
}

impl Kernel {
    pub fn this() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// Reads a file, at most [`FILE_BYTES_MAX`] of it. A file that does not exist here is a fact that is not known.
    fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.root.join(path)).ok()?;
        io::Read::read_to_string(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text).ok()?;
        Some(text)
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Collects what the files of the kernel say.
    pub fn facts(&self) -> Facts {
        let memory = self.text("proc/meminfo");
        let kib = |name| Some(number_of(memory.as_ref()?, name)? << 10);
        let huge_pages = self.text("sys/kernel/mm/transparent_hugepage/enabled");
        let own = self.text("proc/self/status").and_then(|status| number_of(&status, "THP_enabled"));
        Facts {
            receive_buffer_max: self.number("proc/sys/net/core/rmem_max"),
            send_buffer_max: self.number("proc/sys/net/core/wmem_max"),
            backlog_max: self.number("proc/sys/net/core/somaxconn"),
            clock_source: self
                .text("sys/devices/system/clocksource/clocksource0/current_clocksource")
                .map(|name| name.trim().to_owned()),
            huge_pages: huge_pages
                .as_deref()
                .and_then(active_word)
                .map(|mode| HugePages { mode: mode.to_owned(), is_on_here: own.map(|number| number != 0) }),
            swap_bytes: kib("SwapTotal"),
            mappings_max: self.number("proc/sys/vm/max_map_count"),
            memory_bytes: kib("MemTotal"),
            memory_limit_bytes: self
                .group_limit("memory.max")
                .or_else(|| self.number("sys/fs/cgroup/memory/memory.limit_in_bytes").filter(|max| *max < NO_LIMIT)),
            threads_limit: self.group_limit("pids.max"),
            ..Facts::default()
        }
    }

    /// Returns the smallest limit of this process's control group and of all that contain it, version 2.
    fn group_limit(&self, file: &str) -> Option<u64> {
        let groups = self.text("proc/self/cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let limit = |group: &Path| self.number(&Path::new("sys/fs/cgroup").join(group).join(file).to_string_lossy());
        Path::new(own).ancestors().take(GROUPS_MAX).filter_map(limit).min()
    }
}

/// Collects all facts for a broker with this configuration.
pub async fn facts(config: &Config) -> Result<Facts> {
    let kernel = Kernel::this();
    let files = getrlimit(Resource::Nofile);
    let server = config.server();
    let broker = config.broker();
    let doors = config.doors()?;
    let kafka = if doors.iter().any(|(door, _)| *door == Door::Kafka) { KAFKA_FETCH_BYTES } else { 0 };
    let sizes = [broker.log_bytes_max as u64, broker.cache_bytes_max, broker.response_bytes_max, kafka];
    Ok(Facts {
        files_max: Some(files.current.unwrap_or(u64::MAX)),
        files_hard_max: Some(files.maximum.unwrap_or(u64::MAX)),
        is_clock_synchronised: is_clock_synchronised().await,
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        plan: Plan {
            connections_max: server.connections_max as u64,
            doors: doors.len() as u64,
            threads: server.threads as u64,
            memory_bytes: sizes.into_iter().fold(0, u64::saturating_add),
            is_quic_used: doors.iter().any(|(door, _)| *door == Door::Native),
        },
        data: config.data().map(|data| directory(&kernel, &data)),
        ports: ports(config, doors)?,
        ..kernel.facts()
    })
}

/// Asks the programs that know whether the kernel's clock is kept right; `None` if none of them is here.
async fn is_clock_synchronised() -> Option<bool> {
    if let Some(answer) = answer_of("timedatectl", &["show", "--property=NTPSynchronized", "--value"]).await {
        return Some(answer.trim() == "yes");
    }
    let tracking = answer_of("chronyc", &["-c", "tracking"]).await?;
    Some(!tracking.contains("Not synchronised"))
}

/// Runs a program to its end, and returns its output if it succeeds within [`PROGRAM_TIME_MAX`].
async fn answer_of(program: &str, args: &[&str]) -> Option<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PROGRAM_TIME_MAX, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Tries all addresses at which the broker listens.
fn ports(config: &Config, doors: Vec<(Door, SocketAddr)>) -> Result<Vec<Port>> {
    let tcp = |address: SocketAddr| TcpListener::bind(address).map(drop);
    let udp = |address: SocketAddr| UdpSocket::bind(address).map(drop);
    let of_door = |(door, address): (Door, SocketAddr)| {
        let bound = tcp(address).and_then(|()| if door == Door::Native { udp(address) } else { Ok(()) });
        port(door.key(), format!("--{} ", door.key()), address, bound)
    };
    let mut ports: Vec<Port> = doors.into_iter().map(of_door).collect();
    if let Some(address) = config.address("cluster_status")? {
        ports.push(port("cluster_status", "--set cluster_status=".to_owned(), address, tcp(address)));
    }
    if let Some(address) = config.address("mesh")? {
        ports.push(port("mesh", "--set mesh=".to_owned(), address, udp(address)));
    }
    Ok(ports)
}

fn port(used_by: &'static str, option: String, address: SocketAddr, bound: std::io::Result<()>) -> Port {
    let state = match bound {
        Ok(()) => PortState::Free,
        Err(error) if error.kind() == ErrorKind::AddrInUse => PortState::Taken,
        Err(error) => PortState::Refused(error.to_string()),
    };
    Port { used_by, option, address, state }
}

/// Collects facts about a data directory. If it does not exist yet, its nearest parent tells them.
fn directory(kernel: &Kernel, data: &Path) -> Data {
    let whole = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    let path = whole.ancestors().find(|path| path.is_dir()).unwrap_or(&whole).to_owned();
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    let space = rustix::fs::statvfs(&path).ok();
    let is_file = whole.exists() && !whole.is_dir();
    let times = if is_file { Err(std::io::Error::other("it is a file, not a directory")) } else { sync_times(&path) };
    let path = if is_file { whole.clone() } else { path };
    Data {
        exists: whole.is_dir(),
        owner: owner_of(&whole),
        file_system: kernel.text("proc/self/mountinfo").and_then(|mounts| file_system_of(&mounts, &real)),
        free_bytes: space.as_ref().map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
        size_bytes: space.as_ref().map(|space| space.f_blocks.saturating_mul(space.f_frsize)),
        write_error: times.as_ref().err().map(ToString::to_string),
        sync: times.ok().and_then(Sync::of),
        path,
    }
}

/// Returns the process that holds the lock of a data directory.
fn owner_of(data: &Path) -> Option<u32> {
    let lock = data.join("thalweg.lock");
    match File::open(&lock).ok()?.try_lock_shared() {
        Err(std::fs::TryLockError::WouldBlock) => std::fs::read_to_string(&lock).ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// Times writes with a sync after each, in microseconds, into a file that is deleted afterwards.
///
/// The file has its size before: the journal overwrites files of fixed size, so that a sync writes no metadata.
fn sync_times(dir: &Path) -> io::Result<Vec<u64>> {
    let path = dir.join(format!(".thalweg-doctor-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let times = time_writes(&file);
    std::fs::remove_file(&path)?;
    times
}

fn time_writes(file: &File) -> io::Result<Vec<u64>> {
    let block = [0x5a; WRITE_BYTES];
    file.write_all_at(&vec![0; WRITE_BYTES * WRITES_MAX as usize], 0)?;
    file.sync_all()?;
    let began = Instant::now();
    let mut times = Vec::new();
    for number in 0..WRITES_MAX {
        let before = Instant::now();
        file.write_all_at(&block, number * WRITE_BYTES as u64)?;
        file.sync_data()?;
        times.push(u64::try_from(before.elapsed().as_micros()).unwrap_or(u64::MAX));
        if began.elapsed() > WRITES_TIME_MAX {
            break;
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files of a kernel below a folder.
    fn kernel(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("created");
            std::fs::write(path, text).expect("written");
        }
        let root = folder.path().to_owned();
        (folder, Kernel { root })
    }

    #[test]
    fn facts_are_read_from_files_and_missing_ones_are_unknown() {
        let (_folder, kernel) = kernel(&[
            ("proc/sys/net/core/rmem_max", "212992\n"),
            ("proc/meminfo", "MemTotal: 1024 kB\nSwapTotal: 8 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
            ("proc/self/status", "Name:\tx\nTHP_enabled:\t0\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ]);
        let facts = kernel.facts();
        assert_eq!((facts.receive_buffer_max, facts.send_buffer_max), (Some(212_992), None));
        assert_eq!((facts.memory_bytes, facts.swap_bytes), (Some(1 << 20), Some(8 << 10)));
        assert_eq!(facts.huge_pages, Some(HugePages { mode: "always".into(), is_on_here: Some(false) }));
        assert_eq!(facts.clock_source.as_deref(), Some("tsc"));
        assert_eq!((facts.memory_limit_bytes, facts.threads_limit), (None, None));
    }

    #[test]
    fn the_smallest_limit_of_all_enclosing_groups_applies() {
        let (_folder, kernel) = kernel(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/b/pids.max", "100\n"),
            ("sys/fs/cgroup/a/pids.max", "200\n"),
        ]);
        let facts = kernel.facts();
        assert_eq!((facts.memory_limit_bytes, facts.threads_limit), (Some(1 << 20), Some(100)));
    }

    #[test]
    fn a_limit_of_the_older_groups_is_read_unless_it_is_none() {
        let limit = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        let (_folder, some) = kernel(&[("proc/self/cgroup", "4:memory:/x\n"), (limit, "4096\n")]);
        assert_eq!(some.facts().memory_limit_bytes, Some(4096));
        let (_folder, none) = kernel(&[("proc/self/cgroup", "4:memory:/x\n"), (limit, "9223372036854771712\n")]);
        assert_eq!(none.facts().memory_limit_bytes, None);
    }

    #[test]
    fn a_measurement_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let times = sync_times(folder.path()).expect("writable");
        assert!(!times.is_empty() && times.len() as u64 <= WRITES_MAX, "{}", times.len());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(sync_times(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn a_directory_that_does_not_exist_is_judged_by_its_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = directory(&Kernel::this(), &folder.path().join("a/b"));
        assert_eq!((data.path.as_path(), data.exists, data.owner), (folder.path(), false, None));
        assert!(data.sync.is_some() && data.write_error.is_none());
    }

    #[test]
    fn a_file_is_no_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("data");
        std::fs::write(&file, "").expect("written");
        let data = directory(&Kernel::this(), &file);
        assert_eq!((data.path.as_path(), data.exists), (file.as_path(), false));
        assert!(data.write_error.is_some_and(|error| error.contains("it is a file")));
    }
}
