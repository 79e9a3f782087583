//! Caches end to end: the client over each transport, the command line, restarts, and bad input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{
    Cache, CacheSettings, ChangeKind, Condition, ErrorKind, Eviction, ScanCursor, Stored, Ttl, Value, WatchFrom,
};
use serde_json::json;

use crate::support::command::{feed, on};
use crate::support::server::{Server, within};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 4;

async fn text(cache: &Cache, key: &str) -> Option<String> {
    let found = within("a get", cache.get(key.to_owned())).await.expect("answered");
    found.map(|found| String::from_utf8_lossy(&found.value).into_owned())
}

/// Returns all entries whose keys have this prefix.
pub async fn all(cache: &Cache, prefix: &str) -> BTreeMap<String, Value> {
    let mut entries = BTreeMap::new();
    let mut from = Some(ScanCursor::default());
    while let Some(cursor) = from {
        let (some, next) = cache.scan(prefix.to_owned(), cursor, true).await.expect("scanned");
        entries.extend(some.into_iter().map(|one| (String::from_utf8_lossy(&one.key).into_owned(), one.value)));
        from = next;
    }
    entries
}

#[tokio::test]
async fn values_are_put_got_changed_on_condition_counted_and_deleted() {
    let server = Server::start();
    for scheme in ["tcp", "quic", "tls"] {
        let client = server.client(scheme).await;
        let cache = client.cache(scheme);
        assert_eq!(text(&cache, "key").await, None);
        let first = cache.put("key", "one").await.expect("put");
        let found = cache.get("key").await.expect("answered").expect("there");
        assert_eq!((&found.value[..], found.version, found.expires_ms), (&b"one"[..], first, None));
        assert!(first < 1 << 53, "a double holds it");
        let taken = cache.put_with("key", "two", Ttl::Default, Condition::IfAbsent).await.expect("answered");
        assert_eq!(taken, Stored::Unmet { current: Some(first) });
        let stored = cache.put_with("key", vec![0, 0xff], Ttl::For(60_000), Condition::IfVersion(first)).await;
        let Ok(Stored::Done { version, previous }) = stored else { panic!("{stored:?}") };
        assert_eq!(previous, Some(first));
        let found = cache.get("key").await.expect("answered").expect("there");
        assert_eq!((&found.value[..], found.version), (&[0, 0xff][..], version));
        assert!(found.expires_ms.is_some());
        assert!(cache.touch("key", Ttl::Never).await.expect("answered"));
        assert_eq!(cache.get("key").await.expect("answered").expect("there").expires_ms, None);
        assert!(!cache.touch("other", Ttl::Never).await.expect("answered"));
        let late = cache.delete_if("key", Condition::IfVersion(first)).await.expect("answered");
        assert_eq!(late, Stored::Unmet { current: Some(version) });
        assert!(cache.delete("key").await.expect("answered") && !cache.delete("key").await.expect("answered"));

        assert_eq!(cache.add("n", 5, Ttl::Default).await.expect("a number").value, 5);
        assert_eq!(cache.add("n", -7, Ttl::Default).await.expect("a number").value, -2);
        cache.put("n", i64::MAX.to_string()).await.expect("put");
        assert_eq!(cache.add("n", 1, Ttl::Default).await.expect_err("no room").kind, ErrorKind::Invalid);
        let values = cache.multi_get(["n", "none", "n"]).await.expect("answered");
        assert_eq!(values.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(cache.flush().await, Ok(1));
        // Values of all sizes.
        for bytes in [0, 1, 1000, 70_000, 8 << 20] {
            cache.put("large", vec![b'x'; bytes]).await.expect("put");
            assert_eq!(cache.get("large").await.expect("answered").expect("there").value.len(), bytes);
        }
        let names: Vec<_> = client.list_caches().await.expect("listed");
        assert!(names.iter().any(|status| status.name.as_str() == scheme && status.stats.entries == 1));
        client.delete_cache(scheme).await.expect("deleted");
        // The cache is created again, with other versions.
        assert!(cache.put("key", "three").await.expect("put") > version);
    }
}

#[tokio::test]
async fn a_key_that_many_claim_is_for_one() {
    let server = Server::start();
    let mut clients = Vec::new();
    for scheme in ["tcp", "quic", "tcp", "quic"] {
        clients.push(server.client(scheme).await.cache("claims"));
    }
    for round in 0..50 {
        let claims = clients.iter().enumerate().map(|(who, cache)| async move {
            let key = format!("claim {round}");
            cache.put_with(key, who.to_string(), Ttl::Default, Condition::IfAbsent).await.expect("answered")
        });
        let stored = futures_util::future::join_all(claims).await;
        assert_eq!(stored.iter().filter(|stored| matches!(stored, Stored::Done { .. })).count(), 1, "{stored:?}");
    }
    // Counts with read, add, and put if unchanged.
    let counts = clients.iter().map(|cache| async move {
        for _ in 0..50 {
            loop {
                let found = cache.get("count").await.expect("answered");
                let count = found.as_ref().map_or(0, |found| {
                    std::str::from_utf8(&found.value).expect("text").parse::<u64>().expect("a number")
                });
                let condition = found.map_or(Condition::IfAbsent, |found| Condition::IfVersion(found.version));
                let put = cache.put_with("count", (count + 1).to_string(), Ttl::Default, condition).await;
                if let Stored::Done { .. } = put.expect("answered") {
                    break;
                }
            }
        }
    });
    futures_util::future::join_all(counts).await;
    assert_eq!(text(&clients[0], "count").await.as_deref(), Some("200"));
}

#[tokio::test]
async fn a_watcher_receives_entries_and_changes_and_continues_over_another_connection() {
    let server = Server::start();
    let writer = server.client("tcp").await.cache("c");
    let reader = server.client("quic").await.cache("c");
    for number in 0..2500 {
        writer.put(format!("a{number}"), "old").await.expect("put");
    }
    writer.put("b", "other").await.expect("put");
    let mut watch = reader.watch("a");
    let mut seen = 0;
    let mut is_caught_up = false;
    while !is_caught_up {
        let news = within("news", watch.next()).await.expect("watched");
        seen += news.changes.len();
        is_caught_up = news.is_caught_up;
    }
    assert_eq!(seen, 2500);
    writer.put_with("a1", "new", Ttl::For(1), Condition::Always).await.expect("put");
    writer.put("b", "unseen").await.expect("put");
    writer.delete("a2").await.expect("deleted");
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        kinds.extend(within("news", watch.next()).await.expect("watched").changes.into_iter().map(|one| one.kind));
    }
    assert_eq!(kinds[0], ChangeKind::Put("new".into()));
    assert!(kinds.contains(&ChangeKind::Deleted) && kinds.contains(&ChangeKind::Expired), "{kinds:?}");
    // Another client resumes later from the same position.
    let position = watch.position();
    assert!(matches!(position, WatchFrom::Changes { .. }));
    writer.put("a3", "meanwhile").await.expect("put");
    let other = server.client("tcp").await.cache("c");
    let news = within("news", other.watch_from("a", position).next()).await.expect("watched");
    assert_eq!((news.changes.len(), news.is_reset), (1, false));
    assert_eq!(all(&reader, "a").await.len(), 2498);
}

