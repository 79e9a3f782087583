//! Steps with streams: `EXEC` with commands on streams, and streams that are renamed, moved and copied. The streams are
//! locked first, which may take a while, then the stripes of all keys. The step then runs without waiting for other
//! tasks. This thread blocks while data is read from the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use broker::{Broker, Cache};
use engine::security::TenantName;
use engine::{ErrorKind, Result, TopicId};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::service::{Reply, once};

use super::transfer::{self, Sides};
use super::{Context, Shelf, StreamKeys, failed, others};
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Named};
use crate::redis::commands::help;
use crate::redis::commands::transactions::{self, Held, Queued, Watched, finish, named_by, room_for};
use crate::redis::commands::work::TransactionTime;
use crate::redis::connection::{Door, Later, Session, lock};
use crate::redis::errors::Done;
use crate::redis::names::Tenant;
use crate::redis::writer::Writer;

/// Commands of a step, and their context.
struct Step {
    broker: Arc<Broker>,
    tenant: Option<TenantName>,
    is_resp3: bool,
    queued: Vec<Queued>,
    watched: Watched,
    caches: BTreeMap<usize, Arc<Cache>>,
    /// Replies of the commands about the connection.
    own: Vec<Vec<u8>>,
    /// `true` if the step is a single command and not a transaction.
    is_alone: bool,
    /// Time limit of a transaction.
    time_max: Duration,
}

/// Replies of a step, and the writes that must be durable before they are sent.
struct Stepped {
    out: Writer,
    commit: broker::Commit,
    later: Vec<LocalBoxFuture<'static, Result<()>>>,
}

/// Returns `true` if a command moves or copies a stream.
pub(in crate::redis) fn moves_stream(door: &Door, session: &mut Session, command: &Command, args: &[&[u8]]) -> bool {
    let number = session.database;
    let key = args.get(1).copied().unwrap_or_default();
    transfer::is_transfer(command)
        && (session.database(&door.broker).is_ok_and(|cache| cache.lock_one(key).stream_id(key).is_some())
            || others::stream(&door.broker, (session.tenant(), number), key).is_some())
}

/// Runs a single command that moves or copies a stream.
pub(in crate::redis) fn serve(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    let queued = Queued::new(command, session.database, args);
    begin(door, session, vec![queued], Watched::default(), true)
}

/// Runs a transaction. Commands about the connection run before the others.
pub(in crate::redis::commands) fn begin(
    door: &Door,
    session: &mut Session,
    queued: Vec<Queued>,
    watched: Watched,
    is_alone: bool,
) -> Reply<Answer, Later> {
    let prepared = prepare(door, session, queued, watched, is_alone);
    match prepared {
        Ok(Some(step)) => Reply::Alone(once(step.run().boxed_local())),
        Ok(None) => {
            let mut writer = session.writer();
            writer.null_array();
            Reply::Now(Answer::Written(writer.bytes))
        }
        Err(fail) => session.fail(&fail),
    }
}

/// Prepares a step. Returns `None` if a watched key has changed.
fn prepare(
    door: &Door,
    session: &mut Session,
    queued: Vec<Queued>,
    watched: Watched,
    is_alone: bool,
) -> Done<Option<Step>> {
    let mut caches = BTreeMap::new();
    {
        let args = transactions::borrowed(&queued);
        for number in named_by(&queued, &args, &watched).into_keys() {
            caches.insert(number, session.database_of(&door.broker, number)?);
        }
        transactions::admit(&queued, &caches)?;
        let mut held: Held<'_> = named_by(&queued, &[], &watched)
            .iter()
            .map(|(number, named)| (*number, lock(&caches[number], named)))
            .collect();
        if !watched.is_unchanged(&door.broker, session.tenant(), &mut held) {
            return Ok(None);
        }
    }
    let own = queued.iter().map(|queued| queued.run_own(door, session)).collect();
    // A single command is counted by its caller.
    for (queued, args) in queued.iter().zip(transactions::borrowed(&queued)).filter(|_| !is_alone) {
        // The commands run later; here only their calls are counted.
        door.count_now(session, queued.command.number_of(&args), &args, Instant::now());
    }
    let broker = door.broker.clone();
    let is_resp3 = session.is_resp3;
    let time_max = door.transaction_time_max;
    let tenant = session.tenant.clone();
    Ok(Some(Step { broker, tenant, is_resp3, queued, watched, caches, own, is_alone, time_max }))
}

