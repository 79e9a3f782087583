//! Caches on the wire. Requests for entries identify their cache by the number that it was opened under.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::cache::operations::OperationId;
use engine::cache::structures::Kind;
use engine::cache::{
    Added, CacheName, CacheSettings, CacheStatus, Change, ChangeKind, Condition, Eviction, ScanCursor, Stored,
    StripeStats, Ttl, WatchFrom, Watched,
};
use engine::{Error, Result};

use crate::field::{Fields, put_list, put_str};
use crate::kind::{request, response};

/// Value of a 64-bit field that means none.
const NONE_U64: u64 = u64::MAX;
/// Minimum encoded sizes of a key, a value, an entry, a change and a cache's status.
const KEY_BYTES_MIN: usize = 2;
const VALUE_BYTES_MIN: usize = 1;
const ENTRY_BYTES_MIN: usize = KEY_BYTES_MIN + 20;
const CHANGE_BYTES_MIN: usize = KEY_BYTES_MIN + 17;
const STATUS_BYTES_MIN: usize = 77;

/// Request about caches and their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheRequest {
    /// Creates a cache.
    Create {
        /// Name of the cache.
        cache: String,
        /// Settings of the cache.
        settings: CacheSettings,
    },
    /// Requests the number of a cache. A missing cache is created, unless `auto_create_topics` is off.
    Open {
        /// Name of the cache.
        cache: String,
    },
    /// Deletes a cache with its entries.
    Delete {
        /// Name of the cache.
        cache: String,
    },
    /// Requests the settings and counters of a cache.
    Describe {
        /// Name of the cache.
        cache: String,
    },
    /// Lists caches in the order of their names.
    List {
        /// Name after which the list begins; empty for the first page.
        after: String,
        /// Maximum number of caches in the answer.
        count_max: u32,
    },
    /// Requests the value of a key.
    Get {
        /// Number of the cache.
        cache: u64,
        /// Key of the entry.
        key: Bytes,
    },
    /// Requests the values of several keys.
    MultiGet {
        /// Number of the cache.
        cache: u64,
        /// Keys of the entries.
        keys: Vec<Bytes>,
    },
    /// Stores a value.
    Put {
        /// Number of the cache.
        cache: u64,
        /// Condition that the entry has to meet.
        condition: Condition,
        /// Time to live of the entry.
        ttl: Ttl,
        /// Id of the operation, if it may be sent again.
        operation: Option<OperationId>,
        /// Key of the entry.
        key: Bytes,
        /// Value of the entry.
        value: Bytes,
    },
    /// Removes an entry.
    Remove {
        /// Number of the cache.
        cache: u64,
        /// Condition that the entry has to meet.
        condition: Condition,
        /// Id of the operation, if it may be sent again.
        operation: Option<OperationId>,
        /// Key of the entry.
        key: Bytes,
    },
    /// Adds to a counter, which is created if it does not exist.
    Add {
        /// Number of the cache.
        cache: u64,
        /// Number to add.
        delta: i64,
        /// Time to live of the counter, if this request creates it.
        ttl: Ttl,
        /// Id of the operation, if it may be sent again.
        operation: Option<OperationId>,
        /// Key of the counter.
        key: Bytes,
    },
    /// Changes the time to live of an entry.
    Touch {
        /// Number of the cache.
        cache: u64,
        /// Time to live of the entry from now on.
        ttl: Ttl,
        /// Key of the entry.
        key: Bytes,
    },
    /// Requests some of the entries whose keys have a prefix.
    Scan {
        /// Number of the cache.
        cache: u64,
        /// Cursor at which the scan continues.
        from: ScanCursor,
        /// Maximum number of entries in the answer.
        count_max: u32,
        /// `true` if the entries include their values.
        with_values: bool,
        /// Prefix of the keys.
        prefix: Bytes,
    },
    /// Requests changes of keys that have a prefix. If there are none yet, the answer waits.
    Watch {
        /// Number of the cache.
        cache: u64,
        /// Position at which the watch continues.
        from: WatchFrom,
        /// Maximum number of changes in the answer.
        count_max: u32,
        /// Maximum time that the answer waits for a change, in ms.
        wait_ms: u32,
        /// Prefix of the keys.
        prefix: Bytes,
    },
    /// Removes all entries.
    Flush {
        /// Number of the cache.
        cache: u64,
    },
}

