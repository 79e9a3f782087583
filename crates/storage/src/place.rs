//! Whether a data directory is still where it was opened.
//!
//! A directory that is removed, or moved away, under a running broker would take what nobody finds any more; one that
//! was replaced is another broker's. Its files are named by paths, so the broker looks whether the path of the lock
//! still leads to the file that it locked: before it says that something lasts, and before it removes or makes files.
//! A directory that is removed between the look and the write that follows, or while the lock is still there, is not
//! noticed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, ErrorKind, Result};

use crate::disk::{Disk, LOCK_NAME, failed};

pub(crate) struct Place {
    disk: Arc<dyn Disk>,
    lock: PathBuf,
    /// The identity of the lock when the directory was opened; none where the disk does not tell files apart.
    identity: Option<u128>,
}

impl Place {
    /// Of a directory whose lock is held.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        let lock = dir.join(LOCK_NAME);
        let identity = disk.identity(&lock).ok().flatten();
        Self { disk, lock, identity }
    }

    /// Fails where the directory was removed or replaced.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(identity) = self.identity else {
            return Ok(());
        };
        let dir = self.lock.parent().unwrap_or(&self.lock).display();
        match self.disk.identity(&self.lock) {
            Ok(found) if found == Some(identity) => Ok(()),
            Ok(_) => Err(Error::new(
                ErrorKind::Internal,
                format!("the data directory {dir} was replaced by another one while the broker ran"),
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::new(
                ErrorKind::Internal,
                format!("the data directory {dir} was removed or moved while the broker ran"),
            )),
            Err(error) => Err(failed("look at", &self.lock)(error)),
        }
    }
}
