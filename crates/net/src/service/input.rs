//! Input of a decoder, independent of the buffer that holds it.

use bytes::BytesMut;

/// Received bytes, from the front of which a decoder takes complete frames.
pub struct Input<'a> {
    source: Source<'a>,
    taken: usize,
}

enum Source<'a> {
    /// Bytes in the worker's buffer: a decoder has to copy those that it keeps.
    Shared(&'a [u8]),
    /// Bytes in the connection's own buffer: a frame can be split off.
    Own(&'a mut BytesMut),
}

impl<'a> Input<'a> {
    /// Creates an input from a borrowed buffer, from which [`Input::take_owned`] copies.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { source: Source::Shared(bytes), taken: 0 }
    }

    pub(super) fn own(bytes: &'a mut BytesMut) -> Self {
        Self { source: Source::Own(bytes), taken: 0 }
    }

    /// Returns all remaining bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::Shared(bytes) => &bytes[self.taken..],
            Source::Own(bytes) => bytes,
        }
    }

    /// Returns the number of remaining bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns `true` if no bytes remain.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next `n` bytes, or fewer if fewer remain, as a borrowed slice. To keep bytes, use
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

    /// Takes the next `n` bytes, or fewer if fewer remain, as an owned buffer. A large frame, which was read into its
    /// own buffer, is not copied as long as nothing before it was taken with [`Input::take`].
    pub fn take_owned(&mut self, n: usize) -> BytesMut {
        match &mut self.source {
            Source::Own(bytes) => bytes.split_to(n.min(bytes.len())),
            Source::Shared(_) => BytesMut::from(self.take(n)),
        }
    }

    /// Returns what was taken since `taken` bytes were: the next frame begins there.
    pub(super) fn give_back(&mut self, taken: usize) {
        self.taken = self.taken.min(taken);
    }

    /// Returns the number of bytes that were taken and not split off.
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
        input.give_back(2);
        assert_eq!(input.take(2), b"cd");
        assert_eq!((input.take(9), input.taken()), (&b"ef"[..], 6));

        let mut own = BytesMut::from(&b"abcdef"[..]);
        let mut input = Input::own(&mut own);
        assert_eq!(input.take_owned(2), b"ab"[..]);
        assert_eq!((input.take(1), input.bytes(), input.taken()), (&b"c"[..], &b"def"[..], 1));
        input.give_back(0);
        assert_eq!((input.bytes(), input.taken()), (&b"cdef"[..], 0));
        assert_eq!(own, b"cdef"[..], "what was split off is gone, what was taken is the caller's to remove");
    }
}