/// Answer about caches and their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheResponse {
    /// Answers [`CacheRequest::Create`].
    Created(OpenCache),
    /// Answers [`CacheRequest::Open`].
    Opened(OpenCache),
    /// Answers [`CacheRequest::Delete`].
    Deleted,
    /// Answers [`CacheRequest::Describe`].
    Described(CacheStatus),
    /// Answers [`CacheRequest::List`].
    Caches {
        /// Caches in the order of their names.
        caches: Vec<CacheStatus>,
        /// `true` if no cache follows the last one.
        is_last: bool,
    },
    /// Answers [`CacheRequest::Get`]; `None` if the key has no entry.
    Got(Option<Value>),
    /// Answers [`CacheRequest::MultiGet`], in the order of the keys.
    MultiGot(Vec<Option<Value>>),
    /// Answers [`CacheRequest::Put`].
    Put(Stored),
    /// Answers [`CacheRequest::Remove`].
    Removed(Stored),
    /// Answers [`CacheRequest::Add`].
    Added(Added),
    /// Answers [`CacheRequest::Touch`]: `true` if the key has an entry.
    Touched(bool),
    /// Answers [`CacheRequest::Scan`].
    Scanned {
        /// Entries that the scan found.
        entries: Vec<Entry>,
        /// Cursor at which the scan continues; `None` at its end.
        next: Option<ScanCursor>,
    },
    /// Answers [`CacheRequest::Watch`].
    Watched(Watched),
    /// Answers [`CacheRequest::Flush`] with the number of removed entries.
    Flushed(u64),
}

/// Cache with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCache {
    /// Number by which requests for entries identify the cache.
    pub cache: u64,
    /// Settings and counters of the cache.
    pub status: CacheStatus,
}

/// Value of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Bytes of the value.
    pub value: Bytes,
    /// Version of the entry, for conditions.
    pub version: u64,
    /// Expiry of the entry in ms since 1970; `None` if it does not expire.
    pub expires_ms: Option<u64>,
}

/// Entry that a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key of the entry.
    pub key: Bytes,
    /// Value of the entry, without its bytes if the scan did not request them.
    pub value: Value,
}

