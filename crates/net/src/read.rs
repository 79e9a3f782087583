//! Reading without a buffer per connection: each thread has one scratch buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use bytes::BytesMut;
use bytes::buf::Limit;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// Maximum bytes of one read.
const SCRATCH_BYTES: usize = 256 << 10;

/// Assembler of a byte stream into larger units.
pub trait Reassemble {
    /// Error for bytes that are refused.
    type Error;

    /// Processes the next bytes. It has to copy the bytes that it keeps.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Returns a buffer for the rest of a large unit in progress, if it should be read directly there.
    fn rest(&mut self) -> Option<Limit<&mut BytesMut>>;

    /// Called after bytes were read into the buffer of `rest`.
    fn rest_filled(&mut self);
}

/// Reason why no more bytes arrive.
#[derive(Debug)]
pub enum ReadError<E> {
    /// The connection is broken.
    Io(io::Error),
    /// The bytes were refused.
    Refused(E),
}

impl<E> From<io::Error> for ReadError<E> {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Waits for bytes and reads once. Returns `false` at the end of the stream.
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
