//! One process of the broker as seen by its writers: its doors, its answers and its end.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use client::{Client, ClientSettings, ErrorKind};
use serde_json::Value;
use tokio::runtime::Handle;

use super::Outcome;
use crate::support::server::{Server, connect, within};

/// Reason why a change was not acknowledged.
pub enum Miss {
    /// The broker refused the change for now.
    Busy,
    /// The connection broke before the answer.
    Lost,
    /// The answer is one that no healthy broker gives.
    Wrong(String),
}

impl From<client::Error> for Miss {
    fn from(error: client::Error) -> Self {
        match error.kind {
            ErrorKind::Busy => Self::Busy,
            ErrorKind::Disconnected => Self::Lost,
            _ => Self::Wrong(error.to_string()),
        }
    }
}

/// Returns the body of a successful HTTP response.
pub fn succeeded(answer: Option<(u16, Value)>) -> Result<Value, Miss> {
    match answer.ok_or(Miss::Lost)? {
        (200, body) => Ok(body),
        (429 | 503, _) => Err(Miss::Busy),
        (status, body) => Err(Miss::Wrong(format!("status {status}: {body}"))),
    }
}

/// Returns the response to a successful command of Redis.
pub fn replied(answer: Option<String>) -> Result<String, Miss> {
    let answer = answer.ok_or(Miss::Lost)?;
    match answer.as_bytes() {
        [b'-', ..] if answer.starts_with("-TRYAGAIN ") => Err(Miss::Busy),
        [b'-', ..] => Err(Miss::Wrong(answer)),
        _ => Ok(answer),
    }
}

/// One process of the broker: its doors and its end.
pub struct Site {
    pub cycle: u64,
    pub runtime: Handle,
    native: String,
    pub kafka: SocketAddr,
    pub sqs: SocketAddr,
    pub http: SocketAddr,
    pub pubsub: SocketAddr,
    pub redis: SocketAddr,
    /// `true` from just before the kill on: connections may break.
    is_doomed: AtomicBool,
    /// `true` from just after the kill on: nothing more is sent.
    has_ended: AtomicBool,
}

/// Next step of a writer that keeps several changes in flight.
pub enum Step {
    Send,
    Answer,
}

impl Site {
    pub fn of(server: &Server, runtime: &Handle, cycle: u64) -> Self {
        Self {
            cycle,
            runtime: runtime.clone(),
            native: server.url("tcp"),
            kafka: server.kafka,
            sqs: server.sqs,
            http: server.door("http"),
            pubsub: server.pubsub(),
            redis: server.door("redis"),
            is_doomed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    pub fn wait<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(within(what, work))
    }

    pub fn client(&self) -> Client {
        self.wait("a client", connect(&self.native, ClientSettings::default()))
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Kills the broker.
    pub fn end(&self, server: &mut Server) {
        self.is_doomed.store(true, Ordering::Release);
        server.crash();
        self.has_ended.store(true, Ordering::Release);
    }

    /// Returns `Break` if a writer ends with the result of a change.
    pub fn proceed(&self, result: Result<(), Miss>) -> ControlFlow<Outcome> {
        match result {
            Ok(()) | Err(Miss::Busy) => ControlFlow::Continue(()),
            Err(Miss::Lost) if self.is_doomed.load(Ordering::Acquire) => ControlFlow::Break(Ok(())),
            Err(Miss::Lost) => ControlFlow::Break(Err("its connection broke before the kill".to_owned())),
            Err(Miss::Wrong(what)) => ControlFlow::Break(Err(what)),
        }
    }

    /// Keeps `in_flight` changes in flight until the broker has ended, and then reads the answers that it has sent.
    pub fn pipeline(&self, in_flight: usize, mut step: impl FnMut(Step) -> Result<(), Miss>) -> Outcome {
        let mut unanswered = 0;
        loop {
            let result = match unanswered {
                0 if self.has_ended() => return Ok(()),
                n if n < in_flight && !self.has_ended() => {
                    unanswered += 1;
                    step(Step::Send)
                }
                _ => {
                    unanswered -= 1;
                    step(Step::Answer)
                }
            };
            if let ControlFlow::Break(outcome) = self.proceed(result) {
                return outcome;
            }
        }
    }
}

/// Returns the text of the item with this number, which is unique, repeated up to a length.
pub fn text(name: &str, number: u64, bytes: usize) -> String {
    let once = format!("{name}/{number};");
    let mut text = once.repeat(bytes / once.len() + 1);
    text.truncate(bytes.max(once.len()));
    text
}

/// Returns the number of a text that [`text`] has returned.
pub fn number(name: &str, found: &str) -> Option<u64> {
    let number = found.strip_prefix(name)?.strip_prefix('/')?.split_once(';')?.0.parse().ok()?;
    (text(name, number, found.len()) == found).then_some(number)
}
