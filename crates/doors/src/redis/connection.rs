//! State of a connection, and the execution of its requests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use broker::{
    Answers, Awaited, Cache, Caches, Cause, Commit, Finished, Identity, LockedCache, Unwelcome, Waiting, Wakes,
};
use engine::security::TenantName;
use futures_util::FutureExt;
use net::Outbox;
use net::service::{Handler, Held, Peer, Reply, Spent, Standing, once};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::access::{Reach, Recheck};
use super::channels::Subscribed;
use super::clients::{About, Asking, Client, Clients, HeldArgs, NO_COMMAND};
use super::codec::{Answer, Paused, RedisProtocol, Request};
use super::commands;
use super::commands::session::source_of;
use super::commands::streams::others::Guests;
use super::commands::transactions::{Transaction, Watched};
use super::commands::work::Sliced;
use super::databases::lock_if_free;
use super::door::Door;
use super::errors::{Done, Fail, LOGGED_OUT};
use super::events;
use super::held::held_keys;
use super::later::{Later, after, silent};
use super::monitors::Monitoring;
use super::names::cache_name;
use super::notices::Notices;
use super::room::answer_blocked;
use super::scripts::BUSY;
use super::scripts::batch::Batch;
use super::shard_channels::ShardSubscription;
use super::stats::{Stats, Tally};
use super::tracking::Tracked;
use super::wait::begin_to_wait;
use super::writer::{ANSWER_BYTES_MAX, NO_ROOM, Writer};
use crate::redis::command::{Block, Command, Data, Does, Named, Step, bytes_in, wrong_arity};
use crate::redis::commands::keys;
use crate::throttle;

/// Number of databases of every connection.
pub(super) const DATABASES: usize = 16;
/// Commands that are answered before the login, if one is required.
pub(super) const BEFORE_LOGIN: [&str; 4] = ["AUTH", "HELLO", "QUIT", "RESET"];
/// Maximum number of keys on which one command blocks.
const WAITED_KEYS_MAX: usize = 1024;
/// Address shown for a peer without an address, which is on this machine.
const LOCALHOST: &str = "127.0.0.1:0";
/// Bytes that are evicted for a command that found no memory, in addition to the size of its arguments.
pub(super) const SPARE_BYTES: usize = 4096;

/// State of one connection.
pub(super) struct Session {
    pub(super) client: Arc<Client>,
    pub(super) peer: Rc<Peer>,
    /// Login state and user of the client.
    pub(super) login: Rc<RefCell<Login>>,
    /// On whose behalf the client acts; anonymous before it has logged in.
    pub(super) identity: Rc<RefCell<Arc<Identity>>>,
    /// Decisions about all keys of the database.
    pub(super) reach: Reach,
    /// Identity that the client has proved by its certificate.
    pub(super) certified: Option<Arc<Identity>>,
    pub(super) is_resp3: bool,
    pub(super) database: usize,
    pub(super) is_durable: bool,
    /// Caches of the databases that the connection has used.
    pub(super) databases: [Option<Arc<Cache>>; DATABASES],
    /// Tenant to which the databases, the watched keys and the channels belong: that of the identity.
    pub(super) tenant: Option<TenantName>,
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) watched: Watched,
    pub(super) replies: Replies,
    pub(super) clients: Arc<Clients>,
    /// Subscriptions, shared with a command that waits for topics to be joined. No other command begins before that
    /// ends.
    pub(super) subscribed: Rc<RefCell<Subscribed>>,
    pub(super) shard_subscriptions: BTreeMap<Vec<u8>, ShardSubscription>,
    pub(super) wakes: Wakes,
    pub(super) tally: Arc<Tally>,
    /// Time at which the last command of this turn ended, which is when the next one begins.
    last: Option<Instant>,
    /// Size of the current request in bytes.
    request_bytes: usize,
    /// Ends a command that runs in slices.
    pub(super) ending: Option<Rc<Notify>>,
    /// `true` after the client has killed its own connection: pending replies are sent, and nothing more is read.
    pub(super) is_over: bool,
    /// Refusal of the connection, because too many began at its address or are open.
    refused: Option<Unwelcome>,
    /// Count of the connection for the quotas of its client, once it may send commands.
    pub(super) hold: commands::session::Count,
    pub(super) answers: Answers,
    pub(super) caches: Arc<Caches>,
    pub(super) notices: Arc<Notices>,
    /// Tracking of the keys that the client reads.
    pub(super) tracked: Option<Arc<Tracked>>,
    /// `true` if `CLIENT CACHING` was the last command: it decides whether the next one is tracked.
    pub(super) has_caching: bool,
    pub(super) monitoring: Option<Monitoring>,
    /// `true` if the current command runs in slices.
    pub(super) is_sliced: bool,
    /// Time at which the current command began to wait for scripts that hold its keys, if it waits, and the wait.
    pub(super) waits: Option<(Instant, Awaited)>,
    /// Scripts of this read, which run on a thread for scripts.
    pub(super) batch: Batch,
    /// Duration of the current script once it has ended, if it runs there.
    pub(super) took: Option<Rc<Cell<Option<Duration>>>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// No login is required.
    NotNeeded,
    Needed,
    Done,
}

