//! `thalweg cache import`: the keys of a Redis server, or of a file that one wrote, copied to a broker's Redis door.
//!
//! A key is copied as `DUMP` returns it, in one piece. Streams and large values, which `RESTORE` does not take, are
//! copied by the commands of their type.

mod file;
mod parts;
mod server;

use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use redis::{Client, ConnectionLike, IntoConnectionInfo, Pipeline, Value, cmd};
use serde_json::json;
use thalweg::config::Config;

use super::super::{units, user};
use crate::args::CacheImport;
use crate::output::{FAILED, Failure, NO_BROKER, Result, USAGE};

/// Number of keys that are copied together.
const TOGETHER: usize = 100;
/// Sum of payloads in bytes from which on no more keys are copied together.
const TOGETHER_BYTES: usize = 4 << 20;
/// Size of a payload in bytes from which on it is not sent: a request has at most 64 MiB.
const PAYLOAD_BYTES_MAX: usize = 60 << 20;
/// Maximum number of keys that are listed as failed.
const LISTED_MAX: usize = 100;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a server must answer one request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Connection to a server, with its address for messages.
pub(super) struct Server {
    connection: redis::Connection,
    address: String,
    /// Database that is selected.
    database: Option<u64>,
}

impl Server {
    /// Connects to the server of a URL. Returns it with the database that the URL names.
    fn connect(url: &str, option: &str) -> Result<(Self, Option<u64>)> {
        // The URL may have a password, which no message shows.
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::new(USAGE, format!("{option}: {why}; use redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]"))
        };
        let info = url.into_connection_info().map_err(|error| wrong(&error))?;
        let path = url.split_once("://").map_or("", |(_, rest)| rest);
        let named = path.split_once('/').map(|(_, path)| path.split('?').next().unwrap_or_default());
        let named = named.filter(|named| !named.is_empty());
        let database = named.map(str::parse).transpose().map_err(|error| wrong(&error))?;
        let address = info.addr().to_string();
        let unreachable =
            |error: redis::RedisError| Failure::new(NO_BROKER, format!("cannot connect to {address}: {error}"));
        let client = Client::open(info).map_err(|error| wrong(&error))?;
        let connection = client.get_connection_with_timeout(CONNECT_TIMEOUT).map_err(unreachable)?;
        let set = connection.set_read_timeout(Some(ANSWER_TIMEOUT));
        set.and_then(|()| connection.set_write_timeout(Some(ANSWER_TIMEOUT))).map_err(unreachable)?;
        Ok((Self { connection, address, database: None }, database))
    }

    fn failed(&self, error: &redis::RedisError) -> Failure {
        Failure::new(FAILED, format!("{}: {error}", self.address))
    }

    /// Runs a command, whose failure ends the import.
    fn run<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T> {
        command.query(&mut self.connection).map_err(|error| self.failed(&error))
    }

    fn select(&mut self, database: u64) -> Result {
        if self.database != Some(database) {
            self.run::<()>(cmd("SELECT").arg(database))?;
            self.database = Some(database);
        }
        Ok(())
    }

    /// Runs commands together. Returns the reply of each, which may be an error.
    fn each(&mut self, commands: &Pipeline) -> Result<Vec<Value>> {
        let count = commands.cmd_iter().count();
        if count == 0 {
            return Ok(Vec::new());
        }
        let packed = commands.get_packed_pipeline();
        self.connection.req_packed_commands(&packed, 0, count).map_err(|error| self.failed(&error))
    }
}

/// Key with what is copied of it.
pub(super) struct Taken {
    database: u64,
    key: Vec<u8>,
    /// Time when it expires, in ms since 1970.
    expires_ms: Option<u64>,
    payload: Vec<u8>,
}

