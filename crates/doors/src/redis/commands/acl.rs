//! `ACL`: users and their permissions, as Redis's rules say them.
//!
//! Rules are access control entries of the user, which are the truth; their text is kept to be read back as it was
//! written. Users and passwords are those of all doors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::limits::USER_NAME_BYTES_MAX;
use engine::security::{Acl, AclFilter, Operation, Password, Principal, Resource, UserName};
use engine::{Error, ErrorKind};
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::args::{is, parse_int};
use super::session::{DEFAULT_USER, ok, written};
use crate::redis::access::{Needs, of_acl};
use crate::redis::categories::{CATEGORIES, commands_of};
use crate::redis::codec::Answer;
use crate::redis::command::{Command, own, shown, wrong_arity, wrong_part};
use crate::redis::commands::find;
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::later::Later;
use crate::redis::refusals::ENTRIES_MAX;
use crate::redis::rules::Rules;
use crate::redis::writer::Writer;

/// Kind of the documents with the rules of users, as they were written.
const DOCUMENT: &str = "redis.acl";
/// Number of entries of `ACL LOG` by default.
const LOG_DEFAULT: usize = 10;
const BITS_DEFAULT: i64 = 256;
const BITS_MAX: i64 = 4096;
const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via \
                       the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis \
                       configuration file set) in order to store users in the Redis configuration.";

pub(super) const COMMAND: Command =
    own("ACL", -2, Needs::OfPart(of_acl), acl, ("6.0.0", "Manages users and their permissions")).of(&[
        ("CAT", -2),
        ("DELUSER", -3),
        ("DRYRUN", -4),
        ("GENPASS", -2),
        ("GETUSER", 3),
        ("LIST", 2),
        ("LOAD", 2),
        ("LOG", -2),
        ("SAVE", 2),
        ("SETUSER", -3),
        ("USERS", 2),
        ("WHOAMI", 2),
    ]);

fn acl(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let rest = &args[2..];
    match args[1].to_ascii_uppercase().as_slice() {
        b"WHOAMI" => written(session, |writer| {
            writer.bulk(session.client.about.lock().user.as_bytes());
            Ok(())
        }),
        b"CAT" => written(session, |writer| write_categories(rest, writer)),
        b"GENPASS" => written(session, |writer| generate(door, rest, writer)),
        b"LOAD" | b"SAVE" => session.fail(&Fail::new(NO_FILE)),
        b"LOG" => log(door, session, rest),
        b"DRYRUN" => dry_run(door, session, rest),
        b"SETUSER" => set_user(door, session, rest),
        b"DELUSER" => delete_users(door, session, rest),
        b"GETUSER" => {
            let name = text(rest[0]);
            later(door, session, async move |users, writer| users.write_user(&name, writer).await)
        }
        b"LIST" => later(door, session, async move |users, writer| users.write_lines(writer).await),
        _ => later(door, session, async move |users, writer| {
            let names = users.names().await?;
            writer.array(names.len());
            names.keys().for_each(|name| writer.bulk(name.as_bytes()));
            Ok(())
        }),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the reply of work that waits for the broker.
fn later<F>(door: &Door, session: &Session, work: F) -> Reply<Answer, Later>
where
    F: AsyncFnOnce(Users, &mut Writer) -> Done + 'static,
{
    let users = Users { door: door.clone() };
    let mut writer = session.writer();
    let answer = async move {
        let done = work(users, &mut writer).await.and_then(|()| writer.check());
        if let Err(fail) = done {
            writer.bytes.clear();
            writer.error(&fail);
        }
        Answer::Written(writer.bytes)
    };
    Reply::Alone(once(answer.boxed_local()))
}

fn write_categories(rest: &[&[u8]], writer: &mut Writer) -> Done {
    match rest {
        [] => {
            writer.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|(name, _)| writer.bulk(name.as_bytes()));
        }
        [category] => {
            let unknown = || Fail::of_bytes([b"ERR Unknown category '", shown(category), b"'"].concat());
            let commands: Vec<&str> = commands_of(&text(category)).ok_or_else(unknown)?.collect();
            writer.array(commands.len());
            commands.iter().for_each(|name| writer.bulk(name.as_bytes()));
        }
        _ => return Err(wrong_part("ACL", b"CAT")),
    }
    Ok(())
}

fn generate(door: &Door, rest: &[&[u8]], writer: &mut Writer) -> Done {
    let bits = match rest {
        [] => BITS_DEFAULT,
        [bits] => parse_int(bits)?,
        _ => return Err(wrong_part("ACL", b"GENPASS")),
    };
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(Fail::new(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to \
             {BITS_MAX}"
        )));
    }
    let digits = (bits as usize).div_ceil(4);
    let random = door.broker.security.random_bytes(digits.div_ceil(2))?;
    let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    writer.bulk(&password.as_bytes()[..digits]);
    Ok(())
}

