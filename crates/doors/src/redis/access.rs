//! Permissions that each command requires. Errors are those of Redis 7.0.
//!
//! A key is an entry of a cache, with the resource name `db0/KEY`. If a topic has the key's name, the key is, or may
//! become, its stream: then the command requires the permission for the topic as well. Commands on streams require that
//! permission alone.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;

use broker::{Acting, Broker, Cause, Identity, Permit};
use bytes::Bytes;
use engine::TopicName;
use engine::security::{Operation, Resource, ResourceKind};
use smallvec::SmallVec;

use super::clients::{Asking, Client};
use super::command::{Command, Keys, Named};
use super::commands::{self, keys, sort};
use super::connection::{DATABASES, Session};
use super::door::Door;
use super::errors::{Done, Fail, LOGGED_OUT};
use super::events;
use super::names::{self, Tenant, stream_topic, stream_topic_text, topic_of};
use super::permissions::Shows;
use super::refusals::{Context, Reason, Refusal};
use super::room;
use super::scripts::host::Caller;

const NO_KEY: &str = "NOPERM this user has no permissions to access one of the keys used as arguments";
const NO_CHANNEL: &str = "NOPERM this user has no permissions to access one of the channels used as arguments";
/// Requirement of a command.
#[derive(Clone, Copy)]
pub(super) enum Needs {
    /// Nothing: the command is about its own connection.
    Nothing,
    /// Reading or writing its keys, as its row says.
    Keys,
    /// These operations on all keys of all databases.
    AllDatabases(&'static [Operation]),
    /// This operation on its keys, which are streams.
    Streams(Operation),
    /// This operation on its channels.
    Channels(Operation),
    /// Describing the broker as a whole. A client of a tenant needs nothing, and is shown the tenant's part alone.
    View,
    /// This operation on the broker as a whole.
    Cluster(Operation),
    /// Altering the broker as a whole. A client of a tenant needs nothing, and ends scripts of the tenant alone.
    Kill,
    /// Altering the broker as a whole; for a client of a tenant, deleting all keys of its databases: what a
    /// function does for others that call it is up to the client that changes it.
    Functions,
    /// Requirement of its subcommand, which the function returns for the name in upper case.
    OfPart(fn(&[u8]) -> Needs),
}

pub(super) fn of_client(part: &[u8]) -> Needs {
    match part {
        b"LIST" => Needs::Cluster(Operation::Describe),
        b"KILL" | b"PAUSE" | b"UNPAUSE" | b"UNBLOCK" => Needs::Cluster(Operation::Alter),
        _ => Needs::Nothing,
    }
}

pub(super) fn of_acl(part: &[u8]) -> Needs {
    match part {
        b"WHOAMI" | b"CAT" | b"GENPASS" | b"HELP" => Needs::Nothing,
        b"DELUSER" | b"SETUSER" | b"LOAD" | b"SAVE" => Needs::Cluster(Operation::Alter),
        _ => Needs::Cluster(Operation::Describe),
    }
}

pub(super) fn of_config(part: &[u8]) -> Needs {
    match part {
        b"GET" => Needs::Cluster(Operation::DescribeConfigs),
        b"HELP" => Needs::Nothing,
        _ => Needs::Cluster(Operation::AlterConfigs),
    }
}

pub(super) fn of_memory(part: &[u8]) -> Needs {
    match part {
        b"USAGE" => Needs::Keys,
        b"HELP" => Needs::Nothing,
        _ => Needs::Cluster(Operation::Describe),
    }
}

/// Returns what the subcommands of LATENCY and SLOWLOG require.
pub(super) fn of_statistics(part: &[u8]) -> Needs {
    match part {
        b"RESET" => Needs::Cluster(Operation::Alter),
        b"HELP" => Needs::Nothing,
        _ => Needs::Cluster(Operation::Describe),
    }
}

impl Command {
    /// Returns what the command requires with these arguments.
    pub(super) fn needs(&self, args: &[&[u8]]) -> Needs {
        match self.needs {
            Needs::OfPart(of) => of(&args.get(1).map(|part| part.to_ascii_uppercase()).unwrap_or_default()),
            needs => needs,
        }
    }
}

/// Decisions that hold for every key of a database until permissions change or the client logs in again. Most commands
/// need no others.
pub(super) struct Reach {
    identity: Arc<Identity>,
    /// Generation of the permissions on which the decisions are based.
    generation: u64,
    database: usize,
    /// Name of the cache of the database.
    cache: SmallVec<[u8; 64]>,
    /// `false` if the credential with which the client logged in was deleted or has expired.
    pub(super) is_valid: bool,
    is_unlimited: bool,
    /// `true` if the client may read every key.
    reads: bool,
    /// `true` if the client may write every key.
    writes: bool,
    /// `true` if the client may do so with keys that are streams, too.
    has_streams: bool,
}

impl Reach {
    /// Returns decisions that are outdated, as no permissions have generation 0.
    pub(super) fn outdated(identity: Arc<Identity>) -> Self {
        Self {
            identity,
            generation: 0,
            database: 0,
            cache: SmallVec::new(),
            is_valid: false,
            is_unlimited: false,
            reads: false,
            writes: false,
            has_streams: false,
        }
    }

