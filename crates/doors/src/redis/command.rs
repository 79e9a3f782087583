//! A command: its row in the table of all commands, the keys that it names, and one execution of it.

use broker::{Cause, LockedCache};
use engine::cache::structures::{Edit, Kind, Part};
use engine::cache::{Found, Value};
use futures_util::future::LocalBoxFuture;
use net::service::Reply;
use smallvec::SmallVec;

use super::access::Needs;
use super::codec::Answer;
use super::commands::{help, streams, work};
use super::connection::Session;
use super::door::Door;
use super::errors::{Done, Fail, WRONG_TYPE};
use super::later::Later;
use super::writer::Writer;

/// Positions of the arguments that are keys. The first argument after the name has number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    /// First key, last key, and step; a negative last key counts from the end.
    Range(u8, i8, u8),
    /// The argument at `at` is the number of keys that follow it; the first argument may be a key, too.
    Counted {
        at: u8,
        is_first_too: bool,
    },
    /// First half of the arguments after the word STREAMS.
    Streams,
    /// The first argument, which is read, and the one after the last STORE or STOREDIST, which is written.
    FirstAndStored,
    /// Any or all keys of the database.
    All,
}

/// The first argument is the only key.
pub(super) const ONE: Keys = Keys::Range(1, 1, 1);
/// All arguments are keys.
pub(super) const EACH: Keys = Keys::Range(1, -1, 1);
pub(super) const TWO: Keys = Keys::Range(1, 2, 1);

/// Function of a command on a cache; it runs while the stripes of its keys are locked.
pub(super) type Data = fn(&mut Step<'_, '_>, &[&[u8]]) -> Done;
/// Function of a command about the connection.
pub(super) type Own = fn(&Door, &mut Session, &[&[u8]]) -> Reply<Answer, Later>;
/// Function of a command on streams, which may have to wait for the disk.
pub(super) type Streaming = for<'x> fn(&'x mut streams::Context<'_>, &'x [&'x [u8]]) -> LocalBoxFuture<'x, Done>;

#[derive(Clone, Copy)]
pub(super) enum Does {
    Data(Data),
    Own(Own),
    Stream(Streaming),
    Script(Scripted),
}

/// How a command names the script that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scripted {
    Text,
    /// By its SHA-1, for a script that was sent before.
    Sha,
    /// By the name of a function, which a library has registered.
    Function,
}

#[derive(Clone, Copy)]
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Number of arguments including the name; a negative number is a minimum.
    pub(super) arity: i8,
    pub(super) keys: Keys,
    pub(super) is_write: bool,
    pub(super) group: &'static str,
    /// Version of Redis that introduced the command.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
    /// Subcommands, and the number of arguments of each; empty for a command without subcommands.
    pub(super) parts: &'static [(&'static str, i8)],
    /// Permissions that the command requires.
    pub(super) needs: Needs,
    pub(super) does: Does,
    /// Number of the command in the counters. The numbers of its subcommands follow it.
    pub(super) number: u16,
}

/// Commands that change data and return data that they change.
const RETURNING: [&str; 24] = [
    "GETDEL",
    "GETEX",
    "GETSET",
    "LPOP",
    "RPOP",
    "LMPOP",
    "BLMPOP",
    "BLPOP",
    "BRPOP",
    "RPOPLPUSH",
    "BRPOPLPUSH",
    "LMOVE",
    "BLMOVE",
    "SPOP",
    "ZPOPMIN",
    "ZPOPMAX",
    "BZPOPMIN",
    "BZPOPMAX",
    "ZMPOP",
    "BZMPOP",
    "HGETDEL",
    "HGETEX",
    "XREADGROUP",
    "XAUTOCLAIM",
];

/// Returns the row of a command that only reads.
pub(super) const fn read(
    name: &'static str,
    arity: i8,
    keys: Keys,
    does: Data,
    about: (&'static str, &'static str),
) -> Command {
    let (since, summary) = about;
    Command {
        name,
        arity,
        keys,
        is_write: false,
        group: "",
        since,
        summary,
        parts: &[],
        needs: Needs::Keys,
        does: Does::Data(does),
        number: 0,
    }
}