impl CacheRequest {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Create { .. } => request::CACHE_CREATE,
            Self::Open { .. } => request::CACHE_OPEN,
            Self::Delete { .. } => request::CACHE_DELETE,
            Self::Describe { .. } => request::CACHE_DESCRIBE,
            Self::List { .. } => request::CACHE_LIST,
            Self::Get { .. } => request::CACHE_GET,
            Self::MultiGet { .. } => request::CACHE_MULTI_GET,
            Self::Put { .. } => request::CACHE_PUT,
            Self::Remove { .. } => request::CACHE_REMOVE,
            Self::Add { .. } => request::CACHE_ADD,
            Self::Touch { .. } => request::CACHE_TOUCH,
            Self::Scan { .. } => request::CACHE_SCAN,
            Self::Watch { .. } => request::CACHE_WATCH,
            Self::Flush { .. } => request::CACHE_FLUSH,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Create { cache, settings } => {
                put_str(b, cache);
                put_settings(b, settings);
            }
            Self::Open { cache } | Self::Delete { cache } | Self::Describe { cache } => put_str(b, cache),
            Self::List { after, count_max } => {
                put_str(b, after);
                b.put_u32(*count_max);
            }
            Self::Get { cache, key } => {
                b.put_u64(*cache);
                put_key(b, key);
            }
            Self::MultiGet { cache, keys } => {
                b.put_u64(*cache);
                put_list(b, keys, |b, key| put_key(b, key));
            }
            Self::Put { cache, condition, ttl, operation, key, value } => {
                b.put_u64(*cache);
                put_condition(b, *condition);
                put_ttl(b, *ttl);
                put_operation(b, *operation);
                put_key(b, key);
                put_long(b, value);
            }
            Self::Remove { cache, condition, operation, key } => {
                b.put_u64(*cache);
                put_condition(b, *condition);
                put_operation(b, *operation);
                put_key(b, key);
            }
            Self::Add { cache, delta, ttl, operation, key } => {
                b.put_u64(*cache);
                b.put_i64(*delta);
                put_ttl(b, *ttl);
                put_operation(b, *operation);
                put_key(b, key);
            }
            Self::Touch { cache, ttl, key } => {
                b.put_u64(*cache);
                put_ttl(b, *ttl);
                put_key(b, key);
            }
            Self::Scan { cache, from, count_max, with_values, prefix } => {
                b.put_u64(*cache);
                b.put_u64(from.0);
                b.put_u32(*count_max);
                b.put_u8(u8::from(*with_values));
                put_key(b, prefix);
            }
            Self::Watch { cache, from, count_max, wait_ms, prefix } => {
                b.put_u64(*cache);
                put_from(b, *from);
                b.put_u32(*count_max);
                b.put_u32(*wait_ms);
                put_key(b, prefix);
            }
            Self::Flush { cache } => b.put_u64(*cache),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            request::CACHE_CREATE => Self::Create { cache: f.str()?, settings: get_settings(f)? },
            request::CACHE_OPEN => Self::Open { cache: f.str()? },
            request::CACHE_DELETE => Self::Delete { cache: f.str()? },
            request::CACHE_DESCRIBE => Self::Describe { cache: f.str()? },
            request::CACHE_LIST => Self::List { after: f.str()?, count_max: f.u32()? },
            request::CACHE_GET => Self::Get { cache: f.u64()?, key: get_key(f)? },
            request::CACHE_MULTI_GET => Self::MultiGet { cache: f.u64()?, keys: f.list(KEY_BYTES_MIN, get_key)? },
            request::CACHE_PUT => Self::Put {
                cache: f.u64()?,
                condition: get_condition(f)?,
                ttl: get_ttl(f)?,
                operation: get_operation(f)?,
                key: get_key(f)?,
                value: get_long(f)?,
            },
            request::CACHE_REMOVE => Self::Remove {
                cache: f.u64()?,
                condition: get_condition(f)?,
                operation: get_operation(f)?,
                key: get_key(f)?,
            },
            request::CACHE_ADD => Self::Add {
                cache: f.u64()?,
                delta: f.i64()?,
                ttl: get_ttl(f)?,
                operation: get_operation(f)?,
                key: get_key(f)?,
            },
            request::CACHE_TOUCH => Self::Touch { cache: f.u64()?, ttl: get_ttl(f)?, key: get_key(f)? },
            request::CACHE_SCAN => Self::Scan {
                cache: f.u64()?,
                from: ScanCursor(f.u64()?),
                count_max: f.u32()?,
                with_values: f.bool()?,
                prefix: get_key(f)?,
            },
            request::CACHE_WATCH => Self::Watch {
                cache: f.u64()?,
                from: get_from(f)?,
                count_max: f.u32()?,
                wait_ms: f.u32()?,
                prefix: get_key(f)?,
            },
            _ => Self::Flush { cache: f.u64()? },
        })
    }
}

