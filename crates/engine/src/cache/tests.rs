//! Comparison of a stripe with a plain map that is searched from end to end.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::expiry::Expiry;
use super::structures::{Edit, End, Hash, Kind, List, Set, Structure};
use super::*;
use crate::error::ErrorKind;

fn key(number: u64) -> ([u8; 8], u64) {
    let hash = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number.to_be_bytes(), hash ^ hash >> 31)
}

fn stripe(eviction: Eviction, bytes_max: u64) -> (Stripe, Arc<Budget>) {
    let budget = Arc::new(Budget::new(bytes_max, None));
    (Stripe::new(StripeSettings { eviction, budget: budget.clone(), block: 512, version: 0, now_ms: 0 }), budget)
}

fn with<R>(number: u64, then: impl FnOnce(Key<'_>) -> R) -> R {
    let (bytes, hash) = key(number);
    then(Key { hash, bytes: &bytes })
}

fn bytes_of(found: Found<'_>) -> Vec<u8> {
    found.value.bytes().expect("no structure").to_vec()
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u64, bytes: usize, expires: Expires, condition: u8 },
    Add { key: u64, delta: i64 },
    Overwrite { key: u64, at: usize, bytes: usize },
    Delete { key: u64, condition: u8 },
    Expiry { key: u64, after_ms: Option<u64> },
    Get { key: u64 },
    Wait { ms: u64 },
    Expire { max: usize },
    Flush,
}

fn a_step() -> impl Strategy<Value = Step> {
    let expires = prop_oneof![
        3 => Just(Expires::Never),
        1 => Just(Expires::Kept),
        3 => (1u64..100_000).prop_map(Expires::At),
        1 => (1u64..10_000_000_000).prop_map(Expires::At),
    ];
    let of_key = 0u64..30;
    prop_oneof![
        10 => (of_key.clone(), 0usize..300, expires, 0u8..5)
            .prop_map(|(key, bytes, expires, condition)| Step::Put { key, bytes, expires, condition }),
        3 => (of_key.clone(), any::<i64>()).prop_map(|(key, delta)| Step::Add { key, delta }),
        4 => (of_key.clone(), 0usize..300, 0usize..20)
            .prop_map(|(key, at, bytes)| Step::Overwrite { key, at, bytes }),
        4 => (of_key.clone(), 0u8..5).prop_map(|(key, condition)| Step::Delete { key, condition }),
        4 => (of_key.clone(), proptest::option::of(0u64..100_000))
            .prop_map(|(key, after_ms)| Step::Expiry { key, after_ms }),
        10 => of_key.prop_map(|key| Step::Get { key }),
        3 => (0u64..2000).prop_map(|ms| Step::Wait { ms }),
        1 => (0u64..100_000_000).prop_map(|ms| Step::Wait { ms }),
        3 => (1usize..50).prop_map(|max| Step::Expire { max }),
        1 => Just(Step::Flush),
    ]
}

