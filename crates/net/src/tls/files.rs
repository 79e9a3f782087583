//! Detection of changed files without reading them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Properties that distinguish two versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    /// Modification time in seconds and nanoseconds.
    modified: (i64, i64),
}

/// Returns a stamp for each path, in their order, following links; `None` for a file that cannot be accessed.
pub(super) fn stamps<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<Option<Stamp>> {
    let stamp = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some(Stamp { inode: file.ino(), bytes: file.len(), modified: (file.mtime(), file.mtime_nsec()) })
    };
    paths.map(stamp).collect()
}
