//! A snapshot of a partition's producers is refused, or decoded exactly, and continues from there: a send that was
//! accepted once is a duplicate from then on, with the same offset.
//!
//! Input: a byte with the number of eight-byte sends at the end, the snapshot, the sends. A send is the lowest byte of
//! an id, of an epoch and of a count, a byte that selects an absolute sequence, and a sequence.

use bytes::{Bytes, BytesMut};
use engine::Producer;
use engine::producers::{Producers, Step};

/// Offset after every offset that a snapshot may contain.
const END: u64 = 1 << 63;

pub fn check(input: &[u8]) {
    let Some((sends, rest)) = input.split_first() else {
        return;
    };
    let (snapshot, sends) = rest.split_at(rest.len() - rest.len().min(usize::from(*sends) * 8));
    let Ok(mut producers) = Producers::decode(Bytes::copy_from_slice(snapshot)) else {
        return;
    };
    let mut encoded = BytesMut::new();
    producers.encode(&mut encoded);
    // A snapshot of an older version is written in the current one.
    match snapshot.first() {
        Some(1 | 2) => assert_eq!(Producers::decode(encoded.freeze()).as_ref(), Ok(&producers)),
        _ => assert_eq!(encoded, snapshot),
    }

    let mut end = END;
    let mut last = 0i32;
    for send in sends.as_chunks::<8>().0 {
        let [id, epoch, count, is_absolute, sequence @ ..] = *send;
        let sequence = match is_absolute {
            0 => last,
            _ => i32::from_be_bytes(sequence),
        };
        let producer = Producer { id: id.into(), epoch: i16::from(epoch as i8), sequence };
        let count = u32::from(count) + 1;
        if producers.check(producer, count) == Ok(Step::Next) {
            producers.note(producer, count, end);
            assert_eq!(producers.check(producer, count), Ok(Step::Duplicate { base_offset: end }));
            end += u64::from(count);
            last = (sequence as u32).wrapping_add(count) as i32 & i32::MAX;
        }
    }
}
