//! Streams, which are topics with one partition: a record that any door publishes to the topic is an entry, and an
//! entry that is added here is a record for all readers of the topic.

mod add;
mod claim;
mod entries;
mod groups;
mod ids;
mod info;
pub(in crate::redis) mod others;
mod read;
pub(in crate::redis) mod step;
pub(super) mod transfer;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use broker::{Broker, Cache, Cause, Commit, Keyed, LockedCache, LockedStream, Stream};
use engine::security::{Operation, TenantName};
use engine::{Error, ErrorKind, Result, TopicId};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::service::{Reply, once};

use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Does, Keys, ONE, Streaming};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, WRONG_TYPE};
use crate::redis::events;
use crate::redis::later::Later;
use crate::redis::names::stream_topic;
use crate::redis::scripts::{BUSY, Scripts};
use crate::redis::writer::Writer;

/// The only key is the argument after the subcommand.
const SECOND: Keys = Keys::Range(2, 2, 1);

const fn reads(
    name: &'static str,
    arity: i8,
    keys: Keys,
    does: Streaming,
    about: (&'static str, &'static str),
) -> Command {
    let (since, summary) = about;
    let does = Does::Stream(does);
    let needs = Needs::Streams(Operation::Read);
    Command { name, arity, keys, is_write: false, group: "", since, summary, parts: &[], number: 0, needs, does }
}

/// Returns the row of a command that changes a stream, or what its groups have read, which needs this operation.
const fn writes(
    name: &'static str,
    arity: i8,
    keys: Keys,
    operation: Operation,
    does: Streaming,
    about: (&'static str, &'static str),
) -> Command {
    Command { is_write: true, needs: Needs::Streams(operation), ..reads(name, arity, keys, does, about) }
}

pub(super) const COMMANDS: &[Command] = &[
    writes(
        "XADD",
        -5,
        ONE,
        Operation::Write,
        |c, a| add::add(c, a).boxed_local(),
        ("5.0.0", "Adds an entry to a stream"),
    ),
    reads("XLEN", 2, ONE, |c, a| add::len(c, a).boxed_local(), ("5.0.0", "Returns the number of entries of a stream")),
    writes(
        "XDEL",
        -3,
        ONE,
        Operation::Delete,
        |c, a| add::del(c, a).boxed_local(),
        ("5.0.0", "Deletes entries of a stream"),
    ),
    writes(
        "XTRIM",
        -4,
        ONE,
        Operation::Delete,
        |c, a| add::trim(c, a).boxed_local(),
        ("5.0.0", "Deletes the oldest entries"),
    ),
    writes(
        "XSETID",
        -3,
        ONE,
        Operation::Delete,
        |c, a| add::set_id(c, a).boxed_local(),
        ("5.0.0", "Sets the last id of a stream"),
    ),
    reads(
        "XRANGE",
        -4,
        ONE,
        |c, a| read::range(c, a).boxed_local(),
        ("5.0.0", "Returns the entries of a range of ids"),
    ),
    reads(
        "XREVRANGE",
        -4,
        ONE,
        |c, a| read::range_back(c, a).boxed_local(),
        ("5.0.0", "Returns the entries of a range of ids in reverse order"),
    ),
    reads(
        "XREAD",
        -4,
        Keys::Streams,
        |c, a| read::read(c, a).boxed_local(),
        ("5.0.0", "Returns entries after the given ids, or blocks"),
    ),
    writes(
        "XREADGROUP",
        -7,
        Keys::Streams,
        Operation::Read,
        |c, a| read::read_group(c, a).boxed_local(),
        ("5.0.0", "Delivers entries to a consumer of a group"),
    ),
    writes(
        "XGROUP",
        -2,
        SECOND,
        Operation::Read,
        |c, a| groups::group(c, a).boxed_local(),
        ("5.0.0", "Creates and changes groups"),
    )
    .of(&[("CREATE", -5), ("SETID", -5), ("DESTROY", 4), ("CREATECONSUMER", 5), ("DELCONSUMER", 5), ("HELP", 2)]),
    writes("XACK", -4, ONE, Operation::Read, |c, a| groups::ack(c, a).boxed_local(), ("5.0.0", "Acknowledges entries")),
    reads(
        "XPENDING",
        -3,
        ONE,
        |c, a| groups::pending(c, a).boxed_local(),
        ("5.0.0", "Returns the entries that are not acknowledged"),
    ),
    writes(
        "XCLAIM",
        -6,
        ONE,
        Operation::Read,
        |c, a| claim::claim(c, a).boxed_local(),
        ("5.0.0", "Takes over entries of other consumers"),
    ),
    writes(
        "XAUTOCLAIM",
        -6,
        ONE,
        Operation::Read,
        |c, a| claim::claim_idle(c, a).boxed_local(),
        ("6.2.0", "Takes over entries that are idle for some time"),
    ),
    reads("XINFO", -2, SECOND, |c, a| info::info(c, a).boxed_local(), ("5.0.0", "Describes a stream and its groups"))
        .of(&[("STREAM", -3), ("GROUPS", 3), ("CONSUMERS", 4), ("HELP", 2)]),
];

