//! Transactions: several commands that run as one step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use broker::{Broker, Cache, Cause, Commit, Keyed, LockedCache, StreamMark};
use net::service::Reply;

use super::args::{is, parse_usize};
use super::streams::others::Guests;
use super::work::TransactionTime;
use crate::redis::access::Needs;
use crate::redis::channels::Unconfirmed;
use crate::redis::codec::{Answer, Follow};
use crate::redis::command::{Command, Does, EACH, Named, Step, bytes_in, own};
use crate::redis::connection::{DATABASES, SPARE_BYTES, Session};
use crate::redis::databases::lock_or_busy;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::events;
use crate::redis::later::Later;
use crate::redis::monitors::{Executor, Lines};
use crate::redis::names::{Tenant, all_databases, cache_name};
use crate::redis::writer::Writer;

/// Maximum number of commands of one transaction, and of their bytes.
const COMMANDS_MAX: usize = 1 << 20;
const COMMANDS_BYTES_MAX: usize = 64 << 20;
/// Memory of a queued command and of each argument, in addition to their bytes.
const COMMAND_BYTES: usize = 64;
const ARG_BYTES: usize = 48;
/// Maximum number of keys that one connection watches, and of their bytes.
const WATCHED_MAX: usize = 1 << 16;
const WATCHED_BYTES_MAX: usize = 8 << 20;

pub(super) const COMMANDS: &[Command] = &[
    own("MULTI", 1, Needs::Nothing, multi, ("1.2.0", "Begins a transaction: EXEC runs the commands together")),
    own(
        "EXEC",
        1,
        Needs::Nothing,
        exec,
        ("1.2.0", "Runs all commands of the transaction, if no watched key has changed"),
    ),
    own("DISCARD", 1, Needs::Nothing, discard, ("2.0.0", "Discards the commands of the transaction")),
    Command {
        keys: EACH,
        ..own(
            "WATCH",
            -2,
            Needs::Keys,
            watch,
            ("2.2.0", "Runs the next transaction only if these keys have not changed"),
        )
    },
    own("UNWATCH", 1, Needs::Nothing, unwatch, ("2.2.0", "Forgets all watched keys")),
];

/// Commands that are queued for EXEC.
#[derive(Default)]
pub(in crate::redis) struct Transaction {
    queued: Vec<Queued>,
    bytes: usize,
    /// Database that is selected after the last queued command.
    database: usize,
    /// `true` if a queued command was invalid: EXEC runs none of them.
    pub(in crate::redis) is_refused: bool,
}

pub(super) struct Queued {
    pub(super) command: &'static Command,
    pub(super) database: usize,
    pub(super) args: Vec<Box<[u8]>>,
}

impl Queued {
    pub(super) fn new(command: &'static Command, database: usize, args: &[&[u8]]) -> Self {
        Self { command, database, args: args.iter().map(|arg| (*arg).into()).collect() }
    }
}

/// Watched keys of each database, and their observed state.
#[derive(Default)]
pub(in crate::redis) struct Watched {
    keys: BTreeMap<(usize, Box<[u8]>), Seen>,
    bytes: usize,
}

/// Observed state of a watched key. It differs once the key has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    There {
        version: u64,
        expires_ms: Option<u64>,
        stream: Option<StreamMark>,
    },
    /// A topic that another door created.
    Other(StreamMark),
    /// The key did not exist. `gone` differs if the key may have existed in the meantime.
    Nothing {
        gone: u32,
    },
}

impl Command {
    /// Returns `true` for commands that run immediately inside a transaction.
    pub(in crate::redis) fn is_of_transactions(&self) -> bool {
        matches!(self.name, "EXEC" | "DISCARD" | "MULTI" | "WATCH" | "UNWATCH" | "QUIT" | "RESET")
            && self.name != "UNWATCH"
    }

    /// Returns `true` if the command runs immediately, without waiting for anything.
    fn may_be_queued(&self) -> bool {
        !matches!(self.name, "DEBUG")
    }

