//! Near caches end to end: changes by others are seen, expired entries are not, and gets after a failure go to the
//! broker.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{
    Cache, CacheSettings, Client, ClientSettings, Condition, ErrorKind, NearSettings, NearStats, Stored, Ttl, Value,
};
use futures_util::FutureExt;
use futures_util::future::join_all;
use rustix::process::Signal;

use crate::support::proxy::Proxy;
use crate::support::server::{Server, connect, until, within};

/// Returns a near cache that trusts its entries longer than any test runs: only failures invalidate it.
fn near(client: &Client, name: &str) -> Cache {
    client.cache(name).near(NearSettings { stale_max: Duration::from_secs(600), ..NearSettings::default() })
}

fn stats(cache: &Cache) -> NearStats {
    cache.near_stats().expect("a near cache")
}

async fn get(cache: &Cache, key: &str) -> Option<Value> {
    within("a get", cache.get(key.to_owned())).await.expect("answered")
}

async fn text(cache: &Cache, key: &str) -> Option<String> {
    get(cache, key).await.map(|found| String::from_utf8_lossy(&found.value).into_owned())
}

/// Repeats a get until it is answered locally. The first get starts the watch.
async fn live(cache: &Cache) {
    until("a watch", async || {
        // The connection may be closed; the client opens another.
        drop(cache.get("begin").await);
        stats(cache).is_live
    })
    .await;
}

/// Returns the number of gets that the broker has answered.
async fn asked(client: &Client, name: &str) -> u64 {
    let stats = within("a status", client.describe_cache(name)).await.expect("described").stats;
    stats.hits + stats.misses
}

#[tokio::test]
async fn the_broker_is_asked_once_until_an_entry_changes() {
    let server = Server::start();
    for scheme in ["tcp", "quic", "tls"] {
        let client = server.client(scheme).await;
        let other = server.client("tcp").await.cache(scheme);
        let cache = near(&client, scheme);
        live(&cache).await;
        other.put("a", "one").await.expect("put");
        until("the put", async || text(&cache, "a").await.as_deref() == Some("one")).await;
        assert_eq!(text(&cache, "none").await, None);
        let before = asked(&client, scheme).await;
        // At most once: a change in flight may have removed the entry.
        for _ in 0..1000 {
            assert_eq!(text(&cache, "a").await.as_deref(), Some("one"));
            assert_eq!(text(&cache, "none").await, None);
        }
        let values = cache.multi_get(["a", "none", "a"]).await.expect("answered");
        assert_eq!(values.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
        let more = asked(&client, scheme).await - before;
        assert!(more <= 10, "{more} of 2003 gets went to the broker: {:?}", stats(&cache));
        other.put("a", "two").await.expect("put");
        other.put("none", "something").await.expect("put");
        until("the puts", async || {
            text(&cache, "a").await.as_deref() == Some("two") && text(&cache, "none").await.is_some()
        })
        .await;
        other.delete("a").await.expect("deleted");
        until("the deletion", async || text(&cache, "a").await.is_none()).await;
        other.flush().await.expect("flushed");
        until("the flush", async || text(&cache, "none").await.is_none()).await;
        let stats = stats(&cache);
        assert!(stats.hits > 1990 && stats.invalidations >= 2 && stats.resets == 0, "{stats:?}");
        client.delete_cache(scheme).await.expect("deleted");
        other.put("a", "in another cache of this name").await.expect("put");
        until("the other cache", async || text(&cache, "a").await.is_some()).await;
    }
}

#[tokio::test]
async fn a_client_sees_its_own_changes_immediately() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let cache = near(&client, "c");
    live(&cache).await;
    for round in 0..200u64 {
        let ttl = [Ttl::Default, Ttl::Never, Ttl::For(60_000), Ttl::Kept][round as usize % 4];
        let put = cache.put_with("key", round.to_string(), ttl, Condition::Always).await.expect("put");
        let Stored::Done { version, .. } = put else { panic!("{put:?}") };
        let found = get(&cache, "key").await.expect("there");
        assert_eq!((found.value, found.version), (round.to_string().into(), version));
        let added = cache.add("n", 1, Ttl::Default).await.expect("a number");
        assert_eq!(text(&cache, "n").await, Some(added.value.to_string()));
        assert!(cache.touch("key", Ttl::For(1_000_000)).await.expect("touched"));
        assert!(get(&cache, "key").await.expect("there").expires_ms.is_some());
        if round % 3 == 0 {
            assert!(cache.delete("key").await.expect("deleted"));
            assert_eq!(get(&cache, "key").await, None);
        }
        if round % 50 == 0 {
            cache.flush().await.expect("flushed");
            assert_eq!(cache.multi_get(["key", "n"]).await.expect("answered"), [None, None]);
        }
    }
    // A failed condition returns the current entry, which counts as a response.
    let other = client.cache("c");
    for round in 0..50 {
        get(&cache, "key").await;
        let version = other.put("key", format!("by another {round}")).await.expect("put");
        let unmet = cache.put_with("key", "x", Ttl::Default, Condition::IfAbsent).await.expect("answered");
        assert_eq!(unmet, Stored::Unmet { current: Some(version) });
        assert_eq!(get(&cache, "key").await.expect("there").version, version);
        assert!(other.delete("key").await.expect("deleted"));
        let unmet = cache.delete_if("key", Condition::IfVersion(version)).await.expect("answered");
        assert_eq!(unmet, Stored::Unmet { current: None });
        assert_eq!(get(&cache, "key").await, None);
    }
}