/// Reply mode of `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replies {
    All,
    None,
    /// Skips the reply to the next request.
    SkipNext,
    Skip,
}

/// Outcome of a command on data.
pub(super) enum Ran {
    /// The reply, and the commit after which it is durable.
    Answer(Writer, Commit),
    /// The command blocks; other clients can end its wait.
    Waits(Arc<Waiting>, Arc<Recheck>, Block),
    /// The command runs in slices. The commit is that of the data it has read.
    Sliced(Box<Sliced>, Commit),
    /// The command has not begun, as a script holds keys of this cache that it needs.
    Held(Arc<Cache>),
}

impl Handler<RedisProtocol> for Door {
    type Connection = Rc<Peer>;
    type Session = Session;
    type Later = Later;

    fn connect(&self, peer: &Rc<Peer>) -> Rc<Peer> {
        peer.is_known.set(!self.is_login_required);
        peer.clone()
    }

    fn open(&self, peer: &Rc<Rc<Peer>>, outbox: &Arc<Outbox>) -> Session {
        let text = |address: Option<std::net::SocketAddr>| address.map_or(LOCALHOST.into(), |at| at.to_string());
        let client = Arc::new(Client {
            id: peer.id,
            address: text(peer.address),
            ip: peer.address.map(|address| address.ip()),
            local: text(peer.local),
            about: Mutex::new(About::default()),
            database: AtomicUsize::new(0),
            waiting: Mutex::default(),
            outbox: outbox.clone(),
            since_ms: self.broker.now_ms(),
            active_s: AtomicU64::new(self.began.elapsed().as_secs()),
            command: AtomicU32::new(NO_COMMAND),
            unread: self.clients.unread(peer.id),
            messages: AtomicUsize::new(0),
            args_bytes: AtomicUsize::new(0),
        });
        self.clients.add(client.clone());
        let certified = commands::session::certified(self, peer, &client);
        let (login, identity) = commands::session::begin(self, certified.as_ref(), &client);
        let (hold, refused) = commands::session::welcome(self, &client, &peer.entry, &login, &identity);
        Session {
            client,
            peer: Rc::clone(peer),
            login: Rc::new(RefCell::new(login)),
            reach: Reach::outdated(identity.clone()),
            certified,
            identity: Rc::new(RefCell::new(identity)),
            is_resp3: false,
            database: 0,
            is_durable: self.is_durable,
            databases: [const { None }; DATABASES],
            tenant: None,
            transaction: None,
            watched: Watched::default(),
            replies: Replies::All,
            clients: self.clients.clone(),
            subscribed: Rc::default(),
            shard_subscriptions: BTreeMap::new(),
            wakes: Wakes::default(),
            tally: self.stats.tally(peer.worker),
            last: None,
            request_bytes: 0,
            ending: None,
            is_over: false,
            refused,
            hold,
            answers: self.broker.answers().clone(),
            caches: self.broker.caches.clone(),
            notices: self.notices.clone(),
            tracked: None,
            has_caching: false,
            monitoring: None,
            is_sliced: false,
            waits: None,
            batch: Batch::default(),
            took: None,
        }
    }

    /// Attributes the work of this turn to the client.
    fn turn(&self, session: &Session, begins: bool) {
        broker::act_for(begins.then(|| session.acting()));
    }

