//! Keys of a database file.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use doors::redis::{FileEntries, FileEntry};

use super::{Import, TOGETHER, TOGETHER_BYTES, Taken};
use crate::output::{DAMAGED, FAILED, Failure, Result};

/// Number of bytes that are read from the file at a time.
const READ_BYTES: usize = 1 << 20;

/// Copies every key of a file, and its libraries of functions.
pub(super) fn copy(import: &mut Import, path: &Path) -> Result {
    let shown = path.display();
    let unreadable = |error: std::io::Error| Failure::new(FAILED, format!("cannot read {shown}: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    let all = file.metadata().map_err(unreadable)?.len();
    let damaged = |error: std::io::Error| Failure::new(DAMAGED, format!("{shown}: {error}"));
    let mut entries = FileEntries::open(BufReader::with_capacity(READ_BYTES, file)).map_err(damaged)?;
    let mut waiting: Vec<Taken> = Vec::new();
    let mut bytes = 0;
    while let Some(entry) = entries.next() {
        let FileEntry { database, key, expires_ms, payload } = entry.map_err(|error| {
            let message = format!("{shown}: {error}; the keys before it are copied: {}", import.report.seen());
            Failure::new(DAMAGED, message)
        })?;
        let is_full = waiting.len() == TOGETHER || bytes >= TOGETHER_BYTES;
        if is_full || waiting.first().is_some_and(|first| first.database != database) {
            restore(import, std::mem::take(&mut waiting))?;
            bytes = 0;
            import.progress(entries.bytes(), all);
        }
        bytes += payload.len();
        waiting.push(Taken { database, key, expires_ms, payload });
    }
    restore(import, waiting)?;
    import.load(entries.libraries())
}

fn restore(import: &mut Import, taken: Vec<Taken>) -> Result {
    for (taken, why) in import.restore(taken)? {
        let why = format!("{why}; import it from the running server: --from redis://..");
        import.report.fail(taken.database, &taken.key, why);
    }
    Ok(())
}