/// Concurrent gets and increments over several connections: the values of a key that each client sees only increase.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_values_seen_of_a_key_only_increase() {
    const END: i64 = 1000;
    let server = Server::start();
    let mut tasks = Vec::new();
    for scheme in ["tcp", "quic", "tcp"] {
        let cache = near(&server.client(scheme).await, "c");
        live(&cache).await;
        for reader in 0..3 {
            let cache = cache.clone();
            tasks.push(tokio::spawn(async move {
                let mut last = 0;
                let mut own = 0;
                while last < END {
                    if reader == 0 && own < END {
                        own = cache.add("n", 1, Ttl::Default).await.expect("a number").value;
                        last = last.max(own);
                    }
                    let found = text(&cache, "n").await.map_or(0, |digits| digits.parse().expect("a number"));
                    assert!(found >= last, "{found} after {last}");
                    last = found;
                    tokio::task::yield_now().await;
                }
            }));
        }
    }
    for task in tasks {
        within("a reader", task).await.expect("no panic");
    }
}

#[tokio::test]
async fn a_broker_that_was_started_again_has_nothing_and_so_has_the_near_cache() {
    let mut server = Server::start();
    let client = server.client("tcp").await;
    let cache = near(&client, "c");
    cache.put("key", "before").await.expect("put");
    live(&cache).await;
    assert_eq!(text(&cache, "key").await.as_deref(), Some("before"));
    server.crash();
    // The cached entries are no longer confirmed: a get fails instead of returning an old value.
    until("the end of it", async || !stats(&cache).is_live).await;
    let hits = stats(&cache).hits;
    server.start_again();
    live(&cache).await;
    assert_eq!(text(&cache, "key").await, None);
    let now = stats(&cache);
    assert_eq!(now.resets, 1, "{now:?}");
    assert!(now.hits <= hits + 1, "only what was asked since: {now:?}");
    cache.put("key", "after").await.expect("put");
    assert_eq!(text(&cache, "key").await.as_deref(), Some("after"));
}

#[tokio::test]
async fn a_connection_that_broke_costs_a_while_and_no_truth() {
    let server = Server::start();
    let proxy = Proxy::start(server.address, Vec::new()).await;
    let settings = ClientSettings { request_timeout: Duration::from_secs(2), ..ClientSettings::default() };
    let cache = near(&connect(&proxy.url(), settings).await, "c");
    let other = server.client("tcp").await.cache("c");
    for key in ["a", "b"] {
        other.put(key, "old").await.expect("put");
    }
    live(&cache).await;
    for key in ["a", "b"] {
        assert_eq!(text(&cache, key).await.as_deref(), Some("old"));
    }
    // The watch resumes from its position; unchanged entries are kept.
    proxy.go_down();
    until("the cut", async || !stats(&cache).is_live).await;
    other.put("a", "new").await.expect("put");
    assert_eq!(cache.get("a").await.expect_err("no server runs").kind, ErrorKind::Disconnected);
    proxy.go_up();
    let first = loop {
        if let Ok(found) = within("a get", cache.get("a")).await {
            break found.expect("there");
        }
    };
    assert_eq!(&first.value[..], b"new");
    live(&cache).await;
    let before = stats(&cache);
    assert_eq!(text(&cache, "b").await.as_deref(), Some("old"));
    let after = stats(&cache);
    assert_eq!((after.resets, after.hits), (0, before.hits + 1), "{after:?}");
    // The entries are also kept if nothing changed in the meantime.
    proxy.go_down();
    until("the cut", async || !stats(&cache).is_live).await;
    proxy.go_up();
    live(&cache).await;
    assert_eq!(text(&cache, "b").await.as_deref(), Some("old"));
    assert_eq!(stats(&cache).resets, 0);
    // It missed more changes than the broker retains: all entries are dropped.
    proxy.go_down();
    until("the cut", async || !stats(&cache).is_live).await;
    for key in ["a", "b"] {
        other.put(key, "newest").await.expect("put");
    }
    for number in 0..20 {
        other.put(format!("large {number}"), vec![0; 1 << 20]).await.expect("put");
    }
    proxy.go_up();
    live(&cache).await;
    assert_eq!(stats(&cache).resets, 1);
    for key in ["a", "b"] {
        assert_eq!(text(&cache, key).await.as_deref(), Some("newest"));
    }
}

