//! Pages about caches.

use console::decode::{Cut, Form, SHOWN_BYTES_MAX};
use console::pages::{cache, caches, entry};
use console::parts::CELL_BYTES_MAX;
use console::shell::Page;
use engine::Error;
use engine::cache::{CacheStatus, Found, ScanCursor};
use engine::security::{Operation, ResourceKind};

use super::super::caches::SCAN_STEPS_MAX;
use super::super::errors::Result;
use super::{LIST_MAX, Visit};

/// Maximum size of a key in a list; longer ones are cut, and have no link.
const KEY_BYTES_MAX: usize = 512;

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let shows = visit.shows(ResourceKind::Cache, text);
    let (found, is_last) = visit.http.broker.caches.list(&visit.names.beginning(after), LIST_MAX, shows);
    let rows = found.iter().map(|status| row(&visit, status)).collect();
    Ok(caches::page(&caches::Caches { rows, query: text.to_owned(), after: after.to_owned(), is_last }))
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "cursor"])?;
    let broker = &visit.http.broker;
    let name = visit.inner();
    let status = broker.caches.describe(&name)?;
    let prefix = query.text("q").unwrap_or_default();
    let cursor = ScanCursor(query.get("cursor")?.unwrap_or_default());
    let entries = if visit.is_live {
        Err(String::new())
    } else {
        match broker.authorize_entries(visit.identity(), Operation::Read, &name, b"") {
            Ok(()) => Ok(entries(&visit, &name, prefix, cursor).await?),
            Err(error) => Err(error.message),
        }
    };
    Ok(cache::page(&row(&visit, &status), &entries))
}

pub(super) async fn entry(visit: Visit) -> Result<Page> {
    let query = visit.query(&["as"])?;
    let form = Form::parse(query.text("as").unwrap_or_default());
    let cache = visit.http.broker.caches.find(&visit.inner())?;
    let key = visit.param(1);
    let read = |found: Found<'_>| {
        let bytes = Cut::new(found.value.bytes()?, SHOWN_BYTES_MAX);
        Ok::<_, Error>(entry::Value { bytes, version: found.version, expires_ms: found.expires_ms })
    };
    // A look does not count as a use of the entry.
    let found = cache.peek(key.as_bytes(), |found| found.map(read).transpose())??;
    cache.commit_of(key.as_bytes()).wait().await?;
    Ok(entry::page(visit.param(0), key, form, found.as_ref()))
}

async fn entries(visit: &Visit, name: &str, prefix: &str, from: ScanCursor) -> Result<cache::Entries> {
    let cache = visit.http.broker.caches.find(name)?;
    let mut rows = Vec::new();
    let mut next = Some(from);
    for _ in 0..SCAN_STEPS_MAX {
        let Some(from) = next.filter(|_| rows.len() < LIST_MAX) else {
            break;
        };
        next = cache.scan(prefix.as_bytes(), from, |found| {
            // An entry with parts (a list, a hash, a set) is listed without its contents.
            let value = found.value.bytes().unwrap_or_default();
            rows.push(cache::Entry {
                key: Cut::new(found.key, KEY_BYTES_MAX),
                value: Cut::new(value, CELL_BYTES_MAX),
                version: found.version,
                expires_ms: found.expires_ms,
            });
            rows.len() < LIST_MAX
        })?;
    }
    cache.settled().wait().await?;
    Ok(cache::Entries { prefix: prefix.to_owned(), rows, next: next.map(|next| next.0) })
}

fn row(visit: &Visit, status: &CacheStatus) -> caches::Row {
    let stats = &status.stats;
    caches::Row {
        name: visit.names.outer(status.name.as_str()).to_owned(),
        entries: stats.entries,
        bytes: stats.bytes,
        bytes_max: status.bytes_max,
        hits: stats.hits,
        misses: stats.misses,
        expired: stats.expired,
        evicted: stats.evicted,
        eviction: status.settings.eviction.name(),
        ttl_ms: status.settings.ttl_ms,
        is_durable: status.settings.is_durable,
    }
}
