//! Request bodies that arrive in pieces on one stream.

use std::task::Context;

use super::ServiceSettings;
use super::body::BodyWriter;
use super::protocol::{Fault, Order, Protocol};

/// Bodies whose last piece has not arrived.
pub(super) struct Bodies<P: Protocol>(Vec<Incoming<P>>);

/// Request whose body is still arriving.
pub(super) struct Incoming<P: Protocol> {
    pub(super) tag: P::Tag,
    /// Number of its request among the pending ones, unless it was answered immediately.
    pub(super) number: Option<u64>,
    pub(super) writer: BodyWriter,
    /// Tick since which the peer could send, and the number of bytes that have arrived since.
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

    /// Returns `true` if only pieces may arrive now. With ordered responses, any other frame could be answered only
    /// after a body that may never be complete.
    pub(super) fn forbid_others(&self) -> bool {
        P::ORDER == Order::Request && !self.is_empty()
    }

    /// Returns `true` if a handler has received one of the bodies.
    pub(super) fn are_wanted(&self) -> bool {
        self.0.iter().any(|body| body.writer.is_wanted())
    }

    pub(super) fn have(&self, tag: P::Tag) -> bool {
        self.0.iter().any(|body| body.tag == tag)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Checks that one more body may begin, with this length if the peer has sent it.
    pub(super) fn admit(&self, tag: P::Tag, bytes: Option<u64>, settings: &ServiceSettings) -> Result<(), Fault> {
        let max = settings.body_bytes_max;
        if let Some(bytes) = bytes
            && bytes > max
        {
            return Err(Fault::too_large(format!("a body has at most {max} bytes, this one {bytes}")));
        }
        if self.have(tag) {
            return Err(Fault::malformed("a body was started again before its last piece"));
        }
        // Refused bodies are included, because their pieces still arrive.
        if self.0.len() >= settings.requests_per_connection_max {
            return Err(Fault::busy("this connection has too many bodies in flight"));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, body: Incoming<P>) {
        self.0.push(body);
    }

    /// Accepts a piece of a body.
    pub(super) fn take(&mut self, tag: P::Tag, piece: &[u8], is_last: bool, bytes_max: u64) -> Result<(), Fault> {
        let Some(at) = self.0.iter().position(|body| body.tag == tag) else {
            return Err(Fault::malformed("a piece of a body that was not started"));
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

    /// Returns `true` if all of their readers have room for more. Otherwise, the task of `cx` is woken when there is
    /// room.
    pub(super) fn have_room(&self, cx: &Context<'_>) -> bool {
        self.0.iter().all(|body| body.writer.has_room(cx))
    }

    /// Restarts the time measurement of all bodies.
    pub(super) fn begin_anew(&mut self, now: u64) {
        for body in &mut self.0 {
            body.began = now;
            body.came_bytes = 0;
        }
    }

    /// Returns the earliest of their deadlines; `due` computes each from its beginning and its bytes since.
    pub(super) fn due(&self, due: impl Fn(u64, usize) -> u64) -> Option<u64> {
        self.0.iter().map(|body| due(body.began, body.came_bytes)).min()
    }

    /// Cuts the bodies off, and returns the numbers of their pending requests.
    pub(super) fn cut(&mut self) -> impl Iterator<Item = u64> {
        std::mem::take(&mut self.0).into_iter().filter_map(|body| body.number)
    }
}
