//! `thalweg cache`: caches and their entries.

mod import;

use std::io::{self, Read, Write};

use client::{
    Cache as ClientCache, CacheSettings, CacheStatus, Change, ChangeKind, Client, Condition, Eviction, ScanCursor,
    Stored, Ttl, Value,
};
use serde_json::{Value as Json, json};
use thalweg::config::Config;

use super::time::format_time;
use super::{confirm, connect, units};
use crate::args::{Cache, CacheCall, CachePut};
use crate::block_on;
use crate::output::{FAILED, Failure, NOT_FOUND, Result, note, remark};

/// Text of an empty cell.
const DASH: &str = "-";

pub fn run(config: &Config, command: Cache, is_json: bool) -> Result {
    match command {
        // Both sides speak Redis's protocol.
        Cache::Import(args) => import::run(config, &args, is_json),
        Cache::Call(call) => block_on(async {
            let client = connect(config).await?;
            let done = dispatch(&client, call, is_json).await;
            client.close().await;
            done
        }),
    }
}

async fn dispatch(client: &Client, call: CacheCall, is_json: bool) -> Result {
    let out = &mut io::stdout();
    match call {
        CacheCall::Create { cache, bytes_max, eviction, ttl, durable } => {
            let eviction = Eviction::parse(&eviction)?;
            let settings = CacheSettings { bytes_max, eviction, ttl_ms: ttl, is_durable: durable };
            let status = client.create_cache(&cache, settings).await?;
            print(out, is_json, &to_json(&status), &format!("created cache {cache}"))
        }
        CacheCall::Delete { cache, yes } => {
            confirm::ask(yes, &format!("Delete cache {cache} with all its entries?"))?;
            client.delete_cache(&cache).await?;
            print(out, is_json, &json!({ "deleted": cache }), &format!("deleted cache {cache}"))
        }
        CacheCall::List => list(out, &client.list_caches().await?, is_json),
        CacheCall::Stats { cache } => stats(out, &client.describe_cache(&cache).await?, is_json),
        CacheCall::Get { cache, key } => get(out, &client.cache(&cache), &key, is_json).await,
        CacheCall::Put(args) => put(out, &client.cache(&args.cache), args, is_json).await,
        CacheCall::Del { cache, key, if_version } => {
            let condition = if_version.map_or(Condition::Always, Condition::IfVersion);
            delete(out, &client.cache(&cache), &key, condition, is_json).await
        }
        CacheCall::Incr { cache, key, by, ttl } => {
            let added = client.cache(&cache).add(key.clone(), by, ttl.map_or(Ttl::Default, Ttl::For)).await?;
            // The value is a string, as all values are: programs whose numbers are doubles would round a number of 64
            // bits.
            let json = json!({ "key": key, "value": added.value.to_string(), "version": added.version });
            print(out, is_json, &json, &added.value.to_string())
        }
        CacheCall::Touch { cache, key, ttl } => {
            if client.cache(&cache).touch(key.clone(), ttl.map_or(Ttl::Never, Ttl::For)).await? {
                print(out, is_json, &json!({ "key": key }), "touched")
            } else {
                Err(no_entry(&cache, &key))
            }
        }
        CacheCall::Scan { cache, prefix, keys } => scan(out, &client.cache(&cache), &prefix, keys, is_json).await,
        CacheCall::Watch { cache, prefix, changes, max } => {
            watch(out, &client.cache(&cache), &prefix, changes, max, is_json).await
        }
        CacheCall::Flush { cache, yes } => {
            confirm::ask(yes, &format!("Delete all entries of cache {cache}?"))?;
            let count = client.cache(&cache).flush().await?;
            let text = format!("deleted {} of cache {cache}", units::count(count, "entry"));
            print(out, is_json, &json!({ "cache": cache, "flushed": count }), &text)
        }
    }
}

fn print(out: &mut impl Write, is_json: bool, json: &Json, text: &str) -> Result {
    if is_json { Ok(writeln!(out, "{json}")?) } else { Ok(writeln!(out, "{text}")?) }
}

fn no_entry(cache: &str, key: &str) -> Failure {
    Failure::new(NOT_FOUND, format!("cache {cache} has no key '{key}' (not_found)"))
}

