//! Keys of a running server.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Pipeline, Value, cmd};

use super::parts::From;
use super::{Import, Server, TOGETHER, TOGETHER_BYTES, Taken, parts};
use crate::output::{FAILED, Failure, Result};

/// Number of keys that one `SCAN` looks at.
const SCANNED: usize = 1000;
/// Memory of a value in bytes from which on it is copied alone.
const LARGE_BYTES: u64 = 1 << 20;
/// Memory of a value in bytes from which on it is copied in parts.
const PARTED_BYTES: u64 = 4 << 20;

/// Copies the keys of the database that the URL names, or of all databases, and the libraries of functions.
pub(super) fn copy(import: &mut Import, url: &str, pattern: Option<&str>) -> Result {
    let (mut source, named) = Server::connect(url, "--from")?;
    let run = run_id(&mut source)?;
    if run.is_some() && run == run_id(&mut import.target)? {
        return Err(Failure::new(FAILED, format!("{} is both the source and the target", source.address)));
    }
    let sizes = sizes(&mut source)?;
    let databases: Vec<u64> = named.map_or_else(|| sizes.keys().copied().collect(), |one| vec![one]);
    let all: u64 = databases.iter().filter_map(|database| sizes.get(database)).sum();
    for database in databases {
        source.select(database)?;
        copy_database(import, &mut source, (database, pattern), all)?;
    }
    let listed =
        cmd("FUNCTION").arg("LIST").arg("WITHCODE").query::<Vec<HashMap<String, Value>>>(&mut source.connection);
    // Servers before 7.0 have no functions.
    let code = |library: &HashMap<String, Value>| match library.get("library_code") {
        Some(Value::BulkString(code)) => Some(code.clone()),
        _ => None,
    };
    match listed {
        Ok(listed) => import.load(&listed.iter().filter_map(code).collect::<Vec<_>>()),
        Err(error) if error.to_string().contains("unknown command") => Ok(()),
        Err(error) => {
            import.report.fail_to_copy("the libraries of functions".to_owned(), error.to_string());
            Ok(())
        }
    }
}

/// Returns the id of a server's process; `None` if it does not tell it.
fn run_id(server: &mut Server) -> Result<Option<String>> {
    let info: String = server.run(cmd("INFO").arg("server"))?;
    Ok(info.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned()))
}

/// Returns the number of keys of each database that has any.
fn sizes(source: &mut Server) -> Result<BTreeMap<u64, u64>> {
    let info: String = source.run(cmd("INFO").arg("keyspace"))?;
    // db0:keys=3,expires=1,avg_ttl=1000
    let size = |line: &str| {
        let (database, counts) = line.strip_prefix("db")?.split_once(':')?;
        let keys = counts.split(',').find_map(|count| count.strip_prefix("keys="))?;
        Some((database.parse().ok()?, keys.trim().parse().ok()?))
    };
    Ok(info.lines().filter_map(size).collect())
}

fn copy_database(
    import: &mut Import,
    source: &mut Server,
    (database, pattern): (u64, Option<&str>),
    all: u64,
) -> Result {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg("COUNT").arg(SCANNED);
        if let Some(pattern) = pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let (next, keys): (String, Vec<Vec<u8>>) = source.run(&scan)?;
        for keys in keys.chunks(TOGETHER) {
            copy_keys(import, source, database, keys)?;
            import.progress(import.report.seen(), all);
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Copies some keys, of which large ones are not held in memory together.
fn copy_keys(import: &mut Import, source: &mut Server, database: u64, keys: &[Vec<u8>]) -> Result {
    let mut pipeline = Pipeline::new();
    for key in keys {
        pipeline.cmd("TYPE").arg(key);
        pipeline.cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(5);
    }
    let replies = source.each(&pipeline)?;
    let mut together = Vec::new();
    let mut bytes = 0;
    for (key, about) in keys.iter().zip(replies.chunks(2)) {
        let [kind, size] = about else { return Err(Failure::new(FAILED, "the source sent too few replies")) };
        let size = match size {
            Value::Int(size) => size.unsigned_abs(),
            // A server that does not tell it.
            _ => 0,
        };
        match kind {
            Value::SimpleString(kind) if kind == "stream" => parts::stream(import, source, database, key)?,
            _ if size > PARTED_BYTES => {
                let ttl: i64 = source.run(cmd("PTTL").arg(key))?;
                let expires_ms = u64::try_from(ttl).ok().map(|ttl| now_ms() + ttl.max(1));
                parts::value(import, source, &From { database, key, expires_ms })?;
            }
            _ if size > LARGE_BYTES => restore(import, source, database, &[key])?,
            _ => {
                together.push(key);
                bytes += size;
                if bytes > TOGETHER_BYTES as u64 {
                    restore(import, source, database, &together)?;
                    together.clear();
                    bytes = 0;
                }
            }
        }
    }
    restore(import, source, database, &together)
}

/// Copies keys as a whole, or in parts if the target does not take a whole.
fn restore(import: &mut Import, source: &mut Server, database: u64, keys: &[&Vec<u8>]) -> Result {
    if keys.is_empty() {
        return Ok(());
    }
    let mut pipeline = Pipeline::new();
    for key in keys {
        pipeline.cmd("DUMP").arg(key);
        pipeline.cmd("PTTL").arg(key);
    }
    let now_ms = now_ms();
    let replies = source.each(&pipeline)?;
    let mut taken = Vec::new();
    for (key, about) in keys.iter().zip(replies.chunks(2)) {
        match about {
            [Value::BulkString(payload), Value::Int(ttl @ (-1 | 0..))] => {
                let expires_ms = u64::try_from(*ttl).ok().map(|ttl| now_ms + ttl.max(1));
                taken.push(Taken { database, key: (*key).clone(), expires_ms, payload: payload.clone() });
            }
            [Value::Nil, _] | [_, Value::Int(-2)] => import.report.gone += 1,
            [Value::ServerError(error), _] => import.report.fail(database, key, error.to_string()),
            other => import.report.fail(database, key, format!("the source answered {other:?}")),
        }
    }
    for (Taken { key, expires_ms, .. }, _) in import.restore(taken)? {
        parts::value(import, source, &From { database, key: &key, expires_ms })?;
    }
    Ok(())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
