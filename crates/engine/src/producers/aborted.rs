//! Aborted transactions: their records stay in the log until retention or compaction removes them, and readers of
//! committed records skip them.

use std::collections::{HashMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::cut_short;
use crate::error::{Error, Result};
use crate::ids::Offset;
use crate::record::RecordBatch;

const ABORTED_BYTES: usize = 24;

/// Span of a partition in which the records of one producer are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aborted {
    pub producer: i64,
    /// Offset of the first record of the transaction.
    pub first: Offset,
    /// Offset of the marker that ended it.
    pub last: Offset,
}

impl Aborted {
    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_i64(self.producer);
        out.put_u64(self.first);
        out.put_u64(self.last);
    }

    /// Keeps the transactions that have a batch among `batches`, which are in the order of the log.
    pub fn retain_among(aborted: &mut Vec<Self>, batches: &[RecordBatch]) {
        if aborted.is_empty() {
            return;
        }
        let mut bases: HashMap<i64, Vec<Offset>> = HashMap::new();
        for batch in batches.iter().filter(|batch| batch.is_transactional() && !batch.is_control()) {
            if let Some(producer) = batch.producer() {
                bases.entry(producer.id).or_default().push(batch.base_offset());
            }
        }
        aborted.retain(|aborted| {
            bases.get(&aborted.producer).is_some_and(|bases| {
                let at = bases.partition_point(|base| *base < aborted.first);
                bases.get(at).is_some_and(|base| *base <= aborted.last)
            })
        });
    }
}

pub(super) fn decode_all(bytes: &mut Bytes) -> Result<VecDeque<Aborted>> {
    let count = bytes.try_get_u32().map_err(cut_short)? as usize;
    if count > bytes.remaining() / ABORTED_BYTES {
        return Err(Error::malformed(format!(
            "a snapshot of producers is cut short: no room for {count} transactions"
        )));
    }
    let mut all: VecDeque<Aborted> = VecDeque::with_capacity(count);
    for _ in 0..count {
        let producer = bytes.get_i64();
        let first = bytes.get_u64();
        let last = bytes.get_u64();
        let aborted = Aborted { producer, first, last };
        let is_next = all.back().is_none_or(|before| before.last < last);
        if producer < 0 || first >= last || last > i64::MAX as u64 || !is_next {
            return Err(Error::malformed(format!("this aborted transaction is not valid: {aborted:?}")));
        }
        all.push_back(aborted);
    }
    Ok(all)
}

/// Index of aborted transactions, which tells for any batch whether it is void.
#[derive(Clone, Debug, Default)]
pub struct AbortedIndex {
    /// First and last offset of each transaction, by producer, in the order of the log.
    spans: HashMap<i64, Vec<(Offset, Offset)>>,
}

impl AbortedIndex {
    pub fn new(aborted: impl IntoIterator<Item = Aborted>) -> Self {
        let mut spans: HashMap<i64, Vec<(Offset, Offset)>> = HashMap::new();
        for Aborted { producer, first, last } in aborted {
            spans.entry(producer).or_default().push((first, last));
        }
        spans.values_mut().for_each(|spans| spans.sort_unstable());
        Self { spans }
    }

    /// Returns `true` if the batch's records are void.
    pub fn has(&self, batch: &RecordBatch) -> bool {
        if self.spans.is_empty() || !batch.is_transactional() || batch.is_control() {
            return false;
        }
        let spans = batch.producer().and_then(|producer| self.spans.get(&producer.id));
        spans.is_some_and(|spans| {
            // A producer has one transaction at a time.
            let at = spans.partition_point(|(_, last)| *last < batch.base_offset());
            spans.get(at).is_some_and(|(first, _)| *first <= batch.base_offset())
        })
    }
}
