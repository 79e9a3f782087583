//! Appends that are larger than a frame: the engine merges messages, whatever the size of their entries is.

use consensus::{Body, Kind, Message};
use engine::{Error, Result};

use super::part::{APPEND_HEAD_BYTES, PART_HEAD_BYTES, Part, entry_bytes};

/// Splits an append into parts of at most `bytes_max` bytes, each of which follows the one before. Any other part stays
/// whole. Fails if one entry alone is larger.
pub fn split(part: Part, bytes_max: usize) -> Result<Vec<Part>> {
    if part.encoded_bytes() <= bytes_max {
        return Ok(vec![part]);
    }
    let Part { shard, message: Message { from, to, term, kind }, blocks } = part;
    let Kind::Append { prev, commit, entries } = kind else {
        return Err(too_large("a message", bytes_max));
    };
    let mut blocks = blocks.into_iter();
    let mut parts: Vec<Part> = Vec::new();
    let (mut bytes, mut before) = (usize::MAX, prev);
    for entry in entries {
        let position = entry.position;
        let is_block = matches!(entry.body, Body::Block(_));
        let of_entry = entry_bytes(&entry);
        if PART_HEAD_BYTES + APPEND_HEAD_BYTES + of_entry > bytes_max {
            return Err(too_large(&format!("the entry {}", position.index), bytes_max));
        }
        if of_entry > bytes_max.saturating_sub(bytes) {
            let kind = Kind::Append { prev: before, commit, entries: Vec::new() };
            parts.push(Part { shard, message: Message { from, to, term, kind }, blocks: Vec::new() });
            bytes = PART_HEAD_BYTES + APPEND_HEAD_BYTES;
        }
        bytes += of_entry;
        before = position;
        if let Some(Part { message: Message { kind: Kind::Append { entries, .. }, .. }, blocks: of_part, .. }) =
            parts.last_mut()
        {
            entries.push(entry);
            of_part.extend(is_block.then(|| blocks.next()).flatten());
        }
    }
    Ok(parts)
}

fn too_large(what: &str, bytes_max: usize) -> Error {
    Error::too_large(format!("{what} is larger than a frame between nodes, which has at most {bytes_max} bytes"))
}
