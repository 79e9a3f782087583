//! Requests of Redis's protocol are parsed independent of the pieces in which they arrive, and each request to a cache
//! is answered by one complete value.
//!
//! Input: a byte whose lowest bit selects RESP3 and whose others are the size of the pieces, and the bytes of a client.

use std::sync::{Arc, LazyLock};

use broker::{Broker, Cache, Settings};
use doors::redis::{answers, check_requests};
use tokio::runtime::{Builder, Runtime};

/// Maximum bytes of the cache for one input.
const CACHE_BYTES_MAX: u64 = 64 << 20;

static CACHE: LazyLock<(Runtime, Arc<Broker>, Arc<Cache>)> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let settings = Settings { cache_bytes_max: CACHE_BYTES_MAX, ..Settings::default() };
    let broker = Broker::start(settings, &[runtime.handle().clone()]).expect("it starts");
    let cache = broker.caches.open("db0").expect("a cache");
    (runtime, broker, cache)
});

/// Returns the bytes after the first value.
fn skip_value(bytes: &[u8]) -> &[u8] {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a line");
    let line = &bytes[1..end];
    let rest = &bytes[end + 2..];
    let count = || std::str::from_utf8(line).expect("a text").parse::<i64>().expect("a number");
    let values = |count: i64| (0..count).fold(rest, |rest, _| skip_value(rest));
    match bytes[0] {
        b'+' | b'-' => rest,
        b':' => {
            count();
            rest
        }
        b',' | b'_' => rest,
        b'$' | b'=' => match count() {
            -1 => rest,
            length => rest[length as usize..].strip_prefix(b"\r\n").expect("an end"),
        },
        b'*' | b'~' => values(count().max(0)),
        b'%' => values(2 * count()),
        other => panic!("no value begins with {other}"),
    }
}

pub fn check(input: &[u8]) {
    let Some((how, sent)) = input.split_first() else {
        return;
    };
    let (requests, is_error) = check_requests(sent, sent.len());
    assert_eq!(check_requests(sent, usize::from(how >> 1)), (requests.clone(), is_error));
    let (_, _, cache) = &*CACHE;
    drop(cache.flush());
    for answer in answers(cache, &requests, how & 1 == 1) {
        assert!(skip_value(&answer).is_empty(), "{}", answer.escape_ascii());
    }
}
