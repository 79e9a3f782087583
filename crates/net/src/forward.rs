//! Connections that another process has accepted and forwards: the bytes as the client sent them, and its address.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// First byte of a TLS handshake. No request of a protocol that shares a port with TLS begins with it.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;

/// Byte stream that is not a socket.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// Connection that another process has accepted for this one. It is served as if the client had connected here: with
/// TLS or without, and within the limits for its address.
pub struct Forwarded {
    /// Bytes as the client sends them, which may be those of TLS.
    pub stream: Box<dyn Pipe>,
    /// Address of the client. A client of a Unix socket has one of the loopback interface.
    pub peer: SocketAddr,
    /// Address that the client has connected to.
    pub local: Option<SocketAddr>,
    /// `true` if the client is a process of the other process's own user, which has connected over a Unix socket. It is
    /// served like one of this process's own user: without TLS, and as an administrator where doors have such clients.
    pub owner: bool,
}

/// Function that serves forwarded connections. It holds nothing of the service: after the drain has begun, it drops
/// the connections that it gets.
pub type Forward = Arc<dyn Fn(Forwarded) + Send + Sync>;

/// Stream whose first byte can be seen before it is read.
pub(crate) trait Sniff {
    /// Waits for the first byte and leaves it in the stream. Returns `None` if the stream has ended.
    fn first(&mut self) -> impl Future<Output = io::Result<Option<u8>>> + Send;
}

impl Sniff for TcpStream {
    async fn first(&mut self) -> io::Result<Option<u8>> {
        let mut first = [0];
        Ok((self.peek(&mut first).await? == 1).then_some(first[0]))
    }
}

/// Stream that has its first byte back.
pub(crate) struct Sniffed {
    stream: Box<dyn Pipe>,
    first: Option<u8>,
}

impl From<Box<dyn Pipe>> for Sniffed {
    fn from(stream: Box<dyn Pipe>) -> Self {
        Self { stream, first: None }
    }
}

impl Sniff for Sniffed {
    async fn first(&mut self) -> io::Result<Option<u8>> {
        if self.first.is_none() {
            let mut first = [0];
            self.first = (self.stream.read(&mut first).await? == 1).then_some(first[0]);
        }
        Ok(self.first)
    }
}

impl AsyncRead for Sniffed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buf.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Sniffed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