    fn call(&self, session: &mut Session, request: Request<'_>) -> Reply<Answer, Later> {
        let args = request.args();
        let began = session.begin(request.len());
        let up_s = began.duration_since(self.began).as_secs();
        let admitted = match self.admit(session, &args) {
            Ok(command) if self.is_held(session, command, &args) => {
                let waits = session.database(&self.broker).cloned();
                match waits.and_then(|cache| self.again(session, &cache, &held_keys(command, &args))) {
                    Ok(ended) => return Reply::Again(ended),
                    Err(fail) => Err(fail),
                }
            }
            admitted => admitted,
        };
        let is_begun = admitted.is_ok();
        // Messages about channels are not replies: clients that want no replies receive them, too.
        let is_pushed = session.transaction.is_none() && admitted.as_ref().is_ok_and(|it| it.is_about_channels());
        let mut followed_by = None;
        session.is_sliced = false;
        let reply = match admitted {
            Ok(command) if session.transaction.is_some() && !command.is_of_transactions() => {
                let number = command.number_of(&args);
                session.client.note(number, up_s);
                let reply = session.queue(command, &args);
                session.rejected(Some(number), &reply);
                reply
            }
            Ok(command) => {
                let number = command.number_of(&args);
                session.client.note(number, up_s);
                let replying = session.track(command, &args);
                // A script is shown before its commands, as in Redis.
                let is_script = matches!(command.does, Does::Script(_));
                if is_script {
                    self.show(session, command, &args);
                }
                let reply = match session.find_room(command, &args) {
                    Ok(()) => self.serve(session, command, &args),
                    Err(fail) => session.fail(&fail),
                };
                if let Reply::Again(_) = reply {
                    return reply;
                }
                let reply = if is_script { reply } else { self.shown(session, command, &args, reply) };
                // A transaction or a script that has run can no longer be refused.
                let reply = session.charged(reply, command.is_write || command.may_write());
                followed_by = replying;
                self.count(session, number, &args, began, reply)
            }
            Err(fail) if commands::find(args[0]).is_some_and(|command| command.name == "EXEC") => {
                session.forget_transaction();
                let why = fail.text.strip_prefix(b"ERR ").unwrap_or(&fail.text);
                session.fail(&Fail::of_bytes([b"EXECABORT Transaction discarded because of: ", why].concat()))
            }
            Err(fail) => {
                if let Some(transaction) = &mut session.transaction {
                    transaction.is_refused = true;
                }
                session.fail(&fail)
            }
        };
        session.waits = None;
        if !is_begun {
            let known = commands::find(args[0]).filter(|command| command.has_part(&args));
            session.rejected(known.map(|command| command.number_of(&args)), &reply);
        }
        // As in Redis, a refused command ends it, too.
        if session.has_caching
            && session.transaction.is_none()
            && commands::find(args[0]).is_none_or(|command| command.name != "CLIENT")
        {
            session.has_caching = false;
        }
        let reply = if is_pushed { session.answered(reply) } else { session.muted(reply) };
        match followed_by {
            Some(replying) => commands::tracking::followed(replying, reply, session.is_sliced),
            None => reply,
        }
    }

    /// Waits for the end of a pause, and of the scripts that run, before the next request.
    fn accept_one_way(&self, session: &mut Session, _paused: Paused) -> Option<Held> {
        Some(Box::pin(self.scripts.clone().over(self.pause.clone(), session.tenant.clone())))
    }

    fn is_joinable(&self, session: &Session) -> bool {
        session.batch.takes(0)
    }

    /// Returns `true` for a script that may go to a thread for scripts together with the last one. A monitoring client
    /// receives the lines of one script after those of the other.
    fn may_join(&self, session: &Session, request: &Request<'_>) -> bool {
        session.batch.takes(request.len())
            && session.transaction.is_none()
            && session.tracked.is_none()
            && !self.monitors.are_any()
            && commands::find(request.name()).is_some_and(|command| matches!(command.does, Does::Script(_)))
    }

    /// Wakes the subscribers of the messages that were published in this turn, and begins its scripts.
    fn settle(&self, session: &mut Session) {
        session.wakes.flush();
        session.batch.begin(&self.scripts.lanes);
        session.last = None;
    }

    fn wants_pause(&self, session: &Session) -> bool {
        self.broker.security.has_quotas()
            && *session.login.borrow() != Login::Needed
            && throttle::is_wanted(&self.broker, &session.identity.borrow())
    }