type Owned = Vec<Box<[u8]>>;

fn owned(args: &[&[u8]]) -> Owned {
    args.iter().map(|arg| (*arg).into()).collect()
}

fn borrowed(args: &[Box<[u8]>]) -> Vec<&[u8]> {
    args.iter().map(|arg| &**arg).collect()
}

/// Context of a command on streams.
pub(in crate::redis) struct Context<'a> {
    broker: Arc<Broker>,
    /// Tenant of the client, and the number of the selected database.
    tenant: Option<TenantName>,
    number: usize,
    /// `true` if the command only reads. Then `INFO` counts its hits and misses.
    is_read: bool,
    /// `false` if the command is refused, and does not wait, while a script holds its keys.
    pub(super) waits_for_scripts: bool,
    /// Cause of what the command changes.
    cause: Cause,
    keys: Keyspace<'a>,
    pub(super) out: Writer,
    /// Writes that must be durable before the reply is sent.
    pub(super) later: Vec<LocalBoxFuture<'static, Result<()>>>,
}

/// Access to the keys of streams.
enum Keyspace<'a> {
    /// A single command locks its keys briefly, and then its stream. It waits for scripts that hold them.
    Alone(Arc<Cache>, Arc<Scripts>),
    /// A step of several commands has locked all keys and streams. It lends the streams to one command after the other.
    Step(&'a mut (dyn StreamKeys + 'a), Shelf),
}

/// Streams that are locked for a step, by the id of their topic.
pub(in crate::redis) type Shelf = Rc<RefCell<BTreeMap<TopicId, LockedStream>>>;

/// A stream that is locked for one command. Dropping it returns the stream to its shelf.
pub(in crate::redis) struct Lent {
    stream: Option<LockedStream>,
    shelf: Option<Shelf>,
}

/// Operations of stream commands on keys.
pub(in crate::redis) trait StreamKeys {
    fn find(&mut self, key: &[u8], is_read: bool) -> Result<Keyed>;

    fn add(&mut self, key: &[u8], topic: &str) -> Result<LockedStream>;

    fn remove(&mut self, key: &[u8]);

    /// Takes no notes of missing keys for the rest of the command.
    fn hide_misses(&mut self);

    /// Takes a note of a change of a stream, for keyspace events.
    fn report(&mut self, key: &[u8], event: &'static str);
}

impl StreamKeys for LockedCache<'_> {
    fn find(&mut self, key: &[u8], is_read: bool) -> Result<Keyed> {
        self.use_stream(key, is_read)
    }

    fn add(&mut self, key: &[u8], topic: &str) -> Result<LockedStream> {
        self.add_stream(key, topic)
    }

    fn remove(&mut self, key: &[u8]) {
        self.delete(key);
    }

    fn hide_misses(&mut self) {
        LockedCache::hide_misses(self);
    }

    fn report(&mut self, key: &[u8], event: &'static str) {
        LockedCache::report(self, key, event);
    }
}

impl Lent {
    fn new(stream: LockedStream, shelf: Option<Shelf>) -> Self {
        Self { stream: Some(stream), shelf }
    }
}

impl Deref for Lent {
    type Target = LockedStream;

    fn deref(&self) -> &LockedStream {
        self.stream.as_ref().expect("invariant: it is there until it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut LockedStream {
        self.stream.as_mut().expect("invariant: it is there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(stream), Some(shelf)) = (self.stream.take(), &self.shelf) {
            shelf.borrow_mut().insert(stream.topic_id(), stream);
        }
    }
}

/// Runs a single command. The next command of the connection waits for it.
pub(in crate::redis) fn serve(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    run: Streaming,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    if command.keys == Keys::Streams {
        return read::begin(door, session, command, args);
    }
    let mut context = match Context::alone(door, session, command, args) {
        Ok(context) => context,
        Err(fail) => return session.fail(&fail),
    };
    let args = owned(args);
    Reply::Alone(once(
        async move {
            let done = run(&mut context, &borrowed(&args)).await;
            context.answer(done).await
        }
        .boxed_local(),
    ))
}

impl<'a> Context<'a> {
    fn alone(door: &Door, session: &mut Session, command: &Command, args: &[&[u8]]) -> Done<Self> {
        let is_read = !command.is_write;
        let cause = Cause { operation: events::operation(command, args), client: session.client.id };
        let broker = door.broker.clone();
        let number = session.database;
        let out = session.writer();
        let keys = Keyspace::Alone(session.database(&broker)?.clone(), door.scripts.clone());
        let tenant = session.tenant.clone();
        Ok(Self { broker, tenant, number, is_read, waits_for_scripts: true, cause, keys, out, later: Vec::new() })
    }

