//! Reading of a stream: into the scratch buffer that all streams of a thread share, or into the stream's own buffer for
//! the rest of a large frame.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::super::Live;
use super::super::protocol::{Handler, Protocol};
use super::super::rest;
use super::super::scratch::Scratch;
use super::super::transport::Transport;
use super::{Connection, End, Read};

/// Bytes that are read ahead while a request waits that ends with its peer, to detect that the peer has closed.
const AHEAD_BYTES_MAX: usize = 4 << 10;
/// Bytes of a large frame that are read before other connections of the thread get their turn.
const READ_BYTES_MAX: usize = 1 << 20;
/// Size from which the rest of a frame is read directly into the connection's own buffer.
const LARGE_REST_BYTES: usize = 16 << 10;

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    pub(super) fn read(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64) -> Result<Read, End> {
        let mut own_bytes = 0;
        loop {
            let before = self.rest.len();
            // Bytes in the connection's own buffer stay there: moving them for the last bytes, which the peer may send
            // one by one, would cost the square of their length.
            let is_large = before >= LARGE_REST_BYTES || self.rest.wanted >= before + LARGE_REST_BYTES;
            let read = if is_large {
                let Some(room) = self.rest.poll_room(cx, &Self::memory(&self.live, now))? else {
                    return Ok(Read::Pending);
                };
                let mut room = (&mut self.rest.bytes).limit(room);
                match pin!(self.transport.reader().read_buf(&mut room)).poll(cx) {
                    Poll::Ready(read) => read?,
                    Poll::Pending => return Ok(Read::Pending),
                }
            } else {
                let (buf, ..) = scratch.split(before + LARGE_REST_BYTES);
                // Bytes that are read and not handled may have to wait for memory: read few of them while it is short.
                let room_max = if self.live.memory.is_short() { LARGE_REST_BYTES } else { buf.len() - before };
                let mut buf = ReadBuf::new(&mut buf[before..before + room_max]);
                match Pin::new(self.transport.reader()).poll_read(cx, &mut buf) {
                    Poll::Ready(read) => read?,
                    Poll::Pending => return Ok(Read::Pending),
                }
                buf.filled().len()
            };
            if read == 0 {
                return Ok(Read::Eof);
            }
            self.active = now;
            scratch.batch.bytes_read += read as u64;
            if !is_large {
                if before > 0 {
                    let (buf, ..) = scratch.split(before);
                    buf[..before].copy_from_slice(&self.rest.bytes);
                }
                return Ok(Read::Scratch(before + read));
            }
            if self.rest.is_ready() {
                return Ok(Read::Own);
            }
            own_bytes += read;
            if own_bytes >= READ_BYTES_MAX {
                // Others get their turn. A peer may send as fast as its frame is copied.
                cx.waker().wake_by_ref();
                return Ok(Read::Pending);
            }
        }
    }

    /// Reads a few bytes that will be handled later, to detect whether the peer has closed.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, now: u64) -> Result<(), End> {
        while self.rest.len() < AHEAD_BYTES_MAX {
            let before = self.rest.len();
            let (buf, ..) = scratch.split(AHEAD_BYTES_MAX);
            let mut buf = ReadBuf::new(&mut buf[before..AHEAD_BYTES_MAX]);
            match Pin::new(self.transport.reader()).poll_read(cx, &mut buf) {
                Poll::Ready(read) => read?,
                Poll::Pending => return Ok(()),
            }
            let read = buf.filled().len();
            if read == 0 {
                return Err(End::Over);
            }
            self.active = now;
            scratch.batch.bytes_read += read as u64;
            let (buf, ..) = scratch.split(before + read);
            buf[..before].copy_from_slice(&self.rest.bytes);
            let bytes = &buf[..before + read];
            self.rest.keep(cx, bytes, &Self::memory(&self.live, now))?;
        }
        Ok(())
    }

    /// Returns the source of memory for `rest`.
    pub(super) fn memory(live: &Live<P, H>, now: u64) -> rest::Source<'_> {
        let may_wait = !live.settings.memory_wait.is_zero();
        rest::Source { memory: &live.memory, due: may_wait.then(|| now.saturating_add(live.ticks.memory_wait)) }
    }
}
