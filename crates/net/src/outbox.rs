//! Bytes to be written to one connection: chunks in order, with a limit in bytes.
//!
//! A sender pushes chunks and flushes. On a plain socket or a QUIC stream the flush writes immediately, on the caller's
//! thread, which avoids waking a second task. Bytes that the socket does not accept stay here for the connection's own
//! task, which continues when the socket is writable.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{tcp, unix};
use tokio::sync::Notify;

use crate::service::Out;

/// Maximum number of chunks in one vectored write.
pub(crate) const SLICES_MAX: usize = 64;
/// Bytes that a writer other than a plain socket takes in one turn.
const TURN_BYTES: usize = 256 << 10;
/// Maximum size of a chunk that is copied behind others, if many wait already: a chunk of its own would take a multiple
/// of its bytes.
const COPIED_BYTES_MAX: usize = 512;
/// Bytes in which outboxes are counted, and that an outbox has room for in any case.
const BLOCK_BYTES: usize = 64 << 10;
/// Number of blocks of all outboxes from which each of them has room for one only: 64 MiB.
const BLOCKS_MAX: usize = 1024;
/// Maximum size of the chunks that copied bytes are collected in.
const COLLECTED_BYTES: usize = 16 << 10;

/// Queue of bytes to be written to one connection; any thread may push to it.
pub struct Outbox {
    state: Mutex<State>,
    /// Bytes that were pushed and are not written yet, including those that a writer has taken. This field and the next
    /// two are changed only under the lock, and are read without it.
    waiting: AtomicUsize,
    /// Total of all written bytes.
    written: AtomicU64,
    is_closed: AtomicBool,
    /// `true` if a flush writes directly; otherwise, the connection's task does.
    is_direct: bool,
    /// Waker of the connection's task, for when it has something to write.
    work: AtomicWaker,
    /// Notifies the waiters that there is room again.
    room: Notify,
    bytes_max: usize,
    /// Blocks of all outboxes of the service, in which this one is counted.
    total: Option<Total>,
}

/// Waiting bytes of all outboxes of a service, in blocks. Clones share the count. While they are many, an outbox has
/// room for one block only, so that peers that do not read take little memory each.
#[derive(Clone, Default)]
pub(crate) struct Total(Arc<AtomicUsize>);

impl Total {
    fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= BLOCKS_MAX
    }
}

/// Writing half of a connection, which any thread may write to.
pub enum Socket {
    /// TCP connection.
    Tcp(tcp::OwnedWriteHalf),
    /// Unix socket connection.
    Unix(unix::OwnedWriteHalf),
    /// QUIC stream.
    Quic(quinn::SendStream),
}

impl Socket {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
            // A QUIC stream accepts chunks, which it keeps without copying.
            Self::Quic(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write_vectored(slices),
            Self::Unix(socket) => socket.try_write_vectored(slices),
            Self::Quic(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes from the front of the chunks and removes the written bytes. Returns their number. Only a QUIC stream that
    /// accepts nothing wakes the task when it accepts more; for others [`Socket::poll_writable`] does.
    fn poll_write(&mut self, chunks: &mut VecDeque<Bytes>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Self::Quic(stream) = self {
            let written = ready!(pin!(stream.write_chunks(chunks.make_contiguous())).poll(cx))?;
            chunks.drain(..written.chunks);
            return Poll::Ready(Ok(written.bytes));
        }
        let written = match chunks.front() {
            Some(chunk) if chunks.len() == 1 => self.try_write(chunk),
            _ => {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let slots = slices.iter_mut().zip(&*chunks);
                let count = slots.map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count();
                self.try_write_vectored(&slices[..count])
            }
        };
        let written = match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            written => written?,
        };
        let mut left = written;
        while let Some(chunk) = chunks.front_mut() {
            if left < chunk.len() {
                chunk.advance(left);
                break;
            }
            left -= chunk.len();
            chunks.pop_front();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.as_ref().poll_write_ready(cx),
            Self::Unix(socket) => socket.as_ref().poll_write_ready(cx),
            Self::Quic(_) => Poll::Ready(Ok(())),
        }
    }
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Bytes>,
    /// Bytes of small chunks, which follow `chunks`.
    collected: BytesMut,
    /// Target of a flush. It is dropped on close, so that the connection is closed immediately.
    socket: Option<Socket>,
}

impl State {
    /// Appends a chunk. If many wait already, small ones are copied into common chunks.
    fn append(&mut self, chunk: Bytes) {
        let is_copied = chunk.len() <= COPIED_BYTES_MAX && self.chunks.len() >= SLICES_MAX;
        if !is_copied || self.collected.len() + chunk.len() > COLLECTED_BYTES {
            self.end_collected();
        }
        if is_copied {
            self.collected.extend_from_slice(&chunk);
        } else {
            self.chunks.push_back(chunk);
        }
    }

    fn end_collected(&mut self) {
        if !self.collected.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.collected).freeze());
        }
    }

    /// Returns `true` if `chunks` has a next chunk, or got one from the collected bytes.
    fn has_next(&mut self) -> bool {
        if self.chunks.is_empty() {
            self.end_collected();
        }
        !self.chunks.is_empty()
    }
}

