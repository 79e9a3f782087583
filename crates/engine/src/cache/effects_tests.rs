//! Random changes of every kind: replaying their effects restores the same state. This also holds if the replay begins
//! in the middle of the log, provided that all entries that existed then have been dumped since.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::effects::{self, Effect};
use super::structures::{Edit, End, Hash, List, Part, Score, Set, Sorted, Structure, span};
use super::*;

const KEYS: u64 = 8;

#[derive(Clone, Debug)]
enum Step {
    Put { key: u64, bytes: usize, after_ms: Option<u64>, is_kept: bool },
    Add { key: u64 },
    Delete { key: u64 },
    Expiry { key: u64, after_ms: Option<u64> },
    Change { key: u64, kind: u8, what: u8, a: u8, b: u8 },
    Whole { key: u64, kind: u8, parts: u8, after_ms: Option<u64> },
    Wait { ms: u64 },
    Sweep,
    Evict,
    Flush,
    Dump { places: u32 },
}

fn a_step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let after_ms = proptest::option::of(1u64..5000);
    prop_oneof![
        3 => (key.clone(), 0usize..50, after_ms.clone(), any::<bool>())
            .prop_map(|(key, bytes, after_ms, is_kept)| Step::Put { key, bytes, after_ms, is_kept }),
        1 => key.clone().prop_map(|key| Step::Add { key }),
        3 => key.clone().prop_map(|key| Step::Delete { key }),
        3 => (key.clone(), after_ms.clone()).prop_map(|(key, after_ms)| Step::Expiry { key, after_ms }),
        20 => (key.clone(), 0u8..4, 0u8..8, 0u8..6, 0u8..6)
            .prop_map(|(key, kind, what, a, b)| Step::Change { key, kind, what, a, b }),
        2 => (key, 0u8..4, 0u8..4, after_ms)
            .prop_map(|(key, kind, parts, after_ms)| Step::Whole { key, kind, parts, after_ms }),
        3 => (0u64..3000).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Sweep),
        1 => Just(Step::Evict),
        1 => Just(Step::Flush),
        6 => (1u32..5).prop_map(|places| Step::Dump { places }),
    ]
}