    /// Returns `true` if the command visits stripes of its own: it reads whole databases, or switches notes on and off
    /// (`CLIENT TRACKING`). It runs after the locks of the transaction are released, as it would wait for them.
    fn is_done_last(&self) -> bool {
        matches!(self.name, "INFO" | "CONFIG" | "MEMORY" | "CLIENT")
    }
}

impl Transaction {
    /// Calls `each` with the database, the command and the arguments of each queued command.
    pub(in crate::redis) fn each(&self, mut each: impl FnMut(usize, &'static Command, &[&[u8]]) -> Done) -> Done {
        self.queued.iter().try_for_each(|queued| {
            let args: Vec<&[u8]> = queued.args.iter().map(|arg| &**arg).collect();
            each(queued.database, queued.command, &args)
        })
    }

    /// Returns the database that the next command will use.
    pub(in crate::redis) fn database(&self) -> usize {
        self.database
    }
}

impl Session {
    pub(in crate::redis) fn queue(&mut self, command: &'static Command, args: &[&[u8]]) -> Reply<Answer, Later> {
        let Some(transaction) = &mut self.transaction else {
            return self.fail(&Fail::new("ERR EXEC without MULTI"));
        };
        let bytes = bytes_in(args) + ARG_BYTES * args.len() + COMMAND_BYTES;
        let fail = if !command.may_be_queued() {
            Some(Fail::new("ERR Command not allowed inside a transaction"))
        } else if transaction.queued.len() == COMMANDS_MAX || transaction.bytes + bytes > COMMANDS_BYTES_MAX {
            let text = format!("ERR a transaction has at most {COMMANDS_MAX} commands and {COMMANDS_BYTES_MAX} bytes");
            Some(Fail::new(text))
        } else {
            None
        };
        if let Some(fail) = fail {
            transaction.is_refused = true;
            return self.fail(&fail);
        }
        transaction.bytes += bytes;
        let database = transaction.database;
        if command.name == "SELECT" {
            transaction.database = parse_usize(args[1]).filter(|number| *number < DATABASES).unwrap_or(database);
        }
        transaction.queued.push(Queued::new(command, database, args));
        let count = transaction.queued.len();
        let bytes = transaction.bytes;
        self.update_info(|about| {
            about.queued = Some(count);
            about.queued_bytes = bytes;
        });
        Reply::Now(Answer::Fixed(b"+QUEUED\r\n"))
    }

    pub(in crate::redis) fn forget_transaction(&mut self) {
        self.transaction = None;
        self.watched = Watched::default();
        self.update_info(|about| {
            about.queued = None;
            about.queued_bytes = 0;
        });
    }
}

fn multi(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    if session.transaction.is_some() {
        return session.fail(&Fail::new("ERR MULTI calls can not be nested"));
    }
    let database = session.database;
    session.transaction = Some(Box::new(Transaction { database, ..Transaction::default() }));
    session.update_info(|about| about.queued = Some(0));
    Reply::Now(Answer::Fixed(b"+OK\r\n"))
}

fn discard(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    if session.transaction.is_none() {
        return session.fail(&Fail::new("ERR DISCARD without MULTI"));
    }
    session.forget_transaction();
    Reply::Now(Answer::Fixed(b"+OK\r\n"))
}

fn watch(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    if session.transaction.is_some() {
        return session.fail(&Fail::new("ERR WATCH inside MULTI is not allowed"));
    }
    let bytes = session.watched.bytes + bytes_in(&args[1..]);
    if session.watched.keys.len() + args.len() > WATCHED_MAX || bytes > WATCHED_BYTES_MAX {
        let text = format!("ERR a connection watches at most {WATCHED_MAX} keys of {WATCHED_BYTES_MAX} bytes together");
        return session.fail(&Fail::new(text));
    }
    session.watched.bytes = bytes;
    let database = session.database;
    let tenant = session.tenant.clone();
    let mut watched = std::mem::take(&mut session.watched);
    let known = match session.database(&door.broker) {
        Ok(cache) => lock_or_busy(cache, &Named::These(args[1..].iter().copied().collect())).map(|mut locked| {
            for key in &args[1..] {
                // A key that is already watched keeps its first state.
                let seen = seen(&door.broker, &mut locked, (tenant.as_ref(), database), key);
                watched.keys.entry((database, (*key).into())).or_insert(seen);
            }
        }),
        Err(fail) => Err(fail),
    };
    session.watched = watched;
    match known {
        Ok(()) => Reply::Now(Answer::Fixed(b"+OK\r\n")),
        Err(fail) => session.fail(&fail),
    }
}

fn seen(broker: &Arc<Broker>, locked: &mut LockedCache<'_>, database: (Tenant<'_>, usize), key: &[u8]) -> Seen {
    let stream = match locked.stream(key) {
        Ok(Keyed::Stream(stream)) => Some(StreamMark::of(&stream)),
        _ => None,
    };
    match locked.peek(key) {
        Some(found) => Seen::There { version: found.version, expires_ms: found.expires_ms, stream },
        None => match super::streams::others::mark(broker, database, key) {
            Some(mark) => Seen::Other(mark),
            None => Seen::Nothing { gone: locked.gone(key) },
        },
    }
}