fn log(door: &Door, session: &Session, rest: &[&[u8]]) -> Reply<Answer, Later> {
    let count = match rest {
        [] => LOG_DEFAULT,
        [word] if is(word, "RESET") => {
            // Reading the log needs less than clearing it.
            let identity = session.identity.borrow();
            if door.broker.security.authorize(&identity, Operation::Alter, &Resource::CLUSTER).is_err() {
                return session.fail(&Fail::new("NOPERM this user has no permissions to run the 'acl|log' command"));
            }
            door.refusals.forget();
            return ok();
        }
        [count] => match parse_int(count) {
            // As in Redis, a negative number is none.
            Ok(count) => usize::try_from(count).unwrap_or_default().min(ENTRIES_MAX),
            Err(fail) => return session.fail(&fail),
        },
        _ => return session.fail(&wrong_part("ACL", b"LOG")),
    };
    let now_ms = door.broker.now_ms();
    written(session, |writer| {
        let entries = door.refusals.newest(count);
        writer.array(entries.len());
        for entry in entries {
            let refusal = &entry.refusal;
            writer.map(7);
            writer.bulk(b"count");
            writer.int(entry.count as i64);
            for (name, value) in [
                ("reason", refusal.reason.name().as_bytes()),
                ("context", refusal.context.name().as_bytes()),
                ("object", &refusal.object),
                ("username", refusal.user.as_bytes()),
            ] {
                writer.bulk(name.as_bytes());
                writer.bulk(value);
            }
            writer.bulk(b"age-seconds");
            writer.double(now_ms.saturating_sub(entry.at_ms) as f64 / 1000.0);
            writer.bulk(b"client-info");
            writer.bulk(entry.client.as_bytes());
        }
        Ok(())
    })
}

fn dry_run(door: &Door, session: &Session, rest: &[&[u8]]) -> Reply<Answer, Later> {
    let name = text(rest[0]);
    let args: Vec<Box<[u8]>> = rest[1..].iter().map(|arg| (*arg).into()).collect();
    let client = session.client.clone();
    let database = session.database;
    let host = session.identity.borrow().host().to_owned();
    later(door, session, async move |users, writer| {
        if !users.names().await?.contains_key(&name) {
            return Err(Fail::new(format!("ERR User '{name}' not found")));
        }
        let args: Vec<&[u8]> = args.iter().map(|arg| &**arg).collect();
        let unknown = || Fail::of_bytes([b"ERR Command '", shown(args[0]), b"' not found"].concat());
        let command = find(args[0]).ok_or_else(unknown)?;
        if !command.takes(args.len()) {
            return Err(wrong_arity(command.name));
        }
        command.check_part(&args)?;
        let identity = users.door.broker.security.identity_of(users.user(&name)?, [], &host);
        match users.door.would_refuse(&identity, &client, database, command, &args) {
            None => writer.ok(),
            Some(why) => writer.bulk(&why),
        }
        Ok(())
    })
}

/// Rules of `ACL SETUSER` about the password of a user.
#[derive(Debug, PartialEq, Eq)]
enum PasswordRule {
    Add(Password),
    Remove(Password),
    Reset,
}