    /// Stops reading a connection that exceeds a quota.
    fn pause(&self, session: &mut Session, spent: Spent) -> Option<Held> {
        if let Some(Unwelcome { closes_after, .. }) = session.refused {
            return Some(Box::pin(tokio::time::sleep(closes_after)));
        }
        if !self.broker.security.has_quotas() || *session.login.borrow() == Login::Needed {
            return None;
        }
        throttle::pause(&self.broker, broker::Door::Redis, &session.identity.borrow(), throttle::usage(spent))
    }

    fn standing(&self, session: &Session) -> Standing {
        match *session.login.borrow() {
            _ if session.is_over || session.refused.is_some() => Standing::Over,
            Login::Needed => Standing::Opening,
            Login::NotNeeded | Login::Done => Standing::Open,
        }
    }

    /// Shuts the session down: answers a client that blocks on a key, and ends a long command.
    fn drain(&self, session: &mut Session) -> Option<Held> {
        if let Some(ending) = session.ending.take() {
            ending.notify_one();
        }
        if let Some(waiting) = session.client.waiting() {
            waiting.answer(b"-UNBLOCKED the server is shutting down: connect again\r\n".to_vec());
        }
        None
    }
}

impl Door {
    /// Returns the requested command if the client may run it.
    fn admit(&self, session: &mut Session, args: &[&[u8]]) -> Done<&'static Command> {
        let command = commands::find(args[0]).ok_or_else(|| commands::unknown(args))?;
        if !command.takes(args.len()) {
            return Err(wrong_arity(command.name));
        }
        command.check_part(args)?;
        let is_logged_in = *session.login.borrow() != Login::Needed;
        let is_let_in = is_logged_in && self.reach(session).is_valid;
        if !is_let_in && !BEFORE_LOGIN.contains(&command.name) {
            if !is_logged_in {
                self.broker.security.missing_login(source_of(&session.client));
            }
            return Err(LOGGED_OUT);
        }
        if session.is_subscribed() && !session.is_resp3 && !may_run_while_subscribed(command.name) {
            let name = commands::name_of(command.number_of(args));
            return Err(Fail::new(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context"
            )));
        }
        self.authorize(session, command, args)?;
        if self.scripts.refuses(command, args, |cache| session.is_in(cache)) {
            return Err(BUSY);
        }
        Ok(command)
    }

    /// Counts a command that has begun.
    fn count(
        &self,
        session: &mut Session,
        number: usize,
        args: &[&[u8]],
        began: Instant,
        reply: Reply<Answer, Later>,
    ) -> Reply<Answer, Later> {
        let error = match &reply {
            Reply::Now(answer) | Reply::Last(answer) => answer.error(),
            Reply::Later(_) | Reply::Blocked(_) | Reply::Alone(_) | Reply::Again(_) => None,
        };
        if let Some(error) = error {
            session.tally.fail(number, error);
        }
        match reply {
            // A command that runs elsewhere has ended when its reply exists.
            Reply::Alone(later) => {
                session.last = None;
                let held = HeldArgs::new(&session.client, bytes_in(args));
                let owned: Vec<Box<[u8]>> = args.iter().take(SLOW_ARGS).map(|arg| (*arg).into()).collect();
                let stats = self.stats.clone();
                let tally = session.tally.clone();
                let client = session.client.clone();
                let took = session.took.take();
                Reply::Alone(after(later, move |answer| {
                    let took = took.and_then(|took| took.get()).unwrap_or_else(|| began.elapsed());
                    let args = owned.iter().map(|arg| &**arg).collect::<Vec<_>>();
                    drop(held);
                    finish(&stats, &tally, &client, number, &args, took);
                    answer.error().into_iter().for_each(|error| tally.fail(number, error));
                }))
            }
            Reply::Blocked(later) => {
                self.count_now(session, number, args, began);
                let held = HeldArgs::new(&session.client, bytes_in(args));
                let tally = session.tally.clone();
                Reply::Blocked(after(later, move |answer| {
                    drop(held);
                    answer.error().into_iter().for_each(|error| tally.fail(number, error));
                }))
            }
            reply => {
                self.count_now(session, number, args, began);
                reply
            }
        }
    }

    #[inline]
    pub(super) fn count_now(&self, session: &mut Session, number: usize, args: &[&[u8]], began: Instant) {
        let end = Instant::now();
        session.last = Some(end);
        finish(&self.stats, &session.tally, &session.client, number, args, end.duration_since(began));
    }

    pub(super) fn serve(
        &self,
        session: &mut Session,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Reply<Answer, Later> {
        if let Some(lines) = commands::help::of(command, args) {
            let mut writer = session.writer();
            commands::help::write(&mut writer, &lines);
            return Reply::Now(Answer::Written(writer.bytes));
        }
        let run = match command.does {
            Does::Data(run) => run,
            Does::Stream(run) => return commands::streams::serve(self, session, command, run, args),
            Does::Script(kind) => return commands::scripting::serve(self, session, command, kind, args),
            Does::Own(run) => {
                let reply = run(self, session, args);
                return match reply {
                    Reply::Now(answer) if command.name == "FLUSHALL" => {
                        session.settled(answer, self.broker.caches.settled())
                    }
                    reply => reply,
                };
            }
        };
        match commands::streams::step::moves_stream(self, session, command, args) {
            Ok(Some(true)) => return commands::streams::step::serve(self, session, command, args),
            Ok(Some(false)) => {}
            Ok(None) => {
                let cache = session.database(&self.broker).cloned();
                return self.held(session, cache, command, args);
            }
            Err(fail) => return session.fail(&fail),
        }
        match self.run(session, command, run, args) {
            Ok(Ran::Answer(writer, commit)) => session.settled(Answer::Written(writer.bytes), commit),
            Ok(Ran::Waits(waiting, recheck, block)) => session.wait(waiting, recheck, block),
            Ok(Ran::Sliced(sliced, commit)) => self.slice(session, (command, args), *sliced, commit),
            Ok(Ran::Held(cache)) => self.held(session, Ok(cache), command, args),
            Err(fail) => session.fail(&fail),
        }
    }

    /// Runs one command outside of a transaction.
    fn run(&self, session: &mut Session, command: &'static Command, run: Data, args: &[&[u8]]) -> Done<Ran> {
        let number = session.database;
        let is_resp3 = session.is_resp3;
        let other_number = keys::other_database(args).filter(|other| *other != number);
        let other_cache = other_number.map(|other| session.database_of(&self.broker, other)).transpose()?;
        let room = if command.is_write { ANSWER_BYTES_MAX } else { session.room() };
        session.database(&self.broker)?;
        let session = &*session;
        let cache = session.databases[number].as_ref().expect("invariant: it was just opened");
        if command.is_write {
            cache.admit()?;
        }
        let named = command.keys(args);
        let mut is_tried = false;
        loop {
            // Two databases are always locked in the order of their numbers, which prevents deadlocks.
            let (before, after) = other_cache.as_ref().map_or((None, None), |other| {
                if other_number < Some(number) { (Some(other), None) } else { (None, Some(other)) }
            });
            // Locked keys are large: they are not moved from here on.
            let mut other = None;
            if !lock_other(before, &named, &mut other) {
                return Ok(Ran::Held(before.unwrap_or(cache).clone()));
            }
            let Some(mut locked) = lock_if_free(cache, &named) else {
                return Ok(Ran::Held(cache.clone()));
            };
            if !lock_other(after, &named, &mut other) {
                return Ok(Ran::Held(after.unwrap_or(cache).clone()));
            }
            if locked.is_noted() {
                let cause = Cause { operation: events::operation(command, args), client: session.client.id };
                locked.set_cause(cause);
                other.iter_mut().for_each(|other| other.set_cause(cause));
            }
            let guests = Guests::let_in(&self.broker, (session.tenant(), number), &mut locked, command, args)?;
            let mut writer = Writer::new(is_resp3);
            writer.bytes_max = room;
            let mut step = Step { other: other.as_mut(), may_slice: true, ..Step::new(&mut locked, &mut writer) };
            let done = run(&mut step, args).and_then(|()| step.out.check());
            let block = step.block;
            let sliced = step.sliced;
            guests.leave(&mut locked);
            match done {
                // Evicts entries in all stripes to free memory, then tries again.
                Err(fail) if fail.is_full && !is_tried && !locked.is_changed() => {
                    drop((locked, other));
                    cache.shed((bytes_in(args) + SPARE_BYTES) as u64);
                    is_tried = true;
                    continue;
                }
                Err(fail) => {
                    if fail.text.starts_with(NO_ROOM.as_bytes()) {
                        drop(self.broker.answers().refuse());
                    }
                    writer.bytes.clear();
                    writer.error(&fail);
                }
                Ok(()) if command.flushes() => {
                    self.broker.record_act("flush cache", &cache_name(session.tenant(), number), None);
                }
                Ok(()) => {}
            }
            if let (Some(_), Named::These(keys)) = (block, &named)
                && keys.len() > WAITED_KEYS_MAX
            {
                return Err(Fail::new(format!("ERR a client can block on at most {WAITED_KEYS_MAX} keys")));
            }
            if let Some(block) = block {
                let recheck = Arc::new(self.recheck(session, command, args));
                let waiting = begin_to_wait(&locked, recheck.clone(), (run, block), args, is_resp3)?;
                return Ok(Ran::Waits(waiting, recheck, block));
            }
            if let Some(sliced) = sliced {
                return Ok(Ran::Sliced(sliced, locked.finish().commit));
            }
            let Finished { grown, commit } = match (other, &other_cache) {
                (Some(other), Some(other_cache)) => {
                    let mut finished = LockedCache::finish_all(vec![locked, other]);
                    let of_other = finished.pop().unwrap_or_default();
                    other_cache.serve(of_other.grown);
                    let Finished { grown, commit } = finished.pop().unwrap_or_default();
                    Finished { grown, commit: commit.and(of_other.commit) }
                }
                _ => locked.finish(),
            };
            if !grown.is_empty() {
                cache.serve(grown);
            }
            return Ok(Ran::Answer(writer, commit));
        }
    }
}