    fn of(broker: &Broker, identity: &Arc<Identity>, database: usize) -> Self {
        let security = &broker.security;
        // Read first, so that later changes make the decisions outdated.
        let generation = security.generation();
        let is_unlimited = security.is_unlimited(identity);
        let may = |operation, kind, prefix: &[u8]| {
            is_unlimited || security.allows(identity, operation, &Resource::all(kind, prefix))
        };
        let tenant = identity.tenant();
        let mut cache = name_of(tenant, database, b"");
        let reads = may(Operation::Read, ResourceKind::Cache, &cache);
        let writes = may(Operation::Write, ResourceKind::Cache, &cache);
        cache.pop();
        Self {
            identity: identity.clone(),
            generation,
            database,
            cache,
            is_valid: security.is_valid(identity),
            is_unlimited,
            reads,
            writes,
            has_streams: [Operation::Describe, Operation::Delete]
                .into_iter()
                .all(|operation| may(operation, ResourceKind::Topic, names::prefix(tenant).as_bytes())),
        }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    fn is_current(&self, broker: &Broker, identity: &Arc<Identity>, database: usize) -> bool {
        self.generation == broker.security.generation()
            && self.database == database
            && Arc::ptr_eq(&self.identity, identity)
    }

    /// Returns `true` if it is certain at once that the client may run a command.
    fn covers(&self, broker: &Broker, command: &Command, args: &[&[u8]]) -> bool {
        let is_on_keys = || matches!(command.needs, Needs::Keys) && !command.is_transfer();
        let may_be_topic = |key: &&[u8]| may_be_topic(broker, self.identity.tenant(), self.database, &self.cache, key);
        let has_no_topics = || match command.keys(args) {
            Named::These(keys) => !keys.iter().any(may_be_topic),
            Named::All => false,
        };
        let is_allowed = self.reads && (self.writes || !command.is_write);
        self.is_unlimited
            || is_allowed && is_on_keys() && !matches!(command.keys, Keys::All) && (self.has_streams || has_no_topics())
    }
}

/// Check that a command which waits for data is still permitted when there is some.
pub(super) struct Recheck {
    door: Door,
    identity: Arc<Identity>,
    client: Arc<Client>,
    /// Generation of the permissions with which the command began.
    generation: u64,
    database: usize,
    command: &'static Command,
    args: Vec<Box<[u8]>>,
}

impl Recheck {
    pub(super) fn command(&self) -> &'static Command {
        self.command
    }

    /// Returns the cause of what the command changes.
    pub(super) fn cause(&self) -> Cause {
        let args: SmallVec<[&[u8]; 8]> = self.args.iter().map(|arg| &**arg).collect();
        Cause { operation: events::operation(self.command, &args), client: self.client.id }
    }

    pub(super) fn args(&self) -> &[Box<[u8]>] {
        &self.args
    }

    /// Refuses a command that may return data of any size if the memory for replies is full, as before its first
    /// attempt.
    pub(super) fn find_room(&self, args: &[&[u8]]) -> Done {
        room::find_room(self.door.broker.answers(), self.client.ip, self.command, args)
    }