/// Changes of a user, in the order in which they were requested.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Rules with the modifier of Redis that each of them is, or is a part of.
    rules: Vec<(String, String)>,
    passwords: Vec<PasswordRule>,
    is_off: bool,
    is_open: bool,
}

fn modifier(rule: &str, why: &str) -> Fail {
    Fail::new(format!("ERR Error in ACL SETUSER modifier '{rule}': {why}"))
}

impl Changes {
    fn parse(rules: &[&[u8]]) -> Done<Self> {
        let mut changes = Self::default();
        for bytes in rules {
            let rule = std::str::from_utf8(bytes).map_err(|error| modifier(&text(&bytes[..1]), &format!("{error}")))?;
            changes.add(rule).map_err(|why| modifier(if why.is_secret { &rule[..1] } else { rule }, why.text))?;
        }
        Ok(changes)
    }

    fn add(&mut self, rule: &str) -> Result<(), Refused> {
        let unhashed = "The broker stores salted SCRAM hashes, which cannot be derived from this one: give the \
                        password itself with > or <";
        // No copy of a password is made that would not be overwritten.
        let word = if rule.starts_with(['>', '<']) { String::new() } else { rule.to_ascii_lowercase() };
        match word.as_str() {
            "on" => self.is_off = false,
            "off" => self.is_off = true,
            "nopass" => self.is_open = true,
            "resetpass" => {
                self.passwords.push(PasswordRule::Reset);
                self.is_open = false;
            }
            "reset" => {
                self.passwords.push(PasswordRule::Reset);
                self.is_off = true;
                self.is_open = false;
                let each = ["resetkeys", "resetchannels", "-@all"];
                self.rules.extend(each.map(|one| (one.to_owned(), rule.to_owned())));
            }
            _ => match rule.split_at_checked(1) {
                Some((">", password)) => {
                    if password.is_empty() {
                        return Err(Refused { text: "A password is not empty", is_secret: false });
                    }
                    self.passwords.push(PasswordRule::Add(password.into()));
                    self.is_open = false;
                }
                Some(("<", password)) => self.passwords.push(PasswordRule::Remove(password.into())),
                Some(("#" | "!", _)) => return Err(Refused { text: unhashed, is_secret: true }),
                _ => self.rules.push((rule.to_owned(), rule.to_owned())),
            },
        }
        Ok(())
    }
}

/// Why a rule is refused.
struct Refused {
    text: &'static str,
    /// `true` if the rule must not be repeated.
    is_secret: bool,
}

fn set_user(door: &Door, session: &Session, rest: &[&[u8]]) -> Reply<Answer, Later> {
    let name = rest[0];
    if name.iter().any(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
        return session.fail(&Fail::new("ERR Usernames can't contain spaces or null characters"));
    }
    let changes = match Changes::parse(&rest[1..]) {
        Ok(changes) => changes,
        Err(fail) => return session.fail(&fail),
    };
    let name = match std::str::from_utf8(name) {
        Ok(name) if name != "*" => name.to_owned(),
        _ => {
            return session.fail(&Fail::new(format!(
                "ERR the name of a user is UTF-8 of at most {USER_NAME_BYTES_MAX} bytes, and not *"
            )));
        }
    };
    later(door, session, async move |users, writer| {
        users.change(&name, changes).await?;
        writer.ok();
        Ok(())
    })
}

fn delete_users(door: &Door, session: &Session, rest: &[&[u8]]) -> Reply<Answer, Later> {
    let names: Vec<String> = rest.iter().map(|name| text(name)).collect();
    if names.iter().any(|name| name == DEFAULT_USER) {
        return session.fail(&Fail::new("ERR The 'default' user cannot be removed"));
    }
    later(door, session, async move |users, writer| {
        let mut count = 0;
        for name in names {
            count += i64::from(users.delete(&name).await?);
        }
        writer.int(count);
        Ok(())
    })
}

/// Users as Redis's rules describe them.
struct Users {
    door: Door,
}