/// Locks the keys in the other database of a command, if it has one. Returns `false` if a script holds them.
fn lock_other<'c>(cache: Option<&'c Arc<Cache>>, named: &Named<'_>, other: &mut Option<LockedCache<'c>>) -> bool {
    let Some(cache) = cache else { return true };
    *other = lock_if_free(cache, named);
    other.is_some()
}

/// Returns `true` if a connection may run the command in RESP2 while it is subscribed. Other replies could not be told
/// from messages.
fn may_run_while_subscribed(name: &str) -> bool {
    matches!(
        name,
        "SUBSCRIBE"
            | "UNSUBSCRIBE"
            | "PSUBSCRIBE"
            | "PUNSUBSCRIBE"
            | "SSUBSCRIBE"
            | "SUNSUBSCRIBE"
            | "PING"
            | "QUIT"
            | "RESET"
    )
}

/// Maximum number of arguments that are kept for the slow log of a command that runs elsewhere. The log shows no more.
const SLOW_ARGS: usize = 64;

/// Records the duration of a command.
#[inline]
fn finish(stats: &Stats, tally: &Tally, client: &Client, number: usize, args: &[&[u8]], duration: Duration) {
    tally.record(number, duration);
    stats.note_latency(number, duration);
    // The commands of a transaction are logged, but not the EXEC itself.
    if stats.is_slow(duration) && !args[0].eq_ignore_ascii_case(b"EXEC") {
        stats.note_slow(client, args, duration);
    }
}

