//! Commands about the connection: its user, its protocol and its database.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use broker::{Hold, Identity, LoginSource, TOKEN_EXPIRED, Unwelcome};
use bytes::Bytes;
use engine::ErrorKind;
use engine::security::{Password, UserName};
use futures_util::FutureExt;
use net::OpenConnection;
use net::service::{Peer, Reply, once};
use net::tls::PeerIdentity;

use super::args::{is, parse_int, parse_small, parse_usize};
use super::tracking;
use crate::login;
use crate::redis::VERSION;
use crate::redis::access::{Needs, of_client};
use crate::redis::clients::{About, Asking, Client};
use crate::redis::codec::Answer;
use crate::redis::command::{Command, own, wrong_arity, wrong_part};
use crate::redis::connection::{DATABASES, Login, Replies, Session};
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::later::Later;
use crate::redis::refusals::{Context, Reason, Refusal};
use crate::redis::writer::Writer;
use crate::throttle;

/// Maximum size of a name that a client sets for itself.
const NAME_BYTES_MAX: usize = 256;

pub(super) const COMMANDS: &[Command] = &[
    own("PING", -1, Needs::Nothing, ping, ("1.0.0", "Returns PONG, or its argument")),
    own("ECHO", 2, Needs::Nothing, echo, ("1.0.0", "Returns its argument")),
    own("HELLO", -1, Needs::Nothing, hello, ("6.0.0", "Selects the version of the protocol, and logs in")),
    own("AUTH", -2, Needs::Nothing, auth, ("1.0.0", "Logs in")),
    own("SELECT", 2, Needs::Nothing, select, ("1.0.0", "Selects another database")),
    own("CLIENT", -2, Needs::OfPart(of_client), client, ("2.4.0", "Lists and manages the connections of clients")).of(
        &[
            ("ID", 2),
            ("INFO", 2),
            ("GETNAME", 2),
            ("SETNAME", 3),
            ("SETINFO", 4),
            ("LIST", -2),
            ("KILL", -3),
            ("UNBLOCK", -3),
            ("REPLY", 3),
            ("NO-EVICT", 3),
            ("GETREDIR", 2),
            ("TRACKING", -3),
            ("TRACKINGINFO", 2),
            ("CACHING", 3),
            ("PAUSE", -3),
            ("UNPAUSE", 2),
        ],
    ),
    own("RESET", 1, Needs::Nothing, reset, ("6.2.0", "Resets the connection to its initial state")),
    own("QUIT", 1, Needs::Nothing, quit, ("1.0.0", "Closes the connection")),
];

pub(super) fn now(writer: Writer) -> Reply<Answer, Later> {
    Reply::Now(Answer::Written(writer.bytes))
}

pub(super) fn ok() -> Reply<Answer, Later> {
    Reply::Now(Answer::Fixed(b"+OK\r\n"))
}

/// Returns the written reply, or the error.
pub(super) fn written(session: &Session, write: impl FnOnce(&mut Writer) -> Done) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    match write(&mut writer) {
        Ok(()) => now(writer),
        Err(fail) => session.fail(&fail),
    }
}

fn ping(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    if args.len() > 2 {
        return session.fail(&wrong_arity("ping"));
    }
    if session.is_subscribed() && !session.is_resp3 {
        let mut writer = session.writer();
        writer.array(2);
        writer.bulk(b"pong");
        writer.bulk(args.get(1).copied().unwrap_or_default());
        return now(writer);
    }
    match args.get(1) {
        None => Reply::Now(Answer::Fixed(b"+PONG\r\n")),
        Some(text) => echo_of(session, text),
    }
}

fn echo(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    echo_of(session, args[1])
}

fn echo_of(session: &Session, text: &[u8]) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    writer.bulk(text);
    now(writer)
}

fn select(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let number = match parse_small(args[1]) {
        Ok(number) => usize::try_from(number).ok().filter(|number| *number < DATABASES),
        Err(fail) => return session.fail(&fail),
    };
    let Some(number) = number else {
        return session.fail(&Fail::new("ERR DB index is out of range"));
    };
    session.database = number;
    session.client.select(number);
    ok()
}

