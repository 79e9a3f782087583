//! Output of a turn: small pieces are copied together, large ones are shared.

use std::io::IoSlice;

use bytes::{Bytes, BytesMut};

/// Size from which a piece is shared and not copied.
const SHARE_BYTES: usize = 8 << 10;

/// Buffer that responses are encoded to.
#[derive(Default)]
pub struct Out {
    buf: BytesMut,
    /// Shared pieces, each with its position in `buf`.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
}

impl Out {
    /// Appends a copy of the bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Appends bytes: shares them from 8 KiB on, and copies smaller ones.
    pub fn put_bytes(&mut self, bytes: Bytes) {
        if bytes.len() < SHARE_BYTES {
            self.buf.extend_from_slice(&bytes);
        } else {
            self.put_shared(bytes);
        }
    }

    /// Appends owned bytes: shares them from 8 KiB on, and copies smaller ones.
    pub fn put_vec(&mut self, bytes: Vec<u8>) {
        if bytes.len() < SHARE_BYTES {
            self.buf.extend_from_slice(&bytes);
        } else {
            self.put_shared(bytes.into());
        }
    }

    /// Appends bytes and shares them whatever their length, so that they are dropped exactly when they are written.
    pub fn put_shared(&mut self, bytes: Bytes) {
        self.shared_bytes += bytes.len();
        self.shared.push((self.buf.len(), bytes));
    }

    /// Returns the internal buffer, for encoders that append to one. Its existing contents must stay unchanged.
    pub fn buf(&mut self) -> &mut BytesMut {
        &mut self.buf
    }

    /// Returns the number of bytes, copied and shared.
    pub fn len(&self) -> usize {
        self.buf.len() + self.shared_bytes
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.shared.clear();
        self.shared_bytes = 0;
    }

    /// Empties the buffer for the next turn, and frees memory above `kept_bytes_max`.
    pub(super) fn recycle(&mut self, kept_bytes_max: usize) {
        if !self.is_empty() {
            self.clear();
        }
        if self.buf.capacity() > kept_bytes_max {
            self.buf = BytesMut::new();
        }
    }

    /// Returns the bytes as one slice if none of them are shared.
    pub(crate) fn as_plain(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.buf[..])
    }

    /// Returns the pieces in order.
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

    /// Fills the slices with as many pieces as fit. Returns the number of slices that were set.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces().map(|piece| piece.bytes()).filter(|bytes| !bytes.is_empty());
        slices.iter_mut().zip(pieces).map(|(slice, bytes)| *slice = IoSlice::new(bytes)).count()
    }

    /// Returns everything after the first `written` bytes, as owned pieces.
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
