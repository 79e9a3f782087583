//! Test vectors of caches.

use bytes::Bytes;
use engine::cache::operations::OperationId;
use engine::cache::structures::Kind;
use engine::cache::{
    Added, CacheName, CacheSettings, CacheStatus, Change, ChangeKind, Condition, Eviction, ScanCursor, Stored,
    StripeStats, Ttl, WatchFrom, Watched,
};
use wire::caches::{Entry, OpenCache, Value};
use wire::{CacheRequest, CacheResponse};

const CACHE: u64 = 0x0123_4567_89ab_cdef;

fn name() -> String {
    "sessions".to_owned()
}

fn key() -> Bytes {
    Bytes::from_static(b"alice")
}

const OPERATION: OperationId = OperationId { client: 1 << 60, sequence: 300 };

fn settings() -> CacheSettings {
    CacheSettings { bytes_max: Some(1 << 28), eviction: Eviction::S3Fifo, ttl_ms: Some(60_000), is_durable: true }
}

pub fn requests() -> Vec<(&'static str, CacheRequest)> {
    let put = |condition, ttl, value: &'static [u8]| CacheRequest::Put {
        cache: CACHE,
        condition,
        ttl,
        operation: (condition != Condition::Always).then_some(OPERATION),
        key: key(),
        value: Bytes::from_static(value),
    };
    let remove = |condition, operation| CacheRequest::Remove { cache: CACHE, condition, operation, key: key() };
    let add = |delta, operation| CacheRequest::Add { cache: CACHE, delta, ttl: Ttl::Never, operation, key: key() };
    let watch = |from| CacheRequest::Watch { cache: CACHE, from, count_max: 100, wait_ms: 20_000, prefix: key() };
    vec![
        ("cache_create", CacheRequest::Create { cache: name(), settings: CacheSettings::default() }),
        ("cache_create_with_all", CacheRequest::Create { cache: name(), settings: settings() }),
        ("cache_open", CacheRequest::Open { cache: name() }),
        ("cache_delete", CacheRequest::Delete { cache: name() }),
        ("cache_describe", CacheRequest::Describe { cache: name() }),
        ("cache_list", CacheRequest::List { after: name(), count_max: 100 }),
        ("cache_get", CacheRequest::Get { cache: CACHE, key: key() }),
        ("cache_multi_get", CacheRequest::MultiGet { cache: CACHE, keys: vec![key(), Bytes::new()] }),
        ("cache_put", put(Condition::Always, Ttl::Default, b"cart")),
        ("cache_put_if_absent", put(Condition::IfAbsent, Ttl::For(1500), b"")),
        ("cache_put_if_present", put(Condition::IfPresent, Ttl::Kept, &[0, 0xff])),
        ("cache_put_if_version", put(Condition::IfVersion(7), Ttl::Until(1_700_000_000_000), b"cart")),
        ("cache_remove", remove(Condition::IfVersion(1 << 40), Some(OPERATION))),
        ("cache_remove_always", remove(Condition::Always, None)),
        ("cache_add", add(-3, Some(OPERATION))),
        ("cache_add_once", add(1, None)),
        ("cache_touch", CacheRequest::Touch { cache: CACHE, ttl: Ttl::For(60_000), key: key() }),
        (
            "cache_scan",
            CacheRequest::Scan {
                cache: CACHE,
                from: ScanCursor(5 << 32 | 64),
                count_max: 100,
                with_values: true,
                prefix: Bytes::new(),
            },
        ),
        ("cache_watch", watch(WatchFrom::Snapshot)),
        ("cache_watch_in_the_middle", watch(WatchFrom::Scan { cursor: ScanCursor(9), position: 1 << 40 })),
        ("cache_watch_changes", watch(WatchFrom::Changes { position: 1 << 40 })),
        ("cache_flush", CacheRequest::Flush { cache: CACHE }),
    ]
}

pub fn responses() -> Vec<(&'static str, CacheResponse)> {
    let stats = StripeStats { entries: 1, bytes: 150, hits: 3, misses: 4, expired: 5, evicted: 6 };
    let status = |settings| CacheStatus {
        name: CacheName::parse("sessions").expect("a name"),
        settings,
        bytes_max: 1 << 28,
        stats,
    };
    let open = |settings| OpenCache { cache: CACHE, status: status(settings) };
    let value = |expires_ms| Value { value: Bytes::from_static(b"cart"), version: 7, expires_ms };
    let change = |kind, expires_ms| Change { key: key(), kind, version: 7, expires_ms };
    let changes = vec![
        change(ChangeKind::Put(Bytes::from_static(b"cart")), Some(1_700_000_000_000)),
        change(ChangeKind::Put(Bytes::new()), None),
        change(ChangeKind::Deleted, None),
        change(ChangeKind::Expired, None),
        change(ChangeKind::Evicted, None),
        change(ChangeKind::Flushed, None),
        change(ChangeKind::Changed(Kind::Sorted), None),
    ];
    let next = WatchFrom::Scan { cursor: ScanCursor(9), position: 1 << 40 };
    let entry = Entry { key: key(), value: value(None) };
    vec![
        ("cache_created", CacheResponse::Created(open(settings()))),
        ("cache_opened", CacheResponse::Opened(open(CacheSettings::default()))),
        ("cache_deleted", CacheResponse::Deleted),
        ("cache_described", CacheResponse::Described(status(settings()))),
        ("caches", CacheResponse::Caches { caches: vec![status(settings())], is_last: true }),
        ("cache_got", CacheResponse::Got(Some(value(Some(1_700_000_000_000))))),
        ("cache_got_nothing", CacheResponse::Got(None)),
        ("cache_multi_got", CacheResponse::MultiGot(vec![None, Some(value(None))])),
        ("cache_stored", CacheResponse::Put(Stored::Done { version: 8, previous: Some(7) })),
        ("cache_not_stored", CacheResponse::Put(Stored::Unmet { current: None })),
        ("cache_removed", CacheResponse::Removed(Stored::Done { version: 9, previous: None })),
        ("cache_not_removed", CacheResponse::Removed(Stored::Unmet { current: Some(7) })),
        ("cache_added", CacheResponse::Added(Added { value: -3, version: 8, expires_ms: None })),
        ("cache_touched", CacheResponse::Touched(true)),
        ("cache_scanned", CacheResponse::Scanned { entries: vec![entry], next: Some(ScanCursor(9)) }),
        ("cache_scanned_to_the_end", CacheResponse::Scanned { entries: Vec::new(), next: None }),
        ("cache_watched", CacheResponse::Watched(Watched { changes, next, is_reset: true })),
        ("cache_flushed", CacheResponse::Flushed(12)),
    ]
}
