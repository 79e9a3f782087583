//! Names of the files of segments.

use engine::Offset;

pub(crate) fn log_name(base: Offset, generation: u32) -> String {
    file_name(base, generation, "log")
}

pub(crate) fn index_name(base: Offset, generation: u32) -> String {
    file_name(base, generation, "index")
}

fn file_name(base: Offset, generation: u32, kind: &str) -> String {
    match generation {
        0 => format!("{base:020}.{kind}"),
        _ => format!("{base:020}-{generation}.{kind}"),
    }
}

/// Parses the name of a file into base offset, generation and kind.
pub(super) fn parse_name(name: &str) -> Option<(Offset, u32, &str)> {
    let (stem, kind) = name.split_once('.')?;
    let (base, generation) = stem.split_once('-').unwrap_or((stem, "0"));
    Some((base.parse().ok()?, generation.parse().ok()?, kind))
}
