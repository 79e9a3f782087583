//! Topics that other doors created, as keys of database 0, that of the tenant whose prefix they have. Commands that
//! name such a key find a stream, and commands on streams read it and add to it. The key is not listed, and no command
//! on keys changes, renames or deletes it: it may be a topic of Kafka clients that only has the same name.

use std::sync::Arc;

use broker::{Broker, LockedCache, Stream, StreamMark};
use engine::TopicName;

use crate::redis::command::{Command, Named};
use crate::redis::commands::sort;
use crate::redis::errors::{Done, Fail, WRONG_TYPE};
use crate::redis::names::{Tenant, topic_of};

/// Returns the topic of a key that does not exist in the cache, if another door created one.
pub(in crate::redis) fn topic(broker: &Broker, (tenant, number): (Tenant<'_>, usize), key: &[u8]) -> Option<TopicName> {
    if number != 0 || !broker.streams.has_others() {
        return None;
    }
    topic_of(tenant, key).ok().filter(|topic| broker.has_topic(topic.as_str()))
}

/// Returns the stream of such a topic, if the topic is a stream.
pub(in crate::redis) fn stream(broker: &Arc<Broker>, database: (Tenant<'_>, usize), key: &[u8]) -> Option<Stream> {
    broker.streams.get(topic(broker, database, key)?.as_str()).ok().flatten()
}

/// Returns the observed state of such a topic for clients that watch its key.
pub(in crate::redis) fn mark(broker: &Arc<Broker>, database: (Tenant<'_>, usize), key: &[u8]) -> Option<StreamMark> {
    stream(broker, database, key).map(|stream| StreamMark::of(&stream))
}

/// Keys of a command that are such topics. While the command runs, each is an entry of the cache, so that the command
/// finds a stream.
pub(in crate::redis) struct Guests(Vec<(Box<[u8]>, engine::TopicId)>);

impl Guests {
    /// Adds the topics that the command names as entries. Fails if the command would change such a topic.
    pub(in crate::redis) fn let_in(
        broker: &Arc<Broker>,
        database: (Tenant<'_>, usize),
        locked: &mut LockedCache<'_>,
        command: &Command,
        args: &[&[u8]],
    ) -> Done<Self> {
        let mut guests = Self(Vec::new());
        if database.1 != 0 || !broker.streams.has_others() {
            return Ok(guests);
        }
        let keys = match command.keys(args) {
            Named::These(keys) => keys,
            Named::All if is_sort(command) => sort::keys(args),
            Named::All => return Ok(guests),
        };
        for key in keys {
            if locked.stream_id(key).is_some() || locked.kind(key).is_some() {
                continue;
            }
            let Some(stream) = stream(broker, database, key) else {
                continue;
            };
            if is_refused(command, args, key) {
                guests.leave(locked);
                return Err(if command.group == "generic" || is_set(command) { refusal(key) } else { WRONG_TYPE });
            }
            if locked.let_in(key, stream.id()) {
                guests.0.push((key.into(), stream.id()));
            }
        }
        Ok(guests)
    }

    pub(in crate::redis) fn leave(self, locked: &mut LockedCache<'_>) {
        for (key, id) in self.0 {
            locked.let_out(&key, id);
        }
    }
}

/// Returns `true` if the command would change this key, and so is refused.
fn is_refused(command: &Command, args: &[&[u8]], key: &[u8]) -> bool {
    let only_reads = match command.name {
        "COPY" => !is_same(args.get(2), key) && is_same(args.get(1), key),
        _ if is_sort(command) => !is_same(sort::keys(args).get(1), key),
        _ => false,
    };
    command.is_write && !only_reads
}

/// Returns `true` if the command may read any key, and names the keys that it sorts and stores.
fn is_sort(command: &Command) -> bool {
    matches!(command.name, "SORT" | "SORT_RO")
}

fn is_same(arg: Option<&&[u8]>, key: &[u8]) -> bool {
    arg.is_some_and(|arg| *arg == key)
}

/// Returns `true` if the command sets a string and replaces any value.
fn is_set(command: &Command) -> bool {
    matches!(command.name, "SET" | "SETNX" | "SETEX" | "PSETEX" | "MSET" | "MSETNX")
}

/// Returns the error for a command that would change such a topic.
pub(super) fn refusal(key: &[u8]) -> Fail {
    let text = format!(
        "ERR '{}' is a topic that was created at another door: only the commands of streams read it and add to it. \
         Use another key, or delete the topic with thalweg topic delete",
        key.escape_ascii()
    );
    Fail::new(text)
}
