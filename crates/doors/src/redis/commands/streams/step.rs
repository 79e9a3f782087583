//! Steps with streams: `EXEC` with commands on streams, and streams that are renamed, moved and copied. The streams are
//! locked first, which may take a while, then the stripes of all keys. The step then runs without waiting for other
//! tasks. This thread blocks while data is read from the disk.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use broker::{Broker, Cache, Cause, LockedCache};
use engine::security::TenantName;
use engine::{ErrorKind, Result, TopicId};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::service::{Reply, once};
use tokio::sync::oneshot;

use super::transfer::{self, Sides};
use super::{Context, Shelf, StreamKeys, failed, others};
use crate::redis::channels::Unconfirmed;
use crate::redis::clients::Client;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Named, Scripted};
use crate::redis::commands::help;
use crate::redis::commands::transactions::{self, Held, Queued, Watched, finish, named_by, room_for};
use crate::redis::commands::work::TransactionTime;
use crate::redis::connection::{Session, lock};
use crate::redis::databases::{is_held, lock_if_free, lock_or_busy, open_database};
use crate::redis::door::Door;
use crate::redis::errors::Done;
use crate::redis::events;
use crate::redis::later::Later;
use crate::redis::monitors::{Executor, Lines, Monitors};
use crate::redis::names::Tenant;
use crate::redis::room::{charge_script, script_room};
use crate::redis::scripts::Scripts;
use crate::redis::scripts::batch::{Ended, Unit};
use crate::redis::scripts::host::{Caller, Need, release};
use crate::redis::scripts::lanes::CLOSED;
use crate::redis::scripts::run::{self, Call, On, Stop};
use crate::redis::scripts::running::Running;
use crate::redis::writer::{Writer, no_room};

/// Maximum duration of a wait for a stream that is locked out of order.
const JOIN_MAX: Duration = Duration::from_millis(5);

/// Maximum time for which a script lets commands pass that wait for the end of another one, and the time after which
/// it checks whether they have.
const PASS_MAX: Duration = Duration::from_millis(2);
const PASS_STEP: Duration = Duration::from_micros(100);

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
    scripts: Arc<Scripts>,
    /// Client on whose behalf scripts run, if the step has any. Then it runs on a thread for scripts.
    caller: Option<Caller>,
    /// Needs of a script, with which it was begun again.
    needs: Vec<Need>,
    client: Arc<Client>,
    monitors: Arc<Monitors>,
}

/// Replies of a step, and the writes that must be durable before they are sent.
struct Stepped {
    out: Writer,
    commit: broker::Commit,
    later: Vec<LocalBoxFuture<'static, Result<()>>>,
}

/// Returns `true` if a command moves or copies a stream, and `None` if a script holds its key.
pub(in crate::redis) fn moves_stream(
    door: &Door,
    session: &mut Session,
    command: &Command,
    args: &[&[u8]],
) -> Done<Option<bool>> {
    if !transfer::is_transfer(command) {
        return Ok(Some(false));
    }
    let number = session.database;
    let key = args.get(1).copied().unwrap_or_default();
    let Some(mut locked) = lock_if_free(session.database(&door.broker)?, &Named::These(std::iter::once(key).collect()))
    else {
        return Ok(None);
    };
    if locked.stream_id(key).is_some() {
        return Ok(Some(true));
    }
    drop(locked);
    Ok(Some(others::stream(&door.broker, (session.tenant(), number), key).is_some()))
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
    let mut unconfirmed = Unconfirmed::default();
    let reply = match prepare(door, session, (queued, watched, is_alone), &mut unconfirmed) {
        Ok(Some(step)) if step.caller.is_some() => run_in_lane(session, step),
        Ok(Some(step)) => Reply::Alone(once(step.run().boxed_local())),
        Ok(None) => {
            let mut writer = session.writer();
            writer.null_array();
            Reply::Now(Answer::Written(writer.bytes))
        }
        Err(fail) => session.fail(&fail),
    };
    unconfirmed.confirmed_by(reply)
}

