//! Commands of a script, which run one after the other under the locks of its step. A script may name keys that it was
//! not given: their stripes are locked when they are first used.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use broker::{Attempt, Broker, Cache, Cause, Identity, LockedCache, Wakes};
use engine::BatchBuilder;
use engine::Result;
use engine::security::TenantName;
use futures_util::future::LocalBoxFuture;

use super::running::{KILLED, Running};
use crate::redis::clients::Client;
use crate::redis::command::{Command, Does, Named, wrong_arity};
use crate::redis::commands::args::{is, parse_small};
use crate::redis::commands::streams::Shelf;
use crate::redis::commands::streams::step as streams;
use crate::redis::commands::transactions::{self, Held};
use crate::redis::commands::{self, help, keys, sort, swap, tools};
use crate::redis::connection::DATABASES;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::monitors::{Executor, Lines};
use crate::redis::names::{Tenant, channel_name, topic_of};
use crate::redis::stats::Tally;
use crate::redis::writer::Writer;

/// Commands that block while they find nothing, which Redis does not allow in scripts. It allows BLMPOP and BZMPOP,
/// which do not block there.
const BLOCKING: [&str; 6] = ["BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX"];
/// Maximum number of given keys with which the keys of commands are compared. With more, only their stripes are.
const COMPARED_MAX: usize = 64;
/// Maximum number of bytes of durable changes of one script, which are logged as one step.
const STEP_BYTES_MAX: usize = 64 << 20;
/// Commands about the connection or the server that scripts may use.
const OWN: [&str; 7] = ["PING", "ECHO", "TIME", "SELECT", "SWAPDB", "PUBLISH", "SPUBLISH"];

/// Client on whose behalf a script runs.
#[derive(Clone)]
pub(in crate::redis) struct Caller {
    pub(in crate::redis) door: Door,
    pub(in crate::redis) identity: Arc<Identity>,
    pub(in crate::redis) client: Arc<Client>,
    pub(in crate::redis) tenant: Option<TenantName>,
    /// `true` if no command needs a check.
    pub(in crate::redis) is_unlimited: bool,
}

/// Lock without which a script cannot run. It is begun again with that, as it has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Need {
    /// The locks of all stripes.
    AllKeys,
    /// This database.
    Database(usize),
    /// The lock of the stream of this key.
    Stream(usize, Box<[u8]>),
    /// A thread that may wait.
    Thread,
}

/// Outcome of a command of a script.
pub(super) enum Called {
    /// The reply is written, and may be an error.
    Answer,
    /// The command has not run.
    Fail(Fail),
}

/// Part of the connection that runs a script.
pub(in crate::redis) struct Host<'h, 'c> {
    pub(in crate::redis) caller: &'h Caller,
    pub(in crate::redis) caches: &'c BTreeMap<usize, Arc<Cache>>,
    pub(in crate::redis) held: &'h mut Held<'c>,
    pub(in crate::redis) shelf: &'h Shelf,
    pub(in crate::redis) later: &'h mut Vec<LocalBoxFuture<'static, Result<()>>>,
    pub(in crate::redis) tally: &'h Tally,
    pub(in crate::redis) database: usize,
    /// `true` after `redis.setresp(3)`.
    pub(in crate::redis) is_resp3: bool,
    pub(in crate::redis) only_reads: bool,
    /// `true` on a thread that may wait for a disk.
    pub(in crate::redis) may_wait: bool,
    /// `true` if the script can be begun again.
    pub(in crate::redis) may_repeat: bool,
    pub(in crate::redis) need: Option<Need>,
    pub(in crate::redis) has_written: bool,
    /// `true` if the script has used a key that is in no locked stripe.
    pub(in crate::redis) has_used_others: bool,
    /// Keys that the script was given, in its first database.
    pub(in crate::redis) declared: &'h [&'h [u8]],
    pub(in crate::redis) running: Option<Arc<Running>>,
    /// Lines about its commands for monitoring clients.
    pub(in crate::redis) lines: &'h mut Lines,
    pub(in crate::redis) wakes: Wakes,
    /// Number of members, keys and items that the commands have visited, if they are limited together.
    pub(in crate::redis) looked: u64,
}