#[tokio::test]
async fn a_broker_that_was_started_again_has_empty_caches_and_clients_and_watchers_go_on() {
    let mut server = Server::start();
    let client = server.client("tcp").await;
    let cache = client.cache("c");
    let before = cache.put("key", "1").await.expect("put");
    let mut watch = cache.watch("");
    assert_eq!(within("news", watch.next()).await.expect("watched").changes.len(), 1);
    server.crash_and_restart();
    let after = loop {
        // The first response may be that the connection is closed.
        if let Ok(version) = within("a put", cache.put("other", "2")).await {
            break version;
        }
    };
    assert!(after > before, "a version is never given again");
    assert_eq!(text(&cache, "key").await, None);
    let news = within("news", watch.next()).await.expect("watched");
    assert!(news.is_reset && news.changes.len() == 1, "{news:?}");
}

#[tokio::test]
async fn a_full_cache_says_so_or_makes_room() {
    let server = Server::with(&["cache_memory_max=8MiB"]);
    let client = server.client("tcp").await;
    let none = CacheSettings { bytes_max: Some(1 << 20), ..CacheSettings::default() };
    client.create_cache("none", none).await.expect("created");
    let evicts = CacheSettings { eviction: Eviction::S3Fifo, ..none };
    client.create_cache("evicts", evicts).await.expect("created");
    let fill = async |cache: &Cache| {
        for number in 0..1000 {
            if let Err(error) = cache.put(format!("{number}"), vec![0; 2000]).await {
                return Err((number, error));
            }
        }
        Ok(())
    };
    let (stored, error) = fill(&client.cache("none")).await.expect_err("it is full");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("'none'"), "{error}");
    assert!((400..520).contains(&stored), "{stored}");
    assert!(client.cache("none").get("0").await.expect("answered").is_some(), "nothing went");
    fill(&client.cache("evicts")).await.expect("there is always room");
    let status = client.describe_cache("evicts").await.expect("described");
    assert!(status.stats.evicted > 500 && status.stats.bytes <= 1 << 20, "{status:?}");
    let (_, error) = {
        let cache = client.cache("rest");
        let mut filled = Ok(());
        for _ in 0..10 {
            filled = fill(&cache).await;
            for number in 0..1000 {
                cache.put(format!("more {number}"), vec![0; 8000]).await.err().into_iter().for_each(|error| {
                    filled = Err((number, error));
                });
            }
        }
        filled.expect_err("all caches together are full")
    };
    assert_eq!(error.kind, ErrorKind::Busy);
}