/// Outcome of an import so far.
#[derive(Default)]
pub(super) struct Report {
    copied: u64,
    /// Keys that the target had already, with the same value.
    equal: u64,
    /// Keys that the target had already, with another value, and that were not replaced.
    kept: u64,
    /// Keys that expired or were deleted before they could be copied.
    gone: u64,
    /// Keys whose value in the target was compared with the one that was copied.
    verified: u64,
    /// Keys that were copied, and are too large to be compared.
    too_large: u64,
    /// Libraries of functions that were loaded.
    libraries: u64,
    /// Keys and libraries that were not copied, or differ afterwards.
    failed: u64,
    /// Names of the first of them, with the reasons.
    failures: Vec<(String, String)>,
}

impl Report {
    fn fail(&mut self, database: u64, key: &[u8], why: impl Into<String>) {
        self.fail_to_copy(format!("{} in database {database}", key.escape_ascii()), why.into());
    }

    fn fail_to_copy(&mut self, what: String, why: String) {
        self.failed += 1;
        if self.failures.len() < LISTED_MAX {
            self.failures.push((what, why));
        }
    }

    fn seen(&self) -> u64 {
        self.copied + self.equal + self.kept + self.gone + self.failed
    }
}

/// Import that runs.
pub(super) struct Import {
    target: Server,
    replaces: bool,
    verifies: bool,
    report: Report,
    bar: ProgressBar,
}

pub(super) fn run(config: &Config, args: &CacheImport, is_json: bool) -> Result {
    let url = match (&args.to, config.address("redis")) {
        (Some(url), _) => url.clone(),
        (None, Ok(Some(address))) => format!("redis://{address}"),
        (None, _) => {
            let message = "the key redis is off: name the Redis door of a broker with --to redis://HOST:PORT";
            return Err(Failure::new(USAGE, message));
        }
    };
    let (target, named) = Server::connect(&url, "--to")?;
    if named.is_some() {
        return Err(Failure::new(USAGE, "--to names no database: each key keeps the number of its own"));
    }
    let bar = if is_json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = ProgressStyle::with_template("{spinner} {msg}  {percent} %  {elapsed}, {eta} left");
    bar.set_style(style.expect("invariant: the template is valid"));
    let report = Report::default();
    let mut import = Import { target, replaces: args.replace, verifies: !args.without_verify, report, bar };
    let began = Instant::now();
    match (&args.from, &args.file) {
        (Some(url), _) => server::copy(&mut import, url, args.pattern.as_deref())?,
        (None, Some(path)) => file::copy(&mut import, path)?,
        (None, None) => {
            return Err(Failure::new(USAGE, "name the source with --from redis://HOST:PORT or --file FILE"));
        }
    }
    import.bar.finish_and_clear();
    finish(&import, began.elapsed(), is_json)
}

fn finish(import: &Import, took: Duration, is_json: bool) -> Result {
    let Report { copied, equal, kept, gone, verified, too_large, libraries, failed, failures } = &import.report;
    let listed: Vec<_> = failures.iter().map(|(what, why)| json!({ "what": what, "reason": why })).collect();
    let json = json!({
        "copied": copied, "equal": equal, "kept": kept, "gone": gone, "verified": verified, "too_large": too_large,
        "libraries": libraries, "failed": failed, "failures": listed, "seconds": took.as_secs_f64(),
    });
    let mut text = format!("copied {} to {}", units::count(*copied, "key"), import.target.address);
    if *libraries > 0 {
        text += &format!(", and {} of functions", units::count(*libraries, "library"));
    }
    let others = [
        (*equal, "there already"),
        (*kept, "there with another value, not replaced: --replace replaces them"),
        (*gone, "expired or deleted meanwhile"),
        (*too_large, "too large to be compared"),
    ];
    for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
        text += &format!("\n{}: {what}", units::count(*count, "key"));
    }
    if import.verifies {
        text += &format!("\n{} compared with the source: equal", units::count(*verified, "value"));
    }
    user::say(is_json, json, &text)?;
    if *failed == 0 {
        return Ok(());
    }
    let mut message = "not copied:".to_owned();
    for (what, why) in failures {
        message += &format!("\n  {what}: {why}");
    }
    if *failed > failures.len() as u64 {
        message += &format!("\n  and {} more", failed - failures.len() as u64);
    }
    Err(Failure::new(FAILED, message))
}