fn reset(door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    session.forget_transaction();
    session.unsubscribe_all();
    session.end_tracking();
    session.monitoring = None;
    session.is_resp3 = false;
    session.replies = Replies::All;
    session.database = 0;
    session.client.select(0);
    session.update_info(|about| {
        *about = About {
            library: about.library.clone(),
            library_version: about.library_version.clone(),
            tenant: about.tenant.clone(),
            ..About::default()
        };
    });
    let (login, identity) = begin(door, session.certified.as_ref(), &session.client);
    if login == Login::Needed {
        session.hold.take();
    } else if let Err(error) = session.count(door, &identity) {
        return session.fail(&error.into());
    }
    session.login.replace(login);
    session.identity.replace(identity);
    Reply::Now(Answer::Fixed(b"+RESET\r\n"))
}

fn quit(_door: &Door, _session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    Reply::Last(Answer::Fixed(b"+OK\r\n"))
}

fn auth(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let (user, password) = match args[1..] {
        [password] => (&b"default"[..], password),
        [user, password] => (user, password),
        _ => return session.fail(&SYNTAX),
    };
    if !door.is_login_required && args.len() == 2 {
        return session.fail(&Fail::new(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ));
    }
    log_in(door, session, user, password, |_, writer| writer.ok())
}

pub(in crate::redis) fn source_of(client: &Client) -> LoginSource {
    LoginSource { door: broker::Door::Redis, address: client.ip }
}

/// Returns the identity that a client has proved by its certificate.
pub(in crate::redis) fn certified(door: &Door, peer: &Peer, client: &Client) -> Option<Arc<Identity>> {
    let certificate = PeerIdentity::of_certificates(Some(&peer.certificates));
    let identity = login::of_certificate(&door.broker, certificate.as_ref(), source_of(client))?;
    peer.is_known.set(true);
    Some(Arc::new(identity))
}

impl Session {
    /// Counts the connection for a client, instead of for the one that it was of before.
    fn count(&self, door: &Door, identity: &Identity) -> engine::Result<()> {
        let hold = &mut self.hold.borrow_mut();
        throttle::hold_connection(&door.broker, broker::Door::Redis, identity, hold, &self.peer.entry)
    }
}

/// Returns the count of a new connection for the quotas of its client, once it may send commands, or the refusal if its
/// address opens too many or its client has too many open.
pub(in crate::redis) fn welcome(
    door: &Door,
    client: &Client,
    entry: &OpenConnection,
    login: &Login,
    identity: &Identity,
) -> (Count, Option<Unwelcome>) {
    let security = &door.broker.security;
    let mut hold = None;
    let refused = security.connected(broker::Door::Redis, client.ip).or_else(|| {
        let count = || throttle::hold_connection(&door.broker, broker::Door::Redis, identity, &mut hold, entry);
        (*login != Login::Needed).then(count)?.err().map(Unwelcome::from)
    });
    if let Some(Unwelcome { error, .. }) = &refused {
        // As Redis does when it has `maxclients` clients.
        client.outbox.push([Bytes::from(format!("-ERR {}\r\n", error.message))]);
        client.outbox.flush();
    }
    (Rc::new(RefCell::new(hold)), refused)
}

/// Count of a connection for the quotas of its client, once it may send commands.
pub(in crate::redis) type Count = Rc<RefCell<Option<Hold>>>;

