//! Waits until a point in time, with a higher precision than the timers of the runtime.

use std::io;

/// Timer that fires on time. The timers of the runtime are up to a millisecond late, which is many times the duration
/// of a request. The timer is a file that becomes readable when it has fired: the runtime treats it like any pipe.
#[cfg(target_os = "linux")]
pub struct Alarm(tokio::net::unix::pipe::Receiver);

#[cfg(target_os = "linux")]
impl Alarm {
    /// Creates a timer of the current runtime.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self(tokio::net::unix::pipe::Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until a point in time.
    pub async fn wait(&mut self, until: std::time::Instant) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        use tokio::io::AsyncReadExt;
        let left = until.saturating_duration_since(std::time::Instant::now()).as_nanos().max(1);
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 },
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        // The read value is the number of expirations.
        self.0.read_exact(&mut [0; 8]).await.map(drop)
    }
}

#[cfg(not(target_os = "linux"))]
pub struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub async fn wait(&mut self, until: std::time::Instant) -> io::Result<()> {
        tokio::time::sleep_until(until.into()).await;
        Ok(())
    }
}