async fn get(out: &mut impl Write, cache: &ClientCache, keys: &[String], is_json: bool) -> Result {
    let values = cache.multi_get(keys.iter().cloned()).await?;
    let mut missing = None;
    for (key, value) in keys.iter().zip(values) {
        match value {
            Some(value) if is_json => writeln!(out, "{}", entry_json(key.as_bytes(), &value))?,
            Some(value) => {
                out.write_all(&value.value)?;
                out.write_all(b"\n")?;
            }
            None => {
                missing.get_or_insert(key);
            }
        }
    }
    missing.map_or(Ok(()), |key| Err(no_entry(cache.name(), key)))
}

async fn put(out: &mut impl Write, cache: &ClientCache, args: CachePut, is_json: bool) -> Result {
    let value = match args.value {
        Some(value) => value.into_bytes(),
        None => {
            let mut value = Vec::new();
            io::stdin().read_to_end(&mut value)?;
            value
        }
    };
    let ttl = match (args.ttl, args.forever) {
        (Some(ms), _) => Ttl::For(ms),
        (None, true) => Ttl::Never,
        (None, false) => Ttl::Default,
    };
    let condition = match (args.if_absent, args.if_present, args.if_version) {
        (true, ..) => Condition::IfAbsent,
        (_, true, _) => Condition::IfPresent,
        (.., Some(version)) => Condition::IfVersion(version),
        (..) => Condition::Always,
    };
    match cache.put_with(args.key.clone(), value, ttl, condition).await? {
        Stored::Done { version, previous } => {
            let json = json!({ "key": args.key, "version": version, "previous": previous });
            print(out, is_json, &json, &format!("version {version}"))
        }
        Stored::Unmet { current } => Err(unmet(&args.key, current)),
    }
}

fn unmet(key: &str, current: Option<u64>) -> Failure {
    let state = current.map_or("not in the cache".to_owned(), |version| format!("in the cache with version {version}"));
    Failure::new(FAILED, format!("'{key}' is {state}: nothing was changed"))
}

async fn delete(
    out: &mut impl Write,
    cache: &ClientCache,
    keys: &[String],
    condition: Condition,
    is_json: bool,
) -> Result {
    let mut deleted = 0;
    for key in keys {
        match cache.delete_if(key.clone(), condition).await? {
            Stored::Done { previous, .. } => deleted += u64::from(previous.is_some()),
            Stored::Unmet { current } => return Err(unmet(key, current)),
        }
    }
    print(out, is_json, &json!({ "deleted": deleted }), &format!("{deleted} deleted"))
}

async fn scan(out: &mut impl Write, cache: &ClientCache, prefix: &str, keys_only: bool, is_json: bool) -> Result {
    let mut from = Some(ScanCursor::default());
    while let Some(cursor) = from {
        let (entries, next) = cache.scan(prefix.to_owned(), cursor, !keys_only).await?;
        for entry in entries {
            let key = String::from_utf8_lossy(&entry.key);
            match (is_json, keys_only) {
                (true, _) => writeln!(out, "{}", entry_json(&entry.key, &entry.value))?,
                (false, true) => writeln!(out, "{key}")?,
                (false, false) => writeln!(out, "{key}\t{}", String::from_utf8_lossy(&entry.value.value))?,
            }
        }
        from = next;
    }
    Ok(())
}

async fn watch(
    out: &mut impl Write,
    cache: &ClientCache,
    prefix: &str,
    changes_only: bool,
    max: Option<u64>,
    is_json: bool,
) -> Result {
    remark(&format!("watching cache {}; Ctrl-C ends", cache.name()));
    let mut watch = cache.watch(prefix.to_owned());
    let mut is_caught_up = false;
    let mut left = max.unwrap_or(u64::MAX);
    loop {
        let news = watch.next().await?;
        if news.is_reset {
            note("changes were missed: all current entries follow");
        }
        for change in &news.changes {
            if changes_only && !is_caught_up && !news.is_reset {
                continue;
            }
            if is_json {
                writeln!(out, "{}", change_json(change))?
            } else {
                writeln!(out, "{}", change_line(change))?
            }
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
        out.flush()?;
        is_caught_up |= news.is_caught_up;
    }
}

fn change_line(change: &Change) -> String {
    let key = String::from_utf8_lossy(&change.key);
    match &change.kind {
        ChangeKind::Put(value) => format!("put\t{key}\t{}", String::from_utf8_lossy(value)),
        ChangeKind::Changed(kind) => format!("changed\t{key}\t{}", kind.name()),
        ChangeKind::Flushed => "flushed".to_owned(),
        kind => format!("{}\t{key}", kind_name(kind)),
    }
}

fn kind_name(kind: &ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Put(_) => "put",
        ChangeKind::Changed(_) => "changed",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Expired => "expired",
        ChangeKind::Evicted => "evicted",
        ChangeKind::Flushed => "flushed",
    }
}