impl Import {
    /// Shows how far the import is: `done` of `all` keys or bytes of the source.
    fn progress(&self, done: u64, all: u64) {
        self.bar.set_length(all.max(1));
        self.bar.set_position(done.min(all));
        self.bar.set_message(format!("{} keys", HumanCount(self.report.seen())));
    }

    /// Restores keys of one database in the target, and compares them if that is wanted. Returns those that `RESTORE`
    /// does not take, with its reason.
    fn restore(&mut self, taken: Vec<Taken>) -> Result<Vec<(Taken, String)>> {
        let Some(database) = taken.first().map(|taken| taken.database) else {
            return Ok(Vec::new());
        };
        self.target.select(database)?;
        let (taken, large): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|taken| taken.payload.len() < PAYLOAD_BYTES_MAX);
        let mut refused: Vec<(Taken, String)> =
            large.into_iter().map(|taken| (taken, "it is too large".to_owned())).collect();
        let mut pipeline = Pipeline::new();
        for Taken { key, expires_ms, payload, .. } in &taken {
            let restore = pipeline.cmd("RESTORE").arg(key).arg(expires_ms.unwrap_or(0)).arg(payload).arg("ABSTTL");
            if self.replaces {
                restore.arg("REPLACE");
            }
        }
        let replies = self.target.each(&pipeline)?;
        let mut compared = Vec::new();
        for (taken, reply) in taken.into_iter().zip(replies) {
            match reply {
                Value::ServerError(error) if error.code() == "BUSYKEY" => compared.push((taken, false)),
                Value::ServerError(error) => {
                    let why = doors::redis::refusal(&taken.payload).unwrap_or_else(|| error.to_string());
                    refused.push((taken, why));
                }
                _ if self.verifies => compared.push((taken, true)),
                _ => self.report.copied += 1,
            }
        }
        self.compare(compared)?;
        Ok(refused)
    }

    /// Loads libraries of functions in the target.
    fn load(&mut self, libraries: &[Vec<u8>]) -> Result {
        for code in libraries {
            let mut pipeline = Pipeline::new();
            let load = pipeline.cmd("FUNCTION").arg("LOAD");
            if self.replaces {
                load.arg("REPLACE");
            }
            load.arg(code);
            match self.target.each(&pipeline)?.pop() {
                Some(Value::ServerError(error)) => {
                    let first = code.split(|byte| *byte == b'\n').next().unwrap_or_default();
                    let what = format!("the library of functions {}", first.escape_ascii());
                    self.report.fail_to_copy(what, error.to_string());
                }
                _ => self.report.libraries += 1,
            }
        }
        Ok(())
    }

    /// Compares keys with those in the target, each with `true` if it was copied and `false` if it was there already.
    fn compare(&mut self, keys: Vec<(Taken, bool)>) -> Result {
        if keys.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for (taken, _) in &keys {
            pipeline.cmd("DUMP").arg(&taken.key);
        }
        let replies = self.target.each(&pipeline)?;
        for ((taken, is_copied), reply) in keys.into_iter().zip(replies) {
            let is_equal = match &reply {
                Value::BulkString(found) => doors::redis::has_equal_value(&taken.payload, found),
                // A value whose payload is larger than a request may be.
                Value::ServerError(error) if error.code() == "ERR" => {
                    self.report.copied += u64::from(is_copied);
                    self.report.equal += u64::from(!is_copied);
                    self.report.too_large += 1;
                    continue;
                }
                _ => false,
            };
            let is_gone = matches!(reply, Value::Nil) && taken.expires_ms.is_some();
            match (is_copied, is_equal) {
                _ if is_gone => self.report.gone += 1,
                (true, true) => {
                    self.report.copied += 1;
                    self.report.verified += 1;
                }
                (false, true) => {
                    self.report.equal += 1;
                    self.report.verified += 1;
                }
                (true, false) => {
                    let why = "the target has another value: a client wrote the key meanwhile";
                    self.report.fail(taken.database, &taken.key, why);
                }
                (false, false) => self.report.kept += 1,
            }
        }
        Ok(())
    }
}
