//! File system operations that the log needs, few enough that a test can replace them and simulate a power cut.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engine::{Error, ErrorKind};
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::ReadWriteFlags;

/// Maximum number of slices of one vectored write; the system takes at most 1024.
pub const SLICES_MAX: usize = 1024;
/// Unit of [`DiskFile::write_pages`]: at least the sector size of any disk.
pub const PAGE_BYTES: usize = 4096;
/// Mode of files: only the owner may access them, because a data directory holds messages and login credentials.
pub(crate) const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Bits of a mode that give others, or a group, any right.
const OTHERS: u32 = 0o077;
/// Mode bit of a directory that many users share, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Lock file of a data directory, locked by the broker that uses the directory.
pub(crate) const LOCK_NAME: &str = "thalweg.lock";

/// File system. A power cut may lose data that is not synced, in part and in any order.
pub trait Disk: Send + Sync + 'static {
    /// Creates a file. Fails if a file of this name exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Returns the names in a directory, in no order.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Creates one directory. Succeeds if the directory exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a file. Replaces an existing file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and its contents.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes the rights of others from a directory and from the entries `names` in it, recursively, if others have any
    /// right to the directory. An error names a path that could not be changed; all others are changed.
    fn make_private(&self, _dir: &Path, _names: &[&str]) -> io::Result<()> {
        Ok(())
    }
    /// Makes created, renamed and removed names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes a lock that is held until it is dropped or the process ends. `None` if another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>>;
    /// Returns a number that no other file has while this one exists, whatever its path; `None` if the disk does not
    /// provide one.
    fn identity(&self, _path: &Path) -> io::Result<Option<u128>> {
        Ok(None)
    }
    /// Returns the size of the file system of a directory, and the part of it that this process may still use, in
    /// bytes.
    fn volume(&self, path: &Path) -> io::Result<(u64, u64)>;
}