pub(super) const fn write(
    name: &'static str,
    arity: i8,
    keys: Keys,
    does: Data,
    about: (&'static str, &'static str),
) -> Command {
    Command { is_write: true, ..read(name, arity, keys, does, about) }
}

pub(super) const fn own(
    name: &'static str,
    arity: i8,
    needs: Needs,
    does: Own,
    about: (&'static str, &'static str),
) -> Command {
    let (since, summary) = about;
    Command {
        name,
        arity,
        keys: Keys::None,
        is_write: false,
        group: "",
        since,
        summary,
        parts: &[],
        needs,
        does: Does::Own(does),
        number: 0,
    }
}

/// Maximum number of bytes that an error repeats of an unknown command or argument.
pub(super) const SHOWN_BYTES_MAX: usize = 128;

fn fits(arity: i8, count: usize) -> bool {
    let least = usize::from(arity.unsigned_abs());
    if arity < 0 { count >= least } else { count == least }
}

/// Keys that a request names. If they cannot be distinguished from other arguments, the command reports the error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    These(SmallVec<[&'a [u8]; 4]>),
    All,
}

impl Command {
    /// Returns `true` if the command removes all keys of a database.
    pub(super) fn flushes(&self) -> bool {
        matches!(self.keys, Keys::All | Keys::None) && matches!(self.name, "FLUSHDB" | "FLUSHALL")
    }

    /// Returns `true` if the command is about all keys of other databases than the selected one, too.
    pub(super) fn is_on_databases(&self) -> bool {
        matches!(self.name, "FLUSHALL" | "SWAPDB")
    }

