//! Bytes of a connection: frames that are read and written, and streams that are handed over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use engine::{Error, ErrorKind, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::link::{FRAME_HEAD_BYTES, Frame};

/// Bytes of the read buffer of an idle lane.
const READ_BYTES: usize = 16 << 10;
/// Bytes that are collected before they are written: one record of TLS.
const WRITE_BYTES: usize = 16 << 10;
/// Chunks of at least this size are written without a copy.
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Time after which an idle stream of a client is probed, and time between probes.
const PROBE: Duration = Duration::from_secs(30);

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connection whose bytes belong to its receiver.
pub type Stream = Box<dyn Duplex>;

/// Stream that counts among the connections of its kind while it exists.
pub(super) struct Counted<S> {
    pub stream: S,
    pub _permit: OwnedSemaphorePermit,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
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

/// Prepares the socket of a lane: written bytes that are not confirmed for `silence` end the connection.
pub(super) fn watch(socket: &TcpStream, silence: Duration) {
    if let Err(error) = SockRef::from(socket).set_tcp_user_timeout(Some(silence)) {
        tracing::debug!(%error, "a connection to a node has no time limit for unconfirmed bytes");
    }
}

/// Prepares the socket of a stream that is handed over: it may be idle for any time, but its end is noticed.
pub(super) fn probe(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE);
    if let Err(error) = SockRef::from(socket).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "a connection to a node is not probed");
    }
}

/// Reads one frame and nothing after it: the rest of the stream may belong to somebody else.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    length: impl Fn([u8; FRAME_HEAD_BYTES]) -> Result<usize>,
) -> Result<(u8, Bytes)> {
    let mut head = [0; FRAME_HEAD_BYTES];
    stream.read_exact(&mut head).await.map_err(broken)?;
    let length = length(head)?;
    // The buffer grows with the bytes that arrive.
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await.map_err(broken)?;
    if body.len() < length {
        return Err(closed());
    }
    let [.., kind, _, _, _] = head;
    Ok((kind, body.into()))
}

/// Writes a frame, whose chunks are not copied if they are large.
pub(crate) async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), chunks: &[Bytes]) -> Result<()> {
    for chunk in gather(chunks) {
        stream.write_all(&chunk).await.map_err(broken)?;
    }
    stream.flush().await.map_err(broken)
}

/// Joins small chunks that follow each other. Large ones are not copied.
pub(super) fn gather(chunks: &[Bytes]) -> Vec<Bytes> {
    let mut gathered = Vec::new();
    let mut small = BytesMut::new();
    for chunk in chunks {
        if small.len() + chunk.len() > WRITE_BYTES || chunk.len() >= CHUNK_BYTES_MIN {
            gathered.extend(Some(small.split().freeze()).filter(|small| !small.is_empty()));
        }
        if chunk.len() < CHUNK_BYTES_MIN {
            small.extend_from_slice(chunk);
        } else {
            gathered.push(chunk.clone());
        }
    }
    gathered.extend(Some(small.freeze()).filter(|small| !small.is_empty()));
    gathered
}

/// Reader of the frames of a lane.
pub(super) struct Frames<R> {
    stream: R,
    buffer: BytesMut,
    /// Maximum time without a byte.
    silence: Duration,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub fn new(stream: R, silence: Duration) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(READ_BYTES), silence }
    }

    /// Returns the kind and the body of the next frame; `None` if the other side has closed the connection.
    pub async fn next(&mut self) -> Result<Option<(u8, Bytes)>> {
        if !self.fill(FRAME_HEAD_BYTES).await? {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        head.copy_from_slice(&self.buffer[..FRAME_HEAD_BYTES]);
        let length = Frame::body_bytes(head, true)?;
        if !self.fill(FRAME_HEAD_BYTES + length).await? {
            return Err(closed());
        }
        self.buffer.advance(FRAME_HEAD_BYTES);
        let body = self.buffer.split_to(length).freeze();
        if self.buffer.is_empty() {
            self.release();
        }
        let [.., kind, _, _, _] = head;
        Ok(Some((kind, body)))
    }

    /// Reads until the buffer has `bytes` bytes; returns `false` if the connection ends before.
    async fn fill(&mut self, bytes: usize) -> Result<bool> {
        while self.buffer.len() < bytes {
            if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 2 {
                // A large frame gets its memory at once: each step of growth would copy it.
                self.buffer.reserve((bytes - self.buffer.len()).max(READ_BYTES));
            }
            let read = match timeout(self.silence, self.stream.read_buf(&mut self.buffer)).await {
                Ok(read) => read.map_err(broken)?,
                Err(elapsed) => {
                    let ms = self.silence.as_millis();
                    let text = format!("nothing was received for {ms} ms: {elapsed}; check the node and the network");
                    return Err(Error::new(ErrorKind::Timeout, text));
                }
            };
            if read == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the memory of a large frame, of which the receiver may keep a part.
    fn release(&mut self) {
        if self.buffer.capacity() > 2 * READ_BYTES {
            self.buffer = BytesMut::with_capacity(READ_BYTES);
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Disconnected, "the other side has closed the connection")
}

/// Returns the error for a connection that has failed.
pub(crate) fn broken(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return closed();
    }
    Error::new(ErrorKind::Disconnected, format!("the connection is broken: {error}"))
}
