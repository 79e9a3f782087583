//! What is still to be written to one connection: chunks in order, bounded by bytes.
//!
//! Whoever has something to say pushes chunks and flushes. On a plain socket the flush writes at once,
//! on the caller's thread: the peer hears it without a second task being woken. What the socket does not
//! take stays here for the connection's own task, which waits until it can go on.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Chunks of one vectored write.
const SLICES_MAX: usize = 64;
/// What one turn takes over for a writer that is not a plain socket.
const TURN_BYTES: usize = 256 << 10;

pub struct Outbox {
    state: Mutex<State>,
    /// Where a flush may write by itself; others have a writer task.
    socket: Option<Arc<TcpStream>>,
    /// The connection's task has something to write.
    work: Notify,
    /// There is room again.
    room: Notify,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Bytes>,
    /// Bytes that were pushed and are not yet written, those in a writer's hands included.
    bytes: usize,
    is_closed: bool,
}

/// The most bytes that ever waited in one outbox of this process.
static BYTES_HIGH_WATER: AtomicU64 = AtomicU64::new(0);

pub fn bytes_high_water() -> u64 {
    BYTES_HIGH_WATER.load(Ordering::Relaxed)
}

impl Outbox {
    /// An outbox that writes straight to a plain socket.
    pub fn to_socket(socket: Arc<TcpStream>, bytes_max: usize) -> Self {
        Self { socket: Some(socket), ..Self::to_writer(bytes_max) }
    }

    /// An outbox that [`Outbox::run_writer`] empties.
    pub fn to_writer(bytes_max: usize) -> Self {
        Self { state: Mutex::new(State::default()), socket: None, work: Notify::new(), room: Notify::new(), bytes_max }
    }

    /// Whether a flush writes on the caller's thread.
    pub fn is_direct(&self) -> bool {
        self.socket.is_some()
    }

    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.bytes < self.bytes_max || state.is_closed
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().bytes == 0
    }

    /// Adds chunks behind all others. Callers that push much ask for [`Outbox::room`] first; one that
    /// does not can overshoot by what it pushes, never by more. `false` once the connection is gone.
    pub fn push(&self, chunks: impl IntoIterator<Item = Bytes>) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        for chunk in chunks {
            if !chunk.is_empty() {
                state.bytes += chunk.len();
                state.chunks.push_back(chunk);
            }
        }
        BYTES_HIGH_WATER.fetch_max(state.bytes as u64, Ordering::Relaxed);
        true
    }

    /// Writes what the socket takes, or wakes the writer.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        if state.chunks.is_empty() || state.is_closed {
            return;
        }
        let is_done = match &self.socket {
            Some(socket) => self.write_to(socket, &mut state),
            None => Ok(false),
        };
        drop(state);
        match is_done {
            Ok(true) => {}
            Ok(false) => self.work.notify_one(),
            Err(_) => self.close(),
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
            {
                let state = self.state.lock();
                if state.bytes == 0 || state.is_closed {
                    return;
                }
            }
            room.await;
        }
    }

    /// Nothing is taken any more; what waits is forgotten.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.chunks = VecDeque::new();
        state.bytes = 0;
        drop(state);
        self.room.notify_waiters();
        self.work.notify_one();
    }

    /// The connection's part on a plain socket: goes on where a flush found the socket full.
    pub async fn run_socket(&self) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        loop {
            self.work.notified().await;
            loop {
                socket.writable().await?;
                let mut state = self.state.lock();
                if state.is_closed {
                    return Ok(());
                }
                if self.write_to(socket, &mut state)? {
                    break;
                }
            }
        }
    }

    /// The connection's part everywhere else: writes what is pushed, in order, until the outbox is closed.
    pub async fn run_writer(&self, writer: &mut impl ChunkWriter) -> io::Result<()> {
        let mut turn = Vec::new();
        loop {
            let bytes = self.take_turn(&mut turn);
            if bytes == 0 {
                if self.is_closed() {
                    return Ok(());
                }
                self.work.notified().await;
                continue;
            }
            writer.write_chunks(&mut turn).await?;
            turn.clear();
            self.wrote(&mut self.state.lock(), bytes);
        }
    }

    fn take_turn(&self, turn: &mut Vec<Bytes>) -> usize {
        let mut state = self.state.lock();
        let mut bytes = 0;
        while bytes < TURN_BYTES {
            let Some(chunk) = state.chunks.pop_front() else {
                break;
            };
            bytes += chunk.len();
            turn.push(chunk);
        }
        bytes
    }

    /// Writes until nothing is left (`true`) or the socket is full (`false`).
    fn write_to(&self, socket: &TcpStream, state: &mut State) -> io::Result<bool> {
        while !state.chunks.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, chunk) in slices.iter_mut().zip(&state.chunks) {
                *slice = IoSlice::new(chunk);
                count += 1;
            }
            let mut written = match socket.try_write_vectored(&slices[..count]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            self.wrote(state, written);
            while let Some(chunk) = state.chunks.front_mut() {
                if written < chunk.len() {
                    chunk.advance(written);
                    break;
                }
                written -= chunk.len();
                state.chunks.pop_front();
            }
        }
        if state.chunks.capacity() > SLICES_MAX {
            state.chunks.shrink_to(0);
        }
        Ok(true)
    }

    fn wrote(&self, state: &mut State, bytes: usize) {
        let was_full = state.bytes >= self.bytes_max;
        state.bytes = state.bytes.saturating_sub(bytes);
        if (was_full && state.bytes < self.bytes_max) || state.bytes == 0 {
            self.room.notify_waiters();
        }
    }
}

/// Something that writes chunks in order without copying more than it must.
pub trait ChunkWriter {
    fn write_chunks(&mut self, chunks: &mut [Bytes]) -> impl Future<Output = io::Result<()>> + Send;
}

impl ChunkWriter for quinn::SendStream {
    async fn write_chunks(&mut self, chunks: &mut [Bytes]) -> io::Result<()> {
        Ok(self.write_all_chunks(chunks).await?)
    }
}

/// Any other byte stream: TLS, a pipe in memory.
pub struct StreamWriter<W>(pub W);

impl<W: AsyncWrite + Unpin + Send> ChunkWriter for StreamWriter<W> {
    async fn write_chunks(&mut self, chunks: &mut [Bytes]) -> io::Result<()> {
        for chunk in chunks {
            self.0.write_all(chunk).await?;
        }
        self.0.flush().await
    }
}