    /// Creates the context for one command of a step on a database.
    pub(super) fn of_step(
        broker: &Arc<Broker>,
        (tenant, number, is_read, cause): (Option<TenantName>, usize, bool, Cause),
        keys: &'a mut (dyn StreamKeys + 'a),
        shelf: &Shelf,
        out: Writer,
    ) -> Self {
        let keys = Keyspace::Step(keys, shelf.clone());
        let broker = broker.clone();
        Self { broker, tenant, number, is_read, waits_for_scripts: false, cause, keys, out, later: Vec::new() }
    }

    async fn answer(self, done: Done) -> Answer {
        let mut out = self.out;
        let mut done = done;
        for later in self.later {
            // The first error is reported.
            done = done.and(later.await.map_err(failed));
        }
        if let Err(fail) = done {
            out.bytes.clear();
            out.error(&fail);
        }
        Answer::Written(out.bytes)
    }

    /// Delays the reply until the write is durable.
    fn settle(&mut self, saved: Commit) {
        self.later.push(saved.wait().boxed_local());
    }

    /// Waits until no script holds one of these keys, however long that takes.
    async fn freed(&self, keys: &[Box<[u8]>]) {
        if let Keyspace::Alone(cache, scripts) = &self.keys {
            scripts.freed(cache, || keys.iter().any(|key| cache.is_held(key))).await;
        }
    }

    /// Returns `true` if a command may wait for other doors. A command of a step may not, as it would delay the step.
    fn may_wait(&self) -> bool {
        matches!(self.keys, Keyspace::Alone(..))
    }

    async fn find_key(&mut self, key: &[u8]) -> Done<Keyed> {
        match &mut self.keys {
            Keyspace::Alone(cache, scripts) => {
                let mut keys = lock_key(cache, scripts, key, self.waits_for_scripts).await?;
                keys.set_cause(self.cause);
                keys.use_stream(key, self.is_read)
            }
            Keyspace::Step(keys, _) => {
                if self.cause.operation.is_empty() {
                    keys.hide_misses();
                }
                keys.find(key, self.is_read)
            }
        }
        .map_err(failed)
    }

    /// Looks a key up before the arguments are checked, as Redis does, which publishes that it is missing. Later
    /// lookups are not published. Fails if a script holds the key for too long.
    async fn look_up(&mut self, key: &[u8]) -> Done {
        if let Keyspace::Alone(cache, _) = &self.keys
            && !cache.is_noted()
        {
            return Ok(());
        }
        match self.find_key(key).await {
            Err(fail) if fail == BUSY => return Err(fail),
            // The command reports its other errors.
            _ => self.cause.operation = "",
        }
        Ok(())
    }

    /// Returns the stream of a key, if it is one: its own stream, or in database 0 a topic that another door created.
    async fn find(&mut self, key: &[u8]) -> Done<Option<Stream>> {
        match self.find_key(key).await? {
            Keyed::Stream(stream) => Ok(Some(stream)),
            Keyed::Other => Err(WRONG_TYPE),
            Keyed::Nothing => self.find_other(key),
        }
    }

    fn find_other(&self, key: &[u8]) -> Done<Option<Stream>> {
        match others::topic(&self.broker, (self.tenant.as_ref(), self.number), key) {
            Some(topic) => self.broker.streams.get(topic.as_str()).map_err(failed),
            None => Ok(None),
        }
    }

    async fn lock(&mut self, key: &[u8]) -> Done<Option<Lent>> {
        loop {
            let Some(stream) = self.find(key).await? else {
                return Ok(None);
            };
            match self.lock_stream(&stream).await {
                // The stream was deleted in between. Another one may exist now.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                locked => return locked.map(Some).map_err(failed),
            }
        }
    }

    async fn lock_stream(&self, stream: &Stream) -> Result<Lent> {
        let Keyspace::Step(_, shelf) = &self.keys else {
            return Ok(Lent::new(stream.lock().await?, None));
        };
        let found = shelf.borrow_mut().remove(&stream.id());
        let mut locked = found.ok_or_else(|| Error::busy("the stream is in use by other clients: try again"))?;
        locked.catch_up().await?;
        Ok(Lent::new(locked, Some(shelf.clone())))
    }

