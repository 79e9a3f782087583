//! The bodies that come in piece by piece on one stream.

use std::task::Context;

use super::ServiceSettings;
use super::body::BodyWriter;
use super::protocol::{Fault, Order, Protocol};

/// Those whose last piece has not come.
pub(super) struct Bodies<P: Protocol>(Vec<Incoming<P>>);

/// A request whose body still comes.
pub(super) struct Incoming<P: Protocol> {
    pub(super) tag: P::Tag,
    /// Its request among the pending ones, if it was not answered at once.
    pub(super) number: Option<u64>,
    pub(super) writer: BodyWriter,
    /// The tick since when the peer could send, and the bytes that came since.
    pub(super) began: u64,
    pub(super) came_bytes: usize,
}

impl<P: Protocol> Default for Bodies<P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P: Protocol> Bodies<P> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing but pieces may come now. In order, what came between them could only be answered after a body
    /// that may never be whole.
    pub(super) fn forbid_others(&self) -> bool {
        P::ORDER == Order::Request && !self.is_empty()
    }

    /// Whether a handler was given one of them.
    pub(super) fn are_wanted(&self) -> bool {
        self.0.iter().any(|body| body.writer.is_wanted())
    }

    pub(super) fn have(&self, tag: P::Tag) -> bool {
        self.0.iter().any(|body| body.tag == tag)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether one more may begin: of this length, if the peer said it.
    pub(super) fn admit(&self, tag: P::Tag, bytes: Option<u64>, settings: &ServiceSettings) -> Result<(), Fault> {
        let max = settings.body_bytes_max;
        if let Some(bytes) = bytes
            && bytes > max
        {
            return Err(Fault::too_large(format!("a body has at most {max} bytes, this one {bytes}")));
        }
        if self.have(tag) {
            return Err(Fault::malformed("a body that is begun again before its last piece"));
        }
        // Those that were refused are among them: they are still to come.
        if self.0.len() >= settings.requests_per_connection_max {
            return Err(Fault::busy("this connection has too many bodies coming in"));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, body: Incoming<P>) {
        self.0.push(body);
    }

    /// Takes over a piece.
    pub(super) fn take(&mut self, tag: P::Tag, piece: &[u8], is_last: bool, bytes_max: u64) -> Result<(), Fault> {
        let Some(at) = self.0.iter().position(|body| body.tag == tag) else {
            return Err(Fault::malformed("a piece of a body that was not begun"));
        };
        let body = &mut self.0[at];
        body.came_bytes += piece.len();
        if body.writer.bytes + piece.len() as u64 > bytes_max {
            return Err(Fault::too_large(format!("a body has at most {bytes_max} bytes")));
        }
        if !body.writer.push(piece, is_last) {
            return Err(Fault::busy("the server has no memory left for this body; try again later"));
        }
        if is_last {
            self.0.swap_remove(at);
        }
        Ok(())
    }

    /// Whether all of their readers have room for more. If not, the task of `cx` is woken when there is some.
    pub(super) fn have_room(&self, cx: &Context<'_>) -> bool {
        self.0.iter().all(|body| body.writer.has_room(cx))
    }

    /// Their time counts from now.
    pub(super) fn begin_anew(&mut self, now: u64) {
        for body in &mut self.0 {
            (body.began, body.came_bytes) = (now, 0);
        }
    }

    /// The first of the ticks that each has, by when it began and what came since.
    pub(super) fn due(&self, due: impl Fn(u64, usize) -> u64) -> Option<u64> {
        self.0.iter().map(|body| due(body.began, body.came_bytes)).min()
    }

    /// Cuts them off, and names their requests that are pending.
    pub(super) fn cut(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(&mut self.0).into_iter().filter_map(|body| body.number)
    }
}
