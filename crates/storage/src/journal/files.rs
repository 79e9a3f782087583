//! Files of the journal: created at full size before they are used, and reused when none of their entries is needed.
//!
//! Growing a file would cost the file system an extra commit at each sync; overwriting does not.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use super::block::{FileHead, PAGE_BYTES};
use super::{BLOCK_PART, FILE_BYTES_MIN, JournalSettings};
use crate::disk::{Disk, DiskFile, failed};
use crate::room::Room;

/// Number of files that are created ahead of their use.
const SPARE: usize = 2;
/// Zeros per write and sync.
const ZEROS_BYTES: usize = 256 << 10;

/// Slot: a file that is used again and again, each time under a new number.
pub(crate) struct JournalFile {
    pub(crate) slot: u32,
    pub(crate) path: PathBuf,
    bytes: u64,
    /// Handles, one for each thread that syncs. The system reports a failed write to each handle once: of two threads
    /// that share a handle, one would not be notified that its own bytes were lost.
    handles: Vec<Box<dyn DiskFile>>,
}

/// File in use, with its place in the journal.
pub(crate) struct InUse {
    pub(crate) file: Arc<JournalFile>,
    pub(crate) head: FileHead,
}

/// File as recovery found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) slot: u32,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    first_file_bytes: u64,
    files_max: usize,
    handles: usize,
    state: Mutex<State>,
    changed: Condvar,
    room: Arc<Room>,
    /// `true` if no file is ready, and none can be created because the disk is full.
    is_stuck: AtomicBool,
    /// Bytes of entries that fit into the files that are ready.
    spare_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Files from the oldest entry that is needed to the newest.
    in_use: VecDeque<InUse>,
    /// Ready files. Files that were written to their end come first: the first use of a file that is only allocated is
    /// slower.
    spare: VecDeque<Arc<JournalFile>>,
    slots: u32,
    number: u64,
    /// `true` if threads no longer wait for a file that cannot be created now.
    is_closing: bool,
    is_stopped: bool,
    /// `true` after ready files were removed for their disk space: none is created before a checkpoint.
    is_given_up: bool,
    /// Reason why the last attempt to create a file failed.
    trouble: Option<engine::Error>,
}

impl JournalFile {
    fn open(disk: &dyn Disk, slot: &Slot, handles: usize) -> io::Result<Self> {
        let handles = (0..handles).map(|_| disk.open(&slot.path)).collect::<io::Result<_>>()?;
        Ok(Self { slot: slot.slot, path: slot.path.clone(), bytes: slot.len, handles })
    }

