//! Wire: the bytes of a connection below HTTP, which are counted and timed, and which it takes over when HTTP cannot
//! continue.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::activity::PROGRESS_BYTES;
use super::connection::Connection;

/// Time that a refused client has to read the reason.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time for which a client may continue to send a body that is not read, so that it receives its answer.
const UNREAD_BODY_WAIT: Duration = Duration::from_secs(5);
/// First bytes of an HTTP/1 answer that refuses a request.
const REFUSAL: &[u8] = b"HTTP/1.1 4";

/// Stream of a connection, held for as long as the connection exists, even if it switches to another protocol.
pub(super) struct Wire<S> {
    stream: S,
    /// Bytes that were read to detect the protocol.
    first: Bytes,
    pub connection: Arc<Connection>,
    /// Bytes that the peer has accepted since the last progress.
    taken: usize,
    /// Number of requests at the time of the last complete flush without requests in flight.
    flushed: u64,
    /// Status that the server below would have sent for an unreadable request.
    refused: Option<StatusCode>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub fn new(stream: S, first: Bytes, connection: Arc<Connection>) -> Self {
        Self { stream, first, connection, taken: 0, flushed: 0, refused: None }
    }

    /// Returns the status of an answer without a body that was withheld, to be sent with a body.
    pub fn refused(&self) -> Option<StatusCode> {
        self.refused
    }

    /// Sends this text, and closes so that the client can read it.
    pub async fn close_with(self, text: &[u8]) {
        let wait = if self.connection.activity.has_unread_body() { UNREAD_BODY_WAIT } else { LAST_WORDS };
        last_words(self.stream, text, wait).await;
    }

    /// Returns `true` if the bytes are hyper's own refusal of an unreadable request, which is only a status. hyper
    /// writes by itself only while no answer is in flight, which distinguishes it from every answer of a service.
    fn is_refusal(&self, bytes: &[u8]) -> bool {
        let activity = &self.connection.activity;
        bytes.starts_with(REFUSAL)
            && !activity.is_http2()
            && !activity.is_upgraded()
            && activity.requests() == self.flushed
    }

    /// Withholds a refusal. Returns `true` if it did.
    fn keep_back(&mut self, bytes: &[u8]) -> bool {
        if self.refused.is_none() && !self.is_refusal(bytes) {
            return false;
        }
        if self.refused.is_none() {
            let status = bytes.get(REFUSAL.len() - 1..REFUSAL.len() + 2).map(StatusCode::from_bytes);
            self.refused = Some(status.and_then(Result::ok).unwrap_or(StatusCode::BAD_REQUEST));
        }
        true
    }

    fn wrote(&mut self, offered: usize, written: &Poll<io::Result<usize>>) {
        let Connection { activity, stats, .. } = &*self.connection;
        match written {
            Poll::Pending => {
                if activity.blocked() {
                    self.taken = 0;
                }
            }
            Poll::Ready(Ok(n)) => {
                stats.add_written(*n);
                self.taken = self.taken.saturating_add(*n);
                let is_progress = self.taken >= PROGRESS_BYTES;
                if is_progress {
                    activity.wrote();
                    self.taken = 0;
                }
                if is_progress || *n == offered {
                    activity.unblocked();
                }
            }
            Poll::Ready(Err(_)) => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.first.is_empty() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let n = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first[..n]);
            this.first.advance(n);
        }
        let n = buf.filled().len() - before;
        if n > 0 {
            // Before anything of it is handled.
            this.connection.expect_open()?;
            this.connection.stats.add_read(n);
            this.connection.activity.read();
            if let Some(unfinished) = this.connection.unfinished.get() {
                unfinished.add(n)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // After the data of the answer was read, which was correct if the gate is still open.
        this.connection.expect_open()?;
        if this.keep_back(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.wrote(bytes.len(), &written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let offered = slices.iter().map(|slice| slice.len()).sum();
        this.connection.expect_open()?;
        if this.keep_back(slices.first().map_or(&[], |slice| slice)) {
            return Poll::Ready(Ok(offered));
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.wrote(offered, &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let activity = &this.connection.activity;
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        match &flushed {
            Poll::Pending => {
                if activity.blocked() {
                    this.taken = 0;
                }
            }
            Poll::Ready(_) => {
                activity.unblocked();
                if activity.is_idle() {
                    this.flushed = activity.requests();
                }
            }
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused.is_some() {
            // The final answer is still to be sent.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// Sends a client the reason why it is not served, if it reads within `wait`. Its bytes are read until then, because
/// closing with unread bytes could destroy the answer.
pub(super) async fn last_words(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &[u8], wait: Duration) {
    let send = async {
        stream.write_all(text).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 4096];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    match tokio::time::timeout(wait, send).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a refused client did not read the refusal"),
        Err(elapsed) => tracing::debug!(%elapsed, "a refused client did not read the refusal in time"),
    }
}
