//! Resource usage of a process so far, as Linux reports it.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time. The sum is exact; its division has the resolution of the system's clock ticks, usually 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// Returns the CPU time of this process, including threads that have ended.
    pub fn own() -> Option<Self> {
        let (user, system) = ticks("/proc/self/stat")?;
        Some(Self::divide(clock(ClockId::ProcessCPUTime), user, system))
    }

    /// Returns the CPU time of another process: of its current threads.
    pub fn of(pid: u32) -> Option<Self> {
        let (user, system) = ticks(&format!("/proc/{pid}/stat"))?;
        let ran = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let total: Option<u64> = tasks.map(|task| ran(task.ok()?)).sum();
        Some(Self::divide(total.map_or(user + system, Duration::from_nanos), user, system))
    }

    pub fn total(self) -> Duration {
        self.user + self.system
    }

    pub fn since(self, earlier: Self) -> Self {
        let user = self.user.saturating_sub(earlier.user);
        Self { user, system: self.system.saturating_sub(earlier.system) }
    }

    fn divide(total: Duration, user: Duration, system: Duration) -> Self {
        let part = user.as_secs_f64() / (user + system).as_secs_f64();
        let user = total.mul_f64(if part.is_finite() { part } else { 0.5 });
        Self { user, system: total.saturating_sub(user) }
    }
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns user and system time, in whole clock ticks of the system.
fn ticks(path: &str) -> Option<(Duration, Duration)> {
    let stat = fs::read_to_string(path).ok()?;
    // The name of the command may contain anything, including a parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let a_second = rustix::param::clock_ticks_per_second() as f64;
    let mut next = || Some(Duration::from_secs_f64(fields.next()?.parse::<u64>().ok()? as f64 / a_second));
    Some((next()?, next()?))
}

/// Returns the resident memory of a process.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_costs_the_same_from_inside_and_from_outside() {
        let before = CpuTime::own().expect("Linux reports it");
        let begin = clock(ClockId::ThreadCPUTime);
        while clock(ClockId::ThreadCPUTime) - begin < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let own = CpuTime::own().expect("Linux reports it").since(before).total();
        let from_outside = CpuTime::of(std::process::id()).expect("Linux reports it").total();
        assert!(own >= Duration::from_millis(30), "{own:?}");
        assert!(from_outside >= Duration::from_millis(30), "{from_outside:?}");
    }
}