/// Open file. Several threads may use it at the same time.
pub trait DiskFile: Send + Sync {
    /// Fills the buffer, up to the end of the file. Returns the number of bytes read.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    /// Reads `len` bytes, or fewer at the end of the file.
    fn read(&self, len: usize, at: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        Ok(bytes)
    }
    /// Returns `true` if these bytes can be read without waiting for the disk, as far as their first and last byte
    /// show.
    fn is_cached(&self, _len: usize, _at: u64) -> bool {
        false
    }
    /// Starts to read these bytes into the system's cache, without waiting for them.
    fn will_read(&self, _len: u64, _at: u64) {}
    /// Writes all slices. The slices are consumed.
    fn write_at(&self, slices: &mut [IoSlice<'_>], at: u64) -> io::Result<()>;
    /// Writes whole pages, at a multiple of [`PAGE_BYTES`]. If the file system permits, they bypass the system's cache:
    /// for large writes that takes a fraction of the CPU time.
    fn write_pages(&self, pages: &Pages, at: u64) -> io::Result<()> {
        self.write_at(&mut [IoSlice::new(pages.whole())], at)
    }
    /// Makes the contents and the length durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns `false` if no name leads to the file any more.
    fn has_name(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Returns the length of the file in bytes.
    fn size(&self) -> io::Result<u64>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Allocates `len` bytes of zeros in a new file without writing them. The disk space is reserved from then on.
    fn allocate(&self, len: u64) -> io::Result<()>;
}

/// Bytes in memory at an address that the system accepts for writes that bypass its cache.
#[derive(Default)]
pub struct Pages {
    memory: Vec<u8>,
    /// Place of the first byte in `memory`.
    from: usize,
    len: usize,
}

impl Pages {
    /// Removes all bytes, and makes room for `bytes` new ones.
    pub fn reset(&mut self, bytes: usize) {
        let needed = bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        if self.memory.len() < needed {
            self.memory = vec![0; needed];
        }
        self.from = self.memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        self.len = 0;
    }

    /// Appends bytes, for which [`Pages::reset`] has made room.
    pub fn push(&mut self, bytes: &[u8]) {
        let at = self.from + self.len;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Fills the last page with zeros.
    pub fn fill(&mut self) {
        let end = self.from + self.len;
        self.memory[end..self.from + self.len.next_multiple_of(PAGE_BYTES)].fill(0);
    }

    /// Returns the bytes that were appended.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.len]
    }

    /// Returns the bytes with the rest of their last page.
    pub fn whole(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.len.next_multiple_of(PAGE_BYTES)]
    }
}

/// File system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// Open file of the machine.
struct RealFile {
    file: File,
    path: PathBuf,
    /// Second handle of the file, whose writes bypass the system's cache; `None` if the file system permits none.
    direct: OnceLock<Option<File>>,
}

impl RealFile {
    fn boxed(file: File, path: &Path) -> Box<dyn DiskFile> {
        Box::new(Self { file, path: path.to_owned(), direct: OnceLock::new() })
    }

    /// Returns the handle for writes that bypass the system's cache, if it leads to this file.
    fn direct(&self) -> Option<&File> {
        let open = || {
            let flags = OFlags::DIRECT.bits().cast_signed();
            let direct = OpenOptions::new().write(true).custom_flags(flags).open(&self.path).ok()?;
            let ours = self.file.metadata().ok()?;
            let theirs = direct.metadata().ok()?;
            ((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())).then_some(direct)
        };
        self.direct.get_or_init(open).as_ref()
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)?;
        Ok(RealFile::boxed(file, path))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(RealFile::boxed(OpenOptions::new().read(true).write(true).open(path)?, path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(DIR_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            created => created,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn make_private(&self, dir: &Path, names: &[&str]) -> io::Result<()> {
        let mode = std::fs::metadata(dir)?.mode();
        if mode & OTHERS == 0 {
            return Ok(());
        }
        // The directory itself comes last, so that the next start repeats a start that was cut short.
        let mut done = Ok(());
        for name in names {
            done = done.and(tighten(&dir.join(name)));
        }
        if mode & STICKY != 0 {
            let message = format!("{} is shared by many users (sticky bit): use a dedicated directory", dir.display());
            return done.and(Err(io::Error::new(io::ErrorKind::PermissionDenied, message)));
        }
        done.and(set_mode(dir, DIR_MODE))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // The process id tells an operator which process holds the lock.
                file.set_len(0)?;
                writeln!(&file, "{}", std::process::id())?;
                Ok(Some(Box::new(file)))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn identity(&self, path: &Path) -> io::Result<Option<u128>> {
        let found = std::fs::metadata(path)?;
        Ok(Some(u128::from(found.dev()) << 64 | u128::from(found.ino())))
    }

    fn volume(&self, path: &Path) -> io::Result<(u64, u64)> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok((bytes(found.f_blocks), bytes(found.f_bavail)))
    }
}

/// Takes the rights of others from a file, or from a directory and its contents. A symbolic link is left alone.
fn tighten(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| named(path, error))?,
    };
    let mut done = Ok(());
    if found.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|error| named(path, error))? {
            done = done.and(tighten(&entry?.path()));
        }
    }
    let mode = if found.is_dir() { DIR_MODE } else { FILE_MODE };
    if found.mode() & OTHERS != 0 && !found.is_symlink() {
        done = done.and(set_mode(path, mode));
    }
    done
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| named(path, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match FileExt::read_at(&self.file, &mut buf[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Reads like the default method, but does not fill the buffer with zeros first.
    fn read(&self, len: usize, at: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let next = at + bytes.len() as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut bytes), next) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn is_cached(&self, len: usize, at: u64) -> bool {
        let is_here = |at| {
            let mut byte = [0];
            let mut slices = [IoSliceMut::new(&mut byte)];
            rustix::io::preadv2(&self.file, &mut slices, at, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 1)
        };
        len > 0 && is_here(at + len as u64 - 1) && is_here(at)
    }

    fn will_read(&self, len: u64, at: u64) {
        if let Err(error) = rustix::fs::fadvise(&self.file, at, NonZeroU64::new(len), Advice::WillNeed) {
            tracing::debug!(path = %self.path.display(), %error, "cannot read ahead");
        }
    }

    fn write_at(&self, mut slices: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let some = &slices[..slices.len().min(SLICES_MAX)];
            match rustix::io::pwritev(&self.file, some, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut slices, written);
                    at += written as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_pages(&self, pages: &Pages, at: u64) -> io::Result<()> {
        let written = self.direct().map(|direct| direct.write_all_at(pages.whole(), at));
        match written {
            Some(Ok(())) => Ok(()),
            // Some file systems refuse only the write.
            Some(Err(error)) if error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error()) => Err(error),
            _ => self.write_at(&mut [IoSlice::new(pages.whole())], at),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn has_name(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        if open.nlink() > 0 {
            return Ok(true);
        }
        // Some file systems do not count names.
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok(found.dev() == open.dev() && found.ino() == open.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len)?)
    }
}

/// Converts the error of a failed file operation: the message names the operation, the path and the reason.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Error for bytes that differ from the written ones: names the file, the byte and the remedy.
pub(crate) fn damaged(path: &Path, at: u64, what: impl fmt::Display) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{path} is damaged at byte {at}: {what}. Put back a copy of it, or see what can be saved: thalweg inspect"
        ),
    )
}

/// Error for a file of another version of its format.
pub(crate) fn other_version(path: &Path, version: u32, ours: u32) -> Error {
    let path = path.display();
    let what = format!("{path} has version {version}, this broker reads version {ours}; use the release that wrote it");
    Error::new(ErrorKind::Unsupported, what)
}

/// Creates a directory and its parents, and makes their names durable.
pub(crate) fn make_dir(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) else {
        return disk.create_dir(path);
    };
    match disk.create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dir(disk, above)?;
            disk.create_dir(path)?;
        }
        created => created?,
    }
    disk.sync_dir(above)
}

/// Creates the directory of a partition. Its name and those above it, from the data directory down, are durable
/// afterwards, even if a killed broker created some of them.
pub(crate) fn make_partition_dir(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    make_dir(disk, path)?;
    path.ancestors().skip(1).take(3).try_for_each(|above| disk.sync_dir(above))
}

/// Replaces a small file atomically: after a crash either the old or the new contents exist.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut aside = PathBuf::from(path);
    aside.set_extension("new");
    if let Err(error) = disk.remove(&aside)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = disk.create(&aside)?;
    file.write_at(&mut [IoSlice::new(bytes)], 0)?;
    file.sync()?;
    disk.rename(&aside, path)?;
    path.parent().map_or(Ok(()), |dir| disk.sync_dir(dir))
}

/// Reads a whole small file; `None` if it does not exist.
pub(crate) fn read_whole(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.size()? as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}