fn hash_of(key: &[u8]) -> u64 {
    key.iter().fold(7, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn with<R>(number: u64, then: impl FnOnce(Key<'_>) -> R) -> R {
    let bytes = number.to_be_bytes();
    then(Key { hash: hash_of(&bytes), bytes: &bytes })
}

fn stripe() -> Stripe {
    let budget = Arc::new(Budget::new(1 << 30, None));
    Stripe::new(StripeSettings { eviction: Eviction::S3Fifo, budget, block: 512, version: 0, now_ms: 0 })
}

/// Stripe whose effects are recorded.
struct Kept {
    stripe: Stripe,
    now_ms: u64,
    log: Vec<(u64, Vec<u8>)>,
    /// Start of the part of the log that is still needed.
    start: usize,
    /// Dump in progress: the end of the log when it began, and its cursor.
    dump: Option<(usize, Cursor)>,
}

impl Kept {
    fn new() -> Self {
        let mut stripe = stripe();
        stripe.record_effects(true);
        Self { stripe, now_ms: 1_000_000, log: Vec::new(), start: 0, dump: None }
    }

    fn step(&mut self, step: &Step) {
        let now_ms = self.now_ms;
        let now = || now_ms;
        let stripe = &mut self.stripe;
        match *step {
            Step::Put { key, bytes, after_ms, is_kept } => {
                let expires = after_ms.map_or(Expires::Never, |ms| Expires::At(now_ms + ms));
                let expires = if is_kept { Expires::Kept } else { expires };
                with(key, |key| stripe.put(key, &vec![b'x'; bytes], expires, Condition::Always, now)).expect("room");
            }
            // A value that is not a number stays unchanged.
            Step::Add { key } => drop(with(key, |key| stripe.add(key, 3, now))),
            Step::Delete { key } => drop(with(key, |key| stripe.delete(key, Condition::Always, now))),
            Step::Expiry { key, after_ms } => {
                with(key, |key| stripe.set_expiry(key, after_ms.map(|ms| now_ms + ms), now));
            }
            Step::Change { key, kind, what, a, b } => with(key, |key| match kind {
                0 => change(stripe, key, now_ms, |list| change_list(list, what, a, b)),
                1 => change(stripe, key, now_ms, |hash| change_hash(hash, what, a, b)),
                2 => change(stripe, key, now_ms, |set| change_set(set, what, a)),
                _ => change(stripe, key, now_ms, |sorted| change_sorted(sorted, what, a, b)),
            }),
            Step::Whole { key, kind, parts, after_ms } => {
                let whole = Owned::Structure(Box::new(whole(kind, parts)));
                let expires_ms = after_ms.map(|ms| now_ms + ms);
                with(key, |key| stripe.put_owned(key, whole, expires_ms, now)).expect("room");
            }
            Step::Wait { ms } => self.now_ms += ms,
            Step::Sweep => drop(stripe.expire(now_ms, usize::MAX)),
            Step::Evict => drop(stripe.evict_one()),
            Step::Flush => {
                stripe.flush();
                let mut bytes = Vec::new();
                Effect::Flushed.encode(&mut bytes);
                self.log.push((now_ms, bytes));
            }
            Step::Dump { places } => self.dump_some(places),
        }
        if let Some(effects) = self.stripe.take_effects() {
            self.log.push((now_ms, effects.bytes));
        }
    }

    /// Dumps one more piece. The last piece makes the log before the first piece unnecessary.
    fn dump_some(&mut self, places: u32) {
        let (begin, cursor) = self.dump.take().unwrap_or((self.log.len(), Cursor::default()));
        let mut bytes = Vec::new();
        let next = self.stripe.scan(cursor, places, self.now_ms, |found| Stripe::dump(found, &mut bytes) > 0);
        self.log.push((self.now_ms, bytes));
        match next {
            Some(next) => self.dump = Some((begin, next)),
            None => self.start = begin,
        }
    }

    fn restored(&self) -> Stripe {
        let mut restored = stripe();
        restored.begin_replay(true);
        for (time_ms, bytes) in &self.log[self.start..] {
            let each = |effect: Effect<'_>| {
                let key = effect.key().unwrap_or_default();
                restored.replay(Key { hash: hash_of(key), bytes: key }, &effect, *time_ms)
            };
            effects::decode(bytes, each).expect("they are whole");
            restored.expire(*time_ms, usize::MAX);
        }
        restored.begin_replay(false);
        restored
    }
}

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, u64, Option<u64>)>;

fn entries(stripe: &Stripe, now_ms: u64) -> Entries {
    let mut entries = Entries::new();
    stripe.scan(Cursor::default(), u32::MAX, now_ms, |found| {
        let value = match found.value {
            Value::Bytes(bytes) => bytes.to_vec(),
            Value::Structure(structure) => [&[structure.kind() as u8], &structure.dumped()[..]].concat(),
        };
        entries.insert(found.key.to_vec(), (value, found.version, found.expires_ms)).is_none()
    });
    entries
}

fn change<T: Part>(stripe: &mut Stripe, key: Key<'_>, now_ms: u64, change: impl FnOnce(&mut Edit<'_, T>) -> bool) {
    // A key of another kind refuses the change.
    drop(stripe.change(key, 0, || now_ms, |part| (change(part), ())));
}

fn item(number: u8) -> [u8; 1] {
    [b'a' + number % 3]
}

fn change_list(list: &mut Edit<'_, List>, what: u8, a: u8, b: u8) -> bool {
    let end = if a.is_multiple_of(2) { End::Front } else { End::Back };
    let length = list.len();
    match what {
        0..=2 => list.push(end, &item(b)),
        3 => return list.pop(end).is_some(),
        4 if usize::from(a) < length => list.set(a.into(), &item(b)),
        5 => list.insert(a.into(), &item(b)),
        6 if length > 3 => list.keep(span(a.into(), -1 - i64::from(b), length)),
        7 => return list.remove(&item(a), end, usize::from(b % 3)) > 0,
        _ => return false,
    }
    true
}

fn change_hash(hash: &mut Edit<'_, Hash>, what: u8, a: u8, b: u8) -> bool {
    match what {
        0..=3 => hash.remove(&item(a)).is_some(),
        _ => {
            hash.set(&item(a), &item(b));
            true
        }
    }
}

