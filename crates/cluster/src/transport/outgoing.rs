//! Bytes of one lane on their way to another node.
//!
//! A small part is written by the thread that sends it if nothing waits before it, so that no other thread has to wake
//! for a single record. Everything else is written by the task of the lane.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;

use super::queue::Queue;
use super::stream::gather;
use crate::link::{Frame, Part};

/// Maximum bytes of the parts that a sender writes by itself: one record of TLS.
pub(super) const AT_ONCE_BYTES_MAX: usize = 16 << 10;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Place of the connection of a lane, empty while there is none.
#[derive(Default)]
pub(super) struct Outgoing {
    connection: Mutex<Option<Connection>>,
    pub sent_bytes: AtomicU64,
}

struct Connection {
    writer: Writer,
    frame: Option<Unwritten>,
    /// `true` while the task of the lane waits for the connection: another waker would replace its own.
    is_blocked: bool,
    /// Error of a sender that wrote, for the task of the lane.
    failed: Option<io::Error>,
}

/// Frame that is being written, until all of it has left the buffers of this process.
struct Unwritten {
    chunks: VecDeque<Bytes>,
    /// Size of its parts in the queue; `None` if it has none.
    size: Option<(usize, u64)>,
}

/// Connection in its place, until this is dropped.
pub(super) struct Attached<'a> {
    outgoing: &'a Outgoing,
    queue: &'a Queue,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        *self.outgoing.connection.lock() = None;
    }
}

impl Outgoing {
    /// Sets the connection through which a queue is written.
    pub fn attach<'a>(&'a self, queue: &'a Queue, writer: Writer) -> Attached<'a> {
        *self.connection.lock() = Some(Connection { writer, frame: None, is_blocked: false, failed: None });
        Attached { outgoing: self, queue }
    }

    /// Writes the next frame of the queue without waiting. Returns `false` if the task of the lane has to go on.
    pub fn write_at_once(&self, queue: &Queue) -> bool {
        let Some(mut connection) = self.connection.try_lock() else { return false };
        let Some(connection) = connection.as_mut().filter(|connection| !connection.is_blocked) else { return false };
        match self.poll_frame(connection, queue, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                connection.failed = Some(error);
                false
            }
            Poll::Pending => false,
        }
    }

    /// Writes the rest of the present frame, or else the next one of the queue, if there is one.
    fn poll_frame(&self, connection: &mut Connection, queue: &Queue, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Connection { writer, frame, .. } = connection;
        if frame.is_none() {
            let taken = queue.take();
            let size = Some(taken.size());
            *frame = (!taken.parts.is_empty()).then(|| Unwritten::new(taken.parts, size));
        }
        let Some(unwritten) = frame else { return Poll::Ready(Ok(())) };
        ready!(unwritten.poll_write(Pin::new(writer), &self.sent_bytes, cx))?;
        if let Some(size) = unwritten.size {
            queue.written(size);
        }
        *frame = None;
        Poll::Ready(Ok(()))
    }
}

impl Attached<'_> {
    /// Writes what is in the queue, or a frame without parts if nothing is and `must_speak` is set.
    pub async fn write(&self, mut must_speak: bool) -> io::Result<()> {
        poll_fn(|cx| {
            let mut connection = self.outgoing.connection.lock();
            let Some(connection) = connection.as_mut() else { return Poll::Ready(Ok(())) };
            if let Some(error) = connection.failed.take() {
                return Poll::Ready(Err(error));
            }
            connection.is_blocked = false;
            loop {
                if connection.frame.is_none() && self.queue.is_empty() {
                    if !std::mem::take(&mut must_speak) {
                        return Poll::Ready(Ok(()));
                    }
                    connection.frame = Some(Unwritten::new(Vec::new(), None));
                }
                must_speak = false;
                let written = self.outgoing.poll_frame(connection, self.queue, cx);
                connection.is_blocked = written.is_pending();
                ready!(written)?;
            }
        })
        .await
    }
}

impl Unwritten {
    fn new(parts: Vec<Part>, size: Option<(usize, u64)>) -> Self {
        Self { chunks: gather(&Frame::Parts(parts).encode()).into(), size }
    }

    fn poll_write(
        &mut self,
        mut writer: Pin<&mut Writer>,
        sent_bytes: &AtomicU64,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(chunk) = self.chunks.front_mut() {
            let written = ready!(writer.as_mut().poll_write(cx, chunk))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            sent_bytes.fetch_add(written as u64, Ordering::Relaxed);
            chunk.advance(written);
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        writer.poll_flush(cx)
    }
}
