//! Ids, the index and groups against naive models.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::ids::TopicId;
use crate::record::BatchBuilder;

/// Pseudorandom numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn id(ms: u64, seq: u64) -> EntryId {
    EntryId::new(ms, seq)
}

#[test]
fn ids_are_read_as_they_are_written_and_have_neighbours() {
    for one in [id(0, 1), id(5, 0), EntryId::MAX] {
        assert_eq!(EntryId::parse(one.to_string().as_bytes()), Some(one));
    }
    for bad in ["", "5", "5-", "-5", "5-+1", "5-1-1", "5-18446744073709551616", " 5-1"] {
        assert_eq!(EntryId::parse(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!((id(5, u64::MAX).next(), EntryId::MAX.next()), (Some(id(6, 0)), None));
    assert_eq!((id(6, 0).prev(), EntryId::ZERO.prev()), (Some(id(5, u64::MAX)), None));
    assert_eq!((id(5, 3).at(5), id(5, 3).at(4), id(5, 3).at(6)), (Some(id(5, 4)), Some(id(5, 4)), Some(id(6, 0))));
}

/// Returns the ids of records with these times and headers, one after the other, from offset 0 on.
fn ids_of(records: &[(i64, Option<&str>)]) -> Vec<EntryId> {
    let mut builder = BatchBuilder::new();
    for (time, header) in records {
        let headers: Vec<_> = header.iter().map(|id| (ID_HEADER.as_bytes(), Some(id.as_bytes()))).collect();
        builder.push(*time, None, Some(b"v"), &headers).expect("it fits");
    }
    let batch = builder.finish().expect("records").stamp(0);
    let mut prev = EntryId::ZERO;
    let records = batch.records().expect("records");
    let ids = records.iter().map(|view| {
        prev = prev.of_record(&view.expect("a record"));
        prev
    });
    ids.collect()
}

#[test]
fn ids_of_records_grow_regardless_of_times_and_headers() {
    let ids = ids_of(&[(7, None), (7, None), (3, None), (9, None), (-1, None)]);
    assert_eq!(ids, [id(7, 0), id(7, 1), id(7, 2), id(9, 3), id(9, 4)]);
    // The id that an entry was added with is valid unless it is not above the last one.
    let ids = ids_of(&[(7, Some("100-5")), (7, Some("100-5")), (100, None), (0, Some("x")), (8, Some("101-0"))]);
    assert_eq!(ids, [id(100, 5), id(100, 6), id(100, 7), id(100, 8), id(101, 0)]);
    assert_eq!(ids_of(&[(0, None)]), [id(0, 1)]);
}

#[test]
fn an_index_finds_places_from_which_all_entries_follow() {
    let mut dice = Dice(1);
    let mut index = Index::new(10, EntryId::ZERO);
    let mut model = BTreeMap::new();
    let mut offset = 10;
    let mut last = EntryId::ZERO;
    for round in 0..20_000 {
        offset += 1 + dice.roll(2);
        last = id(last.ms + dice.roll(2), last.seq + 1);
        index.push(offset, last);
        model.insert(offset, last);
        if round % 997 == 0 {
            // Everything before some entry is deleted.
            let at = *model.keys().nth(dice.roll(model.len() as u64) as usize).expect("an entry");
            let rest = model.split_off(&at);
            let prev = model.last_key_value().map_or(index.first().prev, |(_, id)| *id);
            index.begin_at(at, model.len() as u64, prev);
            model = rest;
        }
        if round % 101 == 0 {
            let wanted = id(dice.roll(last.ms + 2), dice.roll(last.seq + 2));
            let mark = index.mark_before(wanted);
            assert!(model.range(..mark.offset).all(|(_, id)| *id < wanted));
            assert_eq!(mark.before - index.first().before, model.range(..mark.offset).count() as u64);
            let entries = dice.roll(model.len() as u64 + 1);
            assert!(index.mark_after(entries).before - index.first().before <= entries);
        }
        assert_eq!((index.len(), index.last(), index.next()), (model.len() as u64, last, offset + 1));
    }
    assert!(model.len() > 1000);
}

#[test]
fn an_index_stays_small_however_long_the_stream_is() {
    let mut index = Index::new(0, EntryId::ZERO);
    for number in 0..10_000_000 {
        index.push(number, id(1, number + 1));
    }
    let mark = index.mark_before(id(1, 5_000_000));
    assert!(mark.offset <= 4_999_999 && 4_999_999 - mark.offset < 1024, "{mark:?}");
}

#[test]
fn records_of_the_topic_are_read_as_they_are_written() {
    let topic = TopicId::new(7, 9);
    let group: Box<[u8]> = b"g\0".as_slice().into();
    let name: Arc<[u8]> = b"c".as_slice().into();
    let pending = Pending { consumer: name.clone(), delivered_ms: 5, deliveries: 6 };
    let saved = SavedStream { is_own: true, start: 1, at: 2, last: id(3, 4), added: 5, ..SavedStream::default() };
    let place = |expires_ms| StreamPlace { cache: (*b"db0").into(), key: (*b"k\0").into(), expires_ms };
    let records = [
        StreamRecord::Stream { topic, saved: Some(saved) },
        StreamRecord::Stream { topic, saved: None },
        StreamRecord::Group { topic, group: group.clone(), saved: Some((id(1, 2), None)) },
        StreamRecord::Group { topic, group: group.clone(), saved: Some((id(1, 2), Some(3))) },
        StreamRecord::Consumer { topic, group: group.clone(), name, seen_ms: Some(8) },
        StreamRecord::Pending { topic, group: group.clone(), id: id(1, 2), pending: Some(pending) },
        StreamRecord::Pending { topic, group, id: id(1, 2), pending: None },
        StreamRecord::Deleted { topic, offset: 5, is_deleted: true },
        StreamRecord::Deleted { topic, offset: 5, is_deleted: false },
        StreamRecord::Place { topic, place: Some(place(Some(7))) },
        StreamRecord::Place { topic, place: Some(place(None)) },
        StreamRecord::Place { topic, place: None },
    ];
    for record in records {
        let key = record.key();
        let value = record.value();
        assert_eq!(StreamRecord::decode(&key, value.as_deref()), Ok(record));
        for cut in 0..key.len() {
            assert!(StreamRecord::decode(&key[..cut], value.as_deref()).is_err());
        }
        for cut in 0..value.as_ref().map_or(0, Vec::len) {
            assert!(StreamRecord::decode(&key, value.as_ref().map(|value| &value[..cut])).is_err());
        }
    }
}

/// Returns the group that a restart restores from all of its records.
fn restored(stored: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Group {
    let mut group = Group::default();
    for (key, value) in stored {
        group.restore(StreamRecord::decode(key, value.as_deref()).expect("it was written"));
    }
    group
}

/// A group agrees with a map from ids to their consumers after every operation, and after a restart.
#[test]
fn a_group_agrees_with_its_model_also_after_a_restart() {
    let topic = TopicId::new(1, 1);
    let mut dice = Dice(3);
    let mut group = Group::new(EntryId::ZERO, Some(0));
    let mut model = BTreeMap::<EntryId, (u64, u64, u64)>::new();
    let mut stored = BTreeMap::new();
    let name = |number: u64| vec![b'c', number as u8];
    for now in 0..20_000 {
        let one = id(dice.roll(100), 1);
        let consumer = dice.roll(5);
        match dice.roll(12) {
            0 => {
                let had = model.values().filter(|(by, ..)| *by == consumer).count();
                model.retain(|_, (by, ..)| *by != consumer);
                assert_eq!(group.remove_consumer(&name(consumer)), had);
            }
            1..=4 => assert_eq!(group.ack(one), model.remove(&one).is_some()),
            _ => {
                group.see(&name(consumer), now).expect("there is room");
                let deliveries = dice.roll(3);
                group.give(one, &name(consumer), now, deliveries);
                model.insert(one, (consumer, now, deliveries));
                group.come_by(one, Some(now));
            }
        }
        for record in group.take_changes(topic, b"g") {
            stored.insert(record.key(), record.value());
        }
        if now % 500 == 0 {
            let back = restored(&stored);
            for group in [&group, &back] {
                let is = group.all_pending(EntryId::ZERO, EntryId::MAX).map(|(id, pending)| {
                    (id, (u64::from(pending.consumer[1]), pending.delivered_ms, pending.deliveries))
                });
                assert_eq!(is.collect::<BTreeMap<_, _>>(), model);
                for consumer in 0..5 {
                    let of = group.pending_of(&name(consumer), EntryId::ZERO, EntryId::MAX).map(|(id, _)| id);
                    let should = model.iter().filter(|(_, (by, ..))| *by == consumer).map(|(id, _)| *id);
                    assert!(of.eq(should));
                }
            }
            assert_eq!((back.last(), back.read()), (group.last(), group.read()));
            assert_eq!(back.consumers().len(), group.consumers().len());
        }
    }
    // The records that delete a group leave nothing.
    for record in group.gone(topic, b"g") {
        stored.insert(record.key(), record.value());
    }
    assert!(stored.values().all(Option::is_none));
}

#[test]
fn how_far_an_id_is_can_be_told_where_nothing_was_deleted_behind_it() {
    let whole = Extent { len: 3, added: 5, first: id(3, 0), last: id(5, 0), max_deleted: EntryId::ZERO };
    let told = [id(0, 0), id(3, 0), id(4, 0), id(5, 0), id(6, 0)].map(|id| whole.count_up_to(id));
    assert_eq!(told, [Some(2), Some(3), None, Some(5), None]);
    let gap = Extent { max_deleted: id(4, 5), ..whole };
    assert_eq!([id(3, 0), id(4, 5), id(5, 0)].map(|id| gap.count_up_to(id)), [None, None, Some(5)]);
    assert!(gap.has_gap_from(id(3, 0)) && !gap.has_gap_from(id(5, 0)) && !whole.has_gap_from(id(0, 0)));
    assert_eq!(Extent { added: 0, len: 0, ..whole }.count_up_to(id(9, 9)), Some(0));
}