/// Returns the login and the identity of a client that has sent no command, or RESET.
pub(in crate::redis) fn begin(
    door: &Door,
    certified: Option<&Arc<Identity>>,
    client: &Client,
) -> (Login, Arc<Identity>) {
    let login = match certified {
        _ if !door.is_login_required => Login::NotNeeded,
        Some(_) => Login::Done,
        None => Login::Needed,
    };
    if let Some(certified) = certified {
        client.about.lock().user = certified.user().to_string();
    }
    let anonymous = || Arc::new(Identity::anonymous(&source_of(client).host()));
    (login, certified.cloned().unwrap_or_else(anonymous))
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// User of a client that has not logged in. If no login is required and no such user exists, it accepts any password,
/// as in Redis.
pub(in crate::redis) const DEFAULT_USER: &str = "default";

/// Verifies a password, which may take a while, and then replies.
fn log_in(
    door: &Door,
    session: &mut Session,
    user: &[u8],
    password: &[u8],
    answer: impl FnOnce(&Client, &mut Writer) + 'static,
) -> Reply<Answer, Later> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = text(user);
    let password = Password::from(text(password));
    let broker = door.broker.clone();
    let login = session.login.clone();
    let peer = session.peer.clone();
    let client = session.client.clone();
    let identity = session.identity.clone();
    let hold = session.hold.clone();
    let tracked = session.tracked.clone();
    let monitor = session.monitoring.as_ref().map(|monitoring| monitoring.monitor().clone());
    let mut writer = session.writer();
    let is_required = door.is_login_required;
    let source = source_of(&session.client);
    let parsed = UserName::parse(&name);
    let attempted = name.clone();
    if !is_required && !parsed.as_ref().is_ok_and(|user| door.broker.security.has_user(user)) {
        if name == DEFAULT_USER {
            client.about.lock().user = name;
            answer(&client, &mut writer);
        } else {
            door.log_refusal(&client, Refusal::new(Reason::Auth, Context::TopLevel, b"AUTH", &name));
            writer.error(&Fail::new(WRONG_PASSWORD));
        }
        return now(writer);
    }
    let logging = door.clone();
    Reply::Alone(once(
        async move {
            let found = match parsed {
                // With one argument, a token names its user.
                Ok(user) if user.as_str() == DEFAULT_USER && broker.security.is_token(password.reveal()) => {
                    broker.security.log_in_with_token(password.reveal(), None, source).await
                }
                Ok(user) => broker.security.log_in(user, password, source).await,
                Err(error) => broker.security.end_login(source, &name, Err(error)).await,
            };
            let counted = found.map(|logged_in| {
                let hold = &mut hold.borrow_mut();
                throttle::hold_connection(&broker, source.door, &logged_in, hold, &peer.entry).map(|()| logged_in)
            });
            match counted {
                // The user has as many connections as a quota allows.
                Ok(Err(error)) => {
                    writer.bytes.clear();
                    writer.error(&error.into());
                }
                Ok(Ok(logged_in)) => {
                    client.about.lock().user = logged_in.user().to_string();
                    broker::act_as(logged_in.user());
                    let logged_in = Arc::new(logged_in);
                    tracked.iter().for_each(|tracked| tracked.act_as(logged_in.clone()));
                    monitor.iter().for_each(|monitor| monitor.act_as(logged_in.clone()));
                    identity.replace(logged_in);
                    peer.is_known.set(true);
                    if is_required {
                        login.replace(Login::Done);
                    }
                    answer(&client, &mut writer);
                }
                Err(error) => {
                    logging.log_refusal(&client, Refusal::new(Reason::Auth, Context::TopLevel, b"AUTH", &attempted));
                    writer.bytes.clear();
                    writer.error(&match error.kind {
                        ErrorKind::Busy => Fail::new(format!("TRYAGAIN {}", error.message)),
                        // This tells nothing to clients that guess: the token is the client's own.
                        ErrorKind::Denied if error.message.starts_with(TOKEN_EXPIRED) => {
                            Fail::new(format!("WRONGPASS {}", error.message))
                        }
                        _ => Fail::new(WRONG_PASSWORD),
                    });
                }
            }
            Answer::Written(writer.bytes)
        }
        .boxed_local(),
    ))
}

