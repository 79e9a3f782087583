//! The journal's files: made whole before they are used, and used again when nothing in them is needed.
//!
//! Growing a file would cost the file system a commit of its own at each sync; overwriting does not.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::Result;
use parking_lot::{Condvar, Mutex};

use super::block::{FileHead, PAGE_BYTES};
use crate::disk::{Disk, DiskFile, failed};

/// Files that are ready before they are needed.
const SPARE: usize = 2;
/// Zeros of one write.
const ZEROS_BYTES: usize = 1 << 20;

/// A slot: a file that is used again and again, each time under a new number.
pub(crate) struct JournalFile {
    pub(crate) slot: u32,
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn DiskFile>,
}

/// A file in use, with its place in the journal.
pub(crate) struct InUse {
    pub(crate) file: Arc<JournalFile>,
    pub(crate) head: FileHead,
}

pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    files_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// From the oldest entry that is needed to the newest.
    in_use: VecDeque<InUse>,
    spare: VecDeque<Arc<JournalFile>>,
    slots: u32,
    number: u64,
    is_stopped: bool,
    /// Why no file could be made the last time.
    trouble: Option<engine::Error>,
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, file_bytes: u64, files_max: usize) -> Self {
        let dir = dir.to_path_buf();
        Self { disk, dir, file_bytes, files_max, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn path(dir: &Path, slot: u32) -> PathBuf {
        dir.join(format!("{slot:06}.journal"))
    }

    /// Takes over what recovery found: files in use in their order, the others, and the highest number ever given.
    pub(crate) fn adopt(&self, in_use: Vec<InUse>, spare: Vec<Arc<JournalFile>>, number: u64) {
        let mut state = self.state.lock();
        let slots = in_use.iter().map(|used| &used.file).chain(&spare).map(|file| file.slot + 1).max();
        (state.slots, state.number) = (slots.unwrap_or(0), number);
        state.in_use = in_use.into();
        state.spare = spare.into_iter().filter(|file| self.is_whole(file)).collect();
    }

    /// Whether a file may be used again. One that a crash left half made, or of another size, is removed.
    fn is_whole(&self, file: &JournalFile) -> bool {
        let is_whole = file.file.size().is_ok_and(|len| len == self.file_bytes);
        if !is_whole && let Err(error) = self.disk.remove(&file.path) {
            tracing::warn!(path = %file.path.display(), %error, "cannot remove a journal file of another size");
        }
        is_whole
    }

    /// Makes a file ready if there are too few. `false` where there is nothing to do for now.
    pub(crate) fn prepare_one(&self) -> Result<bool> {
        let is_wanted = {
            let state = self.state.lock();
            state.spare.len() < SPARE && state.in_use.len() + state.spare.len() < self.files_max
        };
        if is_wanted { self.prepare().map(|()| true) } else { Ok(false) }
    }

    /// The same where there has to be one.
    pub(crate) fn prepare(&self) -> Result<()> {
        let slot = self.state.lock().slots;
        let made = self.make(slot);
        let mut state = self.state.lock();
        match made {
            Ok(file) => {
                state.slots = slot + 1;
                state.spare.push_back(Arc::new(file));
                state.trouble = None;
                self.changed.notify_all();
                Ok(())
            }
            Err(error) => {
                state.trouble = Some(error.clone());
                Err(error)
            }
        }
    }

    fn make(&self, slot: u32) -> Result<JournalFile> {
        let path = Self::path(&self.dir, slot);
        let make = || -> io::Result<Box<dyn DiskFile>> {
            // What a crash left half made has no place in the journal.
            match self.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = self.disk.create(&path)?;
            let zeros = vec![0; ZEROS_BYTES.min(self.file_bytes as usize)];
            let mut at = 0;
            while at < self.file_bytes {
                let bytes = (self.file_bytes - at).min(zeros.len() as u64);
                file.write_at(&mut [IoSlice::new(&zeros[..bytes as usize])], at)?;
                at += bytes;
            }
            file.sync()?;
            self.disk.sync_dir(&self.dir)?;
            Ok(file)
        };
        let file = make().inspect_err(|_| self.disk.remove(&path).unwrap_or_default());
        Ok(JournalFile { slot, file: file.map_err(failed("make", &path))?, path })
    }

    /// A ready file under the next number, from this position on. Waits until there is one; `None` once stopped.
    pub(crate) fn take(&self, directory: u64, position: u64) -> Option<(Arc<JournalFile>, FileHead)> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(file) = state.spare.pop_front() {
                state.number += 1;
                let head = FileHead { directory, number: state.number, position, bytes: self.file_bytes };
                state.in_use.push_back(InUse { file: file.clone(), head });
                self.changed.notify_all();
                return Some((file, head));
            }
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    /// Nothing before this position is needed: files that end before it may be used again.
    pub(crate) fn release(&self, position: u64) {
        let mut state = self.state.lock();
        while state.in_use.get(1).is_some_and(|next| next.head.position + PAGE_BYTES <= position)
            && let Some(used) = state.in_use.pop_front()
        {
            if used.head.bytes == self.file_bytes {
                state.spare.push_back(used.file);
            } else if let Err(error) = self.disk.remove(&used.file.path) {
                let path = used.file.path.display();
                tracing::warn!(%path, %error, "cannot remove a journal file of another size");
            }
        }
        self.changed.notify_all();
    }

    /// Whether an append has to wait for a checkpoint, or for room on the disk.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.spare.is_empty() && (state.in_use.len() >= self.files_max || state.trouble.is_some())
    }

    pub(crate) fn trouble(&self) -> Option<engine::Error> {
        self.state.lock().trouble.clone()
    }

    /// Files in use and ready.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.in_use.len(), state.spare.len())
    }

    /// Waits until a file was taken or released, or it is stopped (`false`).
    pub(crate) fn wait(&self, patience: std::time::Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.changed.wait_for(&mut state, patience);
        }
        !state.is_stopped
    }

    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}
