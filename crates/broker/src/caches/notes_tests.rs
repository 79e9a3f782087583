//! Tests of the notes about changes of keys.

use engine::cache::{Condition, Expires, Ttl, WatchFrom};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::*;
use crate::broker::Broker;
use crate::settings::Settings;

/// Listener that keeps all notes: the operation and the client, the key, and the change.
#[derive(Default)]
struct Heard(Mutex<Vec<(&'static str, u64, String, What)>>);

impl NoteListener for Heard {
    fn listen(&self, _cache: &CacheName, notes: &[Note]) {
        let text = |note: &Note| String::from_utf8_lossy(&note.key).into_owned();
        let rows = notes.iter().map(|note| (note.cause.operation, note.cause.client, text(note), note.what));
        self.0.lock().extend(rows);
    }
}

impl Heard {
    fn take(&self) -> Vec<(&'static str, u64, String, What)> {
        std::mem::take(&mut self.0.lock())
    }
}

fn row(operation: &'static str, client: u64, key: &str, what: What) -> (&'static str, u64, String, What) {
    (operation, client, key.to_owned(), what)
}

#[tokio::test]
async fn notes_name_each_change_and_its_cause_in_order() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("db0").expect("created");
    let heard = Arc::new(Heard::default());
    let put = |key: &str, ttl: Ttl| cache.put(key.as_bytes(), b"v", ttl, Condition::Always).expect("room");
    put("before", Ttl::Default);
    broker.caches.note(Wanted::Changes, Some(heard.clone()));
    let mut locked = cache.lock([&b"a"[..], b"before"]);
    locked.set_cause(Cause { operation: "SET", client: 7 });
    locked.put(b"a", b"1", Expires::Never, Condition::Always).expect("room");
    locked.put(b"a", b"2", Expires::At(u64::MAX / 2), Condition::Always).expect("room");
    assert!(locked.get(b"before").is_some() && locked.set_expiry(b"before", None));
    locked.set_cause(Cause { operation: "DEL", client: 7 });
    assert!(locked.delete(b"before") && !locked.delete(b"before"));
    // The notes are told with the step, and not before.
    assert_eq!(heard.take(), []);
    drop(locked.finish());
    assert_eq!(
        heard.take(),
        [
            row("SET", 7, "a", What::Put { is_new: true, expires: false }),
            row("SET", 7, "a", What::Put { is_new: false, expires: true }),
            row("DEL", 7, "before", What::Deleted),
        ]
    );
    // Calls of other doors have no cause; an expired entry is noted before the change that finds it.
    put("b", Ttl::Until(1));
    put("b", Ttl::Default);
    assert!(cache.touch(b"b", Ttl::Never).expect("admitted") && cache.touch(b"b", Ttl::For(1000)).expect("admitted"));
    assert!(cache.touch(b"b", Ttl::Never).expect("admitted"));
    assert_eq!(
        heard.take(),
        [
            row("", 0, "b", What::Put { is_new: true, expires: true }),
            row("", 0, "b", What::Expired),
            row("", 0, "b", What::Put { is_new: true, expires: false }),
            row("", 0, "b", What::Expires),
            row("", 0, "b", What::Persists),
        ]
    );
    broker.caches.note(Wanted::Misses, Some(heard.clone()));
    let mut locked = cache.lock_one(b"none");
    assert!(locked.get(b"none").is_none() && locked.kind(b"none").is_none());
    locked.hide_misses();
    assert!(locked.peek(b"none").is_none());
    drop(locked);
    assert_eq!(heard.take(), [row("", 0, "none", What::Missed)]);
    broker.caches.note(Wanted::Nothing, None);
    put("c", Ttl::Default);
    assert_eq!((heard.take(), cache.is_noted()), (vec![], false));
}

#[tokio::test]
async fn notes_are_switched_by_the_holder_of_a_stripe_while_a_watcher_begins() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("db0").expect("created");
    let (watching, caches) = (cache.clone(), broker.caches.clone());
    let mut keys = (0..100_u32).map(|number| format!("k{number}"));
    let key = keys.find(|key| cache.stripe_of(cache.key(key.as_bytes())) != 0).expect("one of 64 stripes");
    let locked = cache.lock_one(key.as_bytes());
    let watch = tokio::task::spawn_blocking(move || {
        Handle::current().block_on(watching.watch(b"", WatchFrom::Snapshot, 1, 1, Duration::from_secs(60)))
    });
    // The watcher locks all stripes, the first one first, and waits for the one that is locked here.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while cache.stripes[0].0.try_lock().is_some() {
        assert!(std::time::Instant::now() < until, "no watcher begins");
        std::thread::yield_now();
    }
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        caches.note(Wanted::Changes, Some(Arc::new(Heard::default())));
        done.send(()).expect("the test waits");
    });
    // It must not keep the switch from the holder of a stripe in the meantime.
    is_done.recv_timeout(Duration::from_secs(20)).expect("a deadlock");
    drop(locked);
    assert!(watch.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn the_notes_of_a_long_step_are_told_while_it_runs() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("db0").expect("created");
    let heard = Arc::new(Heard::default());
    broker.caches.note(Wanted::Changes, Some(heard.clone()));
    let mut locked = cache.lock_one(b"k");
    for number in 0..5000_u32 {
        locked.put(b"k", number.to_string().as_bytes(), Expires::Never, Condition::Always).expect("room");
    }
    let told = heard.take().len();
    assert!((3000..5000).contains(&told), "{told}");
    drop(locked.finish());
    assert_eq!(told + heard.take().len(), 5000);
}

#[tokio::test]
async fn keys_that_a_step_joins_after_notes_are_wanted_are_noted() {
    let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
    let cache = broker.caches.open("db0").expect("created");
    let heard = Arc::new(Heard::default());
    let mut locked = cache.lock_one(b"a");
    let other = (0..100_u32).map(|number| format!("k{number}")).find(|key| !locked.holds(key.as_bytes()));
    let other = other.expect("a key of another stripe");
    broker.caches.note(Wanted::Changes, Some(heard.clone()));
    assert!(locked.join(other.as_bytes()));
    locked.put(other.as_bytes(), b"v", Expires::Never, Condition::Always).expect("room");
    drop(locked.finish());
    assert_eq!(heard.take(), [row("", 0, &other, What::Put { is_new: true, expires: false })]);
}
