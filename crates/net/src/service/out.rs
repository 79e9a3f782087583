//! What is to be written: small pieces copied together, large ones shared.

use std::io::IoSlice;

use bytes::{Bytes, BytesMut};

/// From this size on a piece is shared and not copied.
const SHARE_BYTES: usize = 8 << 10;

/// Where responses are encoded to.
#[derive(Default)]
pub struct Out {
    buf: BytesMut,
    /// Shared pieces, each with the place in `buf` that it comes before.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
}

impl Out {
    pub fn put(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    pub fn put_bytes(&mut self, bytes: Bytes) {
        if bytes.len() < SHARE_BYTES {
            self.buf.extend_from_slice(&bytes);
        } else {
            self.put_shared(bytes);
        }
    }

    /// The same of bytes that somebody has of their own.
    pub fn put_vec(&mut self, bytes: Vec<u8>) {
        if bytes.len() < SHARE_BYTES {
            self.buf.extend_from_slice(&bytes);
        } else {
            self.put_shared(bytes.into());
        }
    }

    /// Shares bytes of any length, so that they are dropped when they are written and not before.
    pub fn put_shared(&mut self, bytes: Bytes) {
        self.shared_bytes += bytes.len();
        self.shared.push((self.buf.len(), bytes));
    }

    /// The buffer itself, for encoders that append to one. What is in it stays in it.
    pub fn buf(&mut self) -> &mut BytesMut {
        &mut self.buf
    }

    pub fn len(&self) -> usize {
        self.buf.len() + self.shared_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        self.buf.clear();
        self.shared.clear();
        self.shared_bytes = 0;
    }

    /// Empties it for the next turn, and gives memory back that was only needed once.
    pub(super) fn recycle(&mut self, kept_bytes_max: usize) {
        if !self.is_empty() {
            self.clear();
        }
        if self.buf.capacity() > kept_bytes_max {
            self.buf = BytesMut::new();
        }
    }

    /// The bytes, where nothing among them is shared.
    pub(crate) fn as_plain(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.buf[..])
    }

    /// The pieces in order.
    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut at = 0;
        let shared = self.shared.iter().flat_map(move |(until, bytes)| {
            let before = &self.buf[at..*until];
            at = *until;
            [Piece::Copied(before), Piece::Shared(bytes)]
        });
        let rest = self.shared.last().map_or(0, |(until, _)| *until);
        shared.chain([Piece::Copied(&self.buf[rest..])])
    }

    /// As many pieces as there are slices. Returns how many were set.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces().map(|piece| piece.bytes()).filter(|bytes| !bytes.is_empty());
        slices.iter_mut().zip(pieces).map(|(slice, bytes)| *slice = IoSlice::new(bytes)).count()
    }

    /// Everything after the first `written` bytes, to keep.
    pub(crate) fn rest(&self, mut written: usize) -> impl Iterator<Item = Bytes> {
        self.pieces().filter_map(move |piece| {
            let skipped = written.min(piece.bytes().len());
            written -= skipped;
            let kept = match piece {
                Piece::Copied(bytes) => Bytes::copy_from_slice(&bytes[skipped..]),
                Piece::Shared(bytes) => bytes.slice(skipped..),
            };
            (!kept.is_empty()).then_some(kept)
        })
    }
}

#[derive(Clone, Copy)]
enum Piece<'a> {
    Copied(&'a [u8]),
    Shared(&'a Bytes),
}

impl<'a> Piece<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Piece::Copied(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_copied_and_shared_pieces_from_any_byte_on() {
        let large = Bytes::from(vec![7; SHARE_BYTES]);
        let mut out = Out::default();
        out.put(b"ab");
        out.put_bytes(large.clone());
        out.put_bytes(Bytes::from_static(b"cd"));
        out.put_bytes(large.clone());
        let whole = [b"ab", &large[..], b"cd", &large[..]].concat();
        assert_eq!(out.len(), whole.len());
        for written in [0, 1, 2, 3, SHARE_BYTES + 1, SHARE_BYTES + 3, whole.len()] {
            assert_eq!(out.rest(written).collect::<Vec<_>>().concat(), whole[written..], "after {written}");
        }
        let mut slices = [IoSlice::new(&[]); 8];
        let count = out.slices(&mut slices);
        assert_eq!(slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>(), whole);
        assert!(out.as_plain().is_none());
    }
}
