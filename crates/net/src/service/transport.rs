//! The byte stream under a connection: a plain socket, or anything else that reads and writes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::out::Out;
use crate::Outbox;
use crate::outbox::SLICES_MAX;

pub(super) trait Transport {
    fn reader(&mut self) -> &mut (impl AsyncRead + Unpin);

    /// Writes what waits, then `out`. What is not taken waits in the outbox, and the task is woken when it is
    /// worth trying again.
    fn write(&mut self, outbox: &Outbox, out: &Out, cx: &mut Context<'_>) -> io::Result<()>;

    /// Tells the peer that no more comes.
    fn poll_finish(&mut self, outbox: &Outbox, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The reading half of a plain socket. The outbox has the other one and writes to it by itself.
pub(super) struct Plain<R>(pub R);

impl<R: AsyncRead + Unpin> Transport for Plain<R> {
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

/// TLS, a QUIC stream, a pipe: only the connection's own task writes.
pub(super) struct Stream<S> {
    io: S,
    /// Taken out of the outbox, in the order in which it goes out.
    turn: VecDeque<Bytes>,
    is_flushed: bool,
}

impl<S> Stream<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, turn: VecDeque::new(), is_flushed: true }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Transport for Stream<S> {
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
                // Behind everything that waits already.
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
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// Writes `out` without a copy of it, as far as the stream takes it.
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

/// A stream of a QUIC connection. Its end is reached when the peer has all of it: the connection may be closed right
/// after, and would take with it what is still on the way.
pub(super) struct QuicStream {
    receive: quinn::RecvStream,
    send: quinn::SendStream,
    /// Over when everything has arrived, or the peer wants no more.
    arrived: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl QuicStream {
    pub(super) fn new(send: quinn::SendStream, receive: quinn::RecvStream) -> Self {
        Self { receive, send, arrived: None }
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
        let stream = &mut *self;
        let arrived = stream.arrived.get_or_insert_with(|| {
            if let Err(error) = stream.send.finish() {
                tracing::debug!(%error, "nothing more to finish");
            }
            let stopped = stream.send.stopped();
            Box::pin(async move { drop(stopped.await) })
        });
        arrived.as_mut().poll(cx).map(Ok)
    }
}