/// Facts about a user that are not rules.
#[derive(Clone, Copy, Default)]
struct About {
    has_password: bool,
    /// `true` if its password is in the configuration.
    is_configured: bool,
    /// `true` if no entry limits the user.
    is_unlimited: bool,
}

impl Users {
    /// Returns all users by name: those with a password, those with rules, and the default user.
    async fn names(&self) -> Done<BTreeMap<String, About>> {
        let broker = &self.door.broker;
        let is_unlimited = !broker.is_authorizing();
        let nothing = About { is_unlimited, ..About::default() };
        let mut names = BTreeMap::from([(DEFAULT_USER.to_owned(), nothing)]);
        for (name, _) in broker.documents.list(DOCUMENT, "").await? {
            names.insert(name, nothing);
        }
        for user in broker.security.users().await? {
            let is_unlimited = is_unlimited || user.is_super;
            let about = About { has_password: true, is_configured: user.is_configured, is_unlimited };
            names.insert(user.name.to_string(), about);
        }
        Ok(names)
    }

    /// Returns the user whose entries apply to a name: clients that need not log in are the default user.
    fn user(&self, name: &str) -> Done<UserName> {
        let user = UserName::parse(name)?;
        let is_anonymous = name == DEFAULT_USER && self.is_open(name) && !self.door.broker.security.has_user(&user);
        Ok(if is_anonymous { UserName::anonymous() } else { user })
    }

    /// Returns `true` for the user whose clients need no password.
    fn is_open(&self, name: &str) -> bool {
        name == DEFAULT_USER && !self.door.is_login_required
    }

    async fn written(&self, name: &str) -> Done<Option<String>> {
        let document = self.door.broker.documents.get(DOCUMENT, name).await?;
        Ok(document.map(|document| text(&document)))
    }

    async fn rules(&self, name: &str, about: About) -> Done<Rules> {
        if about.is_unlimited {
            return Ok(Rules::everything());
        }
        let principal = Principal::User(self.user(name)?);
        let entries = self.door.broker.security.acls(&AclFilter::of_principal(principal.clone())).await?;
        let written = self.written(name).await?;
        Ok(Rules::effective(&principal, &entries.into_iter().collect(), written.as_deref()))
    }