impl Step {
    async fn run(self) -> Answer {
        let mut failed_with = Writer::new(self.is_resp3);
        let done = match self.take().await {
            Ok(Stepped { out, commit, later }) => {
                let mut committed = commit.wait().await;
                for later in later {
                    committed = committed.and(later.await);
                }
                committed.map(|()| out).map_err(failed)
            }
            Err(fail) => Err(fail),
        };
        match done {
            Ok(out) => Answer::Written(out.bytes),
            Err(fail) => {
                failed_with.error(&fail);
                Answer::Written(failed_with.bytes)
            }
        }
    }

    /// Locks all streams and keys of the step, and runs it.
    async fn take(&self) -> Done<Stepped> {
        let args = transactions::borrowed(&self.queued);
        let named = named_by(&self.queued, &args, &self.watched);
        room_for(&self.queued, &args, &self.caches);
        loop {
            let wanted = self.streams(&mut self.lock(&named), &args)?;
            let shelf = Shelf::default();
            let mut is_gone = false;
            // Streams are always locked in the order of their ids, which prevents deadlocks.
            for id in &wanted {
                let Some(stream) = self.broker.streams.get_by_id(*id).map_err(failed)? else {
                    continue;
                };
                match stream.lock().await {
                    Ok(locked) => drop(shelf.borrow_mut().insert(*id, locked)),
                    Err(error) if error.kind == ErrorKind::NotFound => is_gone = true,
                    Err(error) => return Err(failed(error)),
                }
            }
            let mut held = self.lock(&named);
            if !is_gone && self.streams(&mut held, &args)? == wanted {
                return Ok(self.do_all(held, &shelf, &args));
            }
        }
    }

    /// Returns a database with its tenant.
    fn database(&self, number: usize) -> (Tenant<'_>, usize) {
        (self.tenant.as_ref(), number)
    }