/// Locks the stripes that a command may touch.
pub(super) fn lock<'c>(cache: &'c Cache, named: &Named<'_>) -> LockedCache<'c> {
    match named {
        Named::These(keys) => match keys[..] {
            [key] => cache.lock_one(key),
            _ => cache.lock(keys.iter().copied()),
        },
        Named::All => cache.lock_all(),
    }
}

/// Returns the replies of commands on data that run in sequence, as one connection would get them. For fuzzing.
pub fn answers(cache: &Cache, requests: &[Vec<Vec<u8>>], is_resp3: bool) -> Vec<Vec<u8>> {
    let answer = |args: &Vec<Vec<u8>>| {
        let args: SmallVec<[&[u8]; 8]> = args.iter().map(Vec::as_slice).collect();
        let command = commands::find(args[0]).filter(|command| command.takes(args.len()))?;
        let Does::Data(run) = command.does else {
            return None;
        };
        command.check_part(&args).ok()?;
        let mut locked = lock(cache, &command.keys(&args));
        let mut writer = Writer::new(is_resp3);
        let mut step = Step::new(&mut locked, &mut writer);
        let done = run(&mut step, &args).and_then(|()| step.out.check());
        // A command that blocks has no reply yet.
        let is_answered = step.block.is_none();
        if let Err(fail) = done {
            writer.bytes.clear();
            writer.error(&fail);
        }
        is_answered.then_some(writer.bytes)
    };
    requests.iter().filter_map(answer).collect()
}

