//! Protocol of text lines, for the examples that are not about a protocol.

use std::rc::Rc;

use net::service::{Decoded, Fault, Input, Never, Order, Out, Peer, Protocol};

/// Protocol in which a line is a request, and is answered with a line.
#[derive(Clone)]
pub struct Lines;

impl Protocol for Lines {
    type Codec = ();
    type Request<'a> = &'a str;
    type Message<'a> = Never;
    type Response = String;
    type Tag = ();

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        let Some(end) = input.bytes().iter().position(|byte| *byte == b'\n') else {
            return Ok(Decoded::More(input.len() + 1));
        };
        match std::str::from_utf8(input.take(end + 1)) {
            Ok(line) => Ok(Decoded::Request((), line.trim_end())),
            Err(error) => Err(Fault::malformed(error.to_string())),
        }
    }

    fn encode(&self, _codec: &mut (), _tag: (), line: String, out: &mut Out) {
        out.put(line.as_bytes());
        out.put(b"\n");
    }

    fn encode_fault(&self, codec: &mut (), _tag: Option<()>, fault: &Fault, out: &mut Out) {
        self.encode(codec, (), format!("ERROR {fault}"), out);
    }
}