#[tokio::test]
async fn a_broker_that_is_silent_is_not_believed_for_long() {
    let server = Server::start();
    let settings = NearSettings { stale_max: Duration::from_millis(500), ..NearSettings::default() };
    let cache = server.client("tcp").await.cache("c").near(settings);
    cache.put("key", "value").await.expect("put");
    live(&cache).await;
    assert!(get(&cache, "key").await.is_some());
    // No connection breaks.
    server.freeze();
    until("doubt", async || !stats(&cache).is_live).await;
    server.signal(Signal::CONT);
    live(&cache).await;
    assert_eq!(text(&cache, "key").await.as_deref(), Some("value"));
    assert_eq!(stats(&cache).resets, 0, "it went on from where it was");
}

#[tokio::test]
async fn concurrent_misses_of_one_key_send_one_request() {
    let server = Server::start();
    let client = server.client("tcp").await;
    let cache = near(&client, "c");
    live(&cache).await;
    client.cache("c").put("key", "value").await.expect("put");
    let before = asked(&client, "c").await;
    let found = join_all((0..200).map(|_| text(&cache, "key"))).await;
    assert!(found.iter().all(|found| found.as_deref() == Some("value")));
    // One more if the change by the put arrived in between.
    let more = asked(&client, "c").await - before;
    assert!((1..=2).contains(&more), "{more}");
    assert!(stats(&cache).joined > 100, "{:?}", stats(&cache));
    // The client that requested first cancels; the joined ones are answered nevertheless.
    let first = cache.get("other");
    let second = cache.get("other");
    let mut first = Box::pin(first);
    assert!((&mut first).now_or_never().is_none());
    let joined = stats(&cache).joined;
    let mut second = Box::pin(second);
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(stats(&cache).joined, joined + 1);
    drop(first);
    assert_eq!(within("the second", second).await.expect("answered"), None);
    // A cancelled get does not block any other.
    let mut given_up = Box::pin(cache.get("third"));
    assert!((&mut given_up).now_or_never().is_none());
    drop(given_up);
    assert_eq!(text(&cache, "third").await, None);
}

#[tokio::test]
async fn it_holds_no_more_than_it_may() {
    const BYTES_MAX: u64 = 64 << 10;
    let server = Server::start();
    let client = server.client("tcp").await;
    let settings = NearSettings { bytes_max: BYTES_MAX, prefix: "k".into(), ..NearSettings::default() };
    let cache = client.cache("c").near(settings);
    let other = client.cache("c");
    for number in 0..500 {
        other.put(format!("k{number}"), vec![b'x'; 1000]).await.expect("put");
    }
    other.put("beyond", "the prefix").await.expect("put");
    other.put("k large", vec![b'x'; 60 << 10]).await.expect("put");
    until("a watch", async || {
        get(&cache, "k").await;
        stats(&cache).is_live
    })
    .await;
    for number in 0..500 {
        assert_eq!(get(&cache, &format!("k{number}")).await.expect("there").value.len(), 1000);
        assert!(stats(&cache).bytes <= BYTES_MAX);
    }
    for _ in 0..2 {
        assert_eq!(text(&cache, "beyond").await.as_deref(), Some("the prefix"));
        assert_eq!(get(&cache, "k large").await.expect("there").value.len(), 60 << 10);
    }
    let stats = stats(&cache);
    assert!(stats.evictions > 400 && stats.entries > 30, "{stats:?}");
}

#[tokio::test]
async fn an_entry_is_not_seen_after_its_time() {
    let server = Server::start();
    let client = server.client("tcp").await;
    client.create_cache("c", CacheSettings { ttl_ms: Some(300), ..CacheSettings::default() }).await.expect("created");
    let cache = near(&client, "c");
    live(&cache).await;
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    client.cache("c").put("key", "value").await.expect("put");
    let mut expires_ms = None;
    until("its time", async || {
        let begin_ms = now_ms();
        let found = get(&cache, "key").await;
        if let Some(found) = &found {
            assert!(begin_ms < found.expires_ms.expect("a time"), "{found:?} at {begin_ms}");
            expires_ms = found.expires_ms;
        }
        found.is_none()
    })
    .await;
    assert!(expires_ms.is_none_or(|expires_ms| expires_ms <= now_ms()));
}