impl CacheResponse {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Created(_) => response::CACHE_CREATED,
            Self::Opened(_) => response::CACHE_OPENED,
            Self::Deleted => response::CACHE_DELETED,
            Self::Described(_) => response::CACHE_DESCRIBED,
            Self::Caches { .. } => response::CACHES,
            Self::Got(_) => response::CACHE_GOT,
            Self::MultiGot(_) => response::CACHE_MULTI_GOT,
            Self::Put(_) => response::CACHE_STORED,
            Self::Removed(_) => response::CACHE_REMOVED,
            Self::Added(_) => response::CACHE_ADDED,
            Self::Touched(_) => response::CACHE_TOUCHED,
            Self::Scanned { .. } => response::CACHE_SCANNED,
            Self::Watched(_) => response::CACHE_WATCHED,
            Self::Flushed(_) => response::CACHE_FLUSHED,
        }
    }

    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Created(open) | Self::Opened(open) => {
                b.put_u64(open.cache);
                put_status(b, &open.status);
            }
            Self::Deleted => {}
            Self::Described(status) => put_status(b, status),
            Self::Caches { caches, is_last } => {
                b.put_u8(u8::from(*is_last));
                put_list(b, caches, put_status);
            }
            Self::Got(value) => put_value(b, value.as_ref()),
            Self::MultiGot(values) => put_list(b, values, |b, value| put_value(b, value.as_ref())),
            Self::Put(stored) | Self::Removed(stored) => put_stored(b, *stored),
            Self::Added(Added { value, version, expires_ms }) => {
                b.put_i64(*value);
                b.put_u64(*version);
                b.put_u64(expires_ms.unwrap_or(NONE_U64));
            }
            Self::Touched(exists) => b.put_u8(u8::from(*exists)),
            Self::Scanned { entries, next } => {
                b.put_u64(next.map_or(NONE_U64, |next| next.0));
                put_list(b, entries, |b, entry| {
                    put_key(b, &entry.key);
                    b.put_u64(entry.value.version);
                    b.put_u64(entry.value.expires_ms.unwrap_or(NONE_U64));
                    put_long(b, &entry.value.value);
                });
            }
            Self::Watched(Watched { changes, next, is_reset }) => {
                b.put_u8(u8::from(*is_reset));
                put_from(b, *next);
                put_list(b, changes, put_change);
            }
            Self::Flushed(count) => b.put_u64(*count),
        }
    }

    pub(crate) fn get<B: Buf>(kind: u8, f: &mut Fields<B>) -> Result<Self> {
        Ok(match kind {
            response::CACHE_CREATED => Self::Created(OpenCache { cache: f.u64()?, status: get_status(f)? }),
            response::CACHE_OPENED => Self::Opened(OpenCache { cache: f.u64()?, status: get_status(f)? }),
            response::CACHE_DELETED => Self::Deleted,
            response::CACHE_DESCRIBED => Self::Described(get_status(f)?),
            response::CACHES => {
                let is_last = f.bool()?;
                Self::Caches { caches: f.list(STATUS_BYTES_MIN, get_status)?, is_last }
            }
            response::CACHE_GOT => Self::Got(get_value(f)?),
            response::CACHE_MULTI_GOT => Self::MultiGot(f.list(VALUE_BYTES_MIN, get_value)?),
            response::CACHE_STORED => Self::Put(get_stored(f)?),
            response::CACHE_REMOVED => Self::Removed(get_stored(f)?),
            response::CACHE_ADDED => Self::Added(Added { value: f.i64()?, version: f.u64()?, expires_ms: get_u64(f)? }),
            response::CACHE_TOUCHED => Self::Touched(f.bool()?),
            response::CACHE_SCANNED => {
                let next = get_u64(f)?.map(ScanCursor);
                let entries = f.list(ENTRY_BYTES_MIN, |f| {
                    let key = get_key(f)?;
                    let version = f.u64()?;
                    let expires_ms = get_u64(f)?;
                    Ok(Entry { key, value: Value { value: get_long(f)?, version, expires_ms } })
                })?;
                Self::Scanned { entries, next }
            }
            response::CACHE_WATCHED => {
                let is_reset = f.bool()?;
                let next = get_from(f)?;
                Self::Watched(Watched { changes: f.list(CHANGE_BYTES_MIN, get_change)?, next, is_reset })
            }
            _ => Self::Flushed(f.u64()?),
        })
    }
}

/// Appends a key. Keys are checked before they get here; a key that is too long is truncated, which keeps the frame
/// well formed.
fn put_key(b: &mut BytesMut, key: &[u8]) {
    let key = &key[..key.len().min(usize::from(u16::MAX))];
    b.put_u16(key.len() as u16);
    b.put_slice(key);
}

fn get_key<B: Buf>(f: &mut Fields<B>) -> Result<Bytes> {
    let length = f.u16()?;
    f.bytes(length.into())
}

