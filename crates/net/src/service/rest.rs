//! Received bytes of a stream that are not handled: the beginning of a frame, or waiting frames. From a few KiB on they
//! need a permit for their memory.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;

use super::protocol::Fault;
use crate::limits::{Acquire, Lease, Permit};

/// Maximum bytes that are reserved for a frame because of its header alone; more is reserved as the bytes arrive.
const RESERVE_BYTES_MAX: usize = 512 << 10;
/// Bytes that a connection may keep without a permit: the beginning of a small frame.
const UNCHARGED_BYTES: usize = 4 << 10;

pub(super) struct Rest {
    pub(super) bytes: BytesMut,
    /// Number of bytes that must be present before the decoder is called again.
    pub(super) wanted: usize,
    permit: Option<Permit>,
    /// Wait for more memory, and the tick at which it times out.
    wait: Option<Box<(Acquire, u64)>>,
}

/// Source of memory, and the tick until which a caller may wait for it; `None` means no waiting.
pub(super) struct Source<'a> {
    pub(super) memory: &'a Rc<Lease>,
    pub(super) due: Option<u64>,
}

impl Rest {
    pub(super) fn new() -> Self {
        Self { bytes: BytesMut::new(), wanted: 1, permit: None, wait: None }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns `true` if the decoder may find a frame in it.
    pub(super) fn is_ready(&self) -> bool {
        self.bytes.len() >= self.wanted
    }

    /// Keeps a copy of these bytes and nothing else. If they need memory that is not available, starts to wait for it,
    /// if `source` allows that.
    pub(super) fn keep(&mut self, cx: &mut Context<'_>, bytes: &[u8], source: &Source<'_>) -> Result<(), Fault> {
        if bytes.is_empty() {
            if !self.bytes.is_empty() {
                self.release(BytesMut::new());
            }
            return Ok(());
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        if bytes.len() > UNCHARGED_BYTES {
            self.poll_pay(cx, bytes.len(), source)?;
        }
        Ok(())
    }

    /// Takes all bytes to handle them; the remaining ones are returned with [`Rest::release`].
    pub(super) fn take(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes)
    }

    /// Keeps the remaining bytes, together with their permit. If none remain, returns the permit.
    pub(super) fn release(&mut self, left: BytesMut) -> Option<Permit> {
        self.bytes = left;
        if !self.bytes.is_empty() {
            return None;
        }
        self.wait = None;
        self.permit.take()
    }

    /// Reserves room for more of a large frame, up to the permitted bytes. Returns `None` while it waits for memory.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, source: &Source<'_>) -> Result<Option<usize>, Fault> {
        let buffered = self.bytes.len();
        // The buffer may be larger than the permit, since it grows in large steps.
        if self.paid() <= buffered || self.bytes.capacity() <= buffered {
            let more = (self.wanted - buffered).min(RESERVE_BYTES_MAX);
            if !self.poll_pay(cx, buffered + more, source)? {
                return Ok(None);
            }
            self.bytes.reserve(more);
        }
        Ok(Some(self.paid().min(self.wanted) - buffered))
    }

    fn paid(&self) -> usize {
        self.permit.as_ref().map_or(0, |permit| permit.amount() as usize)
    }

    /// Obtains a permit for `bytes` bytes, or waits for it.
    fn poll_pay(&mut self, cx: &mut Context<'_>, bytes: usize, source: &Source<'_>) -> Result<bool, Fault> {
        loop {
            let Some(wait) = &mut self.wait else {
                if self.pay(bytes, source.memory) {
                    return Ok(true);
                }
                let due = source.due.ok_or_else(no_memory)?;
                // The held permit is included, so that two waiters do not block each other forever: their waits have a
                // timeout.
                let acquire = source.memory.acquire_in_turn((bytes - self.paid()) as u64);
                self.wait = Some(Box::new((acquire, due)));
                continue;
            };
            match Pin::new(&mut wait.0).poll(cx) {
                Poll::Ready(Some(permit)) => {
                    self.wait = None;
                    match &mut self.permit {
                        Some(held) => held.merge(permit),
                        None => self.permit = Some(permit),
                    }
                }
                Poll::Ready(None) => return Err(no_memory()),
                Poll::Pending => return Ok(false),
            }
        }
    }

    /// Obtains a permit for `bytes` bytes, if it is available. Returns `false` otherwise.
    fn pay(&mut self, bytes: usize, memory: &Rc<Lease>) -> bool {
        let missing = bytes.saturating_sub(self.paid()) as u64;
        match &mut self.permit {
            _ if missing == 0 => true,
            Some(permit) => permit.grow(missing),
            None => {
                self.permit = memory.acquire(missing);
                self.permit.is_some()
            }
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Returns the tick at which the wait for memory times out.
    pub(super) fn wait_due(&self) -> Option<u64> {
        self.wait.as_ref().map(|wait| wait.1)
    }

    /// Fails if the wait for memory has timed out.
    pub(super) fn expire(&self, now: u64) -> Result<(), Fault> {
        match self.wait_due() {
            Some(due) if now >= due => Err(no_memory()),
            _ => Ok(()),
        }
    }
}

fn no_memory() -> Fault {
    Fault::busy("the server has no memory left for this frame; try again later")
}
