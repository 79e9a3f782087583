//! The bytes that are there for a decoder, wherever they lie.

use bytes::BytesMut;

/// Bytes of which a decoder takes whole frames from the front.
pub struct Input<'a> {
    source: Source<'a>,
    taken: usize,
}

enum Source<'a> {
    /// In the buffer of the shard: what is kept of them has to be copied.
    Shared(&'a [u8]),
    /// In the connection's own buffer: a frame can be split off.
    Own(&'a mut BytesMut),
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { source: Source::Shared(bytes), taken: 0 }
    }

    pub(super) fn own(bytes: &'a mut BytesMut) -> Self {
        Self { source: Source::Own(bytes), taken: 0 }
    }

    /// All that is there and was not taken.
    pub fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::Shared(bytes) => &bytes[self.taken..],
            Source::Own(bytes) => bytes,
        }
    }

    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next `n` bytes, at most what is there. They are to be looked at only: one that keeps them uses
    /// [`Input::take_owned`].
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        if let Source::Own(_) = self.source
            && let Source::Own(bytes) = std::mem::replace(&mut self.source, Source::Shared(&[]))
        {
            self.source = Source::Shared(bytes);
        }
        match &self.source {
            Source::Shared(bytes) => {
                let from = self.taken;
                self.taken = (from + n).min(bytes.len());
                &bytes[from..self.taken]
            }
            Source::Own(_) => &[],
        }
    }

    /// Takes the next `n` bytes to keep. A large frame, which was read into a buffer of its own, is not copied, as
    /// long as nothing was taken before it with [`Input::take`].
    pub fn take_owned(&mut self, n: usize) -> BytesMut {
        match &mut self.source {
            Source::Own(bytes) => bytes.split_to(n.min(bytes.len())),
            Source::Shared(_) => BytesMut::from(self.take(n)),
        }
    }

    /// Bytes that were taken and not split off.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_from_the_front_of_either_source() {
        let mut input = Input::new(b"abcdef");
        assert_eq!((input.take(2), input.bytes()), (&b"ab"[..], &b"cdef"[..]));
        assert_eq!(input.take_owned(2), b"cd"[..]);
        assert_eq!((input.take(9), input.taken()), (&b"ef"[..], 6));

        let mut own = BytesMut::from(&b"abcdef"[..]);
        let mut input = Input::own(&mut own);
        assert_eq!(input.take_owned(2), b"ab"[..]);
        assert_eq!((input.take(1), input.bytes(), input.taken()), (&b"c"[..], &b"def"[..], 1));
        assert_eq!(own, b"cdef"[..], "what was split off is gone, what was taken is the caller's to remove");
    }
}