fn hello(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let mut credentials = None;
    let mut name = None;
    let mut at = 2;
    let version = match args.get(1).map(|version| parse_int(version)) {
        None => None,
        Some(Ok(version @ (2 | 3))) => Some(version),
        Some(Ok(_)) => return session.fail(&Fail::new("NOPROTO unsupported protocol version")),
        Some(Err(_)) => {
            return session.fail(&Fail::new("ERR Protocol version is not an integer or out of range"));
        }
    };
    while at < args.len() {
        match &args[at..] {
            [word, user, password, ..] if is(word, "AUTH") => {
                credentials = Some((*user, *password));
                at += 3;
            }
            [word, wanted, ..] if is(word, "SETNAME") => {
                name = Some(*wanted);
                at += 2;
            }
            [word, ..] => {
                let text = format!("ERR Syntax error in HELLO option '{}'", word.escape_ascii());
                return session.fail(&Fail::new(text));
            }
            [] => break,
        }
    }
    let name = match name.map(name_of).transpose() {
        Ok(name) => name,
        Err(fail) => return session.fail(&fail),
    };
    if *session.login.borrow() == Login::Needed && credentials.is_none() {
        return session.fail(&Fail::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    let is_resp3 = version.map_or(session.is_resp3, |version| version == 3);
    let answer = move |client: &Client, writer: &mut Writer| {
        {
            let mut about = client.about.lock();
            about.is_resp3 = is_resp3;
            if let Some(name) = name {
                about.name = name;
            }
        }
        write_hello(client.id, writer);
    };
    match credentials {
        None => {
            session.is_resp3 = is_resp3;
            let mut writer = session.writer();
            answer(&session.client, &mut writer);
            now(writer)
        }
        // The protocol version changes even if the login fails, as the reply is already being written in it.
        Some((user, password)) => {
            session.is_resp3 = is_resp3;
            log_in(door, session, user, password, answer)
        }
    }
}

fn write_hello(id: u64, writer: &mut Writer) {
    writer.map(7);
    writer.bulk(b"server");
    writer.bulk(b"redis");
    writer.bulk(b"version");
    writer.bulk(VERSION.as_bytes());
    writer.bulk(b"proto");
    writer.int(if writer.is_resp3 { 3 } else { 2 });
    writer.bulk(b"id");
    writer.int(id as i64);
    writer.bulk(b"mode");
    writer.bulk(b"standalone");
    writer.bulk(b"role");
    writer.bulk(b"master");
    writer.bulk(b"modules");
    writer.array(0);
}

fn name_of(name: &[u8]) -> Done<String> {
    let is_plain = name.iter().all(|byte| (b'!'..=b'~').contains(byte)) && name.len() <= NAME_BYTES_MAX;
    match std::str::from_utf8(name) {
        Ok(name) if is_plain => Ok(name.to_owned()),
        _ => Err(Fail::new("ERR Client names cannot contain spaces, newlines or special characters.")),
    }
}

fn client(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let rest = &args[2..];
    match (args[1].to_ascii_uppercase().as_slice(), rest) {
        (b"ID", []) => written(session, |writer| {
            writer.int(session.client.id as i64);
            Ok(())
        }),
        (b"GETNAME", []) => written(session, |writer| {
            let name = session.client.about.lock().name.clone();
            writer.maybe((!name.is_empty()).then_some(name.as_bytes()));
            Ok(())
        }),
        (b"SETNAME", [name]) => written(session, |writer| {
            let name = name_of(name)?;
            session.update_info(|about| about.name = name);
            writer.ok();
            Ok(())
        }),
        (b"SETINFO", [what, value]) => written(session, |writer| {
            let value = name_of(value)?;
            match what {
                what if is(what, "LIB-NAME") => session.update_info(|about| about.library = value),
                what if is(what, "LIB-VER") => session.update_info(|about| about.library_version = value),
                what => return Err(Fail::new(format!("ERR Unrecognized option '{}'", what.escape_ascii()))),
            }
            writer.ok();
            Ok(())
        }),
        (b"LIST", rest) => written(session, |writer| list(door, rest, session.asking(door, args), writer)),
        (b"INFO", []) => written(session, |writer| {
            writer.verbatim(&session.client.line(session.asking(door, args)));
            Ok(())
        }),
        (b"KILL", rest) if !rest.is_empty() => kill(door, session, rest),
        (b"UNBLOCK", [id, how @ ..]) => written(session, |writer| unblock(door, id, how, writer)),
        (b"REPLY", [how]) => reply(session, how),
        (b"NO-EVICT", [how]) if is(how, "ON") || is(how, "OFF") => {
            session.update_info(|about| about.is_evicted_never = is(how, "ON"));
            ok()
        }
        (b"GETREDIR", []) => written(session, |writer| {
            writer.int(tracking::redirect(session));
            Ok(())
        }),
        (b"TRACKING", [how, options @ ..]) => tracking::track(door, session, how, options),
        (b"TRACKINGINFO", []) => written(session, |writer| {
            tracking::info(session, writer);
            Ok(())
        }),
        (b"CACHING", [how]) => tracking::caching(session, how),
        (b"PAUSE", [timeout, mode @ ..]) => written(session, |writer| pause(door, timeout, mode, writer)),
        (b"UNPAUSE", []) => {
            door.pause.end();
            ok()
        }
        _ => session.fail(&SYNTAX),
    }
}

fn pause(door: &Door, timeout: &[u8], mode: &[&[u8]], writer: &mut Writer) -> Done {
    let is_all = match mode {
        [] => true,
        [mode] if is(mode, "ALL") => true,
        [mode] if is(mode, "WRITE") => false,
        [_] => return Err(Fail::new("ERR CLIENT PAUSE mode must be WRITE or ALL")),
        _ => return Err(wrong_part("CLIENT", b"PAUSE")),
    };
    let ms = engine::cache::parse_number(timeout).ok_or(Fail::new("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|error| {
        tracing::debug!(%error, "the timeout of a pause is negative");
        Fail::new("ERR timeout is negative")
    })?;
    let until_ms = door.broker.now_ms().checked_add(ms).filter(|until_ms| i64::try_from(*until_ms).is_ok());
    door.pause.begin(until_ms.ok_or(Fail::new("ERR timeout is out of range"))?, is_all);
    writer.ok();
    Ok(())
}

/// Returns the filter for a type of client, by its subscriptions. Replicas and masters do not exist here.
fn of_type(kind: &[u8]) -> Done<fn(&Client) -> bool> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(|client| client.channels() == 0),
        b"pubsub" => Ok(|client| client.channels() > 0),
        b"master" | b"replica" | b"slave" => Ok(|_| false),
        _ => Err(Fail::of_bytes([b"ERR Unknown client type '", kind, b"'"].concat())),
    }
}

