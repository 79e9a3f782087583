//! Names of keyspace events: which events Redis publishes for an operation and its effect on a key. Its source has a
//! call of `notifyKeyspaceEvent` for each of them. Here an effect is noted where a cache makes it, with the operation
//! that caused it, and this table names it.

use broker::{Note, What};

use super::flags::Class;
use crate::redis::command::Command;
use crate::redis::commands;
use crate::redis::commands::args::is;

/// Operations that are not named as a command: parts of commands that name their events by what they do.
pub(in crate::redis) mod operations {
    /// Adding a score, by `ZINCRBY` or by `ZADD` with `INCR`.
    pub(in crate::redis) const ZINCRBY: &str = "ZINCRBY";
    /// Moving an item from one end of a list to the other, or to the same.
    pub(in crate::redis) const MOVES: [[&str; 2]; 2] = [["LPOP LPUSH", "LPOP RPUSH"], ["RPOP LPUSH", "RPOP RPUSH"]];
    /// Setting a value whose expiry time is in the past.
    pub(in crate::redis) const SET_PAST: &str = "SET PAST";
    pub(in crate::redis) const SET_NEW_PAST: &str = "SET NEW PAST";
}

/// Returns the operation by which the effects of a command are named.
pub(in crate::redis) fn operation(command: &Command, args: &[&[u8]]) -> &'static str {
    let is_option = |word: &&&[u8]| ["NX", "XX", "GT", "LT", "CH", "INCR"].iter().any(|option| is(word, option));
    let is_increment = || args.iter().skip(2).take_while(is_option).any(|word| is(word, "INCR"));
    match command.name {
        "ZADD" if is_increment() => operations::ZINCRBY,
        "BITFIELD" if !args.iter().skip(2).any(|word| is(word, "SET") || is(word, "INCRBY")) => "BITFIELD_RO",
        name => name,
    }
}