#[tokio::test]
async fn oversized_or_missing_items_are_refused_and_the_connection_survives() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let cache = client.cache("c");
    assert_eq!(cache.put("k", vec![0; (8 << 20) + 1]).await.expect_err("too large").kind, ErrorKind::TooLarge);
    assert_eq!(cache.put(vec![0; 65_536], "v").await.expect_err("too large").kind, ErrorKind::TooLarge);
    // Its prefix is another key, which is not affected.
    let key = vec![0; 65_535];
    let longer = vec![0; 65_536];
    cache.put(key.clone(), "v").await.expect("put");
    assert_eq!(cache.get(longer.clone()).await.expect_err("too large").kind, ErrorKind::TooLarge);
    assert_eq!(cache.delete(longer.clone()).await.expect_err("too large").kind, ErrorKind::TooLarge);
    assert_eq!(cache.touch(longer.clone(), Ttl::Never).await.expect_err("too large").kind, ErrorKind::TooLarge);
    assert_eq!(cache.add(longer, 1, Ttl::Never).await.expect_err("too large").kind, ErrorKind::TooLarge);
    assert!(cache.delete(key).await.expect("answered"));
    for number in 0..3 {
        cache.put(format!("{number}"), vec![0; 600 << 10]).await.expect("put");
    }
    let many = cache.multi_get(["0", "1", "2"]).await;
    assert_eq!(many.expect_err("more than an answer").kind, ErrorKind::TooLarge);
    let pair = cache.multi_get(["0", "none", "1"]).await;
    assert_eq!(pair.expect_err("more than an answer").kind, ErrorKind::TooLarge);
    // Two values of the maximum size exceed any frame.
    for key in ["large", "as large"] {
        cache.put(key, vec![1; 8 << 20]).await.expect("put");
    }
    assert_eq!(cache.multi_get(["large", "as large"]).await.expect_err("two").kind, ErrorKind::TooLarge);
    let alone = cache.multi_get(["none", "large", "none"]).await.expect("one may be as large as it is");
    assert_eq!(alone.iter().flatten().map(|found| found.value.len()).collect::<Vec<_>>(), [8 << 20]);
    for key in ["large", "as large"] {
        assert!(cache.delete(key).await.expect("answered"));
    }
    let keys = (0..10_001).map(|number| number.to_string());
    assert_eq!(cache.multi_get(keys).await.expect_err("too many").kind, ErrorKind::TooLarge);
    assert_eq!(client.cache("no name").get("k").await.expect_err("no name").kind, ErrorKind::Invalid);
    assert_eq!(client.delete_cache("other").await.expect_err("not there").kind, ErrorKind::NotFound);
    for ttl in [Ttl::For(0), Ttl::For(u64::MAX)] {
        let error = cache.put_with("k", "v", ttl, Condition::Always).await.expect_err("no such time");
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    assert_eq!(all(&cache, "").await.len(), 3);
    let strict = Server::with(&["auto_create_topics=false"]);
    let client = strict.client("tcp").await;
    assert_eq!(client.cache("c").get("k").await.expect_err("not there").kind, ErrorKind::NotFound);
    client.create_cache("c", CacheSettings::default()).await.expect("created");
    assert_eq!(client.cache("c").get("k").await.expect("there"), None);
    assert!(within("a put", client.cache("c").put("k", "v")).await.is_ok());
}

