//! Comparison of the structures with the simplest equivalent ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use proptest::prelude::*;

use super::*;

fn item(number: u8) -> Vec<u8> {
    vec![b'a' + number % 26; usize::from(number % 5)]
}

fn bytes_of(parts: impl Iterator<Item = usize>) -> u64 {
    parts.sum::<usize>() as u64
}

proptest! {
    #[test]
    fn a_list_is_a_vector(steps in proptest::collection::vec((0u8..9, any::<u8>(), 0usize..40, 0usize..40), 1..200)) {
        let mut list = List::default();
        let mut model = Vec::<Vec<u8>>::new();
        for (what, number, a, b) in steps {
            let one = item(number);
            let end = if a % 2 == 0 { End::Front } else { End::Back };
            match what {
                0..=2 => {
                    list.push(end, &one);
                    let at = if end == End::Front { 0 } else { model.len() };
                    model.insert(at, one);
                }
                3 => {
                    let popped = list.pop(end).map(Vec::from);
                    let expected = match (end, model.is_empty()) {
                        (_, true) => None,
                        (End::Front, _) => Some(model.remove(0)),
                        (End::Back, _) => model.pop(),
                    };
                    prop_assert_eq!(popped, expected);
                }
                4 if a < model.len() => {
                    list.set(a, &one);
                    model[a] = one;
                }
                5 if a <= model.len() => {
                    list.insert(a, &one);
                    model.insert(a, one);
                }
                6 => {
                    let removed = list.remove(&one, end, b % 4);
                    let mut places: Vec<_> = (0..model.len()).filter(|place| model[*place] == one).collect();
                    if end == End::Back {
                        places.reverse();
                    }
                    if b % 4 > 0 {
                        places.truncate(b % 4);
                    }
                    prop_assert_eq!(removed, places.len());
                    places.sort_unstable();
                    places.into_iter().rev().for_each(|place| drop(model.remove(place)));
                }
                7 if model.len() > 30 => {
                    let range = span(a as i64 - 20, b as i64 - 10, model.len());
                    list.keep(range.clone());
                    model = model[range].to_vec();
                }
                _ => prop_assert_eq!(list.position(&one), model.iter().position(|other| *other == one)),
            }
            prop_assert!(list.range(0..list.len()).eq(model.iter().map(|item| &**item)));
            prop_assert_eq!(list.bytes(), bytes_of(model.iter().map(|item| item.len() + 24)));
            prop_assert_eq!(list.get(a), model.get(a).map(|item| &**item));
        }
    }

    #[test]
    fn hashes_and_sets_are_maps_and_a_walk_backwards_misses_nothing(
        steps in proptest::collection::vec((0u8..4, any::<u8>(), any::<u8>()), 1..300)
    ) {
        let mut hash = Hash::default();
        let mut map = HashMap::<Vec<u8>, Vec<u8>>::new();
        let mut set = Set::default();
        let mut members = HashSet::<Vec<u8>>::new();
        // Members that exist during the whole walk must be seen.
        let mut walk = 0;
        let mut seen = HashSet::new();
        let mut stays = HashSet::new();
        for (what, number, other) in steps {
            let one = item(number);
            let value = item(other);
            if what == 0 {
                prop_assert_eq!(hash.remove(&one).map(Vec::from), map.remove(&one));
                prop_assert_eq!(set.remove(&one), members.remove(&one));
                stays.remove(&one);
            } else {
                prop_assert_eq!(hash.set(&one, &value), map.insert(one.clone(), value).is_none());
                prop_assert_eq!(set.add(&one), members.insert(one));
            }
            if walk == 0 {
                prop_assert!(stays.is_subset(&seen), "{stays:?} of {seen:?}");
                walk = set.len();
                seen = HashSet::new();
                stays = members.clone();
            } else {
                walk -= 1;
                seen.extend(set.at(walk).map(<[u8]>::to_vec));
            }
            prop_assert_eq!(hash.len(), map.len());
            prop_assert!(hash.iter().all(|(field, value)| map.get(field).is_some_and(|stored| **stored == *value)));
            prop_assert!(set.iter().all(|member| members.contains(member)) && set.len() == members.len());
            let parts = map.iter().map(|(field, value)| field.len() + value.len() + 68);
            prop_assert_eq!(hash.bytes(), bytes_of(parts));
            prop_assert_eq!(set.bytes(), bytes_of(members.iter().map(|member| member.len() + 44)));
        }
    }

    #[test]
    fn a_sorted_set_is_ordered_by_score_and_then_by_member(
        steps in proptest::collection::vec((0u8..5, 0u16..2000, -20i8..20), 1..600), bounds in (-22i8..22, -22i8..22)
    ) {
        let mut sorted = Sorted::default();
        let mut scores = BTreeMap::<Vec<u8>, Score>::new();
        let mut order = BTreeSet::<(Score, Vec<u8>)>::new();
        for (what, number, score) in steps {
            let member = number.to_string().into_bytes();
            let score = Score::new(f64::from(score) / 2.0).expect("a number");
            if what == 0 {
                let before = scores.remove(&member);
                if let Some(before) = before {
                    order.remove(&(before, member.clone()));
                }
                prop_assert_eq!(sorted.remove(&member), before);
            } else {
                let before = scores.insert(member.clone(), score);
                if let Some(before) = before {
                    order.remove(&(before, member.clone()));
                }
                order.insert((score, member.clone()));
                prop_assert_eq!(sorted.set(&member, score), before);
            }
            let rank = order.iter().position(|(_, other)| *other == member);
            prop_assert_eq!(sorted.rank(&member), rank);
        }
        let all: Vec<_> = order.iter().map(|(score, member)| (&**member, *score)).collect();
        prop_assert!(sorted.range(0..sorted.len()).eq(all.iter().copied()));
        let middle = all.len() / 3..all.len() * 2 / 3;
        prop_assert!(sorted.range(middle.clone()).eq(all[middle].iter().copied()));
        for (is_after, is_before) in [(false, false), (true, false), (false, true), (true, true)] {
            let score = |bound: i8| Score::new(f64::from(bound) / 2.0).expect("a number");
            let min = Bound { score: score(bounds.0), is_exclusive: is_after };
            let max = Bound { score: score(bounds.1), is_exclusive: is_before };
            let expected: Vec<_> = all
                .iter()
                .filter(|(_, score)| if is_after { *score > min.score } else { *score >= min.score })
                .filter(|(_, score)| if is_before { *score < max.score } else { *score <= max.score })
                .copied()
                .collect();
            prop_assert!(sorted.range(sorted.ranks(min, max)).eq(expected));
        }
        prop_assert_eq!(sorted.bytes(), bytes_of(scores.keys().map(|member| member.len() + 88)));
    }

    #[test]
    fn members_with_one_score_are_in_the_order_of_their_bytes(
        members in proptest::collection::hash_set(0u16..900, 1..600)
    ) {
        let mut sorted = Sorted::default();
        let names: BTreeSet<Vec<u8>> = members.iter().map(|number| number.to_string().into_bytes()).collect();
        for name in &names {
            sorted.set(name, Score::default());
        }
        let low = &b"3"[..];
        let high = &b"62"[..];
        type End = std::ops::Bound<Vec<u8>>;
        let name = |(name, _): (&[u8], Score)| name.to_vec();
        let between = |min, max| sorted.range(sorted.lex_ranks(min, max)).map(name).collect::<Vec<_>>();
        let expect = |range: (End, End)| names.range(range).cloned().collect::<Vec<_>>();
        use std::ops::Bound::{Excluded, Included, Unbounded};
        prop_assert_eq!(between(LexBound::First, LexBound::Last), expect((Unbounded, Unbounded)));
        prop_assert_eq!(
            between(LexBound::Inclusive(low), LexBound::Exclusive(high)),
            expect((Included(low.to_vec()), Excluded(high.to_vec())))
        );
        prop_assert_eq!(
            between(LexBound::Exclusive(low), LexBound::Inclusive(high)),
            expect((Excluded(low.to_vec()), Included(high.to_vec())))
        );
        prop_assert_eq!(between(LexBound::Inclusive(high), LexBound::Inclusive(low)), Vec::<Vec<u8>>::new());
        prop_assert_eq!(between(LexBound::Last, LexBound::First), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn indexes_count_from_the_end_where_they_are_negative() {
    assert_eq!(
        [place(0, 3), place(-1, 3), place(3, 3), place(-4, 3), place(i64::MIN, 3)],
        [Some(0), Some(2), None, None, None]
    );
    assert_eq!(span(0, -1, 3), 0..3);
    assert_eq!(span(-2, 100, 3), 1..3);
    assert_eq!((span(2, 1, 3), span(0, -4, 3), span(0, 0, 0), span(5, 9, 3)), (0..0, 0..0, 0..0, 0..0));
    assert_eq!(span(i64::MIN, i64::MAX, 3), 0..3);
}

#[test]
fn a_score_is_a_number_and_zero_has_no_sign() {
    assert_eq!(Score::new(f64::NAN), None);
    assert_eq!(Score::new(-0.0), Score::new(0.0));
    assert!(Score::new(f64::NEG_INFINITY) < Score::new(-1.0));
}
