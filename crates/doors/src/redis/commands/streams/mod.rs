//! Streams, which are topics of one partition: what anybody publishes there is an entry, and what is added here is a
//! record for everybody who reads the topic.

mod add;
mod claim;
mod entries;
mod groups;
mod ids;
mod info;
pub(in crate::redis) mod keys;
mod read;

use std::sync::Arc;

use broker::{Broker, Cache, LockedStream, Stream};
use engine::{Error, ErrorKind};
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::{Command, Keys, ONE, own};
use crate::redis::codec::Answer;
use crate::redis::connection::{Door, Later, Session};
use crate::redis::errors::{Done, Fail, WRONG_TYPE};
use crate::redis::names::topic_of;
use crate::redis::writer::Writer;

/// One that changes something.
const fn write(command: Command) -> Command {
    Command { is_write: true, ..command }
}

/// One whose only key is its first argument.
const fn of_one(command: Command) -> Command {
    Command { keys: ONE, ..command }
}

/// One whose only key is behind a word that says what it does.
const fn of_second(command: Command) -> Command {
    Command { keys: Keys::Range(2, 2, 1), ..command }
}

const fn of_many(command: Command) -> Command {
    Command { keys: Keys::Streams, ..command }
}

pub(super) const COMMANDS: &[Command] = &[
    write(of_one(own("XADD", -5, |d, s, a| begin(d, s, a, add::add), ("5.0.0", "Adds an entry to a stream")))),
    of_one(own("XLEN", 2, |d, s, a| begin(d, s, a, add::len), ("5.0.0", "How many entries a stream has"))),
    write(of_one(own("XDEL", -3, |d, s, a| begin(d, s, a, add::del), ("5.0.0", "Deletes entries of a stream")))),
    write(of_one(own("XTRIM", -4, |d, s, a| begin(d, s, a, add::trim), ("5.0.0", "Removes the oldest entries")))),
    write(of_one(own("XSETID", -3, |d, s, a| begin(d, s, a, add::set_id), ("5.0.0", "Sets the last id of a stream")))),
    of_one(own("XRANGE", -4, |d, s, a| begin(d, s, a, read::range), ("5.0.0", "Entries from one id to another"))),
    of_one(own(
        "XREVRANGE",
        -4,
        |d, s, a| begin(d, s, a, read::range_back),
        ("5.0.0", "The same, the last ones first"),
    )),
    of_many(own("XREAD", -4, read::read, ("5.0.0", "Entries behind ids, which may be waited for"))),
    write(of_many(own("XREADGROUP", -7, read::read_group, ("5.0.0", "Entries for a consumer of a group")))),
    write(of_second(own("XGROUP", -2, |d, s, a| begin(d, s, a, groups::group), ("5.0.0", "Makes and changes groups")))),
    write(of_one(own("XACK", -4, |d, s, a| begin(d, s, a, groups::ack), ("5.0.0", "Acknowledges entries")))),
    of_one(own("XPENDING", -3, |d, s, a| begin(d, s, a, groups::pending), ("5.0.0", "What was not acknowledged"))),
    write(of_one(own("XCLAIM", -6, |d, s, a| begin(d, s, a, claim::claim), ("5.0.0", "Takes over entries of others")))),
    write(of_one(own(
        "XAUTOCLAIM",
        -6,
        |d, s, a| begin(d, s, a, claim::claim_idle),
        ("6.2.0", "Takes over what others have had for long"),
    ))),
    of_second(own("XINFO", -2, |d, s, a| begin(d, s, a, info::info), ("5.0.0", "About a stream and its groups"))),
];

/// What a command has to do with.
struct Context {
    broker: Arc<Broker>,
    /// The database that is selected: a key that has something else there is no stream.
    cache: Arc<Cache>,
    out: Writer,
}

type Owned = Vec<Box<[u8]>>;

fn owned(args: &[&[u8]]) -> Owned {
    args.iter().map(|arg| (*arg).into()).collect()
}

fn borrowed(args: &[Box<[u8]>]) -> Vec<&[u8]> {
    args.iter().map(|arg| &**arg).collect()
}

/// Answers once the command is done: the next one of the connection has to wait for it.
fn begin(
    door: &Door,
    session: &mut Session,
    args: &[&[u8]],
    run: impl AsyncFnOnce(&mut Context, &[&[u8]]) -> Done + 'static,
) -> Reply<Answer, Later> {
    let mut context = match Context::new(door, session) {
        Ok(context) => context,
        Err(fail) => return session.fail(&fail),
    };
    let args = owned(args);
    Reply::Alone(once(
        async move {
            let done = run(&mut context, &borrowed(&args)).await;
            context.answer(done)
        }
        .boxed_local(),
    ))
}

impl Context {
    fn new(door: &Door, session: &mut Session) -> Done<Self> {
        let (broker, out) = (door.broker.clone(), session.writer());
        let cache = session.database(&broker)?.clone();
        Ok(Self { broker, cache, out })
    }

    fn answer(self, done: Done) -> Answer {
        let mut out = self.out;
        if let Err(fail) = done {
            out.bytes.clear();
            out.error(&fail);
        }
        Answer::Written(out.bytes)
    }

    fn check_kind(&self, key: &[u8]) -> Done {
        match self.cache.lock([key]).peek(key) {
            Some(_) => Err(WRONG_TYPE),
            None => Ok(()),
        }
    }

    /// The stream of a key, if there is one.
    async fn find(&self, key: &[u8]) -> Done<Option<Stream>> {
        self.check_kind(key)?;
        self.broker.stream(topic_of(key)?.as_str()).await.map_err(failed)
    }

    async fn lock(&self, key: &[u8]) -> Done<Option<LockedStream>> {
        match self.find(key).await? {
            Some(stream) => Ok(Some(stream.lock().await.map_err(failed)?)),
            None => Ok(None),
        }
    }

    async fn find_or_create(&self, key: &[u8]) -> Done<Stream> {
        self.check_kind(key)?;
        self.broker.stream_or_create(topic_of(key)?.as_str()).await.map_err(failed)
    }
}

/// What the broker says of a stream: room that is missing there is not that of a cache.
fn failed(error: Error) -> Fail {
    match error.kind {
        ErrorKind::Busy => Fail::new(format!("TRYAGAIN {}", error.message)),
        _ => error.into(),
    }
}

fn text(arg: &[u8]) -> String {
    String::from_utf8_lossy(arg).into_owned()
}