#[test]
fn the_command_line_has_a_word_for_everything() {
    let server = Server::start();
    let created = on(&server, ["cache", "create", "c", "--bytes-max", "1MiB", "--eviction", "s3-fifo", "--ttl", "1h"]);
    assert_eq!(created.ok(), "created cache c\n");
    let version = on(&server, ["--json", "cache", "put", "c", "alice", "one coffee"]).json()["version"].clone();
    assert_eq!(on(&server, ["cache", "get", "c", "alice"]).ok(), "one coffee\n");
    assert_eq!(feed(&server, ["cache", "put", "c", "bob"], "from a pipe").ok().split(' ').next(), Some("version"));
    let got = on(&server, ["cache", "get", "c", "bob", "nobody", "alice"]);
    assert_eq!(got.out, "from a pipe\none coffee\n");
    assert!(got.failed(NOT_FOUND).contains("'nobody' (not_found)"));
    let listed = on(&server, ["--json", "cache", "list"]).json();
    assert_eq!(listed[0]["cache"], "c", "one JSON value, as of queues and topics");
    let taken = on(&server, ["cache", "put", "c", "alice", "x", "--if-absent"]).failed(FAILED);
    assert!(taken.contains(&format!("in the cache with version {version}")), "{taken}");
    on(&server, ["cache", "put", "c", "alice", "x", "--if-version", &version.to_string()]).ok();
    assert_eq!(on(&server, ["cache", "incr", "c", "n"]).ok(), "1\n");
    assert_eq!(on(&server, ["cache", "incr", "c", "n", "-5"]).ok(), "-4\n");
    assert_eq!(on(&server, ["cache", "touch", "c", "n", "--ttl", "30m"]).ok(), "touched\n");
    let mut keys: Vec<_> = on(&server, ["cache", "scan", "c", "--keys"]).ok().lines().map(str::to_owned).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["alice", "bob", "n"]);
    assert_eq!(on(&server, ["cache", "scan", "c", "al"]).ok(), "alice\tx\n");
    assert_eq!(on(&server, ["cache", "watch", "c", "al", "-n", "1"]).ok(), "put\talice\tx\n");
    assert_eq!(on(&server, ["cache", "del", "c", "alice", "nobody"]).ok(), "1 deleted\n");
    let stats = on(&server, ["--json", "cache", "stats", "c"]).json();
    assert_eq!(
        (&stats["entries"], &stats["eviction"], &stats["bytes_max"]),
        (&json!(2), &json!("s3-fifo"), &json!(1 << 20))
    );
    assert!(on(&server, ["cache", "stats", "c"]).ok().contains("entries"));
    assert!(on(&server, ["cache", "list"]).ok().contains("s3-fifo"));
    assert_eq!(on(&server, ["cache", "flush", "c"]).ok(), "deleted 2 entries of cache c\n");
    assert_eq!(on(&server, ["cache", "delete", "c"]).ok(), "deleted cache c\n");
    on(&server, ["cache", "stats", "c"]).failed(NOT_FOUND);
    on(&server, ["cache", "touch", "c", "n"]).failed(NOT_FOUND);
    assert!(on(&server, ["cache", "create", "c", "--eviction", "lru"]).failed(USAGE).contains("s3-fifo"));
    on(&server, ["cache", "put", "c", "k", "v", "--ttl", "soon"]).failed(USAGE);
    on(&server, ["cache", "watch", "c", "-n", "0"]).failed(USAGE);
}

/// Clients that wait for changes do not block their connections, and receive an error if there are too many.
#[tokio::test]
async fn many_watch_at_once() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let cache = client.cache("c");
    cache.put("k", "0").await.expect("put");
    let watches: Vec<_> = (0..100)
        .map(|_| {
            let mut watch = cache.watch("");
            tokio::spawn(async move {
                let mut last = None;
                while last != Some(ChangeKind::Put("end".into())) {
                    last = watch.next().await.expect("watched").changes.pop().map(|change| change.kind);
                }
            })
        })
        .collect();
    for number in 0..100 {
        within("a put", cache.put("k", number.to_string())).await.expect("put");
    }
    cache.put("k", "end").await.expect("put");
    for watch in watches {
        within("the end", watch).await.expect("no panic");
    }
    tokio::time::timeout(Duration::from_secs(20), client.close()).await.expect("it closes");
}

/// A program's knowledge of a durable cache: all acknowledged changes, and the changes without a response.
#[derive(Default)]
struct Known {
    entries: BTreeMap<String, (String, u64)>,
    asked: BTreeMap<String, Vec<Option<String>>>,
    added: i64,
    adds: i64,
}

/// Changes entries in every way, by puts, deletes, touches and increments, until the broker stops.
async fn change_until_it_is_gone(cache: &Cache, round: u64, known: &mut Known, is_over: impl Fn() -> bool) {
    for number in 0u64.. {
        let key = format!("key {}", number % 20);
        let value = format!("{round} {number}");
        let wanted = (number % 7 != 3).then(|| value.clone());
        known.asked.entry(key.clone()).or_default().push(wanted.clone());
        let done = match wanted {
            Some(_) => cache.put(key.clone(), value.clone()).await.map(Some),
            None => cache.delete(key.clone()).await.map(|_| None),
        };
        let Ok(version) = done else { return };
        known.asked.remove(&key);
        match version {
            Some(version) => drop(known.entries.insert(key.clone(), (value, version))),
            None => drop(known.entries.remove(&key)),
        }
        if number % 5 == 0 && cache.touch(key, Ttl::For(3_600_000)).await.is_err() {
            return;
        }
        if is_over() {
            return;
        }
    }
}

