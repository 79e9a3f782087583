//! A request of Pub/Sub's clients is parsed or refused; for gRPC independent of the pieces in which it arrives.
//!
//! Input: a byte whose highest bit selects REST. For gRPC the next bit allows compressed messages, and the others
//! select the call; then four bytes with the sizes of the pieces in turn (0 is the whole rest), and the body. For REST
//! the other bits are the method; then the address, a line feed, and the body.

use doors::pubsub::{check_grpc, check_rest};
use hyper::Method;

const METHODS: [Method; 5] = [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
const PREFIX_BYTES: usize = 5;

pub fn check(input: &[u8]) {
    let Some((&asked, rest)) = input.split_first() else {
        return;
    };
    match asked & 0x80 {
        0 => grpc(asked, rest),
        _ => rest_call(asked & 0x7f, rest),
    }
}

fn grpc(asked: u8, input: &[u8]) {
    let Some((cuts, body)) = input.split_first_chunk::<4>() else {
        return;
    };
    let call = usize::from(asked & 0x3f);
    let has_gzip = asked & 0x40 != 0;
    let whole = check_grpc(call, has_gzip, [body]);
    assert_eq!(check_grpc(call, has_gzip, pieces(body, cuts)), whole);
    if let Some((messages, requests)) = whole {
        assert!(requests <= messages && messages * PREFIX_BYTES <= body.len());
    }
}

fn pieces<'t>(body: &'t [u8], cuts: &[u8]) -> Vec<&'t [u8]> {
    let mut rest = body;
    let mut pieces = Vec::new();
    for cut in cuts.iter().cycle() {
        let (piece, after) = match usize::from(*cut) {
            size @ 1.. if size < rest.len() => rest.split_at(size),
            _ => (rest, &[][..]),
        };
        pieces.push(piece);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

fn rest_call(asked: u8, input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let Ok(uri) = std::str::from_utf8(&input[..end]) else {
        return;
    };
    let method = &METHODS[usize::from(asked) % METHODS.len()];
    check_rest(method.clone(), uri, input.get(end + 1..).unwrap_or_default());
}
