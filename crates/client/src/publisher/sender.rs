//! Takes batches from the ledger and puts them on a connection, one after the other.

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

/// How often a publisher without acknowledgements asks how many partitions its topic has.
const PARTITIONS_LOOK_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Sender {
    pub ledger: Arc<Ledger>,
    session: Arc<Session>,
    /// Its place in the pool: one stream, which keeps the order.
    turn: usize,
    /// Held from when a batch is taken from the ledger until it is on its way, so that none overtakes another.
    link: tokio::sync::Mutex<Arc<Link>>,
}

/// Why nothing more goes out.
enum Stop {
    /// Nothing may go before an answer comes, or this time.
    Done(Option<Instant>),
    /// The connection has to take some of what it was given.
    NoRoom,
    Closed,
    /// This lane needs a new identity.
    Identity(usize),
}

impl Sender {
    pub fn new(ledger: Arc<Ledger>, session: Arc<Session>, turn: usize, link: Arc<Link>) -> Self {
        Self { ledger, session, turn, link: tokio::sync::Mutex::new(link) }
    }

    /// Sends what can go without waiting; the task does the rest.
    pub fn send_now(&self) {
        let stop = self.link.try_lock().map(|link| self.send(&link));
        if !matches!(stop, Ok(Stop::Done(None))) {
            self.ledger.has_more.notify_one();
        }
    }

    /// Sends what may go, for as long as the connection takes it.
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
                    let tell = |bytes| link.tell(self.frame(link.next_correlation(), lane, bytes));
                    self.ledger.seal_unanswered(lane, open, tell);
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
        // Named even where there is one: keys that were gathered for it do not belong to others that came since.
        publish_frame(correlation, &settings.topic, Some(lane as PartitionId), settings.acks, batch)
    }

    /// Waits until everything was handed to the network.
    pub async fn drained(&self) {
        let link = self.link.lock().await.clone();
        link.drained().await;
    }

    /// Once something is to be sent, sends until nothing may go. Returns when to look again.
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

    /// How many partitions the topic has: acknowledgements say it, and without any somebody has to ask.
    async fn look_at_partitions(&self) {
        if let Ok(info) = describe_topic(&self.session, &self.ledger.settings.topic).await {
            self.ledger.learn(info.settings.partitions);
        }
    }

    async fn reconnect(&self, link: &mut Arc<Link>) -> Result<()> {
        *link = self.session.publish.link(self.turn).await?;
        Ok(())
    }
}

/// Sends whenever the program has nothing else to do: a lone record goes at once, and under load a batch grows
/// while the one before it is on its way. Gives up what waits for too long.
pub(super) async fn run(sender: Arc<Sender>) {
    let ledger = &sender.ledger;
    let timer = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(timer);
    // When the timer is to fire.
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
                    // It may have been the time of something that lingered.
                    ledger.has_more.notify_one();
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

/// Has the timer fire at this time too, if it would not fire before.
fn arm(timer: &mut Pin<&mut tokio::time::Sleep>, armed: &mut Option<Instant>, at: Option<Instant>) {
    if let Some(at) = at.filter(|at| armed.is_none_or(|armed| *at < armed)) {
        timer.as_mut().reset(at.into());
        *armed = Some(at);
    }
}

/// An identity that nobody else has.
pub(super) async fn init_producer(session: &Session) -> Result<Identity> {
    match session.call(&Request::InitProducer).await? {
        Response::Producer { id, epoch } => Ok((id, epoch)),
        other => Err(unexpected(&other)),
    }
}
