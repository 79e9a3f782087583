//! Exchanges of the entries of two stripes: what moves, what stays, and that a replay of effects restores both. This
//! also holds if the replay begins in the middle of the log, provided that the entries of both have been dumped since.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::effects::{self, Effect};
use super::structures::{Edit, End, List};
use super::*;

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, u64, Option<u64>)>;

fn key(bytes: &[u8]) -> Key<'_> {
    let hash = bytes.iter().fold(7, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Key { hash, bytes }
}

fn stripe(within: &Arc<Budget>, version: u64) -> (Stripe, Arc<Budget>) {
    let budget = Arc::new(Budget::new(1 << 20, Some(within.clone())));
    let settings =
        StripeSettings { eviction: Eviction::S3Fifo, budget: budget.clone(), block: 256, version, now_ms: 0 };
    (Stripe::new(settings), budget)
}

fn entries(stripe: &Stripe, now_ms: u64) -> Entries {
    let mut entries = Entries::new();
    stripe.scan(Cursor::default(), u32::MAX, now_ms, |found| {
        let mut value = vec![found.value.kind() as u8];
        match found.value {
            Value::Bytes(bytes) => value.extend_from_slice(bytes),
            Value::Structure(structure) => value.extend_from_slice(&structure.dumped()),
        }
        entries.insert(found.key.to_vec(), (value, found.version, found.expires_ms)).is_none()
    });
    entries
}

fn put(stripe: &mut Stripe, name: &[u8], value: &[u8], condition: Condition) -> Stored {
    stripe.put(key(name), value, Expires::Never, condition, || 0).expect("room")
}

fn version(stripe: &mut Stripe, name: &[u8]) -> Option<u64> {
    stripe.peek(key(name), || 0).map(|found| found.version)
}