    fn flags(&self, name: &str, about: About) -> Vec<&'static str> {
        if about.has_password {
            vec!["on"]
        } else if self.is_open(name) {
            vec!["on", "nopass"]
        } else {
            vec!["off"]
        }
    }

    async fn write_user(&self, name: &str, writer: &mut Writer) -> Done {
        let Some(about) = self.names().await?.get(name).copied() else {
            writer.null();
            return Ok(());
        };
        let rules = self.rules(name, about).await?;
        let flags = self.flags(name, about);
        writer.map(6);
        writer.bulk(b"flags");
        writer.set(flags.len());
        flags.iter().for_each(|flag| writer.bulk(flag.as_bytes()));
        writer.bulk(b"passwords");
        writer.array(0);
        for (field, value) in [("commands", rules.commands()), ("keys", rules.keys()), ("channels", rules.channels())] {
            writer.bulk(field.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"selectors");
        writer.array(0);
        Ok(())
    }

    async fn write_lines(&self, writer: &mut Writer) -> Done {
        let names = self.names().await?;
        writer.array(names.len());
        for (name, about) in names {
            let flags = self.flags(&name, about).join(" ");
            let rules = self.rules(&name, about).await?;
            writer.bulk(format!("user {name} {flags} {}", rules.line()).as_bytes());
            writer.check()?;
        }
        Ok(())
    }

    /// Changes a user, or creates it. Passwords come first: a user who cannot be given rules may do nothing.
    async fn change(&self, name: &str, changes: Changes) -> Done {
        let _turn = self.door.changing_acl.lock().await;
        let about = self.names().await?.get(name).copied().unwrap_or_default();
        let user = UserName::parse(name)?;
        let passwords = self.password_of(name, &user, about, &changes).await?;
        if !self.door.broker.is_authorizing() {
            check_unlimited(&changes)?;
            return self.put_password(user, about, passwords).await;
        }
        if about.is_unlimited && !changes.rules.is_empty() {
            return Err(Fail::new(format!("ERR {name} is one of super_users, whom no rule limits")));
        }
        // Checked before anything changes, and again with the entries at the time of the change.
        let principal = Principal::User(self.user(name)?);
        let before = self.rules(name, About { is_unlimited: false, ..about }).await?;
        apply(&mut before.clone(), &changes, &before)?;
        self.put_password(user, about, passwords).await?;
        let written = self.written(name).await?;
        let of = principal.clone();
        let decide = move |entries: &BTreeSet<Acl>| {
            let mut rules = Rules::effective(&of, entries, written.as_deref());
            let shown = rules.entries(&of);
            let before = rules.clone();
            Ok(match apply(&mut rules, &changes, &before) {
                Ok(()) => (&(entries - &shown) | &rules.entries(&of), Ok(rules)),
                Err(fail) => (entries.clone(), Err(fail)),
            })
        };
        let filter = AclFilter::of_principal(principal);
        let rules = self.door.broker.security.replace_acls(filter, decide).await??;
        self.door.broker.documents.put(DOCUMENT, name, Some(rules.line().into())).await?;
        Ok(())
    }

    /// Returns the changed password of a user: `None` if it does not change, and `Some(None)` if it is deleted.
    async fn password_of(
        &self,
        name: &str,
        user: &UserName,
        about: About,
        changes: &Changes,
    ) -> Done<Option<Option<Password>>> {
        if !changes.passwords.is_empty() && self.is_open(name) {
            return Err(Fail::new(
                "ERR without auth = required, clients that do not log in are the default user, whatever its password",
            ));
        }
        let security = &self.door.broker.security;
        let mut password = None;
        let mut has_password = about.has_password;
        for change in &changes.passwords {
            let is_this = async |text: &Password| match &password {
                Some(new) => Ok::<_, Fail>(new == &Some(text.clone())),
                None if has_password => Ok(security.has_password(user, text.clone()).await?),
                None => Ok(false),
            };
            match change {
                PasswordRule::Add(text) if has_password && is_this(text).await? => {}
                _ if about.is_configured => {
                    let why =
                        format!("ERR the password of {name} is in the configuration: change it there (key users)");
                    return Err(Fail::new(why));
                }
                PasswordRule::Reset => {
                    if has_password {
                        password = Some(None);
                    }
                    has_password = false;
                }
                PasswordRule::Add(_) if has_password => {
                    let why = "A user has one password: give resetpass first to replace it";
                    return Err(modifier(">", why));
                }
                PasswordRule::Add(text) => {
                    password = Some(Some(text.clone()));
                    has_password = true;
                }
                PasswordRule::Remove(text) if has_password && is_this(text).await? => {
                    password = Some(None);
                    has_password = false;
                }
                PasswordRule::Remove(_) => {
                    let why = "The password you are trying to remove from the user does not exist";
                    return Err(modifier("<", why));
                }
            }
        }
        if changes.is_open && !self.is_open(name) {
            let why = "Every client could log in as this user: give a password, or set auth = off";
            return Err(modifier("nopass", why));
        }
        if changes.is_off && has_password {
            let why = "A user with a password can log in: give resetpass as well, or use ACL DELUSER";
            return Err(modifier("off", why));
        }
        Ok(password)
    }

    async fn put_password(&self, user: UserName, about: About, password: Option<Option<Password>>) -> Done {
        let security = &self.door.broker.security;
        match password {
            None => Ok(()),
            Some(Some(password)) => Ok(security.put_password(user, password).await?),
            Some(None) if about.has_password => Ok(security.delete_user(user).await?),
            Some(None) => Ok(()),
        }
    }

    /// Deletes a user with its password, its tokens, its access keys, its roles and the entries that rules can
    /// say. Returns `false` if it does not exist.
    async fn delete(&self, name: &str) -> Done<bool> {
        let _turn = self.door.changing_acl.lock().await;
        let broker = &self.door.broker;
        if !self.names().await?.contains_key(name) {
            return Ok(false);
        }
        let user = UserName::parse(name)?;
        // A user without a password may have tokens and access keys.
        not_missing(broker.security.delete_user(user.clone()).await)?;
        // Another user of this name must not have the roles of this one.
        let members = broker.security.members().await?.into_iter().filter(|(member, _)| *member == user);
        for role in members.flat_map(|(_, roles)| roles) {
            broker.security.set_member(user.clone(), role, false).await?;
        }
        let principal = Principal::User(user);
        let of = principal.clone();
        let decide = move |entries: &BTreeSet<Acl>| Ok((entries - &Rules::of(&of, entries).entries(&of), ()));
        broker.security.replace_acls(AclFilter::of_principal(principal), decide).await?;
        broker.documents.put(DOCUMENT, name, None).await?;
        Ok(true)
    }
}

