//! Byte stream of a connection: a plain socket, or any other reader and writer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::out::Out;
use crate::forward::Sniffed;
use crate::outbox::SLICES_MAX;
use crate::{Outbox, Pipe};

pub(super) trait Transport {
    fn reader(&mut self) -> &mut (impl AsyncRead + Unpin);

    /// Writes the waiting bytes, then `out`. Bytes that are not accepted wait in the outbox, and the task is woken when
    /// it can write again.
    fn write(&mut self, outbox: &Outbox, out: &Out, cx: &mut Context<'_>) -> io::Result<()>;

    /// `true` if closing with unread bytes can destroy the last bytes on their way to the peer.
    const CLOSES_HARD: bool;

    /// `true` if [`Outbox::flush`] writes to the socket itself, and does not wake the task of the connection for it.
    const IS_DIRECT: bool;

    /// Notifies the peer that no more bytes follow.
    fn poll_finish(&mut self, outbox: &Outbox, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Reading half of a plain socket. The outbox owns the other half and writes to it directly.
pub(super) struct Plain<R>(pub R);

impl<R: AsyncRead + Unpin> Transport for Plain<R> {
    const CLOSES_HARD: bool = true;
    const IS_DIRECT: bool = true;

    fn reader(&mut self) -> &mut (impl AsyncRead + Unpin) {
        &mut self.0
    }

    fn write(&mut self, outbox: &Outbox, out: &Out, cx: &mut Context<'_>) -> io::Result<()> {
        if !out.is_empty() {
            outbox.write(out)?;
        }
        match outbox.poll_socket(cx) {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_finish(&mut self, outbox: &Outbox, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Dropping the writing half shuts that direction down.
        outbox.close();
        Poll::Ready(Ok(()))
    }
}

/// TLS, a QUIC stream or a pipe: only the connection's own task writes.
pub(super) struct Stream<S> {
    io: S,
    /// Chunks that were taken from the outbox, in the order in which they are written.
    turn: VecDeque<Bytes>,
    is_flushed: bool,
}

impl<S> Stream<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, turn: VecDeque::new(), is_flushed: true }
    }
}

/// Byte stream that only its owner reads and writes.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin {
    /// `true` if closing with unread bytes can destroy the last bytes; see [`Transport::CLOSES_HARD`].
    const CLOSES_HARD: bool;

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for tokio_rustls::server::TlsStream<S> {
    const CLOSES_HARD: bool = true;
}

impl<P: Pipe + ?Sized> Duplex for Box<P> {
    const CLOSES_HARD: bool = true;
}

impl Duplex for Sniffed {
    const CLOSES_HARD: bool = true;
}

/// Bidirectional stream of a QUIC connection.
pub(super) struct QuicStream {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    /// Future that completes when the peer has received all bytes, or does not want more.
    stopped: Option<BoxFuture<'static, Result<Option<quinn::VarInt>, quinn::StoppedError>>>,
}

impl QuicStream {
    pub(super) fn new(send: quinn::SendStream, receive: quinn::RecvStream) -> Self {
        Self { send, receive, stopped: None }
    }
}

impl Duplex for QuicStream {
    const CLOSES_HARD: bool = false;

    /// Finishes the stream and waits for the acknowledgement: a connection that closes discards unacknowledged bytes.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stopped = match &mut self.stopped {
            Some(stopped) => stopped,
            None => {
                self.send.finish().map_err(io::Error::other)?;
                self.stopped.insert(Box::pin(self.send.stopped()))
            }
        };
        stopped.as_mut().poll(cx).map(|stopped| stopped.map(drop).map_err(io::Error::other))
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), cx, buf)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}

impl<S: Duplex> Transport for Stream<S> {
    const CLOSES_HARD: bool = S::CLOSES_HARD;
    const IS_DIRECT: bool = false;

    fn reader(&mut self) -> &mut (impl AsyncRead + Unpin) {
        &mut self.io
    }

    fn write(&mut self, outbox: &Outbox, out: &Out, cx: &mut Context<'_>) -> io::Result<()> {
        let mut past = 0;
        if !out.is_empty() {
            if self.turn.is_empty() && outbox.is_empty() {
                past = self.write_past(out, cx)?;
                outbox.wrote_past(past);
            } else {
                // After all bytes that already wait.
                while outbox.take_turn(&mut self.turn) > 0 {}
            }
            let before: usize = self.turn.iter().map(Bytes::len).sum();
            self.turn.extend(out.rest(past));
            let after: usize = self.turn.iter().map(Bytes::len).sum();
            outbox.turn_kept(after - before);
        }
        match self.poll_turn(outbox, cx) {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_finish(&mut self, outbox: &Outbox, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_turn(outbox, cx))?;
        self.io.poll_finish(cx)
    }
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// Writes `out` without copying it, as far as the stream accepts it.
    fn write_past(&mut self, out: &Out, cx: &mut Context<'_>) -> io::Result<usize> {
        let wrote = match out.as_plain() {
            Some(bytes) => Pin::new(&mut self.io).poll_write(cx, bytes),
            None => {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = out.slices(&mut slices);
                Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count])
            }
        };
        self.is_flushed = false;
        match wrote {
            Poll::Ready(wrote) => wrote,
            Poll::Pending => Ok(0),
        }
    }

    fn poll_turn(&mut self, outbox: &Outbox, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while !self.turn.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count =
                    slices.iter_mut().zip(&self.turn).map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count();
                self.is_flushed = false;
                let mut wrote = std::task::ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]))?;
                if wrote == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                outbox.turn_written(wrote);
                while let Some(chunk) = self.turn.front_mut() {
                    if wrote < chunk.len() {
                        chunk.advance(wrote);
                        break;
                    }
                    wrote -= chunk.len();
                    self.turn.pop_front();
                }
            }
            if outbox.take_turn(&mut self.turn) == 0 {
                break;
            }
        }
        if !self.is_flushed {
            std::task::ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}