/// Maximum of the waiting bytes of any outbox of this process.
static BYTES_HIGH_WATER: AtomicU64 = AtomicU64::new(0);

/// Returns the maximum of the bytes that have ever waited in one outbox of this process.
pub fn bytes_high_water() -> u64 {
    BYTES_HIGH_WATER.load(Ordering::Relaxed)
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.set_waiting(0);
    }
}

impl Outbox {
    /// Creates an outbox that writes directly to a socket or a stream. From `bytes_max` waiting bytes on it has no
    /// room.
    pub fn to_socket(socket: Socket, bytes_max: usize) -> Self {
        let mut outbox = Self::to_writer(bytes_max);
        outbox.state.get_mut().socket = Some(socket);
        outbox.is_direct = true;
        outbox
    }

    /// Creates an outbox that the connection's task empties. From `bytes_max` waiting bytes on it has no room.
    pub fn to_writer(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_direct: false,
            work: AtomicWaker::new(),
            room: Notify::new(),
            bytes_max,
            total: None,
        }
    }

    /// Counts the bytes of a new outbox in those of a service.
    pub(crate) fn counted_in(mut self, total: &Total) -> Self {
        self.total = Some(total.clone());
        self
    }

    /// Returns `true` if a flush writes on the caller's thread.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns `true` if fewer bytes wait than the limit, or if the outbox is closed. The limit is lower while many
    /// bytes wait in all outboxes of the service.
    pub fn has_room(&self) -> bool {
        let waiting = self.waiting();
        let is_short = || waiting >= BLOCK_BYTES && self.total.as_ref().is_some_and(Total::is_short);
        waiting < self.bytes_max && !is_short() || self.is_closed()
    }

    /// Returns `true` after the outbox was closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns `true` if no bytes wait to be written.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Returns the number of bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Returns the number of waiting chunks.
    pub fn chunks(&self) -> usize {
        let state = self.state.lock();
        state.chunks.len() + usize::from(!state.collected.is_empty())
    }

    /// Returns the total of all written bytes.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Appends chunks. A caller that pushes much should wait for [`Outbox::room`] first; otherwise, it can exceed the
    /// limit by the bytes of one push. Returns `false` if the outbox is closed.
    pub fn push(&self, chunks: impl IntoIterator<Item = Bytes>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() {
            return false;
        }
        self.keep(&mut state, chunks);
        true
    }

    /// Writes as many bytes as the socket accepts, or wakes the writer.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        if self.is_closed() || !state.has_next() {
            return;
        }
        let written = self.poll_write(&mut state, &mut Context::from_waker(Waker::noop()));
        drop(state);
        match written {
            Poll::Ready(Ok(())) => {}
            Poll::Pending => self.work.wake(),
            Poll::Ready(Err(_)) => self.close(),
        }
    }

    /// Makes the connection's task write the waiting bytes. Bytes that are pushed until then go out in the same write.
    pub fn flush_together(&self) {
        self.work.wake();
    }

    /// Appends `out`, writes it immediately on a plain socket, and keeps the rest.
    pub(crate) fn write(&self, out: &Out) -> io::Result<()> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut written = 0;
        if let (false, Some(socket)) = (state.has_next(), &state.socket) {
            let wrote = match out.as_plain() {
                Some(bytes) => socket.try_write(bytes),
                None => {
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    let count = out.slices(&mut slices);
                    socket.try_write_vectored(&slices[..count])
                }
            };
            written = match wrote {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                wrote => wrote?,
            };
            self.add_written(written);
        }
        if written < out.len() {
            self.keep(&mut state, out.rest(written));
            if let Poll::Ready(written) = self.poll_write(&mut state, &mut Context::from_waker(Waker::noop())) {
                written?;
            }
        }
        Ok(())
    }

    /// Registers the task of `cx` to be woken when bytes are pushed, or the outbox is closed.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.work.register(cx.waker());
    }

    /// Continues to write to a socket that was full. Ready when nothing waits.
    pub(crate) fn poll_socket(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.state.lock();
        loop {
            let written = self.poll_write(&mut state, cx);
            match &state.socket {
                Some(socket) if written.is_pending() && !matches!(socket, Socket::Quic(_)) => {
                    ready!(socket.poll_writable(cx))?;
                }
                _ => return written,
            }
        }
    }

    /// Waits until there is room for more, or the outbox is closed.
    pub async fn room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.has_room() {
                return;
            }
            room.await;
        }
    }

    /// Waits until everything is written, or the outbox is closed.
    pub async fn drained(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.is_empty() || self.is_closed() {
                return;
            }
            room.await;
        }
    }

    /// Closes the outbox: discards the waiting bytes and refuses new ones.
    pub fn close(&self) {
        let mut state = self.state.lock();
        self.is_closed.store(true, Ordering::Release);
        self.set_waiting(0);
        *state = State::default();
        drop(state);
        self.room.notify_waiters();
        self.work.wake();
    }

    /// Runs the writing task of a connection with a plain socket: continues where a flush has found the socket full.
    /// Returns when the outbox is closed.
    pub async fn run_socket(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.register(cx);
            match self.poll_socket(cx) {
                Poll::Ready(Ok(())) if !self.is_closed() => Poll::Pending,
                other => other,
            }
        })
        .await
    }

    /// Runs the writing task of any other connection, such as TLS or a pipe in memory: writes the pushed bytes in order
    /// until the outbox is closed.
    pub async fn run_writer(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut turn = Vec::new();
        loop {
            let bytes = poll_fn(|cx| {
                self.register(cx);
                match self.take_turn(&mut turn) {
                    0 if !self.is_closed() => Poll::Pending,
                    bytes => Poll::Ready(bytes),
                }
            });
            let bytes = bytes.await;
            if bytes == 0 {
                return Ok(());
            }
            for chunk in turn.drain(..) {
                writer.write_all(&chunk).await?;
            }
            writer.flush().await?;
            self.turn_written(bytes);
        }
    }

    /// Moves chunks to `turn`, which the caller writes; they count as waiting until [`Outbox::turn_written`].
    pub(crate) fn take_turn(&self, turn: &mut impl Extend<Bytes>) -> usize {
        let mut state = self.state.lock();
        let mut bytes = 0;
        while bytes < TURN_BYTES && state.has_next() {
            let Some(chunk) = state.chunks.pop_front() else {
                break;
            };
            bytes += chunk.len();
            turn.extend([chunk]);
        }
        bytes
    }

    /// Counts bytes as waiting that a writer holds and that were never pushed.
    pub(crate) fn turn_kept(&self, bytes: usize) {
        let _state = self.state.lock();
        self.set_waiting(self.waiting() + bytes);
    }

    pub(crate) fn turn_written(&self, bytes: usize) {
        let _state = self.state.lock();
        self.wrote(bytes);
    }

    /// Counts bytes as written that never waited here.
    pub(crate) fn wrote_past(&self, bytes: usize) {
        let _state = self.state.lock();
        self.add_written(bytes);
    }

    fn keep(&self, state: &mut State, chunks: impl IntoIterator<Item = Bytes>) {
        let mut waiting = self.waiting();
        for chunk in chunks {
            if !chunk.is_empty() {
                waiting += chunk.len();
                state.append(chunk);
            }
        }
        self.set_waiting(waiting);
        BYTES_HIGH_WATER.fetch_max(waiting as u64, Ordering::Relaxed);
    }

    /// Writes until nothing is left, or the socket accepts nothing for now.
    fn poll_write(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while state.has_next() {
            let Some(socket) = &mut state.socket else {
                return Poll::Pending;
            };
            let written = ready!(socket.poll_write(&mut state.chunks, cx))?;
            self.wrote(written);
        }
        if state.chunks.capacity() > SLICES_MAX {
            state.chunks.shrink_to(0);
        }
        Poll::Ready(Ok(()))
    }

    /// Counts waiting bytes as written. The caller holds the lock.
    fn wrote(&self, bytes: usize) {
        let before = self.waiting();
        let after = before.saturating_sub(bytes);
        self.set_waiting(after);
        self.add_written(bytes);
        let falls_below = |limit| before >= limit && after < limit;
        if falls_below(self.bytes_max) || falls_below(BLOCK_BYTES) || after == 0 {
            self.room.notify_waiters();
        }
    }

    /// Sets the number of waiting bytes. The caller holds the lock.
    fn set_waiting(&self, bytes: usize) {
        let before = self.waiting.swap(bytes, Ordering::AcqRel) / BLOCK_BYTES;
        let after = bytes / BLOCK_BYTES;
        if before != after
            && let Some(Total(blocks)) = &self.total
        {
            // Wraps if there are fewer.
            blocks.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    fn add_written(&self, bytes: usize) {
        self.written.store(self.written() + bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outboxes_have_room_for_one_block_while_all_of_them_hold_many() {
        let total = Total::default();
        let open = || Outbox::to_writer(1 << 20).counted_in(&total);
        let megabyte = Bytes::from(vec![0; 1 << 20]);
        let slow: Vec<Outbox> = std::iter::repeat_with(open).take(64).collect();
        let one = open();
        one.push([megabyte.slice(..BLOCK_BYTES)]);
        assert!(one.has_room());
        slow.iter().for_each(|outbox| assert!(outbox.push([megabyte.clone()])));
        assert!(total.is_short() && !one.has_room());
        let mut turn = Vec::new();
        one.turn_written(one.take_turn(&mut turn));
        one.push([megabyte.slice(..BLOCK_BYTES - 1)]);
        assert!(one.has_room(), "less than a block waits");
        one.push([megabyte.slice(..1)]);
        assert!(!one.has_room());
        slow[0].close();
        slow[1].close();
        assert!(one.has_room(), "others hold less");
        drop((slow, one));
        assert_eq!(total.0.load(Ordering::Relaxed), 0);
    }
}