fn put_long(b: &mut BytesMut, value: &[u8]) {
    b.put_u32(value.len() as u32);
    b.put_slice(value);
}

fn get_long<B: Buf>(f: &mut Fields<B>) -> Result<Bytes> {
    let length = f.u32()?;
    f.bytes(length as usize)
}

fn get_u64<B: Buf>(f: &mut Fields<B>) -> Result<Option<u64>> {
    Ok(Some(f.u64()?).filter(|number| *number != NONE_U64))
}

fn put_value(b: &mut BytesMut, value: Option<&Value>) {
    b.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        b.put_u64(value.version);
        b.put_u64(value.expires_ms.unwrap_or(NONE_U64));
        put_long(b, &value.value);
    }
}

fn get_value<B: Buf>(f: &mut Fields<B>) -> Result<Option<Value>> {
    Ok(if !f.bool()? {
        None
    } else {
        let version = f.u64()?;
        let expires_ms = get_u64(f)?;
        Some(Value { value: get_long(f)?, version, expires_ms })
    })
}

fn put_stored(b: &mut BytesMut, stored: Stored) {
    let (code, version, previous) = match stored {
        Stored::Unmet { current } => (0, NONE_U64, current),
        Stored::Done { version, previous } => (1, version, previous),
    };
    b.put_u8(code);
    b.put_u64(version);
    b.put_u64(previous.unwrap_or(NONE_U64));
}

fn get_stored<B: Buf>(f: &mut Fields<B>) -> Result<Stored> {
    let is_done = f.bool()?;
    let version = f.u64()?;
    let before = get_u64(f)?;
    Ok(if is_done { Stored::Done { version, previous: before } } else { Stored::Unmet { current: before } })
}

fn put_condition(b: &mut BytesMut, condition: Condition) {
    match condition {
        Condition::Always => b.put_u8(0),
        Condition::IfAbsent => b.put_u8(1),
        Condition::IfPresent => b.put_u8(2),
        Condition::IfVersion(version) => {
            b.put_u8(3);
            b.put_u64(version);
        }
    }
}

fn get_condition<B: Buf>(f: &mut Fields<B>) -> Result<Condition> {
    Ok(match f.u8()? {
        0 => Condition::Always,
        1 => Condition::IfAbsent,
        2 => Condition::IfPresent,
        3 => Condition::IfVersion(f.u64()?),
        other => return Err(Error::malformed(format!("{other} is not a condition"))),
    })
}

fn put_operation(b: &mut BytesMut, operation: Option<OperationId>) {
    b.put_u8(u8::from(operation.is_some()));
    if let Some(OperationId { client, sequence }) = operation {
        b.put_u64(client);
        b.put_u64(sequence);
    }
}

fn get_operation<B: Buf>(f: &mut Fields<B>) -> Result<Option<OperationId>> {
    Ok(if f.bool()? { Some(OperationId { client: f.u64()?, sequence: f.u64()? }) } else { None })
}

fn put_ttl(b: &mut BytesMut, ttl: Ttl) {
    match ttl {
        Ttl::Default => b.put_u8(0),
        Ttl::Never => b.put_u8(1),
        Ttl::For(ms) => {
            b.put_u8(2);
            b.put_u64(ms);
        }
        Ttl::Until(ms) => {
            b.put_u8(3);
            b.put_u64(ms);
        }
        Ttl::Kept => b.put_u8(4),
    }
}

fn get_ttl<B: Buf>(f: &mut Fields<B>) -> Result<Ttl> {
    Ok(match f.u8()? {
        0 => Ttl::Default,
        1 => Ttl::Never,
        2 => Ttl::For(f.u64()?),
        3 => Ttl::Until(f.u64()?),
        4 => Ttl::Kept,
        other => return Err(Error::malformed(format!("{other} is not a kind of time to live"))),
    })
}

fn put_from(b: &mut BytesMut, from: WatchFrom) {
    match from {
        WatchFrom::Snapshot => b.put_u8(0),
        WatchFrom::Scan { cursor, position } => {
            b.put_u8(1);
            b.put_u64(cursor.0);
            b.put_u64(position);
        }
        WatchFrom::Changes { position } => {
            b.put_u8(2);
            b.put_u64(position);
        }
    }
}

