//! Reference frames as a protocol of nacelle.

use std::convert::Infallible;

use bytes::{Buf, Bytes, BytesMut};
use nacelle::codec::MessageDecoder;
use nacelle::core::pipeline::ConnectionInfo;
use nacelle::core::{NacelleBody, NacelleError};
use nacelle::tcp::{DecodedMessage, DecodedRequest, FrameBuffer, Protocol, TcpResponse};

/// Length of a header: u32 length, u64 id, u64 opcode, u32 flags.
const HEADER_BYTES: usize = 24;
/// Bytes that the length includes in addition to the body.
const LENGTH_OVER_BODY: usize = HEADER_BYTES - 4;

const FLAG_START: u32 = 1;
const FLAG_END: u32 = 2;
const FLAG_ERROR: u32 = 4;

/// Fields that an answer repeats from its request.
#[derive(Clone, Copy)]
pub struct Head {
    id: u64,
    opcode: u64,
}

impl Head {
    fn put(self, flags: u32, body: &[u8], frame: &mut FrameBuffer<'_>) -> Result<(), NacelleError> {
        let length = LENGTH_OVER_BODY + body.len();
        let Ok(length) = u32::try_from(length) else {
            return Err(NacelleError::FrameTooLarge { len: length, max: u32::MAX as usize });
        };
        frame.put_u32_le(length)?;
        frame.put_u64_le(self.id)?;
        frame.put_u64_le(self.opcode)?;
        frame.put_u32_le(flags)?;
        frame.extend_from_slice(body)
    }
}

/// Answer that is being sent.
pub struct Answer {
    head: Head,
    is_started: bool,
}

impl Answer {
    fn put(&mut self, flags: u32, body: &[u8], frame: &mut FrameBuffer<'_>) -> Result<(), NacelleError> {
        let start = if self.is_started { 0 } else { FLAG_START };
        self.is_started = true;
        self.head.put(start | flags, body, frame)
    }
}

pub struct Decoder {
    frame_bytes_max: usize,
}

impl MessageDecoder for Decoder {
    type Message = DecodedMessage<Head, Infallible>;
    type Error = NacelleError;

    /// Decodes only the header of a frame: nacelle itself reads the body.
    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Self::Message>, NacelleError> {
        let Some(mut header) = input.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let length = header.get_u32_le() as usize;
        let head = Head { id: header.get_u64_le(), opcode: header.get_u64_le() };
        if length < LENGTH_OVER_BODY {
            return Err(NacelleError::InvalidFrame("a frame is shorter than its header"));
        }
        if length > self.frame_bytes_max {
            return Err(NacelleError::FrameTooLarge { len: length, max: self.frame_bytes_max });
        }
        input.advance(HEADER_BYTES);
        Ok(Some(DecodedMessage::Request(DecodedRequest { request: head, body_len: length - LENGTH_OVER_BODY })))
    }
}

pub struct Frames;

impl Protocol for Frames {
    type Request = Head;
    type OneWayRequest = Infallible;
    type Response = TcpResponse;
    type ConnectionState = ();
    type Decoder = Decoder;
    type ResponseContext = Answer;
    type ErrorContext = Head;

    fn decoder(&self, max_frame_len: usize) -> Decoder {
        Decoder { frame_bytes_max: max_frame_len }
    }

    fn connection_state(&self, _connection: &ConnectionInfo) {}

    fn request_wire_bytes(&self, _request: &Head, body_len: usize) -> usize {
        HEADER_BYTES + body_len
    }

    fn one_way_wire_bytes(&self, request: &Infallible, _body_len: usize) -> usize {
        match *request {}
    }

    fn response_context(&self, request: &Head) -> Answer {
        Answer { head: *request, is_started: false }
    }

    fn error_context(&self, request: &Head) -> Head {
        *request
    }

    fn apply_response(&self, _context: &mut Answer, _response: &TcpResponse) {}

    fn max_response_frame_overhead(&self) -> usize {
        HEADER_BYTES
    }

    fn response_body(&self, response: TcpResponse) -> NacelleBody {
        response.body
    }

    fn encode_response_chunk(
        &self,
        context: &mut Answer,
        chunk: Bytes,
        frame: &mut FrameBuffer<'_>,
    ) -> Result<(), NacelleError> {
        context.put(0, &chunk, frame)
    }

    fn encode_response_terminal_chunk(
        &self,
        context: &mut Answer,
        chunk: Bytes,
        frame: &mut FrameBuffer<'_>,
    ) -> Result<(), NacelleError> {
        context.put(FLAG_END, &chunk, frame)
    }

    fn encode_response_end(&self, context: &mut Answer, frame: &mut FrameBuffer<'_>) -> Result<(), NacelleError> {
        context.put(FLAG_END, &[], frame)
    }

    fn encode_error(
        &self,
        context: Option<&Head>,
        error: &NacelleError,
        frame: &mut FrameBuffer<'_>,
    ) -> Result<(), NacelleError> {
        let head = context.copied().unwrap_or(Head { id: 0, opcode: 0 });
        head.put(FLAG_START | FLAG_END | FLAG_ERROR, error.to_string().as_bytes(), frame)
    }
}