fn change_set(set: &mut Edit<'_, Set>, what: u8, a: u8) -> bool {
    if what < 4 { set.remove(&[a]) } else { set.add(&[a]) }
}

fn change_sorted(sorted: &mut Edit<'_, Sorted>, what: u8, a: u8, b: u8) -> bool {
    let score = Score::new(f64::from(b)).expect("a number");
    if what < 3 { sorted.remove(&[a]).is_some() } else { sorted.set(&[a], score) != Some(score) }
}

fn whole(kind: u8, parts: u8) -> Structure {
    let parts = 0..parts;
    match kind {
        0 => parts
            .fold(List::default(), |mut list, part| {
                list.push(End::Back, &[part]);
                list
            })
            .into_structure(),
        1 => parts
            .fold(Hash::default(), |mut hash, part| {
                hash.set(&[part], &[part]);
                hash
            })
            .into_structure(),
        2 => parts
            .fold(Set::default(), |mut set, part| {
                set.add(&[part]);
                set
            })
            .into_structure(),
        _ => parts
            .fold(Sorted::default(), |mut sorted, part| {
                sorted.set(&[part], Score::default());
                sorted
            })
            .into_structure(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_restores_the_same_entries(steps in proptest::collection::vec(a_step(), 1..120)) {
        let mut kept = Kept::new();
        for (number, step) in steps.iter().enumerate() {
            kept.step(step);
            if number % 8 == 0 || number + 1 == steps.len() {
                let restored = kept.restored();
                prop_assert_eq!(entries(&restored, kept.now_ms), entries(&kept.stripe, kept.now_ms));
                // A version is never assigned again: the newest change is in the log, or its entry is dumped.
                let newest = entries(&kept.stripe, kept.now_ms).values().map(|(_, version, _)| *version).max();
                prop_assert!(restored.version() >= newest.unwrap_or_default());
            }
        }
    }

    #[test]
    fn effects_that_are_cut_short_or_damaged_are_refused(
        steps in proptest::collection::vec(a_step(), 1..40), at: prop::sample::Index, cut: prop::sample::Index
    ) {
        let mut kept = Kept::new();
        steps.iter().for_each(|step| kept.step(step));
        let whole: Vec<u8> = kept.log.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let mut ends = vec![0];
        let mut sized = Vec::new();
        effects::decode(&whole, |effect| {
            effect.encode(&mut sized);
            ends.push(sized.len());
            Ok(())
        })
        .expect("they are whole");
        prop_assert_eq!(&sized, &whole);
        let cut = cut.index(whole.len() + 1);
        prop_assert_eq!(effects::decode(&whole[..cut], |_| Ok(())).is_ok(), ends.contains(&cut));
        let mut damaged = whole;
        if !damaged.is_empty() {
            let at = at.index(damaged.len());
            damaged[at] ^= 0x5a;
            let mut restored = stripe();
            restored.begin_replay(true);
            // Any result is accepted, except a panic.
            drop(effects::decode(&damaged, |effect| {
                let key = effect.key().unwrap_or_default();
                restored.replay(Key { hash: hash_of(key), bytes: key }, &effect, 0)
            }));
        }
    }
}

#[test]
fn restored_entries_count_against_the_budget() {
    let budget = Arc::new(Budget::new(1000, None));
    let mut stripe = Stripe::new(StripeSettings {
        eviction: Eviction::None,
        budget: budget.clone(),
        block: 64,
        version: 5,
        now_ms: 0,
    });
    stripe.begin_replay(true);
    for number in 0..20 {
        let key = number.to_string();
        let put = Effect::Put { key: key.as_bytes(), value: &[0; 50], version: 10 + number, expires_ms: None };
        stripe.replay(Key { hash: hash_of(key.as_bytes()), bytes: key.as_bytes() }, &put, 0).expect("there was room");
    }
    stripe.begin_replay(false);
    assert_eq!((stripe.stats().entries, stripe.version()), (20, 29));
    assert!(budget.taken() > 900 && stripe.stats().bytes > 1000);
    let full = with(77, |key| stripe.put(key, b"", Expires::Never, Condition::Always, || 0));
    assert_eq!(full.map_err(|error| error.kind), Err(crate::ErrorKind::Busy));
}
