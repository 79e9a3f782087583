//! What a stream was sent and has not handled: the beginning of a frame, or frames that have to wait. From a few
//! KiB on it pays for the memory that it takes.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;

use super::protocol::Fault;
use crate::limits::{Acquire, Lease, Permit};

/// What is reserved for a frame at once on the word of its header; more once so much has come.
const RESERVE_BYTES_MAX: usize = 512 << 10;
/// What a connection keeps without asking for it: the beginning of a small frame.
const UNCHARGED_BYTES: usize = 4 << 10;

pub(super) struct Rest {
    pub(super) bytes: BytesMut,
    /// So many bytes have to be there before the decoder is asked again.
    pub(super) wanted: usize,
    permit: Option<Permit>,
    /// The wait for more memory, and the tick at which it has taken too long.
    wait: Option<Box<(Acquire, u64)>>,
}

/// Where memory comes from, and the tick until which one may wait for it; `None` is not to wait.
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

    /// Whether the decoder may find something in it.
    pub(super) fn is_ready(&self) -> bool {
        self.bytes.len() >= self.wanted
    }

    /// Keeps this and nothing else. What is to be paid for and not there is waited for, if that is allowed.
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

    /// Takes all bytes to handle them; what is left of them is given to [`Rest::release`].
    pub(super) fn take(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes)
    }

    /// Keeps what is left, and what was paid for it if anything is. Otherwise that comes back.
    pub(super) fn release(&mut self, left: BytesMut) -> Option<Permit> {
        self.bytes = left;
        if !self.bytes.is_empty() {
            return None;
        }
        self.wait = None;
        self.permit.take()
    }

    /// Makes room for more of a large frame, for so many bytes as are paid for. `None` while it waits for the memory.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, source: &Source<'_>) -> Result<Option<usize>, Fault> {
        let there = self.bytes.len();
        // The buffer may be larger than what is paid for: it grows in large steps.
        if self.paid() <= there || self.bytes.capacity() <= there {
            let more = (self.wanted - there).min(RESERVE_BYTES_MAX);
            if !self.poll_pay(cx, there + more, source)? {
                return Ok(None);
            }
            self.bytes.reserve(more);
        }
        Ok(Some(self.paid().min(self.wanted) - there))
    }

    fn paid(&self) -> usize {
        self.permit.as_ref().map_or(0, |permit| permit.amount() as usize)
    }

    /// Holds a permit for so many bytes, or waits for it.
    fn poll_pay(&mut self, cx: &mut Context<'_>, bytes: usize, source: &Source<'_>) -> Result<bool, Fault> {
        loop {
            let Some(wait) = &mut self.wait else {
                if self.pay(bytes, source.memory) {
                    return Ok(true);
                }
                let due = source.due.ok_or_else(no_memory)?;
                // What is held counts towards what is asked for, so that two who wait do not block each other for
                // ever: their waits have an end.
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

    /// Holds a permit for so many bytes, if there is one.
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

    /// The tick at which a wait for memory has taken too long.
    pub(super) fn wait_due(&self) -> Option<u64> {
        self.wait.as_ref().map(|wait| wait.1)
    }

    /// Gives a wait up that has taken too long.
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
