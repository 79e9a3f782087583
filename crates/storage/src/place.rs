//! Check that a data directory is still at the path where it was opened.
//!
//! If a directory is removed or moved away under a running broker, the broker would write data that cannot be found any
//! more; a directory that was put in its place belongs to another broker. Files are named by paths. The broker
//! therefore checks that the path of the lock still leads to the file that it locked: before it reports that something
//! is durable, and before it removes or creates files. A removal between this check and the following write, or one
//! that has not reached the lock yet, is not noticed. The journal also checks that its file was not removed alone
//! (`JournalFile::check_name`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Error, ErrorKind, Result};

use crate::disk::{Disk, LOCK_NAME, failed};

pub(crate) struct Place {
    disk: Arc<dyn Disk>,
    lock: PathBuf,
    /// Identity of the lock when the directory was opened; `None` if the disk does not tell files apart.
    identity: Option<u128>,
}

impl Place {
    /// Creates the check for a directory whose lock is held.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        let lock = dir.join(LOCK_NAME);
        let identity = disk.identity(&lock).ok().flatten();
        Self { disk, lock, identity }
    }

    /// Fails if the directory was removed or replaced.
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
            Err(error) => Err(failed("check", &self.lock)(error)),
        }
    }
}
