//! Signals that stop the broker, and a thread that ends the process in time, regardless of the other threads.

use std::io::{self, IsTerminal};
use std::sync::mpsc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::output::{FAILED, note};

/// Additional time for a stop beyond `shutdown_timeout_ms`: to cut off the remaining work, and to close the data
/// directory cleanly. Acknowledged data is in the journal even without that.
const GRACE: Duration = Duration::from_secs(1);
/// Time limit for the last message: the error output may be a pipe that no program reads.
const WORDS_WAIT: Duration = Duration::from_millis(100);

/// Notification of the first signal that stops the broker.
///
/// The signals are received on a separate thread with its own runtime, so that busy or stuck threads cannot delay them.
/// From the first signal on, that thread ends the process when the deadline has passed or a second signal arrives.
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Starts the thread. `shutdown_timeout` limits the time that the broker may take to finish its work.
    pub fn watch(shutdown_timeout: Duration) -> io::Result<Self> {
        let (begun, receiver) = watch::channel(false);
        let (started, starting) = mpsc::channel();
        std::thread::Builder::new().name("stop".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            runtime.block_on(async {
                match Signals::new() {
                    Ok(signals) if started.send(Ok(())).is_ok() => guard(signals, &begun, shutdown_timeout).await,
                    Ok(_) => {}
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        })?;
        starting.recv().map_err(io::Error::other)??;
        Ok(Self(receiver))
    }

    /// Returns once a signal has requested the stop.
    pub async fn asked(&mut self) {
        // The thread ends only with the process.
        drop(self.0.wait_for(|is_asked| *is_asked).await);
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Hangup of the terminal that the broker was started in. Without a terminal this is `None`, and a hangup does not
    /// stop the broker.
    hang_up: Option<Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let has_terminal = io::stdin().is_terminal();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: has_terminal.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hang_up => {}
        }
    }
}

async fn guard(mut signals: Signals, begun: &watch::Sender<bool>, shutdown_timeout: Duration) {
    signals.next().await;
    let deadline = Instant::now() + shutdown_timeout + GRACE;
    begun.send_replace(true);
    tokio::select! {
        () = signals.next() => end("received a second signal: stopped before everything was finished"),
        () = tokio::time::sleep_until(deadline) => {
            end("shutdown_timeout_ms has passed and threads are still busy: stopped before everything was finished")
        }
    }
}

/// Ends the process. Waits for no lock that another thread may hold, including that of the error output.
fn end(why: &'static str) -> ! {
    let (sender, written) = mpsc::channel();
    let writer = std::thread::Builder::new().spawn(move || {
        note(why);
        sender.send(()).unwrap_or_default();
    });
    if writer.is_ok() {
        // Either the message was written, or its time limit has passed.
        written.recv_timeout(WORDS_WAIT).unwrap_or_default();
    }
    std::process::exit(FAILED.into())
}