    /// Adds subcommands, which the first argument selects.
    pub(super) const fn of(self, parts: &'static [(&'static str, i8)]) -> Self {
        Self { parts, ..self }
    }

    /// Returns the number by which the command or its subcommand is counted.
    #[inline]
    pub(super) fn number_of(&self, args: &[&[u8]]) -> usize {
        let part = match (self.parts, args) {
            ([], _) | (_, [] | [_]) => None,
            (parts, [_, word, ..]) => parts.iter().position(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())),
        };
        usize::from(self.number) + part.map_or(0, |at| at + 1)
    }

    /// Returns `true` if the first argument is a known subcommand, or if the command has no subcommands.
    pub(super) fn has_part(&self, args: &[&[u8]]) -> bool {
        let is_any = |word: &&[u8]| self.parts.iter().any(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        self.parts.is_empty() || args.get(1).is_none_or(is_any)
    }

    /// Returns `true` if the command waits during a pause of writes. The commands inside a transaction are not checked.
    pub(super) fn waits_with_writes(&self) -> bool {
        self.is_write || self.may_write() || matches!(self.name, "PUBLISH" | "SPUBLISH" | "FLUSHALL")
    }

    /// Returns `true` if the command runs others, which may write.
    pub(super) fn may_write(&self) -> bool {
        self.name == "EXEC" || matches!(self.does, Does::Script(_)) && !self.name.ends_with("_RO")
    }

    /// Returns `true` if the command returns data that it removes or replaces, so that its reply may be of any size.
    pub(super) fn returns_changed_data(&self, args: &[&[u8]]) -> bool {
        match self.name {
            _ if self.may_write() => true,
            "SET" => args.iter().skip(3).any(|arg| arg.eq_ignore_ascii_case(b"GET")),
            _ => self.always_returns_changed_data(),
        }
    }

    /// Returns `true` if the command returns data that it removes or replaces, whatever its arguments are.
    pub(super) fn always_returns_changed_data(&self) -> bool {
        self.is_write && RETURNING.contains(&self.name)
    }

    /// Returns `true` if the replies of the command are messages about subscriptions.
    pub(super) fn is_about_channels(&self) -> bool {
        matches!(self.name, "SUBSCRIBE" | "UNSUBSCRIBE" | "PSUBSCRIBE" | "PUNSUBSCRIBE" | "SSUBSCRIBE" | "SUNSUBSCRIBE")
    }

    pub(super) fn takes(&self, count: usize) -> bool {
        fits(self.arity, count)
    }

    /// Refuses an unknown subcommand, and too many or too few arguments for it.
    pub(super) fn check_part(&self, args: &[&[u8]]) -> Done {
        let Some(word) = args.get(1).filter(|_| !self.parts.is_empty()) else {
            return Ok(());
        };
        match self.parts.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())) {
            Some((_, arity)) if fits(*arity, args.len()) => Ok(()),
            Some((part, _)) => Err(wrong_arity(&format!("{}|{part}", self.name))),
            None if help::of(self, args).is_some() => Ok(()),
            None if help::is_for(self, word) => Err(wrong_arity(&format!("{}|help", self.name))),
            None => {
                let help = format!("'. Try {} HELP.", self.name);
                Err(Fail::of_bytes([b"ERR unknown subcommand '", shown(word), help.as_bytes()].concat()))
            }
        }
    }

    pub(super) fn keys<'a>(&self, args: &[&'a [u8]]) -> Named<'a> {
        let keys = match self.keys {
            Keys::None => SmallVec::new(),
            Keys::All => return Named::All,
            Keys::Range(1, 1, _) => {
                let mut one = SmallVec::new();
                one.push(args[1]);
                one
            }
            Keys::Range(first, last, step) => {
                let last = if last < 0 { args.len() as i64 + i64::from(last) } else { i64::from(last) };
                let last = usize::try_from(last).unwrap_or_default().min(args.len() - 1);
                (usize::from(first)..=last).step_by(usize::from(step)).map(|at| args[at]).collect()
            }
            Keys::Counted { at, is_first_too } => {
                let at = usize::from(at);
                let count = args.get(at).map_or(0, |count| leading_number(count));
                let count = if count < args.len() - at { count } else { 0 };
                let first = is_first_too.then(|| args[1]);
                first.into_iter().chain(args.iter().skip(at + 1).take(count).copied()).collect()
            }
            Keys::Streams => {
                // A group or a consumer may have this word as its name.
                let from = if args[1].eq_ignore_ascii_case(b"GROUP") { args.len().min(4) } else { 1 };
                let after = args[from..].iter().position(|arg| arg.eq_ignore_ascii_case(b"STREAMS"));
                let names = after.map_or(&[][..], |at| &args[from + at + 1..]);
                names[..names.len() / 2].iter().copied().collect()
            }
            Keys::FirstAndStored => {
                let mut stored = None;
                // Options follow at least a place or a member, a radius and a unit.
                let mut words = args.iter().skip(5);
                while let Some(word) = words.next() {
                    if word.eq_ignore_ascii_case(b"STORE") || word.eq_ignore_ascii_case(b"STOREDIST") {
                        stored = words.next().or(stored);
                    }
                }
                [args[1]].into_iter().chain(stored.copied()).collect()
            }
        };
        Named::These(keys)
    }
}

/// Returns the digits at the start of a text, as C's `atoi` reads them. Redis finds keys this way, and refuses an
/// invalid number only when it runs the command.
fn leading_number(text: &[u8]) -> usize {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: usize, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}

/// Execution of one command on one database whose stripes are locked.
pub(super) struct Step<'s, 'c> {
    pub(super) db: &'s mut LockedCache<'c>,
    /// The other database of a command that moves or copies keys.
    pub(super) other: Option<&'s mut LockedCache<'c>>,
    pub(super) out: &'s mut Writer,
    /// Key that has data now for a command that blocked before. Other keys are not checked.
    pub(super) again: Option<&'s [u8]>,
    /// Set by a command that has no data yet and wants to block.
    pub(super) block: Option<Block>,
    /// `true` if a large command may be left to run in slices; `false` inside a transaction.
    pub(super) may_slice: bool,
    /// Set by a command that has not finished and continues in slices.
    pub(super) sliced: Option<Box<work::Sliced>>,
}

