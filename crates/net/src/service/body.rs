//! A request's body while it comes in, with back-pressure to the socket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::Stream;

use super::protocol::{Fault, FaultKind};

/// Bytes of one body that wait for its handler; with more, the connection is not read.
pub(super) const WAITING_BYTES_MAX: u64 = 256 << 10;

/// The reading end. A handler that drops it has what it wants; the rest is read and thrown away.
pub struct Body(Rc<RefCell<State>>);

/// The connection's end.
pub(super) struct BodyWriter {
    state: Rc<RefCell<State>>,
    /// Bytes that came so far.
    pub(super) bytes: u64,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    waiting_bytes: u64,
    /// No more pieces come: the last one did, or the connection ended before (`is_cut`).
    is_over: bool,
    is_cut: bool,
    is_unread: bool,
    reader: Option<Waker>,
    /// The connection, while it waits for room.
    writer: Option<Waker>,
}

pub(super) fn channel() -> (BodyWriter, Body) {
    let state = Rc::new(RefCell::new(State::default()));
    (BodyWriter { state: state.clone(), bytes: 0 }, Body(state))
}

impl BodyWriter {
    pub(super) fn push(&mut self, piece: &[u8], is_last: bool) {
        self.bytes += piece.len() as u64;
        let mut state = self.state.borrow_mut();
        if !state.is_unread && !piece.is_empty() {
            state.waiting_bytes += piece.len() as u64;
            state.pieces.push_back(Bytes::copy_from_slice(piece));
        }
        state.is_over |= is_last;
        wake(&mut state.reader);
    }

    /// Whether another piece may come. If not, the task of `cx` is woken when it may.
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
            (state.is_over, state.is_cut) = (true, true);
            wake(&mut state.reader);
        }
    }
}

impl Body {
    /// The next piece, `None` after the last one.
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
        wake(&mut state.writer);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
