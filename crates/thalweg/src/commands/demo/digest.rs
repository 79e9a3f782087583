//! Digest of a sequence of records: their count, their bytes and hashes of their values.

use std::hash::{DefaultHasher, Hasher};

/// Digest of a sequence of records. Equal digests mean the same values in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub records: u64,
    /// Total size of the values, in bytes.
    pub bytes: u64,
    /// Hash of the values in their order.
    ordered: u64,
    /// Hash of the values without their order, so that the parts of a queue group can be added.
    unordered: u64,
}

/// Multiplier that is odd and far from any power of two, so that a multiplication affects every bit.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl Digest {
    pub(super) fn add(&mut self, value: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(value);
        let hash = hasher.finish();
        self.records += 1;
        self.bytes += value.len() as u64;
        self.ordered = (self.ordered.rotate_left(5) ^ hash).wrapping_mul(MIX);
        self.unordered = self.unordered.wrapping_add(hash);
    }

    /// Returns `true` if both contain the same values, in any order.
    pub(super) fn has_same_values(&self, other: &Self) -> bool {
        (self.records, self.bytes, self.unordered) == (other.records, other.bytes, other.unordered)
    }

    /// Adds the counts and the unordered hash of another digest. The ordered hash is not updated.
    pub(super) fn merge(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.unordered = self.unordered.wrapping_add(other.unordered);
    }
}

/// Digest of lines that arrive in pieces. A line is one record of `thalweg publish`.
#[derive(Default)]
pub(super) struct Lines {
    digest: Digest,
    /// Beginning of a line that is not complete yet.
    part: Vec<u8>,
}

impl Lines {
    pub(super) fn feed(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            if self.part.is_empty() {
                self.digest.add(&piece[..end]);
            } else {
                self.part.extend_from_slice(&piece[..end]);
                self.digest.add(&self.part);
                self.part.clear();
            }
            piece = &piece[end + 1..];
        }
        self.part.extend_from_slice(piece);
    }

    /// Returns the digest. The last line need not end with a line feed.
    pub(super) fn finish(mut self) -> Digest {
        if !self.part.is_empty() {
            self.digest.add(&self.part);
        }
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(values: &[&str]) -> Digest {
        let mut digest = Digest::default();
        values.iter().for_each(|value| digest.add(value.as_bytes()));
        digest
    }

    #[test]
    fn order_counts_for_one_and_not_for_a_group() {
        let abc = digest(&["a", "b", "c"]);
        let acb = digest(&["a", "c", "b"]);
        assert_ne!(abc, acb);
        assert!(abc.has_same_values(&acb));
        let mut parts = digest(&["b"]);
        parts.merge(&digest(&["a", "c"]));
        assert!(abc.has_same_values(&parts));
        // One record appears twice, in place of another.
        assert!(!abc.has_same_values(&digest(&["a", "b", "b"])));
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces_of_the_input() {
        for (text, expected) in [
            ("one\ntwo\n\nfour", digest(&["one", "two", "", "four"])),
            ("one\r\n", digest(&["one\r"])),
            ("\n", digest(&[""])),
            ("", Digest::default()),
        ] {
            for size in 1..=text.len().max(1) {
                let mut lines = Lines::default();
                text.as_bytes().chunks(size).for_each(|piece| lines.feed(piece));
                assert_eq!(lines.finish(), expected, "{text:?} in pieces of {size}");
            }
        }
    }
}