/// Runs a step with scripts on a thread for scripts, once the other scripts of its read are decoded. Its reply waits
/// for its commit on the thread of the connection.
fn run_in_lane(session: &mut Session, mut step: Step) -> Reply<Answer, Later> {
    let (reply, receive) = oneshot::channel();
    let is_resp3 = step.is_resp3;
    let acting = session.acting();
    let owner = step.tenant.clone();
    let bytes = step.queued.iter().flat_map(|queued| &queued.args).map(|arg| arg.len()).sum();
    let work = Box::new(move || {
        broker::act_for(Some(acting));
        let answers = step.broker.answers().clone();
        // Other replies may have filled the memory since the step was admitted. It has not run yet.
        let done = if answers.is_full(step.client.ip) {
            drop(answers.refuse());
            Err(no_room(0))
        } else {
            block_on(step.take()).and_then(|mut stepped| {
                block_on(settle(&mut stepped.later))?;
                // Charged here, so that the next script finds less room.
                Ok((charge_script(&answers, &step.client, stepped.out), stepped.commit))
            })
        };
        broker::act_for(None);
        done
    });
    session.batch.push(owner, Unit { work, reply, bytes });
    let took = Rc::new(Cell::new(None));
    session.took = Some(took.clone());
    let reply = async move {
        let ended = receive.await.ok();
        took.set(ended.as_ref().map(|ended: &Ended| ended.took));
        let done = match ended.map_or(Err(CLOSED), |ended| ended.done) {
            Ok((answer, commit)) => commit.wait().await.map(|()| answer).map_err(failed),
            Err(fail) => Err(fail),
        };
        done.unwrap_or_else(|fail| {
            let mut writer = Writer::new(is_resp3);
            writer.error(&fail);
            Answer::Written(writer.bytes)
        })
    };
    Reply::Alone(once(reply.boxed_local()))
}

/// Prepares a step. Returns `None` if a watched key has changed.
fn prepare(
    door: &Door,
    session: &mut Session,
    (queued, watched, is_alone): (Vec<Queued>, Watched, bool),
    unconfirmed: &mut Unconfirmed,
) -> Done<Option<Step>> {
    let mut caches = BTreeMap::new();
    {
        let args = transactions::borrowed(&queued);
        for number in named_by(&queued, &args, &watched).into_keys() {
            caches.insert(number, session.database_of(&door.broker, number)?);
        }
        transactions::admit(&queued, &caches)?;
        let mut held = Held::new();
        for (number, named) in named_by(&queued, &[], &watched) {
            held.insert(number, lock_or_busy(&caches[&number], &named)?);
        }
        if !watched.is_unchanged(&door.broker, session.tenant(), &mut held) {
            return Ok(None);
        }
    }
    let own = queued.iter().map(|queued| queued.run_own(door, session, unconfirmed)).collect();
    // A single command is counted by its caller.
    for (queued, args) in queued.iter().zip(transactions::borrowed(&queued)).filter(|_| !is_alone) {
        // The commands run later; here only their calls are counted.
        door.count_now(session, queued.command.number_of(&args), &args, Instant::now());
    }
    let broker = door.broker.clone();
    let is_resp3 = session.is_resp3;
    let time_max = door.transaction_time_max;
    let tenant = session.tenant.clone();
    let has_scripts = queued.iter().any(|queued| matches!(queued.command.does, Does::Script(_)));
    let caller = has_scripts.then(|| door.caller(session));
    let needs = Vec::new();
    let scripts = door.scripts.clone();
    let client = session.client.clone();
    let monitors = door.monitors.clone();
    Ok(Some(Step {
        broker,
        tenant,
        is_resp3,
        queued,
        watched,
        caches,
        own,
        is_alone,
        time_max,
        scripts,
        caller,
        needs,
        client,
        monitors,
    }))
}

