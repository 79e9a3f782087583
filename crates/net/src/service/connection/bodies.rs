//! Requests whose bodies come piece by piece.

use super::super::body::{self, BodyWriter};
use super::super::protocol::{Fault, Handler, Protocol};
use super::super::transport::Transport;
use super::{Connection, End, Turn};
use crate::limits::Permit;

/// A request whose body still comes.
pub(super) struct OpenBody<P: Protocol> {
    pub(super) tag: P::Tag,
    pub(super) writer: BodyWriter,
    /// The tick since when the peer could send, and the bytes that came since.
    pub(super) began: u64,
    pub(super) came_bytes: usize,
    /// The right to one more streamed body, and to what may wait of it; `None` where it was refused and is only
    /// read to get past it.
    pub(super) _permits: Option<(Permit, Permit)>,
}

impl<P: Protocol, H: Handler<P>, T: Transport> Connection<P, H, T> {
    pub(super) fn open_body(
        &mut self,
        tag: P::Tag,
        request: P::Request<'_>,
        body_bytes: Option<u64>,
        turn: &mut Turn<'_>,
    ) -> Result<(), End> {
        let max = self.live.settings.body_bytes_max;
        if let Some(bytes) = body_bytes
            && bytes > max
        {
            return Err(Fault::too_large(format!("a body has at most {max} bytes, this one {bytes}")).into());
        }
        let live = self.live.clone();
        let permits = (live.requests.acquire(1), live.bodies.acquire(1), live.memory.acquire(body::WAITING_BYTES_MAX));
        let (writer, body) = body::channel();
        let (Some(permit), Some(open), Some(memory)) = permits else {
            self.bodies.push(OpenBody { tag, writer, began: turn.now, came_bytes: 0, _permits: None });
            self.refuse(tag, "the server has too many bodies coming in; try again later", turn);
            return Ok(());
        };
        self.bodies.push(OpenBody { tag, writer, began: turn.now, came_bytes: 0, _permits: Some((open, memory)) });
        let reply = live.handler.call_streamed(&mut self.session, request, body);
        self.reply(tag, reply, permit, turn);
        Ok(())
    }

    pub(super) fn take_piece(&mut self, tag: P::Tag, bytes: &[u8], is_last: bool) -> Result<(), End> {
        let Some(at) = self.bodies.iter().position(|body| body.tag == tag) else {
            return Err(Fault::malformed("a piece of a body that was not begun").into());
        };
        let max = self.live.settings.body_bytes_max;
        self.bodies[at].came_bytes += bytes.len();
        let writer = &mut self.bodies[at].writer;
        if writer.bytes + bytes.len() as u64 > max {
            return Err(Fault::too_large(format!("a body has at most {max} bytes")).into());
        }
        writer.push(bytes, is_last);
        if is_last {
            self.bodies.swap_remove(at);
        }
        Ok(())
    }
}