impl Session {
    /// Returns the start time of the current request: the end of the last one in this turn, or now.
    fn begin(&mut self, request_bytes: usize) -> Instant {
        self.request_bytes = request_bytes;
        self.last.take().unwrap_or_else(Instant::now)
    }

    /// Counts a command that is not begun, if its reply is an error.
    fn rejected(&self, number: Option<usize>, reply: &Reply<Answer, Later>) {
        if let Reply::Now(answer) = reply
            && let Some(error) = answer.error()
        {
            self.tally.reject(number, error);
        }
    }

    /// Returns the context for a command that shows connections.
    pub(super) fn asking(&self, door: &Door, args: &[&[u8]]) -> Asking {
        let request_bytes = self.request_bytes;
        let args_bytes = bytes_in(args);
        let up_s = door.began.elapsed().as_secs();
        Asking { id: self.client.id, now_ms: door.broker.now_ms(), up_s, request_bytes, args_bytes }
    }

    pub(super) fn writer(&self) -> Writer {
        Writer::new(self.is_resp3)
    }

    pub(super) fn fail(&self, fail: &Fail) -> Reply<Answer, Later> {
        let mut writer = self.writer();
        writer.error(fail);
        Reply::Now(Answer::Written(writer.bytes))
    }

    /// Changes the properties that other connections see.
    pub(super) fn update_info(&self, change: impl FnOnce(&mut About)) {
        change(&mut self.client.about.lock());
    }

    /// Returns a reply that is sent once its data is durable.
    pub(super) fn settled(&self, answer: Answer, commit: Commit) -> Reply<Answer, Later> {
        if commit.is_done() {
            return Reply::Now(answer);
        }
        let answer = self.charged_change(answer);
        let is_late = self.caches.are_late();
        let writer = self.writer();
        let durable = once(when_durable(answer, commit, writer).boxed_local());
        if is_late { Reply::Alone(durable) } else { Reply::Later(durable) }
    }

    /// Returns a reply that is sent once there is data or the timeout has elapsed.
    fn wait(&mut self, waiting: Arc<Waiting>, recheck: Arc<Recheck>, block: Block) -> Reply<Answer, Later> {
        let cache = self.databases[self.database].clone().expect("invariant: it waits for a key of it");
        let wait = self.begin_wait(cache, waiting, recheck);
        let mut writer = self.writer();
        writer.null_array();
        let failed = self.writer();
        Reply::Blocked(once(
            async move {
                match block.timeout_ms {
                    // The presence of a reply shows whether it was in time.
                    Some(ms) => drop(tokio::time::timeout(Duration::from_millis(ms), wait.over()).await),
                    None => wait.over().await,
                }
                match wait.cache.stop_waiting(&wait.waiting) {
                    Some((answer, commit)) => when_durable(answer_blocked(answer), commit, failed).await,
                    None => Answer::Written(writer.bytes),
                }
            }
            .boxed_local(),
        ))
    }

    /// Returns a reply that is sent even if the client wants none, and advances the reply mode as for any other
    /// request.
    fn answered(&mut self, reply: Reply<Answer, Later>) -> Reply<Answer, Later> {
        self.replies = match self.replies {
            Replies::SkipNext => Replies::Skip,
            Replies::Skip => Replies::All,
            replies => replies,
        };
        reply
    }

    /// Suppresses the reply if the client wants none.
    fn muted(&mut self, reply: Reply<Answer, Later>) -> Reply<Answer, Later> {
        match self.replies {
            Replies::All => return reply,
            Replies::None => {}
            Replies::SkipNext => {
                self.replies = Replies::Skip;
                return Reply::Now(Answer::Nothing);
            }
            Replies::Skip => self.replies = Replies::All,
        }
        match reply {
            Reply::Now(_) => Reply::Now(Answer::Nothing),
            Reply::Last(_) => Reply::Last(Answer::Nothing),
            Reply::Later(later) | Reply::Alone(later) => Reply::Alone(silent(later)),
            Reply::Blocked(later) => Reply::Blocked(silent(later)),
            Reply::Again(held) => Reply::Again(held),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_tracking();
        self.clients.remove(self.client.id);
    }
}

/// Returns the reply once its data is durable, or an error if the commit failed.
pub(super) async fn when_durable(answer: Answer, commit: Commit, mut failed: Writer) -> Answer {
    match commit.wait().await {
        Ok(()) => answer,
        Err(error) => {
            failed.error(&Fail::from(error));
            Answer::Written(failed.bytes)
        }
    }
}