fn list(door: &Door, args: &[&[u8]], asking: Asking, writer: &mut Writer) -> Done {
    let mut all = door.clients.all();
    match args {
        [] => {}
        [word, kind] if is(word, "TYPE") => {
            let is_wanted = of_type(kind)?;
            all.retain(|client| is_wanted(client));
        }
        [word, ids @ ..] if is(word, "ID") && !ids.is_empty() => {
            let number = engine::cache::parse_number;
            let ids = ids.iter().map(|id| number(id).ok_or(Fail::new("ERR Invalid client ID")));
            let ids = ids.collect::<Done<HashSet<i64>>>()?;
            all.retain(|client| i64::try_from(client.id).is_ok_and(|id| ids.contains(&id)));
        }
        _ => return Err(SYNTAX),
    }
    writer.verbatim(&all.iter().map(|client| client.line(asking)).collect::<String>());
    Ok(())
}

fn kill(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let mut found = door.clients.all();
    // Connections that were just killed are still being closed.
    found.retain(|client| !client.outbox.is_closed());
    let reply = match args {
        [address] => {
            found.retain(|client| client.address.as_bytes() == *address);
            if found.is_empty() { Err(Fail::new("ERR No such client")) } else { Ok(ok()) }
        }
        filters => Killed::parse(door, session.client.id, filters).map(|filters| {
            found.retain(|client| filters.matches(client));
            let mut writer = session.writer();
            writer.len(found.len());
            now(writer)
        }),
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(fail) => return session.fail(&fail),
    };
    for client in found {
        let user = Some(client.about.lock().user.clone()).filter(|user| user != DEFAULT_USER);
        let of_door = broker::Door::Redis;
        door.broker.record_disconnect(of_door, client.id, user.as_deref(), Some(&client.address));
        // A client that kills itself receives the reply first.
        if client.id == session.client.id { session.is_over = true } else { client.outbox.close() }
    }
    reply
}