impl Watched {
    /// Returns `true` if no watched key has changed. All of them are locked.
    pub(super) fn is_unchanged(&self, broker: &Arc<Broker>, tenant: Tenant<'_>, held: &mut Held<'_>) -> bool {
        self.keys.iter().all(|((database, key), before)| {
            let locked = held.get_mut(database).expect("invariant: what is watched is locked");
            seen(broker, locked, (tenant, *database), key) == *before
        })
    }
}

fn unwatch(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    session.watched = Watched::default();
    Reply::Now(Answer::Fixed(b"+OK\r\n"))
}

fn exec(door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    let Some(transaction) = session.transaction.take() else {
        return session.fail(&Fail::new("ERR EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut session.watched);
    session.update_info(|about| {
        about.queued = None;
        about.queued_bytes = 0;
    });
    if transaction.is_refused {
        return session.fail(&Fail::new("EXECABORT Transaction discarded because of previous errors."));
    }
    let has_streams = |queued: &Queued| {
        matches!(queued.command.does, Does::Stream(_) | Does::Script(_))
            || super::streams::transfer::is_transfer(queued.command)
    };
    if transaction.queued.iter().any(has_streams) {
        return super::streams::step::begin(door, session, transaction.queued, watched, false);
    }
    match exec_all(door, session, &transaction.queued, &watched) {
        Ok((writer, commit, unconfirmed)) => {
            unconfirmed.confirmed_by(session.settled(Answer::Written(writer.bytes), commit))
        }
        Err(fail) => session.fail(&fail),
    }
}

/// Minimum number of bytes that the reply to a transaction may have, regardless of other replies.
const EXEC_ANSWER_BYTES_MIN: usize = 1 << 20;

/// Attributes the changes of a step to a connection.
pub(in crate::redis) fn act_for(held: &mut Held<'_>, client: u64) {
    held.values_mut().for_each(|locked| locked.set_cause(Cause { operation: "", client }));
}

/// Locked stripes of each database.
pub(in crate::redis) type Held<'c> = BTreeMap<usize, LockedCache<'c>>;

/// Refuses the whole transaction if it changes data that cannot be written now.
pub(super) fn admit(queued: &[Queued], caches: &BTreeMap<usize, Arc<Cache>>) -> Done {
    if queued.iter().any(|queued| queued.command.is_write || queued.command.is_on_databases()) {
        caches.values().try_for_each(|cache| cache.admit())?;
    }
    Ok(())
}

fn exec_all(
    door: &Door,
    session: &mut Session,
    queued: &[Queued],
    watched: &Watched,
) -> Done<(Writer, Commit, Unconfirmed)> {
    let borrowed = borrowed(queued);
    let named = named_by(queued, &borrowed, watched);
    let mut caches = BTreeMap::new();
    for number in named.keys() {
        caches.insert(*number, session.database_of(&door.broker, *number)?);
    }
    admit(queued, &caches)?;
    room_for(queued, &borrowed, &caches);
    let mut held = Held::new();
    for (number, named) in &named {
        held.insert(*number, lock_or_busy(&caches[number], named)?);
    }
    act_for(&mut held, session.client.id);
    let mut unconfirmed = Unconfirmed::default();
    let mut writer = session.writer();
    // A reply for which there is no memory is refused individually, as one that is too large.
    writer.bytes_max = session.room().max(EXEC_ANSWER_BYTES_MIN);
    if !watched.is_unchanged(&door.broker, session.tenant(), &mut held) {
        writer.null_array();
        return Ok((writer, finish(held, &caches), unconfirmed));
    }
    writer.array(queued.len());
    let mut last = Vec::new();
    let mut lines = Lines::new(&door.monitors);
    let time = TransactionTime::begin(door.transaction_time_max);
    for (queued, args) in queued.iter().zip(&borrowed) {
        let begin = writer.bytes.len();
        let began = Instant::now();
        if time.refuses(began, &mut writer) {
            continue;
        }
        let help = super::help::of(queued.command, args);
        match queued.command.does {
            _ if help.is_some() => super::help::write(&mut writer, &help.unwrap_or_default()),
            Does::Own(_) if queued.command.is_done_last() => {
                last.push((begin, queued, args));
                continue;
            }
            Does::Data(_) | Does::Stream(_) | Does::Script(_) => {
                let on = (session.tenant(), queued.database);
                match step(&door.broker, on, &mut held, queued.command, args, &mut writer) {
                    Ok(()) => record_flush(&door.broker, session.tenant(), (queued.command, queued.database)),
                    Err(fail) => {
                        writer.bytes.truncate(begin);
                        writer.error(&fail);
                    }
                }
            }
            Does::Own(_) if queued.command.is_on_databases() => {
                let on = (session.tenant(), queued.database);
                if let Err(fail) = step_on_databases(&door.broker, on, &mut held, queued.command, args, &mut writer) {
                    writer.error(&fail);
                }
            }
            Does::Own(_) => unconfirmed.append(do_own(door, session, queued, args, &mut writer)),
        }
        count(door, session, (queued, args), &writer.bytes[begin..], began, &mut lines);
    }
    let commit = finish(held, &caches);
    do_last(door, session, last, &mut writer, &mut lines);
    lines.write();
    Ok((writer, commit, unconfirmed))
}

/// Counts a command of a transaction that has run.
fn count(
    door: &Door,
    session: &mut Session,
    (queued, args): (&Queued, &Vec<&[u8]>),
    answer: &[u8],
    began: Instant,
    lines: &mut Lines,
) {
    lines.add(Executor::Client(&session.client), queued.database, queued.command, args);
    let number = queued.command.number_of(args);
    door.count_now(session, number, args, began);
    if answer.first() == Some(&b'-') {
        session.tally.fail(number, answer);
    }
}

/// Runs a command about the connection or the broker. The subscriptions that it begins are confirmed by the reply to
/// the transaction.
pub(super) fn do_own(
    door: &Door,
    session: &mut Session,
    queued: &Queued,
    args: &[&[u8]],
    writer: &mut Writer,
) -> Unconfirmed {
    let mut unconfirmed = Unconfirmed::default();
    let Does::Own(run) = queued.command.does else {
        return unconfirmed;
    };
    if let Some(fail) = refused_in_transaction(door, session, queued, args) {
        writer.error(&fail);
        return unconfirmed;
    }
    let reply = match run(door, session, args) {
        Reply::Now(Answer::Followed(followed)) => {
            let (answer, follow) = *followed;
            match follow {
                Follow::Subscribed(more) => unconfirmed.append(more),
                // The keys that the transaction reads are followed by its own reply.
                Follow::Invalidations(replying) => drop(replying),
            }
            Reply::Now(answer)
        }
        reply => reply,
    };
    match reply {
        Reply::Blocked(_) if std::mem::take(&mut session.is_sliced) => writer.error(&Fail::new(
            "ERR the command visits too many channels for a transaction: send it outside of the transaction",
        )),
        Reply::Now(Answer::Written(bytes)) => writer.put(&bytes),
        Reply::Now(Answer::Fixed(bytes)) => writer.put(bytes),
        Reply::Now(Answer::Nothing) => {}
        _ => writer.error(&Fail::new("ERR Command not allowed inside a transaction")),
    }
    unconfirmed
}

/// Returns the error of a command about the connection that may not be part of a transaction.
fn refused_in_transaction(door: &Door, session: &Session, queued: &Queued, args: &[&[u8]]) -> Option<Fail> {
    // As in Redis 7.0: SUBSCRIBE and PSUBSCRIBE may be part of a transaction, SSUBSCRIBE may not.
    if queued.command.name == "SSUBSCRIBE" {
        return Some(Fail::new("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
    }
    if queued.command.name == "MONITOR" {
        return Some(Fail::new("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    // The reads of a transaction are tracked by the options from before it.
    let changes_tracking = match args {
        [_, part, how, ..] if is(part, "TRACKING") => is(how, "ON"),
        [_, part, ..] => is(part, "CACHING") && session.tracked.is_some(),
        _ => false,
    };
    if queued.command.name == "CLIENT" && changes_tracking {
        return Some(Fail::new(
            "ERR CLIENT TRACKING and CLIENT CACHING are not allowed inside a transaction: send them before MULTI",
        ));
    }
    // PSUBSCRIBE waits for its turn to visit the topics and channels, and a transaction does not wait.
    if queued.command.name == "PSUBSCRIBE" && door.broker.subscribes_in_turns(args.len() - 1) {
        return Some(Fail::new(
            "ERR PSUBSCRIBE checks all topics and channels, which are too many for a transaction: send it outside of \
             the transaction",
        ));
    }
    None
}

/// Runs the commands that wait for the end of the locks, and inserts their replies at their positions.
fn do_last(
    door: &Door,
    session: &mut Session,
    last: Vec<(usize, &Queued, &Vec<&[u8]>)>,
    writer: &mut Writer,
    lines: &mut Lines,
) {
    let selected = session.database;
    let mut answers = Vec::with_capacity(last.len());
    for (at, queued, args) in last {
        let mut answer = session.writer();
        let began = Instant::now();
        session.database = queued.database;
        session.client.select(queued.database);
        // None of them subscribes.
        drop(do_own(door, session, queued, args, &mut answer));
        count(door, session, (queued, args), &answer.bytes, began, lines);
        answers.push((at, answer.bytes));
    }
    // From the last one on, so that the positions of the others remain valid.
    for (at, answer) in answers.into_iter().rev() {
        writer.bytes.splice(at..at, answer);
    }
    session.database = selected;
    session.client.select(selected);
}

/// Returns the arguments of all commands.
pub(super) fn borrowed(queued: &[Queued]) -> Vec<Vec<&[u8]>> {
    queued.iter().map(|queued| queued.args.iter().map(|arg| &**arg).collect()).collect()
}

/// Frees memory for all writes in advance, as no command is retried.
pub(super) fn room_for(queued: &[Queued], args: &[Vec<&[u8]>], caches: &BTreeMap<usize, Arc<Cache>>) {
    for (number, cache) in caches {
        let writes = queued.iter().zip(args).filter(|(it, _)| it.command.is_write && it.database == *number);
        let bytes: usize = writes.map(|(_, args)| bytes_in(args) + SPARE_BYTES).sum();
        cache.make_room(bytes as u64);
    }
}

/// Records a command of a transaction that has removed all keys of a database.
pub(in crate::redis) fn record_flush(broker: &Broker, tenant: Tenant<'_>, (command, database): (&Command, usize)) {
    match command.name {
        _ if !command.flushes() => {}
        "FLUSHALL" => broker.record_act("flush cache", &all_databases(tenant), None),
        _ => broker.record_act("flush cache", &cache_name(tenant, database), None),
    }
}

/// Runs `FLUSHALL` or `SWAPDB` on databases that are locked.
pub(in crate::redis) fn step_on_databases(
    broker: &Broker,
    (tenant, database): (Tenant<'_>, usize),
    held: &mut Held<'_>,
    command: &Command,
    args: &[&[u8]],
    writer: &mut Writer,
) -> Done {
    if command.name == "SWAPDB" {
        super::swap::step(broker, tenant, held, args)?;
    } else {
        super::scan::check_flush(args)?;
        held.values_mut().for_each(LockedCache::flush);
        record_flush(broker, tenant, (command, database));
    }
    writer.ok();
    Ok(())
}

/// Ends the step and returns its commit, after which it is durable.
pub(in crate::redis) fn finish(mut held: Held<'_>, caches: &BTreeMap<usize, Arc<Cache>>) -> Commit {
    if held.len() == 1
        && let Some((number, locked)) = held.pop_first()
    {
        let finished = locked.finish();
        caches[&number].serve(finished.grown);
        return finished.commit;
    }
    let (numbers, locked): (Vec<usize>, Vec<LockedCache<'_>>) = held.into_iter().unzip();
    let finished = LockedCache::finish_all(locked);
    finished.into_iter().zip(numbers).fold(Commit::done(), |commit, (finished, number)| {
        caches[&number].serve(finished.grown);
        commit.and(finished.commit)
    })
}

/// Returns the keys of each database that the transaction may touch.
pub(super) fn named_by<'a>(
    queued: &[Queued],
    args: &[Vec<&'a [u8]>],
    watched: &'a Watched,
) -> BTreeMap<usize, Named<'a>> {
    let mut named = BTreeMap::new();
    let mut add = |database: usize, more: Named<'a>| {
        let current = named.entry(database).or_insert_with(|| Named::These(Default::default()));
        match (current, more) {
            (Named::These(current), Named::These(more)) => current.extend(more),
            (current, _) => *current = Named::All,
        }
    };
    for (queued, args) in queued.iter().zip(args) {
        match queued.command.does {
            Does::Own(_) if queued.command.name == "FLUSHALL" => {
                (0..DATABASES).for_each(|number| add(number, Named::All))
            }
            Does::Own(_) if queued.command.name == "SWAPDB" => {
                // Without valid numbers it only fails.
                super::swap::databases(args).into_iter().flatten().for_each(|number| add(number, Named::All));
            }
            Does::Own(_) => {}
            // A script of a transaction may use any key.
            Does::Script(_) => add(queued.database, Named::All),
            Does::Data(_) | Does::Stream(_) => {
                let numbers = [Some(queued.database), super::keys::other_database(args)];
                numbers.into_iter().flatten().for_each(|number| add(number, queued.command.keys(args)));
            }
        }
    }
    for (database, key) in watched.keys.keys() {
        add(*database, Named::These(std::iter::once(&**key).collect()));
    }
    named
}

/// Runs a command on data, whose keys are locked.
pub(in crate::redis) fn step(
    broker: &Arc<Broker>,
    (tenant, database): (Tenant<'_>, usize),
    held: &mut Held<'_>,
    command: &Command,
    args: &[&[u8]],
    writer: &mut Writer,
) -> Done {
    let Does::Data(run) = command.does else {
        return Ok(());
    };
    let other = super::keys::other_database(args).filter(|other| *other != database);
    let mut other = other.and_then(|number| held.remove(&number).map(|locked| (number, locked)));
    let locked = held.get_mut(&database).expect("invariant: its database is locked");
    if locked.is_noted() {
        let cause = Cause { operation: events::operation(command, args), ..locked.cause() };
        locked.set_cause(cause);
        other.iter_mut().for_each(|(_, other)| other.set_cause(cause));
    }
    let guests = Guests::let_in(broker, (tenant, database), locked, command, args);
    let done = guests.and_then(|guests| {
        let mut step = Step { other: other.as_mut().map(|(_, locked)| locked), ..Step::new(locked, writer) };
        let done = run(&mut step, args).and_then(|()| step.out.check());
        // A command does not block inside a step. It replies as after a timeout.
        if let Some(block) = step.block {
            if block.is_null_array { writer.null_array() } else { writer.null() }
        }
        guests.leave(locked);
        done
    });
    if let Some((number, locked)) = other {
        held.insert(number, locked);
    }
    done
}
