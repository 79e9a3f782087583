//! Frames do not depend on the pieces in which the stream arrives.
//!
//! Input: one byte that selects the size limit, four bytes with the sizes of the pieces in turn (0 is the whole rest),
//! one byte with the KiB of zeros after the stream, and the stream. The pieces of a long stream are larger, so that no
//! input takes long.

use bytes::{BufMut, BytesMut};
use engine::Error;
use wire::frame::{BODY_BYTES_BEFORE_HELLO_MAX, BODY_BYTES_MAX, put_frame};
use wire::{Assembler, Frame};

/// Result of a stream: its frames, whether it ended between two, and the error that ended it.
#[derive(Debug, PartialEq)]
struct Outcome {
    frames: Vec<Frame>,
    is_between_frames: bool,
    error: Option<Error>,
}

pub fn check(input: &[u8]) {
    let Some((head, stream)) = input.split_first_chunk::<6>() else {
        return;
    };
    let [limit, cuts @ .., zeros] = head;
    let body_bytes_max = if *limit == 0 { BODY_BYTES_BEFORE_HELLO_MAX } else { BODY_BYTES_MAX };
    let mut stream = stream.to_vec();
    stream.resize(stream.len() + usize::from(*zeros % 64) * 1024, 0);

    let whole = read(&stream, body_bytes_max, &[0], false);
    assert_eq!(read(&stream, body_bytes_max, cuts, false), whole, "cut");
    assert_eq!(read(&stream, body_bytes_max, cuts, true), whole, "read in place");

    let mut again = BytesMut::new();
    for frame in &whole.frames {
        assert!(frame.body.len() <= body_bytes_max);
        put_frame(&mut again, frame.kind, frame.correlation, |body| body.put_slice(&frame.body));
    }
    assert!(stream.starts_with(&again), "frames are the bytes that they came from");
    if whole.error.is_none() && whole.is_between_frames {
        assert_eq!(again.len(), stream.len(), "nothing is left out");
    }
}

fn read(stream: &[u8], body_bytes_max: usize, cuts: &[u8], in_place: bool) -> Outcome {
    let mut frames = Vec::new();
    let mut assembler = Assembler::new(body_bytes_max);
    let mut rest = stream;
    let mut error = None;
    let scale = 1 + stream.len() / 1024;
    for cut in cuts.iter().cycle() {
        if rest.is_empty() || error.is_some() {
            break;
        }
        let piece = if *cut == 0 { rest.len() } else { (usize::from(*cut) * scale).min(rest.len()) };
        if in_place && let Some(mut place) = assembler.large_rest() {
            let piece = (piece * 10).min(rest.len()).min(place.remaining_mut());
            place.put_slice(&rest[..piece]);
            rest = &rest[piece..];
            assembler.close_frame(&mut frames);
            continue;
        }
        error = assembler.feed(&rest[..piece], &mut frames).err();
        rest = &rest[piece..];
    }
    // After an error a connection is closed, and the position of its assembler is irrelevant.
    Outcome { frames, is_between_frames: error.is_none() && assembler.is_between_frames(), error }
}
