//! Whether files were changed, without reading them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What tells two versions of a file apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

/// One for each path, in their order; a path may lead through links. `None` where no file can be seen.
pub(super) fn stamps<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<Option<Stamp>> {
    let stamp = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some(Stamp { inode: file.ino(), bytes: file.len(), modified: (file.mtime(), file.mtime_nsec()) })
    };
    paths.map(stamp).collect()
}