    fn lock(&self, named: &BTreeMap<usize, Named<'_>>) -> Held<'_> {
        named.iter().map(|(number, named)| (*number, lock(&self.caches[number], named))).collect()
    }

    /// Returns the topics of all existing streams that the commands name.
    fn streams(&self, held: &mut Held<'_>, args: &[Vec<&[u8]>]) -> Done<BTreeSet<TopicId>> {
        let mut found = BTreeSet::new();
        for (Queued { command, database, .. }, args) in self.queued.iter().zip(args) {
            let keys = match command.keys(args) {
                Named::These(keys) if matches!(command.does, Does::Stream(_)) => keys,
                Named::These(keys) if transfer::is_transfer(command) => keys.into_iter().take(1).collect(),
                _ => continue,
            };
            let locked = held.get_mut(database).expect("invariant: its database is locked");
            for key in keys {
                found.extend(locked.stream_id(key));
                if locked.peek(key).is_none() {
                    found.extend(others::stream(&self.broker, self.database(*database), key).map(|stream| stream.id()));
                }
            }
        }
        Ok(found)
    }

    fn do_all(&self, mut held: Held<'_>, shelf: &Shelf, args: &[Vec<&[u8]>]) -> Stepped {
        let mut out = Writer::new(self.is_resp3);
        let mut later = Vec::new();
        if !self.watched.is_unchanged(&self.broker, self.tenant.as_ref(), &mut held) {
            out.null_array();
            return Stepped { out, commit: finish(held, &self.caches), later };
        }
        if !self.is_alone {
            out.array(self.queued.len());
        }
        let time = TransactionTime::begin(self.time_max);
        for ((queued, args), own) in self.queued.iter().zip(args).zip(&self.own) {
            let begin = out.bytes.len();
            if !self.is_alone && time.refuses(Instant::now(), &mut out) {
                continue;
            }
            let help = help::of(queued.command, args);
            let done = match queued.command.does {
                _ if help.is_some() => {
                    help::write(&mut out, &help.unwrap_or_default());
                    Ok(())
                }
                Does::Stream(_) => self.do_stream(&mut held, shelf, queued, args, &mut out, &mut later),
                Does::Data(_) if self.moves_stream(&mut held, queued, args) => {
                    // Added entries must be readable before the stream is copied.
                    let settled = block_on(settle(&mut later));
                    settled.and_then(|()| self.transfer(&mut held, shelf, queued, args, &mut out, &mut later))
                }
                Does::Data(_) => {
                    transactions::step(&self.broker, self.tenant.as_ref(), &mut held, (queued, args), &mut out)
                }
                Does::Own(_) => transactions::flush_all(&mut held, queued, args, own, &mut out),
            };
            match done {
                Ok(()) => transactions::record_flush(&self.broker, self.tenant.as_ref(), queued),
                Err(fail) => {
                    out.bytes.truncate(begin);
                    out.error(&fail);
                }
            }
        }
        Stepped { out, commit: finish(held, &self.caches), later }
    }

    fn do_stream(
        &self,
        held: &mut Held<'_>,
        shelf: &Shelf,
        queued: &Queued,
        args: &[&[u8]],
        out: &mut Writer,
        later: &mut Vec<LocalBoxFuture<'static, Result<()>>>,
    ) -> Done {
        let Does::Stream(run) = queued.command.does else {
            return Ok(());
        };
        if queued.command.name != "XADD" {
            // Entries that were added before can be read after they are durable.
            block_on(settle(later))?;
        }
        let locked = held.get_mut(&queued.database).expect("invariant: its database is locked");
        let writer = Writer::new(self.is_resp3);
        let on = (self.tenant.clone(), queued.database, !queued.command.is_write);
        let mut context = Context::of_step(&self.broker, on, locked as &mut dyn StreamKeys, shelf, writer);
        let done = block_on(run(&mut context, args));
        later.append(&mut context.later);
        done.map(|()| out.put(&context.out.bytes))
    }

    fn moves_stream(&self, held: &mut Held<'_>, queued: &Queued, args: &[&[u8]]) -> bool {
        let locked = held.get_mut(&queued.database).expect("invariant: its database is locked");
        transfer::is_transfer(queued.command)
            && (locked.stream_id(args[1]).is_some()
                || locked.peek(args[1]).is_none()
                    && others::stream(&self.broker, self.database(queued.database), args[1]).is_some())
    }

    fn transfer(
        &self,
        held: &mut Held<'_>,
        shelf: &Shelf,
        queued: &Queued,
        args: &[&[u8]],
        out: &mut Writer,
        later: &mut Vec<LocalBoxFuture<'static, Result<()>>>,
    ) -> Done {
        let number = queued.database;
        let other = crate::redis::commands::keys::other_database(args).filter(|other| *other != number);
        let mut other = other.and_then(|number| held.remove(&number).map(|locked| (number, locked)));
        let from = held.get_mut(&number).expect("invariant: its database is locked");
        let sides = Sides {
            broker: &self.broker,
            tenant: self.tenant.as_ref(),
            from: (number, from),
            other: other.as_mut().map(|(number, locked)| (*number, locked)),
        };
        let done = block_on(transfer::run(sides, shelf, args, out, later));
        if let Some((number, locked)) = other {
            held.insert(number, locked);
        }
        done
    }
}

/// Waits until all writes are durable.
async fn settle(later: &mut Vec<LocalBoxFuture<'static, Result<()>>>) -> Done {
    for later in later.drain(..) {
        later.await.map_err(failed)?;
    }
    Ok(())
}

/// Completes a future on this thread while stripes are locked. It waits only for other threads, which access the disk.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    // The future must not use the cooperative budget of the task, which would not be renewed here.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Queued {
    /// Returns the reply of a command about the connection, which is independent of the step.
    fn run_own(&self, door: &Door, session: &mut Session) -> Vec<u8> {
        if !matches!(self.command.does, Does::Own(_)) || self.command.name == "FLUSHALL" {
            return Vec::new();
        }
        let args: Vec<&[u8]> = self.args.iter().map(|arg| &**arg).collect();
        let mut writer = session.writer();
        transactions::do_own(door, session, self, &args, &mut writer);
        writer.bytes
    }
}