/// Returns the condition of a step, given the current version of the entry.
fn condition(number: u8, current: Option<u64>) -> Condition {
    match number {
        0 => Condition::IfAbsent,
        1 => Condition::IfPresent,
        2 => Condition::IfVersion(current.unwrap_or(7)),
        3 => Condition::IfVersion(current.map_or(1, |version| version.wrapping_sub(1))),
        _ => Condition::Always,
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Vec<u8>,
    version: u64,
    expires_ms: Option<u64>,
}

fn holds(condition: Condition, current: Option<u64>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::IfAbsent => current.is_none(),
        Condition::IfPresent => current.is_some(),
        Condition::IfVersion(version) => current == Some(version),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// With room for all entries, a stripe is a map whose entries expire.
    #[test]
    fn a_stripe_is_a_map_whose_entries_expire(steps in proptest::collection::vec(a_step(), 1..300)) {
        let (mut stripe, budget) = stripe(Eviction::None, 1 << 30);
        stripe.record_removed(true);
        let mut model = BTreeMap::<u64, Known>::new();
        let mut now = 1_000_000u64;
        let mut version = 0u64;
        for step in steps {
            let time = now;
            model.retain(|_, known| known.expires_ms.is_none_or(|at| at > time));
            match step {
                Step::Put { key, bytes, expires, condition: number } => {
                    let value = vec![b'x'; bytes];
                    let current = model.get(&key).map(|known| known.version);
                    let condition = condition(number, current);
                    let expires = match expires {
                        Expires::At(after) => Expires::At(now + after),
                        other => other,
                    };
                    let stored = with(key, |key| stripe.put(key, &value, expires, condition, || time));
                    if holds(condition, current) {
                        version += 1;
                        prop_assert_eq!(stored, Ok(Stored::Done { version, previous: current }));
                        let expires_ms = match expires {
                            Expires::Never => None,
                            Expires::At(at) => Some(at),
                            Expires::Kept => model.get(&key).and_then(|known| known.expires_ms),
                        };
                        model.insert(key, Known { value, version, expires_ms });
                    } else {
                        prop_assert_eq!(stored, Ok(Stored::Unmet { current }));
                    }
                }
                Step::Add { key, delta } => {
                    let known = model.get(&key).cloned();
                    let before = known.as_ref().map_or(Some(0), |known| {
                        std::str::from_utf8(&known.value).ok().and_then(|text| text.parse::<i64>().ok())
                    });
                    let after = before.and_then(|before| before.checked_add(delta));
                    let added = with(key, |key| stripe.add(key, delta, || time));
                    match after {
                        Some(value) => {
                            version += 1;
                            let expires_ms = known.and_then(|known| known.expires_ms);
                            prop_assert_eq!(added, Ok(Added { value, version, expires_ms }));
                            model.insert(key, Known { value: value.to_string().into(), version, expires_ms });
                        }
                        None => prop_assert_eq!(added.expect_err("no number").kind, ErrorKind::Invalid),
                    }
                }
                Step::Overwrite { key, at, bytes } => {
                    let known = model.get(&key).cloned();
                    let mut value = known.as_ref().map_or_else(Vec::new, |known| known.value.clone());
                    value.resize(value.len().max(at + bytes), 0);
                    value[at..at + bytes].fill(b'o');
                    let part = vec![b'o'; bytes];
                    let stored = with(key, |key| stripe.overwrite(key, at, &part, || time));
                    version += 1;
                    let previous = known.as_ref().map(|known| known.version);
                    prop_assert_eq!(stored, Ok(Stored::Done { version, previous }));
                    let expires_ms = known.and_then(|known| known.expires_ms);
                    model.insert(key, Known { value, version, expires_ms });
                }
                Step::Delete { key, condition: number } => {
                    let current = model.get(&key).map(|known| known.version);
                    let condition = condition(number, current);
                    let stored = with(key, |key| stripe.delete(key, condition, || time));
                    if holds(condition, current) {
                        version += 1;
                        prop_assert_eq!(stored, Stored::Done { version, previous: current });
                        model.remove(&key);
                    } else {
                        prop_assert_eq!(stored, Stored::Unmet { current });
                    }
                }
                Step::Expiry { key, after_ms } => {
                    let expires_ms = after_ms.map(|after| now + after);
                    let exists = with(key, |key| stripe.set_expiry(key, expires_ms, || time));
                    prop_assert_eq!(exists, model.contains_key(&key));
                    if let Some(known) = model.get_mut(&key) {
                        known.expires_ms = expires_ms;
                    }
                }
                Step::Get { key } => {
                    let found = with(key, |key| stripe.get(key, || time).map(|found| Known {
                        value: bytes_of(found),
                        version: found.version,
                        expires_ms: found.expires_ms,
                    }));
                    prop_assert_eq!(found.as_ref(), model.get(&key));
                }
                Step::Wait { ms } => now += ms,
                Step::Expire { max } => {
                    if !stripe.expire(now, max) {
                        let time = now + 16;
                        let is_more = stripe.expire(time, usize::MAX);
                        prop_assert!(!is_more);
                        model.retain(|_, known| known.expires_ms.is_none_or(|at| at > time));
                        let stored = stripe.stats().entries;
                        prop_assert!(stored >= model.len() as u64);
                        now = time;
                    }
                }
                Step::Flush => {
                    stripe.flush();
                    model.clear();
                }
            }
            let mut seen = BTreeMap::new();
            let time = now;
            model.retain(|_, known| known.expires_ms.is_none_or(|at| at > time));
            let mut from = Some(Cursor::default());
            while let Some(cursor) = from {
                from = stripe.scan(cursor, 7, now, |found| {
                    let key = u64::from_be_bytes(found.key.try_into().expect("8 bytes"));
                    let known = Known {
                        value: bytes_of(found),
                        version: found.version,
                        expires_ms: found.expires_ms,
                    };
                    seen.insert(key, known);
                    seen.len() % 3 != 0
                });
            }
            prop_assert_eq!(&seen, &model);
            // An entry that gets an expiry time later grows even without room.
            prop_assert!(stripe.stats().bytes <= budget.taken() + 24 * 30);
        }
        for _ in 0..20 {
            now += 10_000_000_000;
            stripe.expire(now, usize::MAX);
        }
        let stats = stripe.stats();
        prop_assert_eq!(stats.entries, model.values().filter(|known| known.expires_ms.is_none()).count() as u64);
        prop_assert_eq!(stripe.take_removed().len() as u64, stats.expired);
        stripe.flush();
        prop_assert!(budget.taken() <= 1024, "{} bytes are still taken", budget.taken());
    }

    /// No timer is due early, and every timer is due one tick after its time, regardless of changes of the clock.
    #[test]
    fn the_wheel_returns_the_due_timers(
        steps in proptest::collection::vec((0u8..6, 0u64..40, 0u64..400_000_000), 1..200)
    ) {
        let mut expiry = Expiry::default();
        let mut set = BTreeMap::<u32, (u32, u64)>::new();
        let mut now = 1_700_000_000_000u64;
        for (what, entry, span) in steps {
            // Spans of all sizes.
            let span = span >> (entry % 28);
            let entry = entry as u32;
            match what {
                0..=2 => match set.get(&entry) {
                    Some((timer, _)) => {
                        let timer = *timer;
                        expiry.change(timer, now + span);
                        set.insert(entry, (timer, now + span));
                    }
                    None => {
                        let timer = expiry.set(entry, now + span, now);
                        set.insert(entry, (timer, now + span));
                    }
                },
                3 => {
                    if let Some((timer, _)) = set.remove(&entry) {
                        expiry.drop_timer(timer);
                    }
                }
                4 => now += span,
                _ => now -= span / 4,
            }
            while let Some(entry) = expiry.due(now) {
                let (timer, at_ms) = set.remove(&entry).expect("it was set");
                prop_assert_eq!(expiry.at_ms(timer), at_ms);
                prop_assert!(at_ms <= now, "{} ms too soon", at_ms - now);
                expiry.drop_timer(timer);
            }
            prop_assert_eq!(expiry.count() as usize, set.len());
            // A clock that is set back by less than a turn of the first ring may delay timers that are due in that
            // time.
            let late = set.values().filter(|(_, at_ms)| at_ms + 16 + 64 * 16 <= now).count();
            prop_assert_eq!(late, 0);
            prop_assert_eq!(expiry.first().is_some(), !set.is_empty());
        }
    }

    /// An entry that is used stays, regardless of other puts, and the stripe never exceeds its room.
    #[test]
    fn used_entries_are_not_evicted(sizes in proptest::collection::vec(0usize..400, 500..2000), is_ttl_first: bool) {
        let eviction = if is_ttl_first { Eviction::TtlFirst } else { Eviction::S3Fifo };
        let (mut stripe, budget) = stripe(eviction, 20_000);
        stripe.record_removed(true);
        with(0, |key| stripe.put(key, b"used", Expires::Never, Condition::Always, || 0)).expect("room");
        for (number, size) in sizes.iter().enumerate() {
            let used = with(0, |key| stripe.get(key, || 0).map(|found| bytes_of(found)));
            prop_assert_eq!(used.as_deref(), Some(&b"used"[..]));
            let expires = if number % 2 == 0 { Expires::At(10_000) } else { Expires::Never };
            let stored = with(number as u64 + 1, |key| {
                stripe.put(key, &vec![0; *size], expires, Condition::Always, || 0)
            });
            let is_new = matches!(stored, Ok(Stored::Done { previous: None, .. }));
            prop_assert!(is_new);
            prop_assert!(stripe.stats().bytes <= 20_000 && budget.taken() <= 20_000);
        }
        let stats = stripe.stats();
        prop_assert_eq!(stats.entries + stats.evicted, sizes.len() as u64 + 1);
        let removed = stripe.take_removed();
        prop_assert_eq!(removed.len() as u64, stats.evicted);
        prop_assert_eq!(removed.iter().map(|removed| removed.key.clone()).collect::<HashSet<_>>().len(), removed.len());
        prop_assert!(removed.iter().all(|removed| removed.why == Why::Evicted));
    }
}

#[test]
fn a_full_cache_without_eviction_refuses_new_entries_and_keeps_its_own() {
    let (mut stripe, _) = stripe(Eviction::None, 1000);
    let mut put = |number, bytes: usize| {
        with(number, |key| stripe.put(key, &vec![1; bytes], Expires::Never, Condition::Always, || 0))
    };
    let mut number = 0;
    while put(number, 50).is_ok() {
        number += 1;
    }
    assert!(number > 3);
    assert_eq!(put(number, 50).expect_err("full").kind, ErrorKind::Busy);
    assert_eq!(put(0, 500).expect_err("full").kind, ErrorKind::Busy);
    assert!(matches!(put(0, 50), Ok(Stored::Done { previous: Some(1), .. })));
    assert_eq!(with(0, |key| stripe.get(key, || 0).map(|found| bytes_of(found).len())), Some(50));
    let deleted = with(1, |key| stripe.delete(key, Condition::Always, || 0));
    assert!(matches!(deleted, Stored::Done { previous: Some(2), .. }));
    with(number, |key| stripe.put(key, &[1; 50], Expires::Never, Condition::Always, || 0)).expect("room again");
}

#[test]
fn a_value_is_overwritten_in_its_place() {
    let (mut stripe, budget) = stripe(Eviction::None, 5000);
    with(1, |key| stripe.put(key, &[1; 3000], Expires::At(50), Condition::Always, || 0)).expect("room");
    let place = |stripe: &mut Stripe| {
        with(1, |key| stripe.peek(key, || 0).and_then(|found| found.value.bytes().ok().map(<[u8]>::as_ptr)))
    };
    let before = place(&mut stripe);
    let mut value = vec![1; 3000];
    for at in [0, 1500, 2998] {
        with(1, |key| stripe.overwrite(key, at, &[2, 3], || 0)).expect("no room is needed");
        value[at..at + 2].copy_from_slice(&[2, 3]);
    }
    assert_eq!(place(&mut stripe), before, "the value was not copied");
    let found = with(1, |key| stripe.get(key, || 0).map(|found| (found.expires_ms, bytes_of(found))));
    assert_eq!(found, Some((Some(50), value.clone())));

    with(1, |key| stripe.overwrite(key, 3010, &[4], || 0)).expect("room for 11 bytes");
    value.resize(3010, 0);
    value.push(4);
    assert_eq!(with(1, |key| stripe.get(key, || 0).map(bytes_of)), Some(value.clone()));
    assert_eq!(budget.taken().div_ceil(512), stripe.stats().bytes.div_ceil(512));
    let full = with(1, |key| stripe.overwrite(key, 4990, &[5], || 0)).expect_err("no room");
    assert_eq!(full.kind, ErrorKind::Busy);
    assert_eq!(with(1, |key| stripe.get(key, || 0).map(bytes_of)), Some(value), "a refused change has no effect");

    let too_long = with(1, |key| stripe.overwrite(key, VALUE_BYTES_MAX, &[5], || 0)).expect_err("too long");
    assert_eq!(too_long.kind, ErrorKind::TooLarge);
    with(2, |key| stripe.change(key, 100, || 0, |list: &mut Edit<'_, List>| (true, list.push(End::Back, b"x"))))
        .expect("a list");
    let wrong = with(2, |key| stripe.overwrite(key, 0, &[5], || 0)).expect_err("a list");
    assert_eq!(wrong.kind, ErrorKind::Invalid);
}

#[test]
fn a_value_that_grows_evicts_others_but_not_itself() {
    let (mut stripe, budget) = stripe(Eviction::S3Fifo, 20_000);
    for number in 0..30 {
        with(number, |key| stripe.put(key, &[0; 500], Expires::Never, Condition::Always, || 0)).expect("room");
    }
    with(7, |key| stripe.put(key, b"grows", Expires::At(90), Condition::Always, || 0)).expect("room");
    for at in (5..10_000).step_by(100) {
        with(7, |key| stripe.overwrite(key, at, &[7; 100], || 0)).expect("others are evicted");
        assert!(budget.taken() <= 20_000);
    }
    let found = with(7, |key| stripe.get(key, || 0).map(|found| (found.expires_ms, bytes_of(found))));
    assert_eq!(found, Some((Some(90), [b"grows", &[7; 10_000][..]].concat())));
    assert!(stripe.stats().evicted > 0);
}

#[test]
fn the_entry_that_expires_first_is_evicted_first() {
    let (mut stripe, _) = stripe(Eviction::TtlFirst, 1 << 20);
    for number in 0..100 {
        let expires = if number % 2 == 0 { Expires::At(1_000_000 - number * 1000) } else { Expires::Never };
        with(number, |key| stripe.put(key, b"value", expires, Condition::Always, || 0)).expect("room");
    }
    stripe.record_removed(true);
    for _ in 0..60 {
        assert!(stripe.evict_one());
    }
    let gone: Vec<u64> = stripe
        .take_removed()
        .iter()
        .map(|removed| u64::from_be_bytes((&*removed.key).try_into().expect("8")))
        .collect();
    let with_a_time: Vec<u64> = (0..50).map(|number| 98 - 2 * number).collect();
    // Evicted approximately in the order of their times: the places of the wheel get wider with the distance.
    let mut first = gone[..50].to_vec();
    assert!(first[..10].iter().all(|number| *number > 60), "{first:?}");
    first.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(first, with_a_time);
    assert!(gone[50..].iter().all(|number| number % 2 == 1));
}

#[test]
fn a_growing_entry_is_not_evicted_for_its_own_growth() {
    let (mut stripe, _) = stripe(Eviction::S3Fifo, 2000);
    for number in 0..20 {
        with(number, |key| stripe.put(key, &[0; 40], Expires::At(5000), Condition::Always, || 0)).expect("room");
    }
    let last = 19;
    with(last, |key| stripe.put(key, &[7; 900], Expires::Kept, Condition::IfPresent, || 0)).expect("room is made");
    let found = with(last, |key| stripe.get(key, || 0).map(|found| (bytes_of(found).len(), found.expires_ms)));
    assert_eq!(found, Some((900, Some(5000))));
    let too_large = with(last, |key| stripe.put(key, &[7; 9000], Expires::Kept, Condition::Always, || 0));
    assert_eq!(too_large.expect_err("more than the cache").kind, ErrorKind::Busy);
}

#[test]
fn numbers_are_read_as_they_are_written() {
    for number in [0, 1, -1, 9, 10, -10, i64::MAX, i64::MIN, 1234567890] {
        let mut buffer = [0; 20];
        assert_eq!(parse_number(write_number(number, &mut buffer)), Some(number));
        assert_eq!(std::str::from_utf8(write_number(number, &mut buffer)), Ok(number.to_string().as_str()));
    }
    for text in ["", "-", "-0", "+1", "01", " 1", "1 ", "9223372036854775808", "-9223372036854775809", "1x", "0x1"] {
        assert_eq!(parse_number(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn structures_are_made_changed_counted_and_gone_when_they_are_empty() {
    let (mut stripe, budget) = stripe(Eviction::None, 1 << 20);
    let push = |stripe: &mut Stripe, number: u64, item: &[u8]| {
        with(number, |key| {
            stripe.change(
                key,
                item.len() as u64,
                || 0,
                |list: &mut Edit<'_, List>| {
                    list.push(End::Back, item);
                    (true, list.len())
                },
            )
        })
    };
    assert_eq!(push(&mut stripe, 1, &[7; 1000]), Ok(1));
    let small = stripe.stats().bytes;
    assert_eq!(push(&mut stripe, 1, &[7; 5000]), Ok(2));
    assert_eq!(stripe.stats().bytes, small + 5000 + 24);
    let version = with(1, |key| stripe.peek(key, || 0).map(|found| found.version));
    let nothing = with(1, |key| stripe.change(key, 0, || 0, |list: &mut Edit<'_, List>| (false, list.len())));
    assert_eq!((nothing, with(1, |key| stripe.peek(key, || 0).map(|found| found.version))), (Ok(2), version));
    // A value of another kind is refused in both directions.
    let as_a_set = with(1, |key| stripe.change(key, 0, || 0, |set: &mut Edit<'_, Set>| (true, set.add(b"x"))));
    assert_eq!(as_a_set.expect_err("a list").kind, ErrorKind::Invalid);
    assert_eq!(with(1, |key| stripe.add(key, 1, || 0)).expect_err("a list").kind, ErrorKind::Invalid);
    with(2, |key| stripe.put(key, b"bytes", Expires::At(100), Condition::Always, || 0)).expect("room");
    assert_eq!(push(&mut stripe, 2, b"x").expect_err("bytes").kind, ErrorKind::Invalid);
    // Bytes replace a list and keep its expiry time on request.
    with(1, |key| stripe.set_expiry(key, Some(100), || 0));
    with(1, |key| stripe.put(key, b"now bytes", Expires::Kept, Condition::IfPresent, || 0)).expect("room");
    let found = with(1, |key| stripe.peek(key, || 0).map(|found| (bytes_of(found), found.expires_ms)));
    assert_eq!(found, Some((b"now bytes".to_vec(), Some(100))));
    // Removing the last part removes the entry, and a call that changes nothing creates no entry.
    push(&mut stripe, 3, b"only").expect("room");
    let popped = with(3, |key| {
        stripe.change(
            key,
            0,
            || 0,
            |list: &mut Edit<'_, List>| {
                let popped = list.pop(End::Front);
                (popped.is_some(), popped)
            },
        )
    });
    assert_eq!(popped.expect("a list").as_deref(), Some(&b"only"[..]));
    assert_eq!(with(3, |key| stripe.change(key, 0, || 0, |list: &mut Edit<'_, List>| (false, list.len()))), Ok(0));
    assert_eq!(stripe.stats().entries, 2);
    // A full cache refuses changes that would make it larger, and whole values, too.
    assert_eq!(push(&mut stripe, 4, &vec![0; 2 << 20]).expect_err("full").kind, ErrorKind::Busy);
    let mut set = Set::default();
    set.add(b"member");
    let whole = |set: Set| Owned::Structure(Box::new(Structure::Set(set)));
    with(2, |key| stripe.put_owned(key, whole(set.clone()), Some(50), || 0)).expect("room");
    let found = with(2, |key| stripe.peek(key, || 0).map(|found| (found.value.kind(), found.expires_ms)));
    assert_eq!(found, Some((Kind::Set, Some(50))));
    assert_eq!(with(2, |key| stripe.peek(key, || 50).map(|found| found.version)), None);
    with(1, |key| stripe.put_owned(key, whole(Set::default()), None, || 0)).expect("nothing");
    assert_eq!((stripe.stats().entries, stripe.stats().bytes), (0, 0));
    drop(stripe);
    assert_eq!(budget.taken(), 0);
}

#[test]
fn structures_that_grow_in_a_cache_that_evicts_make_others_go() {
    let (mut stripe, _) = stripe(Eviction::S3Fifo, 20_000);
    for number in 0..2000u64 {
        let grown = with(number % 7, |key| {
            stripe.change(
                key,
                40,
                || 0,
                |hash: &mut Edit<'_, Hash>| (hash.set(&number.to_be_bytes(), &[1; 32]), hash.len()),
            )
        });
        grown.expect("room is made");
        // One step may exceed the room by the bytes that it adds.
        assert!(stripe.stats().bytes <= 20_000 + 200, "{}", stripe.stats().bytes);
    }
    assert!(stripe.stats().evicted > 0);
    let seen: Vec<_> = (0..20).filter_map(|number| stripe.any_key(number, 0)).collect();
    assert!(seen.iter().all(|key| key.len() == 8) && seen.len() == 20);
}

#[test]
fn a_structure_that_would_take_too_much_does_not_grow() {
    let (mut stripe, _) = stripe(Eviction::S3Fifo, 4 << 30);
    let grow = |stripe: &mut Stripe, room: u64| {
        with(1, |key| {
            stripe.change(
                key,
                room,
                || 0,
                |list: &mut Edit<'_, List>| {
                    list.push(End::Back, b"item");
                    (true, list.len())
                },
            )
        })
    };
    assert_eq!(grow(&mut stripe, 4), Ok(1));
    let refused = grow(&mut stripe, STRUCTURE_BYTES_MAX).expect_err("it would take more than it may");
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    assert_eq!(grow(&mut stripe, STRUCTURE_BYTES_MAX / 2), Ok(2));
    // A caller that moves a value from another place checks the growth before it takes the value.
    let asked =
        |stripe: &mut Stripe, room| with(1, |key| stripe.check_growth(key, room, || 0)).map_err(|error| error.kind);
    assert_eq!(asked(&mut stripe, STRUCTURE_BYTES_MAX), Err(ErrorKind::TooLarge));
    assert_eq!(asked(&mut stripe, STRUCTURE_BYTES_MAX / 2), Ok(()));
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let of_long = stripe.check_growth(Key { hash: 1, bytes: &long }, 1, || 0);
    assert_eq!(of_long.map_err(|error| error.kind), Err(ErrorKind::TooLarge));
}

/// Every removal of a stream's key reports the stream. Eviction never removes such a key, and no log contains it.
#[test]
fn keys_of_streams_tell_when_they_are_removed() {
    use crate::ids::TopicId;
    for eviction in Eviction::ALL {
        let (mut stripe, _) = stripe(eviction, 64 << 10);
        stripe.record_effects(true);
        let topic = |number: u64| TopicId::new(1, number);
        for number in 0..6 {
            let expires_ms = (number == 2).then_some(50);
            with(number, |key| stripe.put_stream(key, topic(number), expires_ms, || 10)).expect("put");
        }
        assert!(stripe.take_effects().is_none(), "{eviction:?}");
        let found = with(0, |key| stripe.peek(key, || 10).map(|found| found.value.kind()));
        assert_eq!(found, Some(Kind::Stream));
        let set = with(0, |key| stripe.change(key, 0, || 10, |set: &mut Edit<'_, Set>| (true, set.add(b"m"))));
        assert_eq!(set.expect_err("it is a stream").kind, ErrorKind::Invalid);
        assert_eq!(stripe.take_lost(), []);

        with(0, |key| stripe.delete(key, Condition::Always, || 10));
        with(1, |key| stripe.put(key, b"v", Expires::Never, Condition::Always, || 10)).expect("put");
        assert!(with(2, |key| stripe.peek(key, || 60).is_none()));
        assert_eq!(stripe.take_lost(), [topic(0), topic(1), topic(2)]);
        assert!(with(3, |key| stripe.take_stream(key, topic(3))) && !with(4, |key| stripe.take_stream(key, topic(3))));
        assert_eq!(stripe.take_lost(), []);

        // Other entries make room.
        for number in 100..1000 {
            let put = with(number, |key| stripe.put(key, &[0; 200], Expires::At(5000), Condition::Always, || 60));
            assert!(put.is_ok() || eviction == Eviction::None, "{eviction:?}");
        }
        assert!(with(4, |key| stripe.peek(key, || 60).is_some()) && stripe.take_lost().is_empty());
        let mut dumped = Vec::new();
        stripe.scan(Cursor::default(), u32::MAX, 60, |found| {
            let is_dumped = Stripe::dump(found, &mut dumped) > 0;
            assert_ne!(is_dumped, matches!(found.value, Value::Structure(Structure::Stream(_))));
            true
        });
        stripe.flush();
        let mut lost = stripe.take_lost();
        lost.sort_unstable();
        assert_eq!(lost, [topic(4), topic(5)]);
    }
}