impl<'c> Host<'_, 'c> {
    /// Returns a writer for the replies of commands.
    pub(super) fn writer(&self) -> Writer {
        Writer::new(false)
    }

    fn broker(&self) -> &Arc<Broker> {
        &self.caller.door.broker
    }

    fn tenant(&self) -> Tenant<'_> {
        self.caller.tenant.as_ref()
    }

    /// Runs a command of the script, and writes its reply.
    pub(super) fn call(&mut self, args: &[&[u8]], out: &mut Writer) -> Called {
        if self.need.is_some() {
            return Called::Fail(Fail::new("ERR the script is begun again"));
        }
        let command = match self.admit(args) {
            Ok(command) => command,
            Err(fail) => {
                let known = args.first().and_then(|name| commands::find(name));
                self.tally.reject(known.map(|command| command.number_of(args)), &fail.text);
                return Called::Fail(fail);
            }
        };
        out.is_resp3 = self.is_resp3;
        out.looked = if self.may_wait { 0 } else { self.looked };
        let began = Instant::now();
        let done = self.run(command, args, out);
        self.looked = out.looked;
        if self.need.is_none() {
            self.lines.add(Executor::Script, self.database, command, args);
        }
        let number = command.number_of(args);
        self.tally.record(number, began.elapsed());
        if let Err(fail) = done {
            out.bytes.clear();
            out.error(&fail);
        }
        if out.bytes.first() == Some(&b'-') {
            self.tally.fail(number, &out.bytes);
        }
        Called::Answer
    }

    /// Returns the command if the script may run it (`scriptCall` in `src/script.c` of Redis).
    fn admit(&mut self, args: &[&[u8]]) -> Done<&'static Command> {
        let unknown = || Fail::new("ERR Unknown Redis command called from script");
        let command = commands::find(args[0]).ok_or_else(unknown)?;
        if !command.takes(args.len()) {
            return Err(Fail::new("ERR Wrong number of args calling Redis command from script"));
        }
        if let Err(fail) = command.check_part(args) {
            let is_unknown = fail.text.starts_with(b"ERR unknown");
            let wrong = || Fail::new("ERR Wrong number of args calling Redis command from script");
            return Err(if is_unknown { unknown() } else { wrong() });
        }
        let is_own = matches!(command.does, Does::Own(_) | Does::Script(_));
        if is_own && !OWN.contains(&command.name) && !is_usage(command, args) || BLOCKING.contains(&command.name) {
            return Err(Fail::new("ERR This Redis command is not allowed from script"));
        }
        if !self.caller.is_unlimited {
            self.caller.door.authorize_in_script(self.caller, self.database, command, args)?;
        }
        let is_write = command.is_write || matches!(command.name, "PUBLISH" | "SPUBLISH");
        if is_write && self.only_reads {
            return Err(Fail::new("ERR Write commands are not allowed from read-only scripts."));
        }
        if matches!(command.name, "XREAD" | "XREADGROUP") && blocks(args) {
            let name = command.name.to_ascii_lowercase();
            return Err(Fail::new(format!("ERR {name} command is not allowed with BLOCK option from scripts")));
        }
        Ok(command)
    }

    fn run(&mut self, command: &'static Command, args: &[&[u8]], out: &mut Writer) -> Done {
        if let Some(lines) = help::of(command, args) {
            help::write(out, &lines);
            return Ok(());
        }
        if let Does::Own(_) = command.does {
            return self.run_own(command, args, out);
        }
        let other = keys::other_database(args).filter(|other| *other != self.database);
        for database in [Some(self.database), other].into_iter().flatten() {
            self.hold(database, command, args)?;
        }
        if command.is_write && self.held.values().map(LockedCache::unlogged_bytes).sum::<usize>() > STEP_BYTES_MAX {
            return Err(Fail::new(format!(
                "ERR the script has changed more than {STEP_BYTES_MAX} bytes of durable data, which one step may not: \
                 change less at a time"
            )));
        }
        if command.is_write && !self.has_written {
            self.caches[&self.database].admit()?;
            self.note_write()?;
        }
        let database = self.database;
        let caller = self.caller;
        let on = (caller.tenant.as_ref(), database);
        let broker = &caller.door.broker;
        match command.does {
            Does::Stream(_) => {
                streams::do_stream(broker, on, self.held, self.shelf, (command, args), out, self.later)?;
            }
            _ if streams::is_move(broker, on, self.held, command, args) => {
                streams::transfer_stream(broker, on, self.held, self.shelf, (command, args), out, self.later)?;
            }
            _ => transactions::step(broker, on, self.held, command, args, out)?,
        }
        transactions::record_flush(broker, on.0, (command, database));
        Ok(())
    }

    /// Notes that the script changes data now. Fails if it was killed.
    fn note_write(&mut self) -> Done {
        if self.running.as_ref().is_some_and(|running| !running.note_write()) {
            return Err(Fail::new(format!("ERR {KILLED}")));
        }
        self.has_written = true;
        Ok(())
    }

    /// Ends this run if the script can be begun again with what it needs.
    fn need(&mut self, need: Need, otherwise: impl FnOnce() -> Fail) -> Done {
        if self.has_written || !self.may_repeat {
            return Err(otherwise());
        }
        self.need = Some(need);
        Err(Fail::new("ERR the script is begun again"))
    }

    /// Begins the script again on a thread for scripts, if it has changed nothing.
    pub(super) fn need_thread(&mut self) {
        if !self.has_written && self.may_repeat {
            self.need = Some(Need::Thread);
        }
    }

    /// Locks what a command uses, if it is not locked yet.
    fn hold(&mut self, database: usize, command: &'static Command, args: &[&[u8]]) -> Done {
        if !self.held.contains_key(&database) {
            let cache = self.caches.get(&database);
            // An empty set of locked stripes is possible only for a database that is opened already.
            let Some(cache) = cache else {
                return self.need(Need::Database(database), || {
                    Fail::new(format!(
                        "ERR the script uses database {database} only after its first change: select it before that"
                    ))
                });
            };
            let mut locked = cache.lock(std::iter::empty());
            locked.set_cause(Cause { operation: "", client: self.caller.client.id });
            if self.running.is_some() {
                locked.announce();
            }
            self.held.insert(database, locked);
        }
        let locked = self.held.get_mut(&database).expect("invariant: it was just inserted");
        let named = match command.keys(args) {
            Named::All if matches!(command.name, "SORT" | "SORT_RO") && !sort::reads_others(args) => {
                Named::These(sort::keys(args))
            }
            named => named,
        };
        let missing = match &named {
            Named::All if locked.holds_all() => return Ok(()),
            Named::All => {
                self.has_used_others = true;
                if locked.join_all() {
                    return Ok(());
                }
                None
            }
            Named::These(keys) => {
                let mut missing = None;
                for key in keys {
                    self.has_used_others |= self.declared.len() <= COMPARED_MAX && !self.declared.contains(key);
                    if !locked.holds(key) {
                        self.has_used_others = true;
                        if !locked.join(key) {
                            missing = Some(*key);
                            break;
                        }
                    }
                }
                if missing.is_none() {
                    return self.hold_streams(database, command, keys);
                }
                missing
            }
        };
        self.need(Need::AllKeys, || {
            let key = missing.map_or_else(|| "*".to_owned(), |key| key.escape_ascii().to_string());
            Fail::new(format!(
                "ERR the script uses the key '{key}', which is not one of its KEYS, and other clients hold it for too \
                 long: pass it as one of KEYS, or use it before the first change"
            ))
        })
    }

    /// Checks that the streams of a command are locked.
    fn hold_streams(&mut self, database: usize, command: &'static Command, keys: &[&[u8]]) -> Done {
        let count = match command.does {
            Does::Stream(_) => keys.len(),
            _ if command.is_transfer() => 1,
            _ => return Ok(()),
        };
        if !self.may_wait {
            return self.need(Need::Thread, || Fail::new("ERR a stream cannot be used here"));
        }
        for key in keys.iter().take(count) {
            let locked = self.held.get_mut(&database).expect("invariant: the caller has locked it");
            let broker = &self.caller.door.broker;
            let id = streams::stream_of(broker, (self.caller.tenant.as_ref(), database), locked, key);
            let is_missing = |id| !self.shelf.borrow().contains_key(&id);
            let Some(id) = id.filter(|id| is_missing(*id)) else {
                continue;
            };
            if !streams::join_stream(broker, id, self.shelf) {
                return self.need(Need::Stream(database, (*key).into()), || {
                    Fail::new(format!(
                        "ERR the script uses the stream '{}', which is not one of its KEYS, and other clients hold it \
                         for too long: pass it as one of KEYS, or use it before the first change",
                        key.escape_ascii()
                    ))
                });
            }
        }
        Ok(())
    }

    /// Runs a command about the connection or the server.
    fn run_own(&mut self, command: &'static Command, args: &[&[u8]], out: &mut Writer) -> Done {
        match (command.name, args) {
            ("PING", [_]) => out.simple("PONG"),
            ("PING" | "ECHO", [_, text]) => out.bulk(text),
            ("TIME", _) => {
                let now_us = self.broker().settings().clock.now_us();
                out.array(2);
                out.bulk((now_us / 1_000_000).to_string().as_bytes());
                out.bulk((now_us % 1_000_000).to_string().as_bytes());
            }
            ("SELECT", [_, number]) => {
                let number = usize::try_from(parse_small(number)?).ok().filter(|number| *number < DATABASES);
                self.database = number.ok_or(Fail::new("ERR DB index is out of range"))?;
                out.ok();
            }
            ("SWAPDB", _) => self.swap(command, args, out)?,
            ("MEMORY", _) => {
                let database = self.database;
                self.hold(database, command, args)?;
                let locked = self.held.get_mut(&database).expect("invariant: it was just locked");
                match tools::usage_in(locked, args)? {
                    Some(bytes) => out.int(bytes as i64),
                    None => out.null(),
                }
            }
            ("SPUBLISH", [_, channel, message]) => {
                self.note_write()?;
                let name = channel_name(self.tenant(), channel);
                let door = &self.caller.door;
                out.len(door.shard_channels.publish(&door.broker, &name, message));
            }
            ("PUBLISH", [_, channel, message]) => {
                self.note_write()?;
                out.int(i64::from(self.publish(channel, message)?));
            }
            _ => return Err(wrong_arity(command.name)),
        }
        Ok(())
    }

    /// Exchanges the contents of two databases.
    fn swap(&mut self, command: &'static Command, args: &[&[u8]], out: &mut Writer) -> Done {
        let numbers = swap::databases(args)?;
        for number in numbers {
            self.hold(number, command, args)?;
            self.caches[&number].admit()?;
        }
        self.note_write()?;
        let caller = self.caller;
        swap::step(&caller.door.broker, caller.tenant.as_ref(), self.held, args)?;
        out.ok();
        Ok(())
    }

    /// Publishes a message, and returns the number of its receivers.
    fn publish(&mut self, channel: &[u8], message: &[u8]) -> Done<u32> {
        let topic = topic_of(self.tenant(), channel)?;
        let mut builder = BatchBuilder::new();
        builder.push(self.broker().now_ms() as i64, None, Some(message), &[])?;
        let batch = builder.finish().expect("invariant: it has a record");
        let broker = self.caller.door.broker.clone();
        match broker.publish_to_channel(&topic, batch, &mut self.wakes)? {
            None => Ok(0),
            Some(Attempt::Done(published)) => Ok(published.receivers),
            Some(Attempt::Commits(committing)) => Ok(committing.published().receivers),
            // A script holds locks, so that it must not wait for the readers of a topic.
            Some(Attempt::Waits(_)) => Err(Fail::new(format!(
                "TRYAGAIN the topic '{}' is full: publish outside of the script, or try again later",
                topic.as_str()
            ))),
        }
    }

    /// Selects the version of the protocol in which commands reply to the script (`luaSetResp` of Redis).
    pub(super) fn set_resp(&mut self, version: f64) -> Done {
        if version != 2.0 && version != 3.0 {
            return Err(Fail::new("ERR RESP version must be 2 or 3."));
        }
        self.is_resp3 = version == 3.0;
        Ok(())
    }

    /// Returns whether the client may run a command (`luaRedisAclCheckCmdPermissionsCommand` of Redis).
    pub(super) fn may_run(&self, args: &[&[u8]]) -> Done<bool> {
        let invalid = || Fail::new("ERR Invalid command passed to redis.acl_check_cmd()");
        let command = commands::find(args[0]).filter(|command| command.has_part(args)).ok_or_else(invalid)?;
        let Caller { door, identity, client, is_unlimited, .. } = self.caller;
        Ok(*is_unlimited
            || command.takes(args.len()) && door.would_refuse(identity, client, self.database, command, args).is_none())
    }
}

/// Returns `true` for `MEMORY USAGE`, which scripts may use as they use commands on data.
fn is_usage(command: &Command, args: &[&[u8]]) -> bool {
    command.name == "MEMORY" && args.get(1).is_some_and(|part| is(part, "USAGE"))
}

/// Returns `true` if a command on streams has the option BLOCK, before its streams.
fn blocks(args: &[&[u8]]) -> bool {
    let options = args.iter().skip(1).take_while(|arg| !is(arg, "STREAMS"));
    options.into_iter().any(|arg| is(arg, "BLOCK"))
}

/// Streams that no script has locked.
pub(in crate::redis) fn no_streams() -> Shelf {
    Rc::new(RefCell::new(BTreeMap::new()))
}

/// Releases the locks of a run that is begun again, and serves the clients that waited for its end.
pub(in crate::redis) fn release(held: Held<'_>) {
    for locked in held.into_values() {
        let cache = locked.cache();
        cache.serve(locked.finish().grown);
    }
}
