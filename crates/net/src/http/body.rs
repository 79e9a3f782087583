//! Bodies: those of requests, with limits on their size and pauses; those of answers, which are counted to their end.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::Charge;
use super::activity::PROGRESS_BYTES;
use super::connection::Connection;
use super::exchange::Exchange;
use super::refusal::Reason;

/// Reason why this server cut a request body short. Shared with the code that answers.
#[derive(Debug, Default)]
pub(super) struct Cut(AtomicU8);

impl Cut {
    fn set(&self, reason: Reason) {
        self.0.store(reason as u8 + 1, Ordering::Release);
    }

    pub fn get(&self) -> Option<Reason> {
        let set = self.0.load(Ordering::Acquire);
        Reason::ALL.get(usize::from(set).checked_sub(1)?).copied()
    }
}

/// Body of a request. It ends with an error if it is too large or pauses for too long.
pub struct RequestBody {
    incoming: Incoming,
    /// Bytes that may still arrive.
    left: u64,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// `true` while the timer is in use, which is only while the client is waited for.
    is_armed: bool,
    /// Bytes since the timer was armed.
    came: usize,
    is_over: bool,
    /// `true` for a body without limits of size and time.
    is_dialogue: bool,
    cut: Arc<Cut>,
    connection: Arc<Connection>,
}

/// Reason why a body ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// The body is larger than allowed.
    TooLarge,
    /// The client paused for too long.
    Timeout,
    /// The client disconnected, or sent an invalid body.
    Lost(hyper::Error),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the body is too large"),
            Self::Timeout => f.write_str("the body stopped arriving"),
            Self::Lost(error) => write!(f, "the body was lost: {error}"),
        }
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost(error) => Some(error),
            _ => None,
        }
    }
}

impl RequestBody {
    pub(super) fn new(
        incoming: Incoming,
        bytes_max: u64,
        timeout: Duration,
        cut: Arc<Cut>,
        connection: Arc<Connection>,
    ) -> Self {
        Self {
            incoming,
            left: bytes_max,
            timeout,
            timer: None,
            is_armed: false,
            came: 0,
            is_over: false,
            is_dialogue: false,
            cut,
            connection,
        }
    }

    /// Removes the limits for a body that is half of a dialogue: it may have any length, and its client may be silent.
    /// The reader has to limit each of its parts.
    pub fn into_dialogue(mut self) -> Self {
        self.left = u64::MAX;
        self.is_dialogue = true;
        self
    }

    fn end(&mut self, reason: Reason, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_over = true;
        self.connection.activity.leave_body_unread();
        self.cut.set(reason);
        Poll::Ready(Some(Err(error)))
    }

    /// Returns `true` if the client was waited for too long.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let deadline = Instant::now() + self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.is_armed {
            self.is_armed = true;
            self.came = 0;
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx).is_ready()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(cx) else {
            if !this.is_dialogue && this.is_late(cx) {
                return this.end(Reason::BodyTimeout, BodyError::Timeout);
            }
            return Poll::Pending;
        };
        match frame {
            None => {
                this.is_over = true;
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                this.is_over = true;
                Poll::Ready(Some(Err(BodyError::Lost(error))))
            }
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match this.left.checked_sub(bytes as u64) {
                    Some(left) => this.left = left,
                    None => return this.end(Reason::BodySize, BodyError::TooLarge),
                }
                this.came += bytes;
                // A trickle does not extend the deadline.
                if this.came >= PROGRESS_BYTES {
                    this.is_armed = false;
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.is_end_stream() {
            self.connection.activity.leave_body_unread();
        }
    }
}

/// Bytes that hold a charge until the last reference to them is dropped.
struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn charged(bytes: Bytes, charge: &Charge) -> Bytes {
    Bytes::from_owner(Charged { bytes, _charge: charge.clone() })
}

pin_project_lite::pin_project! {
    /// Body of an answer: that of the service, or a refusal in its place.
    pub struct Answer<B> {
        #[pin]
        service: Option<B>,
        own: Option<Bytes>,
        exchange: Exchange,
        charge: Option<Charge>,
    }
}

impl<B> Answer<B> {
    pub(super) fn of_service(body: B, exchange: Exchange, charge: Option<Charge>) -> Self {
        Self { service: Some(body), own: None, exchange, charge }
    }

    pub(super) fn own(body: Bytes, exchange: Exchange) -> Self {
        Self { service: None, own: Some(body).filter(|body| !body.is_empty()), exchange, charge: None }
    }
}

impl<B: Body<Data = Bytes>> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        this.exchange.is_asked_for_more();
        let (frame, is_whole) = match this.service.as_pin_mut() {
            Some(mut body) => (ready!(body.as_mut().poll_frame(cx)), body.is_end_stream()),
            None => (this.own.take().map(|bytes| Ok(Frame::data(bytes))), true),
        };
        if let Some(Ok(frame)) = &frame {
            this.exchange.hands_over(frame.data_ref().map_or(0, Bytes::len));
        }
        if frame.is_none() || is_whole {
            this.exchange.is_whole();
        }
        let frame = match (this.charge, frame) {
            // Bytes that were passed on wait in the connection's buffers, and hold the charge there.
            (Some(charge), Some(Ok(frame))) => Some(Ok(frame.map_data(|bytes| charged(bytes, charge)))),
            (_, frame) => frame,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.service {
            Some(body) => body.is_end_stream(),
            None => self.own.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.service {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(self.own.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
