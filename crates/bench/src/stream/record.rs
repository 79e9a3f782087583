//! Records of a run: each contains its index and its time of sending, and every byte of it can be checked.

use std::hash::{BuildHasher, RandomState};

use bytes::{BufMut, BytesMut};

/// Bytes of the stamp at the beginning of a record: the run, its index, the time of sending (nanoseconds since the run
/// began), and a checksum of these.
pub const STAMP_BYTES: usize = 32;
/// Size of the pool from which the bytes after the stamp are taken, at a position that the index determines. It is
/// larger than the windows in which compressors search for repetitions.
const POOL_BYTES: usize = 1 << 20;

/// Lengths of the records of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Length of 1,032 bytes plus one for each decimal digit of the index. For the first 10,000 records that is a
    /// payload of 1,000 bytes with its metadata, and 10,358,890 bytes in total, exactly the number in the report of
    /// Fluvio.
    AsReported,
    /// Fixed length, at least [`STAMP_BYTES`].
    Fixed(usize),
}

impl Length {
    pub fn of(self, index: u64) -> usize {
        match self {
            Self::AsReported => 1032 + index.checked_ilog10().unwrap_or(0) as usize + 1,
            Self::Fixed(bytes) => bytes,
        }
    }

    /// Returns the total length of `records` records.
    pub fn total(self, records: u64) -> u64 {
        match self {
            Self::AsReported => {
                let mut digits = records;
                // Every power of ten below adds a digit to all indices that are not below it.
                let mut power = 10;
                while power < records {
                    digits += records - power;
                    power = power.saturating_mul(10);
                }
                1032 * records + digits
            }
            Self::Fixed(bytes) => records * bytes as u64,
        }
    }
}

/// Contents of a record's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub index: u64,
    pub at_ns: u64,
}

/// State for creating and checking the records of one run.
pub struct Records {
    run: u64,
    length: Length,
    pool: Vec<u8>,
}

impl Records {
    /// Creates the records of a new run. `count` is their maximum number.
    pub fn new(length: Length, count: u64) -> Self {
        // A new hasher has a random key: records of another run are detected.
        let run = RandomState::new().hash_one(count);
        let longest = length.of(count.saturating_sub(1)).max(STAMP_BYTES);
        let mut state = run;
        // Printable, so that it looks like the text that streams carry.
        let pool = (0..POOL_BYTES + longest)
            .map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                b' ' + (mix(state) % 95) as u8
            })
            .collect();
        Self { run, length, pool }
    }

    pub fn length(&self, index: u64) -> usize {
        self.length.of(index)
    }

    pub fn write(&self, stamp: Stamp, out: &mut BytesMut) {
        out.put_u64(self.run);
        out.put_u64(stamp.index);
        out.put_u64(stamp.at_ns);
        out.put_u64(self.check(stamp));
        out.put_slice(self.payload(stamp.index));
    }

    /// Returns the stamp if every byte is as written; `None` otherwise.
    pub fn read(&self, value: &[u8]) -> Option<Stamp> {
        let (stamp, payload) = value.split_first_chunk::<STAMP_BYTES>()?;
        let field = |at: usize| stamp[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let run = field(0)?;
        let check = field(24)?;
        let stamp = Stamp { index: field(8)?, at_ns: field(16)? };
        let is_whole = run == self.run && check == self.check(stamp) && payload == self.payload(stamp.index);
        is_whole.then_some(stamp)
    }

    fn check(&self, stamp: Stamp) -> u64 {
        mix(mix(self.run ^ stamp.index).wrapping_add(stamp.at_ns))
    }

    fn payload(&self, index: u64) -> &[u8] {
        let from = mix(index) as usize % POOL_BYTES;
        let bytes = self.length.of(index).saturating_sub(STAMP_BYTES);
        &self.pool[from..from + bytes]
    }
}

/// Mixes bits (the finalizer of SplitMix64): a change of any bit changes about half of the result.
fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_records_are_as_many_bytes_as_the_report_says() {
        assert_eq!(Length::AsReported.total(10_000), 10_358_890);
        for count in [0, 1, 9, 10, 11, 100, 101, 12_345] {
            let sum: usize = (0..count).map(|index| Length::AsReported.of(index)).sum();
            assert_eq!(Length::AsReported.total(count), sum as u64, "{count}");
        }
    }

    #[test]
    fn a_record_with_any_byte_changed_is_refused() {
        let records = Records::new(Length::Fixed(100), 1000);
        let mut value = BytesMut::new();
        let stamp = Stamp { index: 17, at_ns: 123_456_789 };
        records.write(stamp, &mut value);
        assert_eq!(value.len(), 100);
        assert_eq!(records.read(&value), Some(stamp));
        assert_eq!(records.read(&value[..99]), None);
        for at in 0..value.len() {
            value[at] ^= 1;
            assert_eq!(records.read(&value), None, "byte {at}");
            value[at] ^= 1;
        }
        assert_eq!(Records::new(Length::Fixed(100), 1000).read(&value), None, "a record of another run");
    }
}
