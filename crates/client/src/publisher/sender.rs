//! Sender of a publisher: takes batches from the ledger and writes them to a connection, one after the other.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Acks, PartitionId, Result};
use wire::request::publish_frame;
use wire::{Request, Response};

use super::lane::Identity;
use super::ledger::{Ledger, Next};
use crate::backoff::Backoff;
use crate::link::{Link, Waiter, unexpected};
use crate::pool::is_transient;
use crate::session::Session;
use crate::topics::describe_topic;

/// Interval at which a publisher without acknowledgements reads the number of partitions of its topic.
const PARTITIONS_LOOK_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Sender {
    pub ledger: Arc<Ledger>,
    session: Arc<Session>,
    /// Turn in the pool, which selects one stream and so keeps the order.
    turn: usize,
    /// Locked from the time when a batch is taken from the ledger until it is written to the outbox, so that no batch
    /// overtakes another.
    link: tokio::sync::Mutex<Arc<Link>>,
}

/// Reason why sending stops.
enum Stop {
    /// No batch may be sent before an answer arrives, or before this time.
    Done(Option<Instant>),
    /// The connection must first transmit some of its queued bytes.
    NoRoom,
    Closed,
    /// The lane needs a new identity.
    Identity(usize),
}

impl Sender {
    pub fn new(ledger: Arc<Ledger>, session: Arc<Session>, turn: usize, link: Arc<Link>) -> Self {
        Self { ledger, session, turn, link: tokio::sync::Mutex::new(link) }
    }

    /// Sends as much as possible without waiting; the task sends the rest.
    pub fn send_now(&self) {
        let stop = self.link.try_lock().map(|link| self.send(&link));
        if !matches!(stop, Ok(Stop::Done(None))) {
            self.ledger.has_more.notify_one();
        }
    }

    /// Sends all batches that may be sent, for as long as the connection accepts them.
    fn send(&self, link: &Arc<Link>) -> Stop {
        let now = Instant::now();
        loop {
            if link.is_closed() || !link.has_room() {
                return match () {
                    () if !self.ledger.has_work() => Stop::Done(None),
                    () if link.is_closed() => Stop::Closed,
                    () => Stop::NoRoom,
                };
            }
            let (batch, bytes) = match self.ledger.next(now) {
                Next::Nothing { due } => return Stop::Done(due),
                Next::Identity { lane } => return Stop::Identity(lane),
                Next::Send { batch, bytes } => (batch, bytes),
                Next::Seal { lane, open, producer: _ } if self.ledger.settings.acks == Acks::None => {
                    let send = |bytes| link.send_one_way(self.frame(link.next_correlation(), lane, bytes));
                    self.ledger.seal_unanswered(lane, open, send);
                    continue;
                }
                Next::Seal { lane, open, producer } => self.ledger.seal(lane, open, producer),
            };
            let correlation = link.next_correlation();
            let frame = self.frame(correlation, batch.lane as usize, bytes);
            if link.call_with(correlation, frame, Waiter::Publisher(self.ledger.clone(), batch)).is_err() {
                self.ledger.not_sent(batch);
            }
        }
    }

    fn frame(&self, correlation: u32, lane: usize, batch: bytes::Bytes) -> [bytes::Bytes; 2] {
        let settings = &self.ledger.settings;
        // The partition is sent even if the topic has only one: keys that were gathered for it do not belong to
        // partitions that were added since.
        publish_frame(correlation, &settings.topic, Some(lane as PartitionId), settings.acks, batch)
    }

    /// Waits until all bytes were passed to the network.
    pub async fn drained(&self) {
        let link = self.link.lock().await.clone();
        link.drained().await;
    }

    /// Waits for something to send, then sends until no more may be sent. Returns the time of the next attempt.
    async fn work(&self) -> Option<Instant> {
        self.ledger.has_more.notified().await;
        let mut link = self.link.lock().await;
        let mut backoff = Backoff::new();
        loop {
            let mended = match self.send(&link) {
                Stop::Done(due) => return due,
                Stop::NoRoom => {
                    link.room().await;
                    continue;
                }
                Stop::Closed => self.reconnect(&mut link).await,
                Stop::Identity(lane) => {
                    init_producer(&self.session).await.map(|identity| self.ledger.identify(lane, identity))
                }
            };
            let unreachable = mended.err();
            self.ledger.set_unreachable(unreachable.clone());
            match unreachable {
                None => backoff = Backoff::new(),
                Some(error) if is_transient(&error) => tokio::time::sleep(backoff.next()).await,
                Some(error) => self.ledger.fail(&error),
            }
        }
    }

    /// Reads the number of partitions of the topic. Acknowledgements contain it; without acknowledgements it has to be
    /// queried.
    async fn look_at_partitions(&self) {
        if let Ok(info) = describe_topic(&self.session, &self.ledger.settings.topic).await {
            self.ledger.learn(info.settings.partitions);
        }
    }

    /// Closes a connection over which no answer has arrived for as long as a delivery may take.
    fn check_link(&self) {
        if let Ok(link) = self.link.try_lock() {
            link.close_if_silent(self.ledger.settings.delivery_timeout);
        }
    }

    async fn reconnect(&self, link: &mut Arc<Link>) -> Result<()> {
        *link = self.session.publish.link(self.turn).await?;
        Ok(())
    }
}

/// Sends whenever the program is otherwise idle: a lone record is sent immediately, and under load a batch grows while
/// the previous one is in flight. Fails records whose deadline has passed.
pub(super) async fn run(sender: Arc<Sender>) {
    let ledger = &sender.ledger;
    let timer = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(timer);
    // Time at which the timer fires.
    let mut armed: Option<Instant> = None;
    let mut looked = Instant::now();
    loop {
        let work = sender.work();
        tokio::pin!(work);
        let due = loop {
            let deadline = tokio::select! {
                due = &mut work => break due,
                () = ledger.has_deadline.notified() => ledger.expire(Instant::now()),
                () = &mut timer, if armed.is_some() => {
                    armed = None;
                    // The timer may have fired for a lingering batch.
                    ledger.has_more.notify_one();
                    sender.check_link();
                    ledger.expire(Instant::now())
                }
            };
            arm(&mut timer, &mut armed, deadline);
        };
        arm(&mut timer, &mut armed, due);
        if ledger.settings.acks == Acks::None && looked.elapsed() > PARTITIONS_LOOK_EVERY {
            sender.look_at_partitions().await;
            looked = Instant::now();
        }
    }
}

/// Makes the timer fire at this time, unless it fires earlier.
fn arm(timer: &mut Pin<&mut tokio::time::Sleep>, armed: &mut Option<Instant>, at: Option<Instant>) {
    if let Some(at) = at.filter(|at| armed.is_none_or(|armed| *at < armed)) {
        timer.as_mut().reset(at.into());
        *armed = Some(at);
    }
}

/// Requests a new, unique producer identity.
pub(super) async fn init_producer(session: &Session) -> Result<Identity> {
    match session.call(&Request::InitProducer).await? {
        Response::Producer { id, epoch } => Ok((id, epoch)),
        other => Err(unexpected(&other)),
    }
}