/// Checks rules for a broker without authorization: none may limit the user, who may do everything.
fn check_unlimited(changes: &Changes) -> Done {
    for (rule, given) in &changes.rules {
        let mut rules = Rules::everything();
        if rules.apply(rule).is_ok() && rules == Rules::everything() {
            continue;
        }
        Rules::default().apply(rule).map_err(|why| modifier(given, &why))?;
        let why = "Rules have no effect while authorization is off, when every user may do everything: set \
                   authorization = true, or give allkeys allchannels +@all";
        return Err(modifier(given, why));
    }
    Ok(())
}

/// Applies all rules of a change. `before` are the rules to which it is applied.
fn apply(rules: &mut Rules, changes: &Changes, before: &Rules) -> Done {
    for (rule, given) in &changes.rules {
        rules.apply(rule).map_err(|why| modifier(given, &why))?;
    }
    // A user whose rules do not change may have those of an older version.
    if rules == before {
        return Ok(());
    }
    rules.check().map_err(|why| Fail::new(format!("ERR the rules cannot be enforced: {why}")))
}

/// Ignores that something is deleted already.
fn not_missing(outcome: Result<(), Error>) -> Done {
    match outcome {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Held by a change of a user.
pub(in crate::redis) type Turn = Arc<tokio::sync::Mutex<()>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(rules: &str) -> Done<Changes> {
        Changes::parse(&rules.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn changes_are_passwords_flags_and_rules_in_their_order() {
        let changes = parsed("on >a <b resetpass off nopass ~x").expect("rules");
        let passwords = [PasswordRule::Add("a".into()), PasswordRule::Remove("b".into()), PasswordRule::Reset];
        assert_eq!(changes.passwords, passwords);
        assert_eq!((changes.is_off, changes.is_open, changes.rules.len()), (true, true, 1));
        let reset = parsed("nopass reset on >a").expect("rules");
        assert_eq!((reset.is_off, reset.is_open), (false, false));
        assert_eq!(reset.passwords, [PasswordRule::Reset, PasswordRule::Add("a".into())]);
        let mut rules = Rules::everything();
        apply(&mut rules, &reset, &Rules::everything()).expect("it takes everything");
        assert_eq!(rules, Rules::default());
    }

    #[test]
    fn errors_repeat_no_secret() {
        for rule in ["#secret", "!secret", "#"] {
            let text = parsed(rule).expect_err(rule).text;
            assert!(!text.windows(6).any(|part| part == b"secret"), "{}", text.escape_ascii());
        }
        let not_text = Changes::parse(&[b"~\xff"]).expect_err("not UTF-8");
        assert!(not_text.text.starts_with(b"ERR Error in ACL SETUSER modifier"));
    }

    #[test]
    fn without_authorization_only_rules_that_limit_nothing_are_accepted() {
        for rules in ["on >pw", "~* &* +@all", "allkeys", "+get", "-@stream"] {
            assert_eq!(check_unlimited(&parsed(rules).expect("rules")), Ok(()), "{rules}");
        }
        for rules in ["~a", "%R~*", "-@write", "resetkeys", "reset", "nocommands", "+@nope", "x"] {
            assert!(check_unlimited(&parsed(rules).expect("rules")).is_err(), "{rules}");
        }
    }
}