/// Filters of `CLIENT KILL`. As in Redis (`clientCommand` in `src/networking.c`), a later one replaces an earlier one
/// of the same kind, so that each client is compared once.
#[derive(Default)]
struct Killed<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    is_of_type: Option<fn(&Client) -> bool>,
    keeps: Option<u64>,
}

impl<'a> Killed<'a> {
    /// Returns the filters of these words. `me` is the client that sends them, which is kept by default.
    fn parse(door: &Door, me: u64, words: &[&'a [u8]]) -> Done<Self> {
        let mut filters = Self { keeps: Some(me), ..Self::default() };
        for pair in words.chunks(2) {
            let [word, value] = pair else {
                return Err(SYNTAX);
            };
            match word.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = parse_usize(value).filter(|id| *id > 0);
                    filters.id = Some(id.ok_or(Fail::new("ERR client-id should be greater than 0"))? as u64);
                }
                b"ADDR" => filters.address = Some(value),
                b"LADDR" => filters.local = Some(value),
                b"USER" => {
                    let user = std::str::from_utf8(value).ok().and_then(|name| UserName::parse(name).ok());
                    let is_known = || user.is_some_and(|user| door.broker.security.has_user(&user));
                    if *value != DEFAULT_USER.as_bytes() && !is_known() {
                        return Err(Fail::of_bytes([b"ERR No such user '", *value, b"'"].concat()));
                    }
                    filters.user = Some(value);
                }
                b"TYPE" => filters.is_of_type = Some(of_type(value)?),
                b"SKIPME" if is(value, "YES") => filters.keeps = Some(me),
                b"SKIPME" if is(value, "NO") => filters.keeps = None,
                _ => return Err(SYNTAX),
            }
        }
        Ok(filters)
    }

    fn matches(&self, client: &Client) -> bool {
        self.id.is_none_or(|id| client.id == id)
            && self.address.is_none_or(|address| client.address.as_bytes() == address)
            && self.local.is_none_or(|local| client.local.as_bytes() == local)
            && self.user.is_none_or(|user| client.about.lock().user.as_bytes() == user)
            && self.is_of_type.is_none_or(|is_wanted| is_wanted(client))
            && self.keeps != Some(client.id)
    }
}

fn unblock(door: &Door, id: &[u8], how: &[&[u8]], writer: &mut Writer) -> Done {
    let is_error = match how {
        [] => false,
        [how] if is(how, "TIMEOUT") => false,
        [how] if is(how, "ERROR") => true,
        [_, _, ..] => return Err(wrong_part("CLIENT", b"UNBLOCK")),
        [_] => return Err(Fail::new("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    };
    let id = parse_int(id)?;
    let client = door.clients.get(id as u64);
    let waiting = client.as_ref().and_then(|client| client.waiting());
    let is_unblocked = waiting.is_some_and(|waiting| {
        let error = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n".to_vec();
        if is_error { waiting.answer(error) } else { waiting.give_up() }
    });
    writer.flag(is_unblocked);
    Ok(())
}

fn reply(session: &mut Session, how: &[u8]) -> Reply<Answer, Later> {
    if is(how, "ON") {
        session.replies = Replies::All;
        return ok();
    }
    session.replies = match how {
        how if is(how, "OFF") => Replies::None,
        how if is(how, "SKIP") && session.replies != Replies::None => Replies::SkipNext,
        how if is(how, "SKIP") => return Reply::Now(Answer::Nothing),
        _ => return session.fail(&SYNTAX),
    };
    Reply::Now(Answer::Nothing)
}