impl Step {
    async fn run(mut self) -> Answer {
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

    /// Locks all streams and keys of the step, and runs it. A script that needs more is begun again with that.
    async fn take(&mut self) -> Done<Stepped> {
        let queued = std::mem::take(&mut self.queued);
        let args = transactions::borrowed(&queued);
        let watched = std::mem::take(&mut self.watched);
        let named = self.named(&queued, &args, &watched);
        room_for(&queued, &args, &self.caches);
        let mut caches = std::mem::take(&mut self.caches);
        loop {
            let named = if self.needs.is_empty() { &named } else { &self.named(&queued, &args, &watched) };
            let wanted = self.streams(&mut self.lock_all(&caches, named).await?, &queued, &args)?;
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
            let mut held = self.lock_all(&caches, named).await?;
            // Only a step with scripts waits for its locks with its thread.
            if self.caller.is_some() && held.iter().any(|(number, locked)| caches[number].is_awaited(locked.bits())) {
                let stripes: Vec<_> = held.iter().map(|(number, locked)| (&caches[number], locked.bits())).collect();
                drop(held);
                let until = Instant::now() + PASS_MAX;
                while stripes.iter().any(|(cache, bits)| cache.is_awaited(*bits)) && Instant::now() < until {
                    std::thread::sleep(PASS_STEP);
                }
                held = self.lock_all(&caches, named).await?;
            }
            transactions::act_for(&mut held, self.client.id);
            if is_gone || self.streams(&mut held, &queued, &args)? != wanted {
                continue;
            }
            match self.do_all((held, &caches), &shelf, &queued, &args, &watched) {
                Ok(stepped) => return Ok(stepped),
                Err(need) => {
                    if let Need::Database(number) = need {
                        let caller = self.caller.as_ref().expect("invariant: only a script needs more");
                        let cache = open_database(&self.broker, self.tenant.as_ref(), number, caller.door.is_durable)?;
                        caches.insert(number, cache);
                    }
                    self.needs.push(need);
                }
            }
        }
    }

    /// Locks the named keys of all databases. A step with scripts is on a thread that may wait. Any other one waits for
    /// scripts without its thread, and holds no key in the meantime.
    async fn lock_all<'c>(
        &self,
        caches: &'c BTreeMap<usize, Arc<Cache>>,
        named: &BTreeMap<usize, Named<'_>>,
    ) -> Done<Held<'c>> {
        if self.caller.is_some() {
            let mut held = Held::new();
            for (number, named) in named {
                // Other threads must not wait for these keys while this one waits for another database.
                held.values_mut().for_each(LockedCache::announce);
                held.insert(*number, lock(&caches[number], named));
            }
            return Ok(held);
        }
        loop {
            let mut held = Held::new();
            let locked_by_script = named.iter().find(|(number, named)| match lock_if_free(&caches[number], named) {
                Some(locked) => {
                    held.insert(**number, locked);
                    false
                }
                None => true,
            });
            let Some((number, named)) = locked_by_script else {
                return Ok(held);
            };
            drop(held);
            let cache = &caches[number];
            self.scripts.free(cache, || is_held(cache, named)).await?;
        }
    }

    /// Returns the keys that the step locks.
    fn named<'a>(&self, queued: &[Queued], args: &[Vec<&'a [u8]>], watched: &'a Watched) -> BTreeMap<usize, Named<'a>> {
        let mut named = named_by(queued, args, watched);
        // A single script that has kept to its keys so far locks no others.
        if let ([queued], [args], true) = (queued, args, self.is_alone)
            && let (Does::Script(kind), Some(caller)) = (queued.command.does, &self.caller)
            && let Ok(call) = Call::of(&caller.door, self.tenant.as_ref(), (queued.command, kind), args)
            && !call.script.may_use_any_key()
            && !self.needs.contains(&Need::AllKeys)
        {
            named.insert(queued.database, queued.command.keys(args));
        }
        for need in &self.needs {
            match need {
                Need::Database(number) => drop(named.insert(*number, Named::All)),
                Need::AllKeys | Need::Stream(..) | Need::Thread => {}
            }
        }
        named
    }

    /// Returns a database with its tenant.
    fn database(&self, number: usize) -> (Tenant<'_>, usize) {
        (self.tenant.as_ref(), number)
    }

    /// Returns the topics of all existing streams that the commands name.
    fn streams(&self, held: &mut Held<'_>, queued: &[Queued], args: &[Vec<&[u8]>]) -> Done<BTreeSet<TopicId>> {
        let mut found = BTreeSet::new();
        for need in &self.needs {
            if let Need::Stream(database, key) = need
                && let Some(locked) = held.get_mut(database)
            {
                found.extend(stream_of(&self.broker, self.database(*database), locked, key));
            }
        }
        for (Queued { command, database, .. }, args) in queued.iter().zip(args) {
            let keys = match command.keys(args) {
                Named::These(keys) if matches!(command.does, Does::Stream(_) | Does::Script(_)) => keys,
                Named::These(keys) if transfer::is_transfer(command) => keys.into_iter().take(1).collect(),
                _ => continue,
            };
            let locked = held.get_mut(database).expect("invariant: its database is locked");
            for key in keys {
                found.extend(stream_of(&self.broker, self.database(*database), locked, key));
            }
        }
        Ok(found)
    }

    /// Runs all commands. Fails if a script needs more.
    fn do_all<'c>(
        &self,
        (mut held, caches): (Held<'c>, &'c BTreeMap<usize, Arc<Cache>>),
        shelf: &Shelf,
        queued: &[Queued],
        args: &[Vec<&[u8]>],
        watched: &Watched,
    ) -> std::result::Result<Stepped, Need> {
        let mut out = Writer::new(self.is_resp3);
        let mut later = Vec::new();
        let mut lines = Lines::new(&self.monitors);
        if !watched.is_unchanged(&self.broker, self.tenant.as_ref(), &mut held) {
            out.null_array();
            return Ok(Stepped { out, commit: finish(held, caches), later });
        }
        if !self.is_alone {
            out.array(queued.len());
        }
        let time = TransactionTime::begin(self.time_max);
        for ((queued, args), own) in queued.iter().zip(args).zip(&self.own) {
            let begin = out.bytes.len();
            if !self.is_alone && time.refuses(Instant::now(), &mut out) {
                continue;
            }
            let on = self.database(queued.database);
            let command = queued.command;
            let help = help::of(command, args);
            if !self.is_alone {
                lines.add(Executor::Client(&self.client), queued.database, command, args);
            }
            let done = match command.does {
                _ if help.is_some() => {
                    help::write(&mut out, &help.unwrap_or_default());
                    Ok(())
                }
                Does::Script(kind) => {
                    let to = (&mut out, &mut later, &mut lines);
                    match self.do_script((&mut held, caches), shelf, (queued, kind), args, to) {
                        Err(Stop::Need(need)) => {
                            release(held);
                            return Err(need);
                        }
                        Err(Stop::Fail(fail)) => Err(fail),
                        Ok(()) => Ok(()),
                    }
                }
                Does::Stream(_) => do_stream(&self.broker, on, &mut held, shelf, (command, args), &mut out, &mut later),
                Does::Data(_) if is_move(&self.broker, on, &mut held, command, args) => {
                    transfer_stream(&self.broker, on, &mut held, shelf, (command, args), &mut out, &mut later)
                }
                Does::Data(_) => transactions::step(&self.broker, on, &mut held, command, args, &mut out),
                Does::Own(_) if command.is_on_databases() => {
                    transactions::step_on_databases(&self.broker, on, &mut held, command, args, &mut out)
                }
                Does::Own(_) => {
                    out.put(own);
                    Ok(())
                }
            };
            match done {
                Ok(()) if command.is_on_databases() => {}
                Ok(()) => transactions::record_flush(&self.broker, self.tenant.as_ref(), (command, queued.database)),
                Err(fail) => {
                    out.bytes.truncate(begin);
                    out.error(&fail);
                }
            }
        }
        // The end of the step tells of its changes, which must be readable by then.
        if held.values().any(LockedCache::is_noted) {
            block_on(save(&mut later));
        }
        let commit = finish(held, caches);
        lines.write();
        Ok(Stepped { out, commit, later })
    }

    /// Runs a script as a command of the step.
    fn do_script<'c>(
        &self,
        (held, caches): (&mut Held<'c>, &'c BTreeMap<usize, Arc<Cache>>),
        shelf: &Shelf,
        (queued, kind): (&Queued, Scripted),
        args: &[&[u8]],
        (out, later, lines): (&mut Writer, &mut Vec<LocalBoxFuture<'static, Result<()>>>, &mut Lines),
    ) -> std::result::Result<(), Stop> {
        let caller = self.caller.as_ref().expect("invariant: a step with scripts has one");
        let tenant = &self.tenant;
        let call = Call::of(&caller.door, tenant.as_ref(), (queued.command, kind), args).map_err(Stop::Fail)?;
        let known = caches.values().cloned().collect();
        let (name, is_function) = (call.script.name.to_vec(), call.script.library.is_some());
        let running = Arc::new(Running::new(name, is_function, queued.args.clone(), known, tenant.clone()));
        // From here on, other threads do not wait for these keys.
        held.values_mut().for_each(LockedCache::announce);
        let _entered = caller.door.scripts.lanes.enter(&running);
        if self.is_alone {
            out.bytes_max = script_room(self.broker.answers().room(self.client.ip));
        }
        let on = On {
            caller,
            caches,
            database: queued.database,
            shelf,
            may_wait: true,
            may_repeat: self.is_alone,
            running: Some(running),
            lines,
        };
        run::run(&call, on, (held, later), &run::tally_of_lane(&caller.door), out)
    }
}