/// Calls `each` with the class and the name of each event of a note, in their order.
pub(super) fn each_event(note: &Note, mut each: impl FnMut(Class, &'static str)) {
    let operation = note.cause.operation;
    match note.what {
        What::Put { is_new, expires } => {
            // A key that these commands replace is deleted first.
            let is_created = matches!(operation, "RENAME" | "RENAMENX" | "MOVE" | "COPY" | "RESTORE");
            if is_new || is_created {
                each(Class::New, "new");
            }
            changed(operation, &mut each);
            if expires && matches!(operation, "SET" | "SETEX" | "PSETEX" | "") {
                each(Class::Generic, "expire");
            }
        }
        What::Changed { is_new } => {
            if is_new {
                each(Class::New, "new");
            }
            changed(operation, &mut each);
        }
        What::Kept if operation == "LTRIM" => each(Class::List, "ltrim"),
        What::Kept | What::Flushed => {}
        What::Deleted => each(
            Class::Generic,
            match operation {
                "RENAME" | "RENAMENX" => "rename_from",
                "MOVE" => "move_from",
                _ => "del",
            },
        ),
        What::Expires if matches!(operation, "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" | "GETEX" | "") => {
            each(Class::Generic, "expire");
        }
        What::Persists if matches!(operation, "PERSIST" | "GETEX" | "") => each(Class::Generic, "persist"),
        What::Expires | What::Persists => {}
        What::Expired => each(Class::Expired, "expired"),
        What::Evicted => each(Class::Evicted, "evicted"),
        What::Missed if notes_misses(operation) => each(Class::Missed, "keymiss"),
        What::Missed => {}
        What::Reported => reported(operation, &mut each),
    }
}

/// Names the event of a changed value.
fn changed(operation: &'static str, each: &mut impl FnMut(Class, &'static str)) {
    let (class, event) = match operation {
        // Other doors put values of bytes only.
        "" | "SET" | "SETNX" | "SETEX" | "PSETEX" | "GETSET" | "MSET" | "MSETNX" | "BITOP" => (Class::String, "set"),
        "APPEND" => (Class::String, "append"),
        "INCR" | "INCRBY" | "DECR" | "DECRBY" => (Class::String, "incrby"),
        "INCRBYFLOAT" => (Class::String, "incrbyfloat"),
        "SETRANGE" => (Class::String, "setrange"),
        "SETBIT" | "BITFIELD" => (Class::String, "setbit"),
        "PFADD" | "PFMERGE" => (Class::String, "pfadd"),
        "LPUSH" | "LPUSHX" => (Class::List, "lpush"),
        "RPUSH" | "RPUSHX" => (Class::List, "rpush"),
        "LPOP" => (Class::List, "lpop"),
        "RPOP" => (Class::List, "rpop"),
        "LINSERT" => (Class::List, "linsert"),
        "LSET" => (Class::List, "lset"),
        "LREM" => (Class::List, "lrem"),
        "LTRIM" => (Class::List, "ltrim"),
        "SORT" => (Class::List, "sortstore"),
        "LPOP LPUSH" | "LPOP RPUSH" | "RPOP LPUSH" | "RPOP RPUSH" => {
            each(Class::List, if operation.ends_with("LPUSH") { "lpush" } else { "rpush" });
            (Class::List, if operation.starts_with("LPOP") { "lpop" } else { "rpop" })
        }
        "SADD" => (Class::Set, "sadd"),
        "SREM" => (Class::Set, "srem"),
        "SPOP" => (Class::Set, "spop"),
        "SINTERSTORE" => (Class::Set, "sinterstore"),
        "SUNIONSTORE" => (Class::Set, "sunionstore"),
        "SDIFFSTORE" => (Class::Set, "sdiffstore"),
        "HSET" | "HMSET" | "HSETNX" => (Class::Hash, "hset"),
        "HDEL" => (Class::Hash, "hdel"),
        "HINCRBY" => (Class::Hash, "hincrby"),
        "HINCRBYFLOAT" => (Class::Hash, "hincrbyfloat"),
        "ZADD" | "GEOADD" => (Class::Sorted, "zadd"),
        "ZINCRBY" => (Class::Sorted, "zincr"),
        "ZREM" => (Class::Sorted, "zrem"),
        "ZPOPMIN" => (Class::Sorted, "zpopmin"),
        "ZPOPMAX" => (Class::Sorted, "zpopmax"),
        "ZREMRANGEBYRANK" => (Class::Sorted, "zremrangebyrank"),
        "ZREMRANGEBYSCORE" => (Class::Sorted, "zremrangebyscore"),
        "ZREMRANGEBYLEX" => (Class::Sorted, "zremrangebylex"),
        "ZRANGESTORE" => (Class::Sorted, "zrangestore"),
        "ZUNIONSTORE" => (Class::Sorted, "zunionstore"),
        "ZINTERSTORE" => (Class::Sorted, "zinterstore"),
        "ZDIFFSTORE" => (Class::Sorted, "zdiffstore"),
        "GEOSEARCHSTORE" => (Class::Sorted, "geosearchstore"),
        "GEORADIUS" | "GEORADIUSBYMEMBER" => (Class::Sorted, "georadiusstore"),
        "RENAME" | "RENAMENX" => (Class::Generic, "rename_to"),
        "MOVE" => (Class::Generic, "move_to"),
        "COPY" => (Class::Generic, "copy_to"),
        "RESTORE" => (Class::Generic, "restore"),
        // Creating the key of a stream has no other event than that it is new.
        _ => return,
    };
    each(class, event);
}

/// Names the events of changes that no cache makes.
fn reported(operation: &'static str, each: &mut impl FnMut(Class, &'static str)) {
    match operation {
        operations::SET_PAST | operations::SET_NEW_PAST => {
            if operation == operations::SET_NEW_PAST {
                each(Class::New, "new");
            }
            each(Class::String, "set");
            each(Class::Generic, "expire");
            each(Class::Expired, "expired");
        }
        event => each(Class::Stream, event),
    }
}

/// Returns `true` if a lookup of this operation is one for reading, whose failure Redis publishes.
fn notes_misses(operation: &str) -> bool {
    match operation {
        // Redis looks their keys up without an event.
        "OBJECT" | "WATCH" | "" => false,
        // They change data and look some keys up for reading.
        "SET" | "GETEX" | "GETDEL" | "GETSET" | "PFMERGE" | "SORT" | "BITOP" | "COPY" | "GEOSEARCHSTORE"
        | "GEORADIUS" | "GEORADIUSBYMEMBER" | "ZRANGESTORE" | "ZUNIONSTORE" | "ZINTERSTORE" | "ZDIFFSTORE"
        | "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" | "XACK" | "XCLAIM" | "XAUTOCLAIM" | "XREADGROUP" => true,
        name => commands::find(name.as_bytes()).is_some_and(|command| !command.is_write),
    }
}