fn change_json(change: &Change) -> Json {
    let value = match &change.kind {
        ChangeKind::Put(value) => Some(String::from_utf8_lossy(value)),
        _ => None,
    };
    json!({
        "change": kind_name(&change.kind),
        "key": String::from_utf8_lossy(&change.key),
        "value": value,
        "version": change.version,
        "expires": change.expires_ms.map(|ms| format_time(ms as i64)),
    })
}

fn entry_json(key: &[u8], value: &Value) -> Json {
    json!({
        "key": String::from_utf8_lossy(key),
        "value": String::from_utf8_lossy(&value.value),
        "version": value.version,
        "expires": value.expires_ms.map(|ms| format_time(ms as i64)),
    })
}

fn to_json(status: &CacheStatus) -> Json {
    let settings = &status.settings;
    let stats = &status.stats;
    json!({
        "cache": status.name.as_str(),
        "bytes_max": status.bytes_max,
        "eviction": settings.eviction.name(),
        "ttl_ms": settings.ttl_ms,
        "durable": settings.is_durable,
        "entries": stats.entries,
        "bytes": stats.bytes,
        "hits": stats.hits,
        "misses": stats.misses,
        "expired": stats.expired,
        "evicted": stats.evicted,
    })
}

fn yes_or_dash(is_so: bool) -> String {
    if is_so { "yes" } else { DASH }.to_owned()
}

fn list(out: &mut impl Write, caches: &[CacheStatus], is_json: bool) -> Result {
    if is_json {
        return Ok(writeln!(out, "{}", Json::Array(caches.iter().map(to_json).collect()))?);
    }
    if caches.is_empty() {
        let advice = "`thalweg cache put NAME KEY VALUE` creates one";
        return Ok(writeln!(out, "{}", units::nothing("caches", advice))?);
    }
    let mut table = units::table();
    table.set_header(["CACHE", "ENTRIES", "BYTES", "OF", "EVICTION", "DURABLE", "HITS", "MISSES"]);
    for cache in caches {
        let settings = &cache.settings;
        let stats = &cache.stats;
        table.add_row([
            cache.name.to_string(),
            stats.entries.to_string(),
            units::bytes(stats.bytes),
            units::bytes(cache.bytes_max),
            settings.eviction.name().to_owned(),
            yes_or_dash(settings.is_durable),
            stats.hits.to_string(),
            stats.misses.to_string(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

fn stats(out: &mut impl Write, cache: &CacheStatus, is_json: bool) -> Result {
    if is_json {
        return Ok(writeln!(out, "{}", to_json(cache))?);
    }
    let settings = &cache.settings;
    let stats = &cache.stats;
    let asked = stats.hits + stats.misses;
    let ratio = if asked == 0 { DASH.to_owned() } else { format!("{:.1} %", 100.0 * stats.hits as f64 / asked as f64) };
    let rows = [
        ("entries", stats.entries.to_string()),
        ("bytes", format!("{} of {}", units::bytes(stats.bytes), units::bytes(cache.bytes_max))),
        ("eviction", settings.eviction.name().to_owned()),
        ("ttl", settings.ttl_ms.map_or(DASH.to_owned(), units::millis)),
        ("durable", yes_or_dash(settings.is_durable)),
        ("hits", format!("{} ({ratio})", stats.hits)),
        ("misses", stats.misses.to_string()),
        ("expired", stats.expired.to_string()),
        ("evicted", stats.evicted.to_string()),
    ];
    let mut table = units::table();
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    Ok(writeln!(out, "{table}")?)
}