    /// Charges the reply of the command.
    pub(super) fn charge(&self, reply: Vec<u8>) -> Bytes {
        room::charge_blocked(self.door.broker.answers(), &self.client, reply)
    }

    /// Returns the error of the command as soon as it is no longer permitted.
    pub(super) async fn refused(&self) -> Fail {
        let security = &self.door.broker.security;
        match security.while_permitted(|| ready(self.check()), pending::<Infallible>()).await {
            Err(fail) => fail,
        }
    }

    pub(super) fn check(&self) -> Done {
        let security = &self.door.broker.security;
        if security.generation() == self.generation {
            return Ok(());
        }
        if !security.is_valid(&self.identity) {
            return Err(LOGGED_OUT);
        }
        if security.is_unlimited(&self.identity) {
            return Ok(());
        }
        let args: SmallVec<[&[u8]; 8]> = self.args.iter().map(|arg| &**arg).collect();
        let purpose = Purpose::Run { context: Context::TopLevel };
        self.door
            .authorize_as(purpose, &self.identity, &self.client, self.database, self.command, &args)
            .map_err(Fail::from)
    }
}

/// Use that is made of a decision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The command runs. A refusal is counted and logged.
    Run { context: Context },
    /// Only the decision is wanted.
    DryRun,
}

impl Session {
    /// Returns the client for whom the door works.
    pub(super) fn acting(&self) -> Acting {
        let address = self.peer.address.map(|at| at.ip());
        Acting { door: broker::Door::Redis, address, user: self.identity.borrow().user().clone() }
    }
}

/// Check of one request.
struct Asked<'a> {
    purpose: Purpose,
    door: &'a Door,
    identity: &'a Identity,
    client: &'a Client,
    command: &'static Command,
    args: &'a [&'a [u8]],
    /// Database that the command will use.
    database: usize,
}

/// Options of XADD, which precede the id of the entry.
#[derive(Default)]
struct AddOptions {
    /// `true` if the stream must exist.
    is_existing: bool,
    /// `true` if the stream loses old entries.
    trims: bool,
}

impl AddOptions {
    fn of(args: &[&[u8]]) -> Self {
        let mut options = Self::default();
        let mut rest = args.get(2..).unwrap_or_default();
        loop {
            rest = match rest {
                [word, rest @ ..] if word.eq_ignore_ascii_case(b"NOMKSTREAM") => {
                    options.is_existing = true;
                    rest
                }
                [word, rest @ ..] if word.eq_ignore_ascii_case(b"MAXLEN") || word.eq_ignore_ascii_case(b"MINID") => {
                    options.trims = true;
                    match rest {
                        [b"=" | b"~", _, rest @ ..] | [_, rest @ ..] => rest,
                        [] => rest,
                    }
                }
                [word, _, rest @ ..] if word.eq_ignore_ascii_case(b"LIMIT") => rest,
                _ => return options,
            };
        }
    }
}

