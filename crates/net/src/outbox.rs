//! What is still to be written to one connection: chunks in order, bounded by bytes.
//!
//! Whoever has something to say pushes chunks and flushes. On a plain socket or a QUIC stream the flush writes at
//! once, on the caller's thread: the peer hears it without a second task being woken. What it does not take stays here
//! for the connection's own task, which waits until it can go on.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{tcp, unix};
use tokio::sync::Notify;

use crate::service::Out;

/// Chunks of one vectored write.
pub(crate) const SLICES_MAX: usize = 64;
/// What one turn takes over for a writer that is not a plain socket.
const TURN_BYTES: usize = 256 << 10;

pub struct Outbox {
    state: Mutex<State>,
    /// Bytes that were pushed and are not yet written, those in a writer's hands included. This and the next two
    /// are changed under the lock only, and looked at without it.
    waiting: AtomicUsize,
    /// All bytes that were ever written.
    written: AtomicU64,
    is_closed: AtomicBool,
    /// Whether a flush writes by itself; otherwise the connection's task does.
    is_direct: bool,
    /// The connection's task, which has something to write.
    work: AtomicWaker,
    /// There is room again.
    room: Notify,
    bytes_max: usize,
}

/// The writing half of a connection, to which any thread may write.
pub enum Socket {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    Quic(quinn::SendStream),
}

impl Socket {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
            // It takes chunks, which it keeps as they are.
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

    /// Moves what it takes from the front of the chunks, and says how many bytes. Only a QUIC stream that takes nothing
    /// wakes whoever asked when it does; for others that is [`Socket::poll_writable`].
    fn poll_write(&mut self, chunks: &mut VecDeque<Bytes>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Self::Quic(stream) = self {
            let written = ready!(pin!(stream.write_chunks(chunks.make_contiguous())).poll(cx))?;
            chunks.drain(..written.chunks);
            return Poll::Ready(Ok(written.bytes));
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&*chunks) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        let written = match self.try_write_vectored(&slices[..count]) {
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
    /// Where a flush writes to; gone with the connection, so that a closed one is closed at once.
    socket: Option<Socket>,
}

/// The most bytes that ever waited in one outbox of this process.
static BYTES_HIGH_WATER: AtomicU64 = AtomicU64::new(0);

pub fn bytes_high_water() -> u64 {
    BYTES_HIGH_WATER.load(Ordering::Relaxed)
}

impl Outbox {
    /// An outbox that writes straight to a socket or a stream.
    pub fn to_socket(socket: Socket, bytes_max: usize) -> Self {
        let state = State { socket: Some(socket), ..State::default() };
        Self { state: Mutex::new(state), is_direct: true, ..Self::to_writer(bytes_max) }
    }

    /// An outbox that the connection's task empties.
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
        }
    }

    /// Whether a flush writes on the caller's thread.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub fn has_room(&self) -> bool {
        self.waiting() < self.bytes_max || self.is_closed()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// Bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Pieces that they wait in.
    pub fn chunks(&self) -> usize {
        self.state.lock().chunks.len()
    }

    /// All bytes that were ever written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Adds chunks behind all others. Callers that push much ask for [`Outbox::room`] first; one that
    /// does not can overshoot by what it pushes, never by more. `false` once the connection is gone.
    pub fn push(&self, chunks: impl IntoIterator<Item = Bytes>) -> bool {
        let mut state = self.state.lock();
        if self.is_closed() {
            return false;
        }
        self.keep(&mut state, chunks);
        true
    }

    /// Writes what the socket takes, or wakes the writer.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        if state.chunks.is_empty() || self.is_closed() {
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

    /// Has the connection's task write what waits: what others push until its turn goes out with it.
    pub fn flush_together(&self) {
        self.work.wake();
    }

    /// Writes `out` behind everything else, to a plain socket at once, and keeps what it does not take.
    pub(crate) fn write(&self, out: &Out) -> io::Result<()> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut written = 0;
        if let (true, Some(socket)) = (state.chunks.is_empty(), &state.socket) {
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

    /// The task of `cx` is woken when something was pushed, or the outbox is closed.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.work.register(cx.waker());
    }

    /// Goes on where a plain socket was full. Ready when nothing waits.
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

    /// Waits until there is room for more.
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

    /// Waits until everything is written or the connection is gone.
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

    /// Nothing is taken any more; what waits is forgotten.
    pub fn close(&self) {
        let mut state = self.state.lock();
        self.is_closed.store(true, Ordering::Release);
        self.waiting.store(0, Ordering::Release);
        *state = State::default();
        drop(state);
        self.room.notify_waiters();
        self.work.wake();
    }

    /// The connection's part on a plain socket: goes on where a flush found the socket full.
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

    /// The connection's part everywhere else, as for TLS or a pipe in memory: writes what is pushed, in order, until
    /// the outbox is closed.
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
        while bytes < TURN_BYTES {
            let Some(chunk) = state.chunks.pop_front() else {
                break;
            };
            bytes += chunk.len();
            turn.extend([chunk]);
        }
        bytes
    }

    /// So many bytes are in the writer's hands that were never pushed.
    pub(crate) fn turn_kept(&self, bytes: usize) {
        let _state = self.state.lock();
        self.waiting.store(self.waiting() + bytes, Ordering::Release);
    }

    pub(crate) fn turn_written(&self, bytes: usize) {
        let _state = self.state.lock();
        self.wrote(bytes);
    }

    /// So many bytes were written that never waited here.
    pub(crate) fn wrote_past(&self, bytes: usize) {
        let _state = self.state.lock();
        self.add_written(bytes);
    }

    fn keep(&self, state: &mut State, chunks: impl IntoIterator<Item = Bytes>) {
        let mut waiting = self.waiting();
        for chunk in chunks {
            if !chunk.is_empty() {
                waiting += chunk.len();
                state.chunks.push_back(chunk);
            }
        }
        self.waiting.store(waiting, Ordering::Release);
        BYTES_HIGH_WATER.fetch_max(waiting as u64, Ordering::Relaxed);
    }

    /// Writes until nothing is left, or nothing is taken for now.
    fn poll_write(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !state.chunks.is_empty() {
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

    /// Under the lock: so many bytes that waited are written.
    fn wrote(&self, bytes: usize) {
        let before = self.waiting();
        let after = before.saturating_sub(bytes);
        self.waiting.store(after, Ordering::Release);
        self.add_written(bytes);
        if (before >= self.bytes_max && after < self.bytes_max) || after == 0 {
            self.room.notify_waiters();
        }
    }

    fn add_written(&self, bytes: usize) {
        self.written.store(self.written() + bytes as u64, Ordering::Relaxed);
    }
}