    pub(crate) fn write(&self, slices: &mut [IoSlice<'_>], at: u64) -> Result<()> {
        self.handles[0].write_at(slices, at).map_err(failed("write", &self.path))
    }

    /// Syncs the file with the handle of this thread.
    pub(crate) fn sync(&self, thread: usize) -> Result<()> {
        self.handles[thread].sync().map_err(failed("sync", &self.path))
    }

    /// Fails if the file was removed.
    pub(crate) fn check_name(&self, thread: usize) -> Result<()> {
        if self.handles[thread].has_name().map_err(failed("check", &self.path))? {
            return Ok(());
        }
        let message = format!("{} was removed while the broker ran", self.path.display());
        Err(Error::new(ErrorKind::Internal, message))
    }
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, settings: &JournalSettings, room: Arc<Room>) -> Self {
        Self {
            room,
            is_stuck: AtomicBool::new(false),
            spare_bytes: AtomicU64::new(0),
            disk,
            dir: dir.to_path_buf(),
            file_bytes: settings.file_bytes,
            first_file_bytes: settings.first_file_bytes.min(settings.file_bytes),
            files_max: settings.files_max,
            handles: settings.threads(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn path(dir: &Path, slot: u32) -> PathBuf {
        dir.join(format!("{slot:06}.journal"))
    }

    /// Adopts the files that recovery found: files in use in their order, the others, and the highest number used so
    /// far.
    pub(crate) fn adopt(&self, in_use: &[(Slot, FileHead)], others: &[Slot], number: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.slots = in_use.iter().map(|(slot, _)| slot).chain(others).map(|slot| slot.slot + 1).max().unwrap_or(0);
        state.number = number;
        let open = |slot: &Slot| {
            let file = JournalFile::open(&*self.disk, slot, self.handles).map_err(failed("open", &slot.path));
            file.map(Arc::new)
        };
        for (slot, head) in in_use {
            state.in_use.push_back(InUse { file: open(slot)?, head: *head });
        }
        for slot in others {
            if slot.len == self.file_bytes {
                state.spare.push_back(open(slot)?);
            } else {
                // A file of another size, or an incomplete one: no entry in it is needed.
                self.disk.remove(&slot.path).map_err(failed("remove", &slot.path))?;
            }
        }
        self.note_change(&state);
        // A broker that was killed may have created files whose names are not durable yet.
        self.disk.sync_dir(&self.dir).map_err(failed("sync", &self.dir))
    }

    /// Returns the file with the newest entries, if any exist.
    pub(crate) fn last_used(&self) -> Option<(Arc<JournalFile>, FileHead)> {
        self.state.lock().in_use.back().map(|last| (last.file.clone(), last.head))
    }

    /// Creates a spare file if there are too few. Returns `false` if there is nothing to do for now.
    pub(crate) fn prepare_one(&self) -> Result<bool> {
        let (is_wanted, is_urgent) = {
            let state = self.state.lock();
            let is_wanted = state.spare.len() < SPARE && state.in_use.len() + state.spare.len() < self.files_max;
            (is_wanted && !state.is_given_up, state.spare.is_empty())
        };
        if !is_wanted {
            return Ok(false);
        }
        // The remaining free space is for segments and checkpoints, which free files of the journal.
        if let Err(error) = self.room.check_spare(&self.dir, self.file_bytes) {
            let mut state = self.state.lock();
            state.trouble = Some(error.clone());
            self.note_change(&state);
            return Err(error);
        }
        self.prepare(self.file_bytes, is_urgent).map(|()| true)
    }

    /// Removes ready, empty files to free disk space, but keeps enough of them for `needed_bytes`. None is created
    /// before a checkpoint. Returns `true` if any was removed.
    pub(crate) fn give_up_spares(&self, needed_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let kept = (0..state.spare.len()).find(|kept| taken_by(state.spare.range(..*kept)) >= needed_bytes);
        let kept = kept.unwrap_or(state.spare.len());
        let spares = state.spare.split_off(kept);
        for spare in &spares {
            if let Err(error) = self.disk.remove(&spare.path) {
                tracing::warn!(path = %spare.path.display(), %error, "cannot remove a spare journal file");
            }
        }
        state.is_given_up = true;
        state.trouble.get_or_insert_with(|| {
            Error::new(ErrorKind::DiskFull, "the spare files of the journal were removed to free disk space")
        });
        self.note_change(&state);
        !spares.is_empty()
    }

    /// Returns `true` if no file is ready and none can be created because the disk is full. After other errors appended
    /// entries have to reach the disk, so that the journal notices whether the disk still works.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Returns the bytes of entries that fit into the files that are ready.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all files that there may be.
    pub(crate) fn capacity(&self) -> u64 {
        self.file_bytes * self.files_max as u64
    }

    fn note_change(&self, state: &State) {
        let is_full = state.trouble.as_ref().is_some_and(|trouble| trouble.kind == ErrorKind::DiskFull);
        self.is_stuck.store(state.spare.is_empty() && is_full, Ordering::Relaxed);
        self.spare_bytes.store(taken_by(state.spare.iter()), Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Creates a small first file if none is ready: the start of the journal waits for its zeros. On a full disk it is
    /// as small as it can be: the rest of the space is for the checkpoint that follows, which frees other files.
    pub(crate) fn prepare_first(&self) -> Result<()> {
        if self.counts().1 > 0 {
            return Ok(());
        }
        match self.prepare(self.first_file_bytes, false) {
            Err(error) if error.kind == ErrorKind::DiskFull => self.prepare(FILE_BYTES_MIN, false),
            made => made,
        }
    }

    /// Creates a file. If it is urgent, it is not filled with zeros before it is used: each sync of its first use takes
    /// longer, but all together take less time than the zeros would.
    fn prepare(&self, bytes: u64, is_urgent: bool) -> Result<()> {
        let slot = self.state.lock().slots;
        let made = self.make(slot, bytes, is_urgent);
        let mut state = self.state.lock();
        let outcome = match made {
            Ok(file) => {
                state.slots = slot + 1;
                state.trouble = None;
                if is_urgent {
                    state.spare.push_back(Arc::new(file))
                } else {
                    state.spare.push_front(Arc::new(file))
                }
                Ok(())
            }
            Err(error) => {
                state.trouble = Some(error.clone());
                Err(error)
            }
        };
        self.note_change(&state);
        outcome
    }

    fn make(&self, slot: u32, bytes: u64, is_urgent: bool) -> Result<JournalFile> {
        let slot = Slot { slot, path: Self::path(&self.dir, slot), len: bytes };
        let make = || -> io::Result<JournalFile> {
            // A file that a crash left incomplete has no place in the journal.
            match self.disk.remove(&slot.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = self.disk.create(&slot.path)?;
            if is_urgent {
                file.allocate(bytes)?;
            } else {
                write_zeros(&*file, bytes)?;
            }
            file.sync()?;
            self.disk.sync_dir(&self.dir)?;
            JournalFile::open(&*self.disk, &slot, self.handles)
        };
        let file = make().inspect_err(|_| self.disk.remove(&slot.path).unwrap_or_default());
        file.map_err(failed("make", &slot.path))
    }

    /// Takes a ready file for the next number and this position. Waits for one; `None` if there will be none any more.
    pub(crate) fn take(&self, directory: u64, position: u64) -> Option<(Arc<JournalFile>, FileHead)> {
        let mut state = self.state.lock();
        self.changed.notify_all();
        loop {
            if let Some(file) = state.spare.pop_front() {
                state.number += 1;
                let head = FileHead { directory, number: state.number, position, bytes: file.bytes };
                state.in_use.push_back(InUse { file: file.clone(), head });
                self.note_change(&state);
                return Some((file, head));
            }
            let is_hopeless = state.trouble.is_some() || state.in_use.len() >= self.files_max;
            if state.is_stopped || (state.is_closing && is_hopeless) {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Releases entries before this position: files that end before it may be reused.
    pub(crate) fn release(&self, position: u64) {
        let mut state = self.state.lock();
        let is_given_up = std::mem::take(&mut state.is_given_up);
        if is_given_up {
            state.trouble = None;
        }
        while state.in_use.get(1).is_some_and(|next| next.head.position + PAGE_BYTES <= position)
            && let Some(used) = state.in_use.pop_front()
        {
            // On a disk that was full a moment ago, only as many files are kept as are needed.
            let is_kept = used.head.bytes == self.file_bytes && !(is_given_up && state.spare.len() >= SPARE);
            if is_kept {
                state.spare.push_front(used.file);
            } else if let Err(error) = self.disk.remove(&used.file.path) {
                let path = used.file.path.display();
                tracing::warn!(%path, %error, "cannot remove a journal file that is no longer needed");
            }
        }
        self.note_change(&state);
    }

    /// Returns `true` if an append has to wait for a checkpoint, or for space on the disk.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.spare.is_empty() && (state.in_use.len() >= self.files_max || state.trouble.is_some())
    }

    pub(crate) fn trouble(&self) -> Option<engine::Error> {
        self.state.lock().trouble.clone()
    }

    /// Returns the numbers of files in use and ready.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.in_use.len(), state.spare.len())
    }

    /// Waits until a file was taken or released; returns `false` if the journal is stopped.
    pub(crate) fn wait(&self, patience: std::time::Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.changed.wait_for(&mut state, patience);
        }
        !state.is_stopped
    }

    pub(crate) fn close(&self) {
        self.state.lock().is_closing = true;
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}

/// Returns the bytes of entries that fit into these files: the end of each may stay unused.
fn taken_by<'a>(files: impl Iterator<Item = &'a Arc<JournalFile>>) -> u64 {
    files.map(|file| file.bytes - file.bytes / BLOCK_PART).sum()
}

fn write_zeros(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        let bytes = (len - at).min(zeros.len() as u64);
        file.write_at(&mut [IoSlice::new(&zeros[..bytes as usize])], at)?;
        at += bytes;
        // Sync in small steps: a concurrent sync of the journal waits for all bytes that the disk received before.
        file.sync()?;
    }
    Ok(())
}