#[test]
fn entries_move_with_their_bytes_and_times_and_counters_stay() {
    let within = Arc::new(Budget::new(1 << 20, None));
    let ((mut a, of_a), (mut b, of_b)) = (stripe(&within, 0), stripe(&within, 0));
    put(&mut a, b"k", &[b'a'; 3000], Condition::Always);
    a.put(key(b"brief"), b"1", Expires::At(500), Condition::Always, || 0).expect("room");
    put(&mut b, b"k", b"b", Condition::Always);
    drop(b.change(key(b"list"), 0, || 0, |list: &mut Edit<'_, List>| (true, list.push(End::Back, b"item"))));
    assert!(a.get(key(b"k"), || 0).is_some() && a.get(key(b"none"), || 0).is_none());
    let (bytes, taken) = ([a.stats().bytes, b.stats().bytes], [of_a.taken(), of_b.taken()]);
    let newest = a.version().max(b.version());
    a.swap(&mut b, newest + 1, 0);
    assert_eq!([a.stats().bytes, b.stats().bytes], [bytes[1], bytes[0]]);
    assert_eq!([of_a.taken(), of_b.taken()], [taken[1], taken[0]]);
    assert_eq!(within.taken(), taken[0] + taken[1]);
    assert_eq!((a.stats().entries, a.stats().hits, a.stats().misses), (2, 1, 1));
    assert_eq!((b.stats().entries, b.stats().hits, b.stats().misses), (2, 0, 0));
    assert_eq!(a.peek(key(b"k"), || 0).map(|found| found.value.bytes().expect("bytes").to_vec()), Some(b"b".to_vec()));
    assert!(a.peek(key(b"list"), || 0).is_some());
    // The time of an entry is kept where the entry is.
    a.expire(1000, usize::MAX);
    assert_eq!(a.stats().expired, 0);
    b.expire(1000, usize::MAX);
    assert_eq!((b.stats().expired, b.stats().entries), (1, 1));
    while a.evict_one() {}
    while b.evict_one() {}
    assert_eq!((a.stats().bytes, b.stats().bytes, a.stats().evicted, b.stats().evicted), (0, 0, 2, 1));
    drop((a, b));
    assert_eq!(within.taken(), 0);
}

#[test]
fn no_version_from_before_is_a_version_of_after() {
    let within = Arc::new(Budget::new(1 << 20, None));
    let ((mut a, _), (mut b, _)) = (stripe(&within, 0), stripe(&within, 0));
    // Both stripes have counted to the same version.
    put(&mut a, b"k", b"a", Condition::Always);
    put(&mut b, b"k", b"b", Condition::Always);
    let before = version(&mut a, b"k").expect("it was put");
    assert_eq!(version(&mut b, b"k"), Some(before));
    a.swap(&mut b, before + 1, 0);
    assert_eq!([version(&mut a, b"k"), version(&mut b, b"k")], [Some(before + 1); 2]);
    assert_eq!(put(&mut a, b"k", b"x", Condition::IfVersion(before)), Stored::Unmet { current: Some(before + 1) });
    let unmet = a.delete(key(b"k"), Condition::IfVersion(before), || 0);
    assert_eq!(unmet, Stored::Unmet { current: Some(before + 1) });
    let done = put(&mut a, b"k", b"x", Condition::IfVersion(before + 1));
    assert_eq!(done, Stored::Done { version: before + 2, previous: Some(before + 1) });
    a.swap(&mut b, before + 3, 0);
    assert_eq!([version(&mut a, b"k"), version(&mut b, b"k")], [Some(before + 3); 2]);
}

#[test]
fn a_key_that_was_absent_may_have_changed_unless_neither_stripe_has_it() {
    let within = Arc::new(Budget::new(1 << 20, None));
    let ((mut a, _), (mut b, _)) = (stripe(&within, 0), stripe(&within, 0));
    let names: [&[u8]; 3] = [b"in b", b"expired in b", b"in none"];
    let seen = names.map(|name| a.gone(key(name)));
    put(&mut b, b"in b", b"1", Condition::Always);
    b.put(key(b"expired in b"), b"1", Expires::At(500), Condition::Always, || 0).expect("room");
    a.swap(&mut b, 100, 1000);
    let now = names.map(|name| a.gone(key(name)));
    assert_eq!([now[0] != seen[0], now[1] == seen[1], now[2] == seen[2]], [true; 3]);
    // The key is absent again, and has existed.
    a.swap(&mut b, 200, 1000);
    assert_ne!(a.gone(key(b"in b")), seen[0]);
}

#[test]
fn a_key_of_a_stream_is_found_wherever_it_is() {
    let within = Arc::new(Budget::new(1 << 20, None));
    let ((mut a, _), (mut b, _)) = (stripe(&within, 0), stripe(&within, 0));
    put(&mut a, b"k", b"1", Condition::Always);
    assert!(a.any_stream().is_none());
    let topic = crate::TopicId::new(1, 2);
    a.put_stream(key(b"s"), topic, None, || 0).expect("a key");
    assert_eq!(a.any_stream(), Some((&b"s"[..], topic)));
    a.swap(&mut b, 100, 0);
    assert_eq!((a.any_stream(), b.any_stream()), (None, Some((&b"s"[..], topic))));
    b.put(key(b"s"), b"1", Expires::Never, Condition::Always, || 0).expect("room");
    assert!(b.any_stream().is_none());
    assert_eq!(b.take_lost(), [topic]);
    a.put_stream(key(b"t"), topic, None, || 0).expect("a key");
    assert!(a.take_stream(key(b"t"), topic) && a.any_stream().is_none());
    a.put_stream(key(b"t"), topic, None, || 0).expect("a key");
    a.flush();
    assert!(a.any_stream().is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Put { at: usize, key: u8, after_ms: Option<u64> },
    Push { at: usize, key: u8 },
    Delete { at: usize, key: u8 },
    Expiry { at: usize, key: u8, after_ms: u64 },
    Flush { at: usize },
    Evict { at: usize },
    Wait { ms: u64 },
    Swap,
    Dump { places: u32 },
}

fn a_step() -> impl Strategy<Value = Step> {
    let place = || (0usize..2, 0u8..6);
    prop_oneof![
        5 => (place(), proptest::option::of(1u64..5000))
            .prop_map(|((at, key), after_ms)| Step::Put { at, key, after_ms }),
        5 => place().prop_map(|(at, key)| Step::Push { at, key }),
        3 => place().prop_map(|(at, key)| Step::Delete { at, key }),
        2 => (place(), 1u64..5000).prop_map(|((at, key), after_ms)| Step::Expiry { at, key, after_ms }),
        1 => (0usize..2).prop_map(|at| Step::Flush { at }),
        1 => (0usize..2).prop_map(|at| Step::Evict { at }),
        2 => (0u64..3000).prop_map(|ms| Step::Wait { ms }),
        4 => Just(Step::Swap),
        8 => (1u32..4).prop_map(|places| Step::Dump { places }),
    ]
}

/// Two stripes with one log, and a dump of their entries.
struct Two {
    within: Arc<Budget>,
    stripes: [Stripe; 2],
    now_ms: u64,
    /// Effects with the number of their stripe, and their times.
    log: Vec<(usize, Vec<u8>, u64)>,
    start: usize,
    /// Number of the contents that each stripe has.
    contents: [usize; 2],
    /// Dump in progress: the end of the log when it began, the contents and the cursor.
    dump: Option<(usize, usize, Cursor)>,
}

impl Two {
    fn new() -> Self {
        let within = Arc::new(Budget::new(1 << 30, None));
        let mut stripes = [stripe(&within, 0).0, stripe(&within, 0).0];
        stripes.iter_mut().for_each(|stripe| stripe.record_effects(true));
        let log = Vec::new();
        Self { within, stripes, now_ms: 1_000_000, log, start: 0, contents: [0, 1], dump: None }
    }

    fn step(&mut self, step: &Step) {
        let now_ms = self.now_ms;
        let now = || now_ms;
        match *step {
            Step::Put { at, key: number, after_ms } => {
                let expires = after_ms.map_or(Expires::Never, |ms| Expires::At(now_ms + ms));
                let value = [number; 20];
                let put = self.stripes[at].put(key(&[number]), &value, expires, Condition::Always, now);
                put.expect("room");
            }
            Step::Push { at, key: number } => {
                let push = |list: &mut Edit<'_, List>| (true, list.push(End::Back, &[at as u8, number]));
                // A key with another kind of value refuses the change.
                drop(self.stripes[at].change(key(&[number]), 0, now, push));
            }
            Step::Delete { at, key: number } => {
                self.stripes[at].delete(key(&[number]), Condition::Always, now);
            }
            Step::Expiry { at, key: number, after_ms } => {
                self.stripes[at].set_expiry(key(&[number]), Some(now_ms + after_ms), now);
            }
            Step::Flush { at } => {
                self.stripes[at].flush();
                let mut bytes = Vec::new();
                Effect::Flushed.encode(&mut bytes);
                self.log.push((at, bytes, now_ms));
            }
            Step::Evict { at } => {
                self.stripes[at].evict_one();
            }
            Step::Wait { ms } => self.now_ms += ms,
            Step::Swap => {
                let [one, other] = &mut self.stripes;
                let version = one.version().max(other.version()) + 1;
                one.swap(other, version, now_ms);
                self.contents.swap(0, 1);
                let mut bytes = Vec::new();
                Effect::Swapped { with: 1, version }.encode(&mut bytes);
                self.log.push((0, bytes, now_ms));
            }
            Step::Dump { places } => self.dump_some(places),
        }
        for (at, stripe) in self.stripes.iter_mut().enumerate() {
            if let Some(effects) = stripe.take_effects() {
                self.log.push((at, effects.bytes, now_ms));
            }
        }
    }

    /// Dumps one more piece of the contents, as one of the stripe that has them now.
    fn dump_some(&mut self, places: u32) {
        let (begin, contents, cursor) = self.dump.take().unwrap_or((self.log.len(), 0, Cursor::default()));
        let at = self.contents.iter().position(|has| *has == contents).expect("one has them");
        let mut bytes = Vec::new();
        let next = self.stripes[at].scan(cursor, places, self.now_ms, |found| Stripe::dump(found, &mut bytes) > 0);
        self.log.push((at, bytes, self.now_ms));
        match next {
            Some(next) => self.dump = Some((begin, contents, next)),
            None if contents == 0 => self.dump = Some((begin, 1, Cursor::default())),
            None => self.start = begin,
        }
    }

    fn restored(&self) -> [Stripe; 2] {
        let within = Arc::new(Budget::new(1 << 30, None));
        let mut stripes = [stripe(&within, 0).0, stripe(&within, 0).0];
        stripes.iter_mut().for_each(|stripe| stripe.begin_replay(true));
        for (at, bytes, time_ms) in &self.log[self.start..] {
            let each = |effect: Effect<'_>| {
                if let Effect::Swapped { with: 1, version } = effect {
                    let [one, other] = &mut stripes;
                    one.swap(other, version, *time_ms);
                    return Ok(());
                }
                stripes[*at].replay(key(effect.key().unwrap_or_default()), &effect, *time_ms)
            };
            effects::decode(bytes, each).expect("they are whole");
            for stripe in &mut stripes {
                stripe.expire(*time_ms, usize::MAX);
            }
        }
        stripes
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_with_exchanges_restores_both(steps in proptest::collection::vec(a_step(), 1..120)) {
        let mut two = Two::new();
        for (number, step) in steps.iter().enumerate() {
            two.step(step);
            if number % 8 == 0 || number + 1 == steps.len() {
                let restored = two.restored();
                for (restored, stripe) in restored.iter().zip(&two.stripes) {
                    prop_assert_eq!(entries(restored, two.now_ms), entries(stripe, two.now_ms));
                }
                let bytes: u64 = two.stripes.iter().map(|stripe| stripe.stats().bytes).sum();
                prop_assert!(two.within.taken() >= bytes);
            }
        }
        // Each byte is returned to the budget that all stripes are within.
        for stripe in &mut two.stripes {
            stripe.flush();
            stripe.shed(u64::MAX);
        }
        prop_assert_eq!(two.within.taken(), 0);
    }
}

#[test]
fn an_exchange_is_read_as_it_was_written() {
    let mut bytes = Vec::new();
    let swapped = Effect::Swapped { with: 7, version: 1 << 40 };
    swapped.encode(&mut bytes);
    let mut found = Vec::new();
    effects::decode(&bytes, |effect| {
        found.push(format!("{effect:?}"));
        Ok(())
    })
    .expect("it is whole");
    assert_eq!(found, [format!("{swapped:?}")]);
    for cut in 1..bytes.len() {
        effects::decode(&bytes[..cut], |_| Ok(())).expect_err("it is cut short");
    }
}
