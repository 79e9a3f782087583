//! Reading without owning a buffer: each thread has one scratch buffer, each connection none.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use bytes::BytesMut;
use bytes::buf::Limit;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// What one read takes at most.
const SCRATCH_BYTES: usize = 256 << 10;

/// Puts a stream of bytes together into something larger.
pub trait Reassemble {
    type Error;

    /// Takes the next bytes. What it keeps of them, it copies.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Where a long rest of something begun may be read to directly.
    fn rest(&mut self) -> Option<Limit<&mut BytesMut>>;

    /// Something was read to where `rest` said.
    fn rest_filled(&mut self);
}

/// Why no more bytes come.
#[derive(Debug)]
pub enum ReadError<E> {
    /// The connection is gone.
    Io(io::Error),
    /// The bytes were refused.
    Refused(E),
}

impl<E> From<io::Error> for ReadError<E> {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Waits for bytes and reads once. `false` at the end of the stream.
pub async fn read<I, R>(input: &mut I, to: &mut R) -> Result<bool, ReadError<R::Error>>
where
    I: AsyncRead + Unpin + ?Sized,
    R: Reassemble,
{
    if let Some(mut rest) = to.rest() {
        let n = input.read_buf(&mut rest).await?;
        to.rest_filled();
        return Ok(n > 0);
    }
    poll_fn(|cx| {
        with_scratch(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            Pin::new(&mut *input).poll_read(cx, &mut buf).map(|read| {
                read?;
                let filled = buf.filled();
                to.feed(filled).map(|()| !filled.is_empty()).map_err(ReadError::Refused)
            })
        })
    })
    .await
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `read` on this thread's scratch buffer.
fn with_scratch<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with(|scratch| {
        let mut scratch = scratch.borrow_mut();
        if scratch.is_empty() {
            scratch.resize(SCRATCH_BYTES, 0);
        }
        read(&mut scratch)
    })
}