impl Door {
    /// Returns what the client may do with every key of its database.
    pub(super) fn reach<'s>(&self, session: &'s mut Session) -> &'s Reach {
        if !session.reach.is_current(&self.broker, &session.identity.borrow(), session.database) {
            let identity = session.identity.borrow().clone();
            session.enter_tenant(identity.tenant());
            session.reach = Reach::of(&self.broker, &identity, session.database);
        }
        &session.reach
    }

    /// Checks that the client may run a command.
    pub(super) fn authorize(&self, session: &mut Session, command: &'static Command, args: &[&[u8]]) -> Done {
        let is_covered = self.reach(session).covers(&self.broker, command, args);
        let Some(transaction) = &session.transaction else {
            return if is_covered { Ok(()) } else { self.authorize_in(session, session.database, command, args) };
        };
        if session.reach.is_unlimited {
            return Ok(());
        }
        if command.name == "EXEC" {
            // Permissions may have changed since the commands were queued.
            transaction.each(|database, command, args| self.authorize_in(session, database, command, args))?;
        }
        self.authorize_in(session, transaction.database(), command, args)
    }

    /// Returns the check of a command that begins to wait.
    pub(super) fn recheck(&self, session: &Session, command: &'static Command, args: &[&[u8]]) -> Recheck {
        Recheck {
            door: self.clone(),
            identity: session.identity.borrow().clone(),
            client: session.client.clone(),
            generation: session.reach.generation,
            database: session.database,
            command,
            args: args.iter().map(|arg| (*arg).into()).collect(),
        }
    }

    fn authorize_in(&self, session: &Session, database: usize, command: &'static Command, args: &[&[u8]]) -> Done {
        let context = if session.transaction.is_some() { Context::Transaction } else { Context::TopLevel };
        let purpose = Purpose::Run { context };
        let decided = self.authorize_as(purpose, &session.identity.borrow(), &session.client, database, command, args);
        decided.map_err(Fail::from)
    }

    /// Checks that a script may run a command, as its client.
    pub(super) fn authorize_in_script(
        &self,
        caller: &Caller,
        database: usize,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Done {
        let purpose = Purpose::Run { context: Context::Script };
        let decided = self.authorize_as(purpose, &caller.identity, &caller.client, database, command, args);
        decided.map_err(Refused::in_script)
    }

    /// Returns why a command would be refused to a client with this identity, as `ACL DRYRUN` says it.
    pub(super) fn would_refuse(
        &self,
        identity: &Identity,
        client: &Client,
        database: usize,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Option<Vec<u8>> {
        self.authorize_as(Purpose::DryRun, identity, client, database, command, args).err().map(Refused::dry)
    }

    fn authorize_as(
        &self,
        purpose: Purpose,
        identity: &Identity,
        client: &Client,
        database: usize,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Decided {
        let asked = Asked { purpose, door: self, identity, client, command, args, database };
        match command.needs(args) {
            Needs::Nothing | Needs::OfPart(_) => Ok(()),
            Needs::Keys => asked.keys(),
            Needs::AllDatabases(operations) => asked.all_databases(operations),
            Needs::Streams(operation) => asked.streams(operation),
            Needs::Channels(operation) => asked.channels(operation),
            Needs::View if identity.tenant().is_some() => Ok(()),
            Needs::View => asked.run(Operation::Describe, &Resource::CLUSTER),
            Needs::Kill if identity.tenant().is_some() => Ok(()),
            Needs::Functions if identity.tenant().is_some() => asked.all_databases(&[Operation::Delete]),
            Needs::Kill | Needs::Functions => asked.run(Operation::Alter, &Resource::CLUSTER),
            Needs::Cluster(operation) => asked.run(operation, &Resource::CLUSTER),
        }
    }
}

impl Asked<'_> {
    fn tenant(&self) -> Tenant<'_> {
        self.identity.tenant()
    }

    fn keys(&self) -> Decided {
        let database = self.database;
        let Named::These(keys) = self.command.keys(self.args) else {
            return match self.command.name {
                "SORT" | "SORT_RO" => self.sort(),
                _ if self.command.is_write => self.whole(database, Operation::Delete),
                _ => self.whole(database, Operation::Describe),
            };
        };
        if !self.command.is_write {
            return keys.iter().try_for_each(|key| self.key(database, key, Operation::Read));
        }
        if self.command.is_transfer() {
            return self.transfer(&keys);
        }
        let shows = self.command.shows();
        for (at, key) in keys.iter().enumerate() {
            let is_written = self.command.writes_key(at);
            let is_shown = match shows {
                Shows::Nothing => false,
                Shows::Always => true,
                Shows::With(word, from) => self.has_word(word, from),
                Shows::First => at == 0,
            };
            if !is_written || is_shown {
                self.key(database, key, Operation::Read)?;
            }
            if is_written {
                self.key(database, key, Operation::Write)?;
            }
        }
        Ok(())
    }

    /// Returns `true` if an argument from this position on is this word.
    fn has_word(&self, word: &str, from: usize) -> bool {
        self.args.iter().skip(from).any(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Checks a command that gives a key another name or database, or copies it. A stream takes its entries along.
    fn transfer(&self, keys: &[&[u8]]) -> Decided {
        let [from, others @ ..] = keys else { return Ok(()) };
        let to = others.first().unwrap_or(from);
        let database = self.database;
        let destination = keys::other_database(self.args).unwrap_or(database);
        self.key(database, from, Operation::Read)?;
        if self.command.name != "COPY" {
            self.key(database, from, Operation::Write)?;
        }
        self.key(destination, to, Operation::Write)?;
        let has_topic = |topic: &TopicName| self.door.broker.has_topic(topic.as_str());
        if let Ok(from) = stream_topic(self.tenant(), database, from)
            && has_topic(&from)
        {
            self.require(Operation::Read, &Resource::topic(from.as_str()), Reason::Key)?;
            // The command itself refuses a key that cannot be a topic.
            if let Ok(to) = stream_topic(self.tenant(), destination, to) {
                self.require(Operation::Write, &Resource::topic(to.as_str()), Reason::Key)?;
                self.create(&to)?;
            }
        }
        Ok(())
    }

    /// Checks that the client may create a topic if it does not exist.
    fn create(&self, topic: &TopicName) -> Decided {
        if self.door.broker.has_topic(topic.as_str()) {
            return Ok(());
        }
        self.require(Operation::Create, &Resource::topic(topic.as_str()), Reason::Key)
    }

    /// Checks a command that reads other keys by patterns, of any database's keys.
    fn sort(&self) -> Decided {
        let [read, written @ ..] = &sort::keys(self.args)[..] else { return Ok(()) };
        self.key(self.database, read, Operation::Read)?;
        written.iter().try_for_each(|key| self.key(self.database, key, Operation::Write))?;
        if sort::reads_others(self.args) { self.whole(self.database, Operation::Read) } else { Ok(()) }
    }

    fn key(&self, database: usize, key: &[u8], operation: Operation) -> Decided {
        let name = name_of(self.tenant(), database, key);
        self.require(operation, &Resource::new(ResourceKind::Cache, &name), Reason::Key)?;
        let cache = &name[..name.len() - key.len() - 1];
        if !may_be_topic(&self.door.broker, self.tenant(), database, cache, key) {
            return Ok(());
        }
        let topic = stream_topic_text(self.tenant(), database, key);
        if !std::str::from_utf8(&topic).is_ok_and(|topic| self.door.broker.has_topic(topic)) {
            return Ok(());
        }
        let operation = if operation == Operation::Read { Operation::Describe } else { Operation::Delete };
        self.require(operation, &Resource::new(ResourceKind::Topic, &topic), Reason::Key)
    }

    /// Checks an operation on all keys of a database, and on the streams among them.
    fn whole(&self, database: usize, operation: Operation) -> Decided {
        let prefix = name_of(self.tenant(), database, b"");
        let operation_name = operation.name();
        let may = self.run(operation, &Resource::all(ResourceKind::Cache, &prefix));
        may.map_err(|refused| {
            let entry = format!("{operation_name} cache {} --prefix", String::from_utf8_lossy(&prefix));
            let all = format!("{operation_name} on every key (thalweg acl add USER {entry}) and no denial of one");
            Refused { all: Some(all), ..refused }
        })?;
        if operation == Operation::Delete {
            let may = self.run(operation, &Resource::all(ResourceKind::Topic, names::prefix(self.tenant())));
            let all = "delete on every topic, as streams are topics (thalweg acl add USER delete topic '*')";
            may.map_err(|refused| Refused { all: Some(all.to_owned()), ..refused })?;
        }
        Ok(())
    }

    fn all_databases(&self, operations: &[Operation]) -> Decided {
        let on_database = |database| operations.iter().try_for_each(|operation| self.whole(database, *operation));
        (0..DATABASES).try_for_each(on_database)
    }

    fn streams(&self, operation: Operation) -> Decided {
        let Named::These(keys) = self.command.keys(self.args) else { return Ok(()) };
        let added = (self.command.name == "XADD").then(|| AddOptions::of(self.args));
        let is_creating = match &added {
            Some(options) => !options.is_existing,
            None => self.command.name == "XGROUP" && self.has_word("MKSTREAM", 1),
        };
        for key in keys {
            // The command itself refuses a key that cannot be a topic.
            let Ok(topic) = stream_topic(self.tenant(), self.database, key) else { continue };
            let resource = Resource::topic(topic.as_str());
            self.require(operation, &resource, Reason::Key)?;
            if added.as_ref().is_some_and(|options| options.trims) {
                self.require(Operation::Delete, &resource, Reason::Key)?;
            }
            if is_creating {
                self.create(&topic)?;
            }
        }
        Ok(())
    }

    fn channels(&self, operation: Operation) -> Decided {
        let count = if operation == Operation::Write { 1 } else { self.args.len() - 1 };
        for channel in self.args.iter().skip(1).take(count) {
            let name = names::channel_name(self.tenant(), channel);
            self.require(operation, &Resource::new(ResourceKind::Channel, &name), Reason::Channel)?;
            if let Ok(topic) = topic_of(self.tenant(), channel)
                && self.command.joins_topics()
                && self.door.broker.has_topic(topic.as_str())
            {
                self.require(operation, &Resource::topic(topic.as_str()), Reason::Channel)?;
            }
        }
        Ok(())
    }

    /// Checks a permission without which the command cannot be run at all.
    fn run(&self, operation: Operation, resource: &Resource<'_>) -> Decided {
        let name = || commands::name_of(self.command.number_of(self.args)).as_bytes().to_vec();
        self.decide(operation, resource, Reason::Command, name)
    }

    fn require(&self, operation: Operation, resource: &Resource<'_>, reason: Reason) -> Decided {
        self.decide(operation, resource, reason, || object_of(resource, reason))
    }

    /// Checks a permission. `object` returns what a refusal names.
    fn decide(
        &self,
        operation: Operation,
        resource: &Resource<'_>,
        reason: Reason,
        object: impl Fn() -> Vec<u8>,
    ) -> Decided {
        let security = &self.door.broker.security;
        let refused = || Refused { reason, object: object(), all: None };
        let Purpose::Run { context } = self.purpose else {
            return if security.allows(self.identity, operation, resource) { Ok(()) } else { Err(refused()) };
        };
        security.authorize(self.identity, operation, resource).map_err(|error| {
            tracing::debug!(client = self.client.address, %error, "not allowed");
            let number = self.command.number_of(self.args);
            self.client.note(number, self.door.began.elapsed().as_secs());
            let user = self.client.about.lock().user.clone();
            let refused = refused();
            self.door.log_refusal(self.client, Refusal::new(reason, context, &refused.object, &user));
            refused
        })
    }
}

/// Returns a resource by the name that Redis's clients gave it.
fn object_of(resource: &Resource<'_>, reason: Reason) -> Vec<u8> {
    let topic = || std::str::from_utf8(resource.name).unwrap_or_default();
    match (resource.kind, reason) {
        // The name of a key follows that of its database.
        (ResourceKind::Cache, _) => resource.name.splitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default().to_vec(),
        (ResourceKind::Topic, Reason::Channel) => names::name_of(topic()),
        (ResourceKind::Topic, _) => names::place_of(topic()).1,
        _ => resource.name.to_vec(),
    }
}

type Decided = Result<(), Refused>;

/// Refused command: what its client may not use.
struct Refused {
    reason: Reason,
    object: Vec<u8>,
    /// Permission that the command needs on all of something, not only on what its arguments name.
    all: Option<String>,
}

impl Refused {
    /// Returns the text of `ACL DRYRUN`.
    fn dry(self) -> Vec<u8> {
        let may_not: &[u8] = b"This user has no permissions to ";
        match self.reason {
            Reason::Command | Reason::Auth => [may_not, b"run the '", &self.object, b"' command"].concat(),
            Reason::Key => [may_not, b"access the '", &self.object, b"' key"].concat(),
            Reason::Channel => [may_not, b"access the '", &self.object, b"' channel"].concat(),
        }
    }
}

impl Refused {
    /// Returns the error of a command in a script, in the words of Redis 7.0.
    fn in_script(self) -> Fail {
        let what = match self.reason {
            Reason::Command | Reason::Auth => "run this command or subcommand",
            Reason::Key => "access at least one of the keys mentioned in the command arguments",
            Reason::Channel => "publish to the channel mentioned in the command",
        };
        Fail::new(format!("ERR The user executing the script can't {what}"))
    }
}

impl From<Refused> for Fail {
    fn from(refused: Refused) -> Self {
        match refused.reason {
            Reason::Key => Self::new(NO_KEY),
            Reason::Channel => Self::new(NO_CHANNEL),
            Reason::Command | Reason::Auth => {
                let begin = b"NOPERM this user has no permissions to run the '";
                let needs = refused.all.map(|all| format!(", which needs {all}")).unwrap_or_default();
                Self::of_bytes([&begin[..], &refused.object, b"' command", needs.as_bytes()].concat())
            }
        }
    }
}

impl Door {
    /// Adds a refusal to the log that `ACL LOG` shows.
    pub(super) fn log_refusal(&self, client: &Client, refusal: Refusal) {
        let now_ms = self.broker.now_ms();
        let up_s = self.began.elapsed().as_secs();
        let line = client.line(Asking { id: client.id, now_ms, up_s, request_bytes: 0, args_bytes: 0 });
        self.refusals.add(refusal, now_ms, line.trim_end().to_owned());
    }
}

/// Returns `false` if no topic has the name of this key of a cache, which is a database of a tenant.
fn may_be_topic(broker: &Broker, tenant: Tenant<'_>, database: usize, cache: &[u8], key: &[u8]) -> bool {
    if tenant.is_none() {
        return broker.streams.may_be_topic(cache, key);
    }
    // The broker knows the topics of tenants by the keys that clients without a tenant use.
    let topic = stream_topic_text(tenant, database, key);
    let (cache, key) = names::place_of(&String::from_utf8_lossy(&topic));
    broker.streams.may_be_topic(cache.as_bytes(), &key)
}

/// Returns the name of a key as a resource.
fn name_of(tenant: Tenant<'_>, database: usize, key: &[u8]) -> SmallVec<[u8; 64]> {
    let mut name = SmallVec::from_slice(names::prefix(tenant).as_bytes());
    name.extend_from_slice(b"db");
    if database >= 10 {
        name.push(b'0' + (database / 10) as u8);
    }
    name.push(b'0' + (database % 10) as u8);
    name.push(b'/');
    name.extend_from_slice(key);
    name
}

/// Returns the permit of a client's subscription: for its channels, and for the topics that have their names.
pub(super) fn permit(broker: &Broker, identity: &Arc<Identity>) -> Permit {
    broker.security.permit(identity.clone(), |security, identity, topic, is_channel| {
        let may = |resource| security.allows(identity, Operation::Read, &resource);
        let tenant = identity.tenant();
        let Some(channel) = names::channel_of_topic(tenant, topic.as_str()) else {
            return false;
        };
        let name = names::channel_name(tenant, &channel);
        let is_topic_allowed = || is_channel || may(Resource::topic(topic.as_str()));
        may(Resource::new(ResourceKind::Channel, &name)) && is_topic_allowed()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::command::{Does, Keys};

    #[test]
    fn keys_are_named_after_their_databases() {
        assert_eq!(&name_of(None, 0, b"a")[..], b"db0/a");
        assert_eq!(&name_of(None, 15, b"\xff")[..], b"db15/\xff");
    }

    #[test]
    fn options_of_an_entry_end_with_its_id() {
        let of = |text: &str| {
            let args: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
            let AddOptions { is_existing, trims } = AddOptions::of(&args);
            (is_existing, trims)
        };
        assert_eq!(of("XADD s * maxlen 5"), (false, false));
        assert_eq!(of("XADD s 1-1 nomkstream 5"), (false, false));
        assert_eq!(of("XADD s nomkstream * f v"), (true, false));
        assert_eq!(of("XADD s maxlen 5 * f v"), (false, true));
        assert_eq!(of("XADD s minid ~ 5 limit 9 nomkstream * f v"), (true, true));
        assert_eq!(of("XADD s maxlen = 5 nomkstream * f v"), (true, true));
        assert_eq!(of("XADD s maxlen"), (false, true));
    }

    /// Commands on data need their keys, and those on streams need topics: nothing that reads or writes is open to all.
    #[test]
    fn every_command_on_data_requires_a_permission() {
        for command in commands::all() {
            let is_open = matches!(command.needs, Needs::Nothing);
            assert!(!is_open || matches!(command.does, Does::Own(_)), "{}", command.name);
            let has_keys = !matches!(command.keys, Keys::None);
            assert!(!has_keys || !is_open, "{} has keys", command.name);
        }
    }
}
