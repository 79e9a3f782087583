//! Reserved disk space for a full disk, and the reason why records are refused while the disk is full.
//!
//! A full disk is noticed when a write fails for lack of space. From then on partitions take no records. Deletions, new
//! starts of partitions and other changes of the catalog continue, because the journal keeps space for them in the file
//! that it writes. A file of zeros, `reserve`, holds space for a checkpoint and for the next start of a broker: a
//! checkpoint releases a quarter of it, a start releases all of it. It is restored when the disk has space again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::disk::{Disk, failed};

/// Divisor of the disk size: the reserve, and a file of the journal, take at most this part of a small disk.
pub(crate) const DISK_PART: u64 = 8;
/// Divisor of the reserve: the part of it that a checkpoint releases.
const CHECKPOINT_PART: u64 = 4;
/// Name of the file that reserves disk space.
pub(crate) const RESERVE_NAME: &str = "reserve";

pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Bytes of the reserve. As many bytes have to be free in addition before records are taken again, and after a
    /// journal file was created ahead of its use.
    bytes: u64,
    /// Bytes of a file of the journal.
    journal_file_bytes: u64,
    is_full: AtomicBool,
    /// Reason why records are refused, while they are.
    why: Mutex<Option<Error>>,
    times_full: AtomicU64,
}

impl Room {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, bytes: u64, journal_file_bytes: u64) -> Self {
        Self {
            disk,
            dir: dir.to_path_buf(),
            bytes,
            journal_file_bytes,
            is_full: AtomicBool::new(false),
            why: Mutex::default(),
            times_full: AtomicU64::new(0),
        }
    }

    /// Refuses records while the disk is full.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_full.load(Ordering::Relaxed) { self.why().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Returns the reason why records are refused.
    pub(crate) fn why(&self) -> Option<Error> {
        self.why.lock().clone()
    }

    pub(crate) fn times_full(&self) -> u64 {
        self.times_full.load(Ordering::Relaxed)
    }

    /// Handles an error: if it says that the disk is full, records are refused until [`Room::end`].
    pub(crate) fn note(&self, error: &Error) {
        if error.kind != ErrorKind::DiskFull {
            return;
        }
        let mut why = self.why.lock();
        if why.is_none() {
            let reserve = self.look().map_or(self.bytes, |(reserve, _)| reserve);
            // The reserve, as much free space again, and a file for the journal if the journal is at the end of its
            // file.
            let enough = 2 * reserve + self.journal_file_bytes;
            let message = format!(
                "the disk is full, so no records are accepted: {}. Free disk space, or delete topics or records; the \
                 broker resumes by itself, at the latest when {} MiB are free",
                error.message,
                enough.div_ceil(1 << 20)
            );
            tracing::error!("{message}");
            *why = Some(Error::new(ErrorKind::DiskFull, message));
            self.times_full.fetch_add(1, Ordering::Relaxed);
        }
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Takes records again.
    pub(crate) fn end(&self) {
        let mut why = self.why.lock();
        if why.take().is_some() {
            tracing::info!("the disk has space again: records are accepted");
        }
        self.is_full.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the reserve on this disk, and the free bytes.
    fn look(&self) -> Result<(u64, u64)> {
        let (bytes, free) = self.disk.volume(&self.dir).map_err(failed("check", &self.dir))?;
        Ok((self.bytes.min(bytes / DISK_PART), free))
    }

    /// Refuses to create a file ahead of its use if too little space would stay free.
    pub(crate) fn check_spare(&self, path: &Path, bytes: u64) -> Result<()> {
        let (reserve, free) = self.look()?;
        if free >= bytes.saturating_add(reserve) {
            return Ok(());
        }
        let message =
            format!("no spare file is created in {}: less than {reserve} bytes would remain free", path.display());
        Err(Error::new(ErrorKind::DiskFull, message))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(RESERVE_NAME)
    }

    /// Releases a part of the reserve for a checkpoint; the rest stays for the next start. Returns `true` if the
    /// reserve was whole.
    pub(crate) fn release_part(&self) -> bool {
        let released = self.look().and_then(|(reserve, _)| {
            let kept = reserve - reserve / CHECKPOINT_PART;
            let file = self.disk.open(&self.path()).map_err(failed("open", &self.path()))?;
            let is_whole = file.size().map_err(failed("check", &self.path()))? > kept;
            if is_whole {
                file.set_len(kept).map_err(failed("cut", &self.path()))?;
            }
            Ok(is_whole)
        });
        released.unwrap_or_else(|error| {
            tracing::debug!(%error, "there is no reserve to release");
            false
        })
    }

    /// Releases the whole reserve. Returns `true` if it existed.
    pub(crate) fn release(&self) -> bool {
        match self.disk.remove(&self.path()) {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "cannot release the reserve");
                }
                false
            }
        }
    }

    /// Restores the reserve, if the disk has space for it and as much again. Returns `false` if it has not.
    pub(crate) fn restore(&self) -> Result<bool> {
        if self.bytes == 0 {
            return Ok(true);
        }
        let path = self.path();
        let (reserve, free) = self.look()?;
        let held = match self.disk.open(&path).and_then(|file| file.size()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("open", &path)(error)),
        };
        if held >= reserve {
            return Ok(free >= reserve);
        }
        if free.saturating_add(held) < 2 * reserve {
            return Ok(false);
        }
        // A partial reserve, or a name without bytes after a crash.
        self.release();
        // Its name becomes durable as well: after a power cut, space without a durable name may belong to another file.
        let made = self.disk.create(&path).and_then(|file| {
            file.allocate(reserve).and_then(|()| file.sync()).and_then(|()| self.disk.sync_dir(&self.dir))
        });
        if made.is_err() {
            self.release();
        }
        made.map_err(failed("make", &path)).map(|()| true)
    }
}