fn get_from<B: Buf>(f: &mut Fields<B>) -> Result<WatchFrom> {
    Ok(match f.u8()? {
        0 => WatchFrom::Snapshot,
        1 => WatchFrom::Scan { cursor: ScanCursor(f.u64()?), position: f.u64()? },
        2 => WatchFrom::Changes { position: f.u64()? },
        other => return Err(Error::malformed(format!("{other} is not a start of a watch"))),
    })
}

fn put_change(b: &mut BytesMut, change: &Change) {
    let code = match &change.kind {
        ChangeKind::Put(_) => 1,
        ChangeKind::Deleted => 2,
        ChangeKind::Expired => 3,
        ChangeKind::Evicted => 4,
        ChangeKind::Flushed => 5,
        ChangeKind::Changed(_) => 6,
    };
    b.put_u8(code);
    put_key(b, &change.key);
    b.put_u64(change.version);
    b.put_u64(change.expires_ms.unwrap_or(NONE_U64));
    match &change.kind {
        ChangeKind::Put(value) => put_long(b, value),
        ChangeKind::Changed(kind) => put_str(b, kind.name()),
        ChangeKind::Deleted | ChangeKind::Expired | ChangeKind::Evicted | ChangeKind::Flushed => {}
    }
}

fn get_change<B: Buf>(f: &mut Fields<B>) -> Result<Change> {
    let code = f.u8()?;
    let key = get_key(f)?;
    let version = f.u64()?;
    let expires_ms = get_u64(f)?;
    let kind = match code {
        1 => ChangeKind::Put(get_long(f)?),
        2 => ChangeKind::Deleted,
        3 => ChangeKind::Expired,
        4 => ChangeKind::Evicted,
        5 => ChangeKind::Flushed,
        6 => ChangeKind::Changed(get_kind(f)?),
        other => return Err(Error::malformed(format!("{other} is not a kind of change"))),
    };
    Ok(Change { key, kind, version, expires_ms })
}

fn get_kind<B: Buf>(f: &mut Fields<B>) -> Result<Kind> {
    let name = f.str()?;
    let kind =
        [Kind::List, Kind::Hash, Kind::Set, Kind::Sorted, Kind::Stream].into_iter().find(|kind| kind.name() == name);
    kind.ok_or_else(|| Error::malformed(format!("'{name}' is not a type of value")))
}

fn put_settings(b: &mut BytesMut, settings: &CacheSettings) {
    b.put_u64(settings.bytes_max.unwrap_or(NONE_U64));
    put_str(b, settings.eviction.name());
    b.put_u64(settings.ttl_ms.unwrap_or(NONE_U64));
    b.put_u8(u8::from(settings.is_durable));
}

fn get_settings<B: Buf>(f: &mut Fields<B>) -> Result<CacheSettings> {
    let bytes_max = get_u64(f)?;
    let eviction = Eviction::parse(&f.str()?)?;
    Ok(CacheSettings { bytes_max, eviction, ttl_ms: get_u64(f)?, is_durable: f.bool()? })
}

fn put_status(b: &mut BytesMut, status: &CacheStatus) {
    put_str(b, status.name.as_str());
    put_settings(b, &status.settings);
    b.put_u64(status.bytes_max);
    let StripeStats { entries, bytes, hits, misses, expired, evicted } = status.stats;
    [entries, bytes, hits, misses, expired, evicted].into_iter().for_each(|number| b.put_u64(number));
}

fn get_status<B: Buf>(f: &mut Fields<B>) -> Result<CacheStatus> {
    Ok(CacheStatus {
        name: CacheName::parse(&f.str()?)?,
        settings: get_settings(f)?,
        bytes_max: f.u64()?,
        stats: StripeStats {
            entries: f.u64()?,
            bytes: f.u64()?,
            hits: f.u64()?,
            misses: f.u64()?,
            expired: f.u64()?,
            evicted: f.u64()?,
        },
    })
}
