//! Request body that arrives in pieces, with back-pressure to the socket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::Stream;

use super::protocol::{Fault, FaultKind};
use crate::limits::Permit;

/// Maximum bytes of one body that wait for its handler. While they are exceeded, the connection is not read.
pub(super) const WAITING_BYTES_MAX: u64 = 256 << 10;

/// Reading end of a request body. If a handler drops it early, the remaining bytes are read and discarded.
pub struct Body(Rc<RefCell<State>>);

/// Writing end of a request body, which the connection holds.
pub(super) struct BodyWriter {
    state: Rc<RefCell<State>>,
    /// Bytes that have arrived so far.
    pub(super) bytes: u64,
}

/// Permits that an accepted body holds until it is complete and none of it waits.
pub(super) struct Permits {
    /// Permit for one more streamed body.
    pub(super) _body: Permit,
    /// Permit for the memory of its waiting bytes, at least [`WAITING_BYTES_MAX`].
    pub(super) memory: Permit,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    waiting_bytes: u64,
    /// Permits; `None` if the body was refused and is only read to get past it.
    permits: Option<Permits>,
    /// `true` if no more pieces follow: the last one arrived, or the connection ended before it (`is_cut`).
    is_over: bool,
    is_cut: bool,
    is_unread: bool,
    reader: Option<Waker>,
    /// Waker of the connection while it waits for room.
    writer: Option<Waker>,
}

pub(super) fn channel(permits: Option<Permits>) -> (BodyWriter, Body) {
    let state = Rc::new(RefCell::new(State { permits, ..State::default() }));
    (BodyWriter { state: state.clone(), bytes: 0 }, Body(state))
}

impl State {
    /// Adjusts the permit to the memory of all waiting bytes. Returns `false` if there is not enough memory.
    fn pay(&mut self) -> bool {
        if self.is_over && self.pieces.is_empty() {
            self.permits = None;
        }
        let Some(Permits { memory, .. }) = &mut self.permits else {
            return true;
        };
        let paid = memory.amount();
        let due = self.waiting_bytes.max(WAITING_BYTES_MAX);
        memory.shrink(paid.saturating_sub(due));
        due <= paid || memory.grow(due - paid)
    }
}

impl BodyWriter {
    /// Adds a piece. Returns `false` if there is no memory for it.
    pub(super) fn push(&mut self, piece: &[u8], is_last: bool) -> bool {
        self.bytes += piece.len() as u64;
        let mut state = self.state.borrow_mut();
        if !state.is_unread && !piece.is_empty() {
            state.waiting_bytes += piece.len() as u64;
            state.pieces.push_back(Bytes::copy_from_slice(piece));
        }
        state.is_over |= is_last;
        wake(&mut state.reader);
        state.pay()
    }

    /// Returns `true` if a handler has received the body.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.borrow().permits.is_some()
    }

    /// Returns `true` if another piece may be added. Otherwise, the task of `cx` is woken when it may.
    pub(super) fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state.borrow_mut();
        if state.waiting_bytes < WAITING_BYTES_MAX || state.is_unread {
            return true;
        }
        state.writer = Some(cx.waker().clone());
        false
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        if !state.is_over {
            state.is_over = true;
            state.is_cut = true;
            state.pay();
            wake(&mut state.reader);
        }
    }
}

impl Body {
    /// Returns the next piece, or `None` after the last one. Fails if the connection ended before the last piece.
    pub async fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Body {
    type Item = Result<Bytes, Fault>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.borrow_mut();
        if let Some(piece) = state.pieces.pop_front() {
            state.waiting_bytes -= piece.len() as u64;
            state.pay();
            wake(&mut state.writer);
            return Poll::Ready(Some(Ok(piece)));
        }
        if std::mem::take(&mut state.is_cut) {
            return Poll::Ready(Some(Err(Fault::new(FaultKind::Malformed, "the body ended before its last piece"))));
        }
        if state.is_over {
            return Poll::Ready(None);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.is_unread = true;
        state.pieces.clear();
        state.waiting_bytes = 0;
        state.pay();
        wake(&mut state.writer);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
