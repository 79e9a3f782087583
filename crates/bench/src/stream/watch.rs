//! Resource usage of a server during a run, sampled every few milliseconds.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::process::{self, CpuTime};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of samples. When a run needs more, every second one is dropped, and the pause doubles.
const LOOKS_MAX: usize = 1024;
/// Minimum window of a CPU usage: in a shorter one the clock ticks of the system become visible.
const CPU_WINDOW: Duration = Duration::from_millis(100);

/// Sample of a process.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    resident_bytes: u64,
    cpu: Duration,
}

/// Sample for reports.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds since the beginning of the run.
    pub at_s: f64,
    pub resident_bytes: u64,
    /// Percent of one core over the last tenth of a second; unknown before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
}

/// Process that is sampled until [`Watch::stop`].
pub struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Look>>,
}

impl Watch {
    /// Starts to sample a process; `None` if it does not exist, or the system provides no figures.
    pub fn start(pid: u32, begin: Instant) -> Option<Self> {
        let first = look(pid, begin)?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut looks = vec![first];
            let mut pause = FIRST_PAUSE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let Some(now) = look(pid, begin) else {
                    break;
                };
                looks.push(now);
                if looks.len() == LOOKS_MAX {
                    let mut place = 0;
                    looks.retain(|_| {
                        place += 1;
                        place % 2 == 1
                    });
                    pause *= 2;
                }
            }
            looks.extend(look(pid, begin));
            looks
        });
        Some(Self { stop, thread })
    }

    /// Returns all samples, including the first and the last one, and the CPU time between these two.
    pub fn stop(self) -> (Vec<Usage>, Duration) {
        // A thread that has ended by itself needs no signal.
        self.stop.send(()).unwrap_or_default();
        let looks = self.thread.join().unwrap_or_default();
        let cpu = match looks[..] {
            [first, .., last] => last.cpu.saturating_sub(first.cpu),
            _ => Duration::ZERO,
        };
        (usages(&looks), cpu)
    }
}

fn look(pid: u32, begin: Instant) -> Option<Look> {
    let cpu = CpuTime::of(pid)?.total();
    Some(Look { at: begin.elapsed(), resident_bytes: process::resident_bytes(pid)?, cpu })
}

fn usages(looks: &[Look]) -> Vec<Usage> {
    let mut earlier = 0;
    let usage = |(i, now): (usize, &Look)| {
        while earlier + 1 < i && now.at.saturating_sub(looks[earlier + 1].at) >= CPU_WINDOW {
            earlier += 1;
        }
        let then = &looks[earlier];
        let span = now.at.saturating_sub(then.at);
        let cpu = now.cpu.saturating_sub(then.cpu);
        // A usage over a few milliseconds has no meaning, unless the whole run was as short.
        let is_long = span >= CPU_WINDOW || i + 1 == looks.len();
        let percent = (is_long && !span.is_zero()).then(|| cpu.as_secs_f64() / span.as_secs_f64() * 100.0);
        Usage { at_s: now.at.as_secs_f64(), resident_bytes: now.resident_bytes, cpu_percent: percent }
    };
    looks.iter().enumerate().map(usage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at_ms: u64, cpu_ms: u64) -> Look {
        Look { at: Duration::from_millis(at_ms), resident_bytes: at_ms, cpu: Duration::from_millis(cpu_ms) }
    }

    #[test]
    fn cpu_use_is_that_of_the_last_tenth_of_a_second() {
        let looks: Vec<Look> = (0..20).map(|i| look(i * 20, if i < 10 { 0 } else { (i - 10) * 40 })).collect();
        let percent: Vec<_> = usages(&looks).iter().map(|usage| usage.cpu_percent.map(f64::round)).collect();
        assert_eq!(percent[..5], [None; 5], "it is too early to tell");
        assert_eq!(percent[5], Some(0.0), "nothing was used yet");
        assert_eq!(percent[12], Some(80.0), "two of five steps at 200 %");
        assert_eq!(percent[15..], [Some(200.0); 5]);
    }

    #[test]
    fn a_run_shorter_than_that_has_the_use_of_all_of_it() {
        let looks = [look(0, 0), look(20, 30), look(40, 60)];
        assert_eq!(usages(&looks)[2].cpu_percent.map(f64::round), Some(150.0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_seen_to_work() {
        let begin = Instant::now();
        let watch = Watch::start(std::process::id(), begin).expect("Linux reports it");
        let cpu = || super::look(std::process::id(), begin).expect("Linux reports it").cpu;
        let first = cpu();
        let mut work = 0u64;
        // On a busy machine the process may not have run for a whole clock tick of the system by then.
        while begin.elapsed() < CPU_WINDOW * 2 || cpu() == first {
            work = work.wrapping_mul(31).wrapping_add(1);
        }
        let (usages, cpu) = watch.stop();
        assert!(work > 0 && cpu > Duration::ZERO, "{cpu:?}");
        assert!(usages.len() > 2 && usages.iter().all(|usage| usage.resident_bytes > 0), "{usages:?}");
        assert!(Watch::start(u32::MAX, begin).is_none(), "no process has this number");
    }
}
