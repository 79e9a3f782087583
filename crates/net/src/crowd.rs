//! Turns of tasks that one event wakes all together, such as the streams of a topic: they run in small groups, and the
//! other tasks of the runtime run in between.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Number of turns after which all other tasks of the runtime get theirs.
const GROUP: usize = 64;

/// Tasks that take turns.
#[derive(Debug)]
pub struct Crowd {
    state: Mutex<State>,
    /// Notified when the line is closed, and when the crowd is dropped.
    closed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// Turns since the other tasks had theirs.
    taken: usize,
    /// `true` while tasks have to stand in line.
    is_closed: bool,
    /// Tasks in line, in order of arrival. A task that ended there keeps its place until it is called.
    line: VecDeque<Waker>,
    /// Number of places that were ever called.
    called: u64,
}

impl Crowd {
    /// Creates an empty crowd, whose line is opened by a task of the current runtime. Panics outside of a runtime.
    pub fn start() -> Arc<Self> {
        let crowd = Arc::new(Self { state: Mutex::default(), closed: Arc::default() });
        tokio::spawn(open_again(Arc::downgrade(&crowd), crowd.closed.clone()));
        crowd
    }

    /// Returns the number of places in line: those of tasks that wait, and of tasks that ended there and were not
    /// called yet.
    pub fn waiting(&self) -> usize {
        self.state.lock().line.len()
    }

    /// Waits for a turn of the current task. The line has no limit of its own: the number of tasks limits it.
    pub async fn turn(&self) {
        let mut place = None;
        poll_fn(|cx| self.poll(&mut place, cx)).await;
    }

    /// `place`: place of the task in line, counted from the first one ever; `None` before it stands there.
    fn poll(&self, place: &mut Option<u64>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let called = state.called;
        match *place {
            Some(place) if place < called => return Poll::Ready(()),
            Some(place) => state.line[(place - called) as usize].clone_from(cx.waker()),
            None if state.is_closed => {
                *place = Some(called + state.line.len() as u64);
                state.line.push_back(cx.waker().clone());
            }
            None => {
                self.take(&mut state, 1);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    fn take(&self, state: &mut State, turns: usize) {
        state.taken += turns;
        if state.taken >= GROUP {
            state.is_closed = true;
            self.closed.notify_one();
        }
    }

    /// Calls the next tasks in line. It stays closed if they are a whole group.
    fn call_next(&self) {
        let mut state = self.state.lock();
        let count = state.line.len().min(GROUP);
        let next: Vec<Waker> = state.line.drain(..count).collect();
        state.called += count as u64;
        state.taken = 0;
        state.is_closed = false;
        self.take(&mut state, count);
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.closed.notify_one();
    }
}

/// Opens the line again each time that the other tasks have had their turn, until the crowd is dropped.
async fn open_again(crowd: Weak<Crowd>, closed: Arc<Notify>) {
    loop {
        closed.notified().await;
        // The runtime polls sockets and timers, and runs the tasks that these wake, before it returns here.
        tokio::task::yield_now().await;
        let Some(crowd) = crowd.upgrade() else {
            return;
        };
        crowd.call_next();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const TASKS: usize = 20 * GROUP;

    /// Runs tasks that one event wakes, each with one step of work, beside a task that yields as often as it runs.
    /// Returns the largest number of steps between two of its runs.
    async fn steps_between(is_in_turns: bool) -> Option<usize> {
        let crowd = Crowd::start();
        let waiting = Arc::new(AtomicUsize::new(0));
        let steps = Arc::new(AtomicUsize::new(0));
        let event = Arc::new(Notify::new());
        for _ in 0..TASKS {
            let waiting = waiting.clone();
            let steps = steps.clone();
            let event = event.clone();
            let crowd = crowd.clone();
            tokio::spawn(async move {
                let mut woken = pin!(event.notified());
                woken.as_mut().enable();
                waiting.fetch_add(1, Ordering::Relaxed);
                woken.await;
                if is_in_turns {
                    crowd.turn().await;
                }
                steps.fetch_add(1, Ordering::Relaxed);
            });
        }
        while waiting.load(Ordering::Relaxed) < TASKS {
            tokio::task::yield_now().await;
        }
        event.notify_waiters();
        let other = tokio::spawn(async move {
            let mut seen = vec![0];
            while seen.last() != Some(&TASKS) {
                tokio::task::yield_now().await;
                seen.push(steps.load(Ordering::Relaxed));
            }
            seen.windows(2).map(|two| two[1] - two[0]).max()
        });
        other.await.expect("no panic")
    }

    #[tokio::test]
    async fn other_tasks_run_between_the_groups_of_a_crowd() {
        // The runtime may wake the other task in the middle of a group.
        let steps = steps_between(true).await;
        assert!(steps <= Some(2 * GROUP), "{steps:?}");
        let steps = steps_between(false).await;
        assert!(steps > Some(2 * GROUP), "{steps:?} without turns");
    }

    #[tokio::test]
    async fn the_turns_of_tasks_that_ended_in_line_are_skipped() {
        let crowd = Crowd::start();
        let turn = |crowd: Arc<Crowd>| async move { crowd.turn().await };
        let tasks: Vec<_> = (0..3 * GROUP).map(|_| tokio::spawn(turn(crowd.clone()))).collect();
        tokio::task::yield_now().await;
        for task in tasks.iter().skip(GROUP).step_by(2) {
            task.abort();
        }
        let mut done = 0;
        for task in tasks {
            done += usize::from(task.await.is_ok());
        }
        assert_eq!(done, 2 * GROUP);
        assert_eq!(crowd.waiting(), 0);
    }
}
