//! Schedule of an open loop, which wakes connections when their requests are due.

use std::io;
use std::ops::Range;

use super::worker::{self, Pace, Window};
use crate::alarm::Alarm;

/// Wakes the connections of this thread whenever one of their requests is due, until the window ends.
pub(super) async fn run(pace: Pace, window: Window, connections: Range<usize>) -> io::Result<()> {
    let mut alarm = Alarm::new()?;
    let mut now = window.now();
    for number in 0.. {
        for connection in connections.clone() {
            let due = pace.due(connection, number);
            if due >= window.until {
                return Ok(());
            }
            while now < due {
                now = window.now();
                if now < due {
                    alarm.wait(window.at(due)).await?;
                }
            }
            worker::with(|worker| {
                if let Some(waker) = &worker.wakers[connection - connections.start] {
                    waker.wake_by_ref();
                }
            });
        }
    }
    Ok(())
}