/// Timeout of a blocking command, and its reply if it cannot block or times out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Timeout in ms; `None` blocks forever.
    pub(super) timeout_ms: Option<u64>,
    pub(super) is_null_array: bool,
    /// Kind of the values that the command waits for.
    pub(super) kind: Kind,
    /// Number of keys, from the first one, that the command waits for. It only accesses the others.
    pub(super) sources: usize,
}

impl<'c> Step<'_, 'c> {
    pub(super) fn new<'s>(db: &'s mut LockedCache<'c>, out: &'s mut Writer) -> Step<'s, 'c> {
        Step { db, other: None, out, again: None, block: None, may_slice: false, sliced: None }
    }
}

/// Returns the string of a key, and records the use of the key.
pub(super) fn string<'s>(db: &'s mut LockedCache<'_>, key: &[u8]) -> Done<Option<&'s [u8]>> {
    db.get(key).map(bytes_of).transpose()
}

pub(super) fn bytes_of(found: Found<'_>) -> Done<&[u8]> {
    match found.value {
        Value::Bytes(bytes) => Ok(bytes),
        Value::Structure(_) => Err(WRONG_TYPE),
    }
}

/// Returns the structure (list, hash and so on) of a key, and records the use of the key.
pub(super) fn part<'s, T: Part>(db: &'s mut LockedCache<'_>, key: &[u8]) -> Done<Option<&'s T>> {
    match db.get(key).map(|found| found.value) {
        None => Ok(None),
        Some(Value::Structure(structure)) => T::of(structure).map(Some).ok_or(WRONG_TYPE),
        Some(Value::Bytes(_)) => Err(WRONG_TYPE),
    }
}

impl Step<'_, '_> {
    /// Sets the operation by which keyspace events name the following changes, if that is not the command.
    pub(super) fn set_operation(&mut self, operation: &'static str) {
        let cause = self.db.cause();
        self.db.set_cause(Cause { operation, ..cause });
    }

    /// Returns `true` if a command that blocked before passes over this key.
    pub(super) fn skips(&self, key: &[u8]) -> bool {
        self.again.is_some_and(|again| again != key)
    }
}

/// Returns `true` if the key exists. Fails if it has a value of another kind.
pub(super) fn check_kind(db: &mut LockedCache<'_>, key: &[u8], kind: Kind) -> Done<bool> {
    match db.kind(key) {
        None => Ok(false),
        Some(current) if current == kind => Ok(true),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// Changes a structure (list, hash and so on), which is created if the key does not exist. `change` returns `true` if
/// it changed anything. `room` is the maximum number of parts and bytes by which the key grows.
pub(super) fn change<T: Part, R>(
    db: &mut LockedCache<'_>,
    key: &[u8],
    room: (usize, usize),
    change: impl FnOnce(&mut Edit<'_, T>) -> (bool, R),
) -> Done<R> {
    let (parts, bytes) = room;
    let changed = db.change(key, (parts as u64) * T::ROOM_BYTES + bytes as u64, change);
    changed.or_else(|error| check_kind(db, key, T::KIND).and(Err(error.into())))
}

/// Returns an unpredictable number.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Each hasher state of the standard library has different random keys.
    RandomState::new().hash_one(0)
}

/// Returns the part of an unknown argument that an error repeats.
pub(super) fn shown(arg: &[u8]) -> &[u8] {
    let text = arg.split(|byte| *byte == 0).next().unwrap_or_default();
    &text[..text.len().min(SHOWN_BYTES_MAX)]
}

/// Returns the total number of bytes of all arguments.
pub(super) fn bytes_in(args: &[&[u8]]) -> usize {
    args.iter().map(|arg| arg.len()).sum()
}

/// Returns the error of Redis for a subcommand with a wrong number of arguments that may have several numbers of them.
pub(super) fn wrong_part(name: &str, part: &[u8]) -> Fail {
    let help = format!("'. Try {name} HELP.");
    let begin = b"ERR unknown subcommand or wrong number of arguments for '";
    Fail::of_bytes([begin, shown(part), help.as_bytes()].concat())
}

pub(super) fn wrong_arity(name: &str) -> Fail {
    Fail::new(format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase()))
}