    /// Locks the stream of a key, and creates it if it does not exist. Returns `true` if it was created.
    async fn lock_or_create(&mut self, key: &[u8]) -> Done<(Lent, bool)> {
        loop {
            if let Some(locked) = self.lock(key).await? {
                return Ok((locked, false));
            }
            let topic = stream_topic(self.tenant.as_ref(), self.number, key)?;
            match &mut self.keys {
                Keyspace::Alone(cache, scripts) => {
                    let mut keys = lock_key(cache, scripts, key, self.waits_for_scripts).await?;
                    keys.set_cause(self.cause);
                    // Another client may have created the key in the meantime.
                    if !matches!(keys.stream(key).map_err(failed)?, Keyed::Nothing) {
                        continue;
                    }
                    let stream = keys.add_stream(key, topic.as_str()).map_err(failed)?;
                    let commit = keys.finish().commit;
                    self.later.push(commit.wait().boxed_local());
                    return Ok((Lent::new(stream, None), true));
                }
                Keyspace::Step(keys, shelf) => {
                    let stream = keys.add(key, topic.as_str()).map_err(failed)?;
                    return Ok((Lent::new(stream, Some(shelf.clone())), true));
                }
            }
        }
    }

    /// Removes the key of a stream, which deletes the stream.
    async fn remove(&mut self, key: &[u8]) {
        match &mut self.keys {
            // The stream is half made, so the command waits for a script for as long as it takes.
            Keyspace::Alone(cache, scripts) => loop {
                scripts.freed(cache, || cache.is_held(key)).await;
                if let Some(mut keys) = cache.lock_if_free(Some([key])) {
                    keys.set_cause(self.cause);
                    keys.remove(key);
                    let commit = keys.finish().commit;
                    return self.later.push(commit.wait().boxed_local());
                }
            },
            Keyspace::Step(keys, _) => keys.remove(key),
        }
    }

    /// Reports a change of the stream of a key, for keyspace events. The stream is locked, so that its events are in
    /// the order of its changes.
    async fn report(&mut self, key: &[u8], event: &'static str) {
        match &mut self.keys {
            Keyspace::Alone(cache, scripts) => {
                if cache.is_noted() && !try_to_tell(cache, key, event, self.cause) {
                    let telling = tell(cache.clone(), scripts.clone(), key.into(), event, self.cause);
                    // It fails only while the broker stops.
                    drop(tokio::spawn(telling).await);
                }
            }
            Keyspace::Step(keys, _) => keys.report(key, event),
        }
    }

    /// Reports a change that is readable once it is saved: a client that is told must not read the stream as it was.
    /// Without listeners, only the reply waits for that.
    async fn report_saved(&mut self, key: &[u8], event: &'static str, saved: Commit) -> Done {
        match &self.keys {
            Keyspace::Alone(cache, scripts) if cache.is_noted() && !saved.is_done() => {
                let telling = tell(cache.clone(), scripts.clone(), key.into(), event, self.cause);
                let told = tokio::spawn(async move {
                    saved.wait().await?;
                    telling.await;
                    Ok(())
                });
                told.await.unwrap_or_else(|gone| {
                    Err(Error::new(ErrorKind::Internal, format!("the broker stopped before this was durable: {gone}")))
                })
            }
            _ => {
                self.settle(saved);
                self.report(key, event).await;
                return Ok(());
            }
        }
        .map_err(failed)
    }
}

/// Tells the listeners of a change of the stream of a key. The change is made, so it waits for a script for as long as
/// it takes, and it is a task: others must be told, even if the connection of the command ends in the meantime.
async fn tell(cache: Arc<Cache>, scripts: Arc<Scripts>, key: Box<[u8]>, event: &'static str, cause: Cause) {
    while cache.is_noted() && !try_to_tell(&cache, &key, event, cause) {
        scripts.freed(&cache, || cache.is_held(&key)).await;
    }
}

/// Tells the listeners of a change of the stream of a key. Returns `false` if a script holds the key.
fn try_to_tell(cache: &Cache, key: &[u8], event: &'static str, cause: Cause) -> bool {
    let Some(mut keys) = cache.lock_if_free(Some([key])) else {
        return false;
    };
    keys.set_cause(cause);
    LockedCache::report(&mut keys, key, event);
    true
}

/// Locks the stripe of a key. While a script holds it, the command waits as one does that is not decoded yet, without
/// its thread, or is refused.
async fn lock_key<'c>(cache: &'c Cache, scripts: &Scripts, key: &[u8], waits: bool) -> Done<LockedCache<'c>> {
    loop {
        match cache.lock_if_free(Some([key])) {
            Some(locked) => return Ok(locked),
            None if waits => scripts.free(cache, || cache.is_held(key)).await?,
            None => return Err(BUSY),
        }
    }
}

/// Converts an error of the broker about a stream. A lack of memory there is not that of a cache.
fn failed(error: Error) -> Fail {
    match error.kind {
        ErrorKind::Busy if !error.is_throttled() => Fail::new(format!("TRYAGAIN {}", error.message)),
        _ => error.into(),
    }
}

fn text(arg: &[u8]) -> String {
    String::from_utf8_lossy(arg).into_owned()
}