/// Returns the topic of a key, if the key is a stream.
pub(in crate::redis) fn stream_of(
    broker: &Arc<Broker>,
    database: (Tenant<'_>, usize),
    locked: &mut LockedCache<'_>,
    key: &[u8],
) -> Option<TopicId> {
    locked.stream_id(key).or_else(|| {
        let is_free = locked.kind(key).is_none();
        is_free.then(|| others::stream(broker, database, key)).flatten().map(|stream| stream.id())
    })
}

/// Runs a command on streams, whose keys and streams are locked.
pub(in crate::redis) fn do_stream(
    broker: &Arc<Broker>,
    (tenant, database): (Tenant<'_>, usize),
    held: &mut Held<'_>,
    shelf: &Shelf,
    (command, args): (&Command, &[&[u8]]),
    out: &mut Writer,
    later: &mut Vec<LocalBoxFuture<'static, Result<()>>>,
) -> Done {
    let Does::Stream(run) = command.does else {
        return Ok(());
    };
    if command.name != "XADD" {
        // Entries that were added before can be read after they are durable.
        block_on(settle(later))?;
    }
    let locked = held.get_mut(&database).expect("invariant: its database is locked");
    let cause = Cause { operation: events::operation(command, args), ..locked.cause() };
    locked.set_cause(cause);
    let writer = Writer::new(out.is_resp3);
    let on = (tenant.cloned(), database, !command.is_write, cause);
    let mut context = Context::of_step(broker, on, locked as &mut dyn StreamKeys, shelf, writer);
    let done = block_on(run(&mut context, args));
    later.append(&mut context.later);
    done.map(|()| out.put(&context.out.bytes))
}

/// Returns `true` if a command moves or copies a stream.
pub(in crate::redis) fn is_move(
    broker: &Arc<Broker>,
    database: (Tenant<'_>, usize),
    held: &mut Held<'_>,
    command: &Command,
    args: &[&[u8]],
) -> bool {
    let locked = held.get_mut(&database.1).expect("invariant: its database is locked");
    transfer::is_transfer(command) && stream_of(broker, database, locked, args[1]).is_some()
}

/// Moves or copies a stream, which is locked.
pub(in crate::redis) fn transfer_stream(
    broker: &Arc<Broker>,
    (tenant, number): (Tenant<'_>, usize),
    held: &mut Held<'_>,
    shelf: &Shelf,
    (command, args): (&Command, &[&[u8]]),
    out: &mut Writer,
    later: &mut Vec<LocalBoxFuture<'static, Result<()>>>,
) -> Done {
    // Added entries must be readable before the stream is copied.
    block_on(settle(later))?;
    let other = crate::redis::commands::keys::other_database(args).filter(|other| *other != number);
    let mut other = other.and_then(|number| held.remove(&number).map(|locked| (number, locked)));
    let from = held.get_mut(&number).expect("invariant: its database is locked");
    let cause = Cause { operation: events::operation(command, args), ..from.cause() };
    from.set_cause(cause);
    other.iter_mut().for_each(|(_, other)| other.set_cause(cause));
    let sides =
        Sides { broker, tenant, from: (number, from), other: other.as_mut().map(|(number, locked)| (*number, locked)) };
    let done = block_on(transfer::run(sides, shelf, args, out, later));
    if let Some((number, locked)) = other {
        held.insert(number, locked);
    }
    done
}

/// Waits until all writes are durable.
async fn settle(later: &mut Vec<LocalBoxFuture<'static, Result<()>>>) -> Done {
    for later in later.drain(..) {
        later.await.map_err(failed)?;
    }
    Ok(())
}

/// Waits until all writes are durable, and leaves those that failed.
async fn save(later: &mut Vec<LocalBoxFuture<'static, Result<()>>>) {
    for write in std::mem::take(later) {
        if let Err(error) = write.await {
            later.push(std::future::ready(Err(error)).boxed_local());
        }
    }
}

/// Completes a future on this thread while stripes are locked. It waits only for other threads, which access the disk.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    block(None, future).expect("invariant: there is no time limit")
}

/// Completes a future on this thread, if that is possible until then.
fn block_until<T>(until: Instant, future: impl Future<Output = T>) -> Option<T> {
    block(Some(until), future)
}

fn block<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
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
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Some(done);
        }
        match until {
            None => std::thread::park(),
            Some(until) => match until.checked_duration_since(Instant::now()) {
                Some(left) => std::thread::park_timeout(left),
                None => return None,
            },
        }
    }
}

/// Locks a stream out of order, for a step that has begun. Returns `false` if it is in use for too long: then waiting
/// might be a deadlock.
pub(in crate::redis) fn join_stream(broker: &Arc<Broker>, id: TopicId, shelf: &Shelf) -> bool {
    let Ok(Some(stream)) = broker.streams.get_by_id(id) else {
        return false;
    };
    let until = Instant::now() + JOIN_MAX;
    match block_until(until, stream.lock()) {
        Some(Ok(locked)) => {
            shelf.borrow_mut().insert(id, locked);
            true
        }
        Some(Err(_)) | None => false,
    }
}

impl Queued {
    /// Returns the reply of a command about the connection, which is independent of the step.
    fn run_own(&self, door: &Door, session: &mut Session, unconfirmed: &mut Unconfirmed) -> Vec<u8> {
        if !matches!(self.command.does, Does::Own(_)) || self.command.is_on_databases() {
            return Vec::new();
        }
        let args: Vec<&[u8]> = self.args.iter().map(|arg| &**arg).collect();
        let mut writer = session.writer();
        unconfirmed.append(transactions::do_own(door, session, self, &args, &mut writer));
        writer.bytes
    }
}