#[tokio::test]
async fn acknowledged_changes_of_a_durable_cache_survive_a_kill() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let data = format!("data={}", dir.path().display());
    let mut server = Server::with(&[&data]);
    let settings = CacheSettings { is_durable: true, ..CacheSettings::default() };
    let client = server.client("tcp").await;
    assert!(client.create_cache("c", settings).await.expect("created").settings.is_durable);
    client.cache("memory").put("k", "v").await.expect("put");
    let mut known = Known::default();
    let mut versions = 0;
    for round in 0..4u64 {
        let client = server.client(["tcp", "quic"][round as usize % 2]).await;
        let cache = client.cache("c");
        let begin = std::time::Instant::now();
        let counter = cache.clone();
        let is_over = Arc::new(AtomicBool::new(false));
        let counting = tokio::spawn({
            let is_over = is_over.clone();
            async move {
                let mut adds = 0;
                let mut last = None;
                // A broken connection is not visible: each addition is done exactly once.
                while !is_over.load(Ordering::Relaxed) || last.is_none() {
                    last = Some(counter.add("count", 1, Ttl::Never).await.expect("it is done").value);
                    adds += 1;
                }
                (adds, last)
            }
        });
        let brief = std::time::Duration::from_millis(100 + 70 * round);
        change_until_it_is_gone(&cache, round, &mut known, || begin.elapsed() > brief).await;
        server.crash_and_restart();
        is_over.store(true, Ordering::Relaxed);
        let (adds, last) = within("counters", counting).await.expect("no panic");
        known.adds += adds;
        known.added = last.expect("it was counted");
        assert_eq!(known.added, known.adds, "each of them once");

        let client = server.client("tcp").await;
        let cache = client.cache("c");
        let entries = all(&cache, "key").await;
        for (key, (value, version)) in &known.entries {
            let found = entries.get(key).map(|found| String::from_utf8_lossy(&found.value).into_owned());
            match known.asked.get(key) {
                // Its last change was not acknowledged, so it was either done or not.
                Some(asked) => assert!(found.as_ref() == Some(value) || asked.contains(&found), "{key}: {found:?}"),
                None => {
                    assert_eq!(found.as_ref(), Some(value), "{key}");
                    assert_eq!(entries[key].version, *version);
                }
            }
        }
        for (key, found) in &entries {
            let value = Some(String::from_utf8_lossy(&found.value).into_owned());
            let was_asked = known.asked.get(key).is_some_and(|asked| asked.contains(&value));
            assert!(was_asked || known.entries.contains_key(key), "{key} was deleted");
        }
        let newest = entries.values().map(|found| found.version).max().expect("there are some");
        let version = cache.put("newest", "v").await.expect("put");
        assert!(version > newest && version > versions, "a version is never given again");
        versions = version;
        // The outcomes of unacknowledged changes are now known.
        let told = |(key, found): (&String, &Value)| {
            (key.clone(), (String::from_utf8_lossy(&found.value).into_owned(), found.version))
        };
        known.entries = entries.iter().map(told).collect();
        known.asked.clear();
        assert_eq!(text(&client.cache("memory"), "k").await, None);
    }
    let client = server.client("tcp").await;
    client.delete_cache("c").await.expect("deleted");
    server.crash_and_restart();
    let client = server.client("tcp").await;
    assert!(client.list_caches().await.expect("listed").iter().all(|cache| cache.name.as_str() != "c"));
}

#[tokio::test]
async fn durable_caches_are_made_on_the_command_line_and_shown() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let mut server = Server::with(&[&format!("data={}", dir.path().display())]);
    let run = |server: &Server, line: &'static str| on(server, line.split(' '));
    run(&server, "cache create kept --durable").ok();
    run(&server, "cache put kept k v --ttl 1h").ok();
    server.crash_and_restart();
    assert_eq!(run(&server, "cache get kept k").ok(), "v\n");
    let shown = run(&server, "--json cache stats kept").json();
    assert_eq!((&shown["durable"], &shown["entries"]), (&json!(true), &json!(1)));
    let list = run(&server, "cache list").ok();
    assert!(list.contains("DURABLE") && list.contains("yes"), "{list}");

    let memory = Server::start();
    let refused = run(&memory, "cache create kept --durable").failed(USAGE);
    assert!(refused.contains("--data"), "{refused}");
}
