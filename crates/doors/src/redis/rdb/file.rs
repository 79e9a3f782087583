//! Database files of Redis, entry by entry (`rdb.c`: `rdbLoadRioWithLoadingCtx`).
//!
//! Only one entry at a time is in memory. The value of each is returned as a payload, as `DUMP` would return it, so
//! that what reads payloads decides which values it takes.

use std::io::{self, ErrorKind, Read};

use super::{Bad, add_to_checksum, append_footer, kind};

/// Marks of a file other than the types of values (`rdb.h`).
mod mark {
    pub(super) const SLOT_INFO: u8 = 244;
    pub(super) const FUNCTION: u8 = 245;
    pub(super) const MODULE_DATA: u8 = 247;
    pub(super) const IDLE: u8 = 248;
    pub(super) const FREQUENCY: u8 = 249;
    pub(super) const ABOUT: u8 = 250;
    pub(super) const SIZES: u8 = 251;
    pub(super) const EXPIRES_MS: u8 = 252;
    pub(super) const EXPIRES_S: u8 = 253;
    pub(super) const DATABASE: u8 = 254;
    pub(super) const END: u8 = 255;
}

/// Types of values whose contents no payload of this broker has, and that are skipped as a whole.
mod skipped {
    pub(super) const MODULE: u8 = 7;
    pub(super) const STREAM: u8 = 15;
    pub(super) const STREAM_2: u8 = 19;
    pub(super) const STREAM_3: u8 = 21;
    /// Hashes whose fields expire, from Redis 7.4 on.
    pub(super) const HASH_EXPIRING: u8 = 24;
    pub(super) const HASH_LISTPACK_EXPIRING: u8 = 25;
}

/// Parts of the values of modules.
mod part {
    pub(super) const END: u64 = 0;
    pub(super) const SIGNED: u64 = 1;
    pub(super) const UNSIGNED: u64 = 2;
    pub(super) const FLOAT: u64 = 3;
    pub(super) const DOUBLE: u64 = 4;
    pub(super) const STRING: u64 = 5;
}

/// Names at the beginning of a file. A version of four or three digits follows.
const NAMES: [(&[u8], usize); 2] = [(b"REDIS", 4), (b"VALKEY", 3)];
/// Version of the format from which on a checksum ends the file.
const CHECKSUM_SINCE: u32 = 5;
/// Maximum size in bytes of an entry that is read: that of a string in Redis.
const ENTRY_BYTES_MAX: usize = 512 << 20;
/// Number of bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
const STREAM_ID_BYTES: usize = 16;
const TIME_BYTES: usize = 8;

/// Entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub database: u64,
    pub key: Vec<u8>,
    /// Time when it expires, in ms since 1970.
    pub expires_ms: Option<u64>,
    /// Payload with its version and checksum, as `RESTORE` takes it.
    pub payload: Vec<u8>,
}

/// Entries of a database file.
#[derive(Debug)]
pub struct FileEntries<R> {
    input: R,
    version: u32,
    checksum: u64,
    database: u64,
    /// Number of bytes read so far.
    bytes: u64,
    /// Bytes of the entry that is read.
    taken: Vec<u8>,
    /// Code of the libraries of functions that were read, which are not entries.
    libraries: Vec<Vec<u8>>,
    is_over: bool,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

impl<R: Read> FileEntries<R> {
    /// Reads the beginning of a file. The input should be buffered.
    pub fn open(input: R) -> io::Result<Self> {
        let mut file = Self {
            input,
            version: 0,
            checksum: 0,
            database: 0,
            bytes: 0,
            taken: Vec::new(),
            libraries: Vec::new(),
            is_over: false,
        };
        let no_file = || invalid("the file does not begin as a database file of Redis does");
        let head = file.bytes_of(9).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => no_file(),
            _ => error,
        })?;
        let version = NAMES.iter().find_map(|(name, digits)| head.strip_prefix(*name)?.get(..*digits));
        let version = version.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        file.version = version.ok_or_else(no_file)?;
        file.taken.clear();
        Ok(file)
    }

    /// Returns the number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the code of each library of functions that was read so far, as `FUNCTION LOAD` takes it.
    pub fn libraries(&self) -> &[Vec<u8>] {
        &self.libraries
    }

    /// Returns the next entry; `None` at the end of the file, whose checksum is then checked.
    fn read(&mut self) -> io::Result<Option<FileEntry>> {
        let mut expires_ms = None;
        loop {
            self.taken.clear();
            match self.byte()? {
                mark::END => {
                    self.check_end()?;
                    return Ok(None);
                }
                mark::DATABASE => self.database = self.length()?,
                mark::EXPIRES_MS => expires_ms = Some(u64::from_le_bytes(self.array()?)),
                mark::EXPIRES_S => expires_ms = Some(1000 * u64::from(u32::from_le_bytes(self.array()?))),
                mark::IDLE => drop(self.length()?),
                mark::FREQUENCY => drop(self.byte()?),
                mark::SIZES => self.lengths(2)?,
                mark::SLOT_INFO => self.lengths(3)?,
                mark::ABOUT => self.strings(2)?,
                mark::FUNCTION => {
                    let library = self.text()?;
                    self.libraries.push(library);
                }
                mark::MODULE_DATA => self.module()?,
                kind => return self.entry(kind, expires_ms).map(Some),
            }
        }
    }

    fn entry(&mut self, kind: u8, expires_ms: Option<u64>) -> io::Result<FileEntry> {
        let key = self.text()?;
        self.taken.clear();
        self.taken.push(kind);
        self.value(kind)?;
        let mut payload = std::mem::take(&mut self.taken);
        // The version tells nothing that the type does not: a newer Redis writes the same forms.
        append_footer(&mut payload, super::VERSION_MAX);
        Ok(FileEntry { database: self.database, key, expires_ms, payload })
    }

    /// Reads a value, whose form its type gives.
    fn value(&mut self, kind: u8) -> io::Result<()> {
        match kind {
            kind::STRING
            | kind::HASH_ZIPMAP
            | kind::LIST_ZIPLIST
            | kind::SET_INTSET
            | kind::SORTED_ZIPLIST
            | kind::HASH_ZIPLIST
            | kind::HASH_LISTPACK
            | kind::SORTED_LISTPACK
            | kind::SET_LISTPACK => self.strings(1),
            kind::LIST | kind::SET | kind::LIST_QUICKLIST => self.times(|file| file.strings(1)),
            kind::HASH => self.times(|file| file.strings(2)),
            kind::SORTED_TEXT => self.times(|file| {
                file.strings(1)?;
                let length = file.byte()?;
                // Longer ones stand for infinities and no number.
                if length < 253 { file.pass(usize::from(length)) } else { Ok(()) }
            }),
            kind::SORTED => self.times(|file| {
                file.strings(1)?;
                file.pass(size_of::<f64>())
            }),
            kind::LIST_QUICKLIST_2 => self.times(|file| {
                file.lengths(1)?;
                file.strings(1)
            }),
            skipped::HASH_EXPIRING => {
                self.pass(TIME_BYTES)?;
                self.times(|file| {
                    file.lengths(1)?;
                    file.strings(2)
                })
            }
            skipped::HASH_LISTPACK_EXPIRING => {
                self.pass(TIME_BYTES)?;
                self.strings(1)
            }
            skipped::STREAM | skipped::STREAM_2 | skipped::STREAM_3 => self.stream(kind),
            skipped::MODULE => self.module(),
            kind => Err(invalid(format!("the file has a value of the unknown type {kind}"))),
        }
    }

    /// Reads a stream: its nodes, its numbers, and its groups with their pending entries and consumers.
    fn stream(&mut self, kind: u8) -> io::Result<()> {
        self.times(|file| file.strings(2))?;
        // Entries and the last id; since the second form the first id, the largest deleted one, and all entries added.
        self.lengths(if kind == skipped::STREAM { 3 } else { 8 })?;
        self.times(|file| {
            file.strings(1)?;
            file.lengths(if kind == skipped::STREAM { 2 } else { 3 })?;
            file.times(|file| {
                file.pass(STREAM_ID_BYTES + TIME_BYTES)?;
                file.lengths(1)
            })?;
            file.times(|file| {
                file.strings(1)?;
                file.pass(if kind == skipped::STREAM_3 { 2 * TIME_BYTES } else { TIME_BYTES })?;
                file.times(|file| file.pass(STREAM_ID_BYTES))
            })
        })
    }

    /// Reads the number of a module, and parts up to their end.
    fn module(&mut self) -> io::Result<()> {
        self.lengths(1)?;
        loop {
            match self.length()? {
                part::END => return Ok(()),
                part::SIGNED | part::UNSIGNED => self.lengths(1)?,
                part::FLOAT => self.pass(size_of::<f32>())?,
                part::DOUBLE => self.pass(size_of::<f64>())?,
                part::STRING => self.strings(1)?,
                other => return Err(invalid(format!("a value of a module has the unknown part {other}"))),
            }
        }
    }

    fn times(&mut self, mut each: impl FnMut(&mut Self) -> io::Result<()>) -> io::Result<()> {
        (0..self.length()?).try_for_each(|_| each(self))
    }

    fn lengths(&mut self, count: usize) -> io::Result<()> {
        (0..count).try_for_each(|_| self.length().map(drop))
    }

    fn strings(&mut self, count: usize) -> io::Result<()> {
        (0..count).try_for_each(|_| self.string().map(drop))
    }

    fn length(&mut self) -> io::Result<u64> {
        let first = self.byte()?;
        self.length_after(first)
    }

    /// Reads the rest of a length.
    fn length_after(&mut self, first: u8) -> io::Result<u64> {
        let low = u64::from(first & 0x3f);
        Ok(match (first >> 6, first) {
            (0, _) => low,
            (1, _) => low << 8 | u64::from(self.byte()?),
            (_, 0x80) => u64::from(u32::from_be_bytes(self.array()?)),
            (_, 0x81) => u64::from_be_bytes(self.array()?),
            _ => return Err(invalid(format!("a length begins with the byte {first:#x}"))),
        })
    }

    /// Reads a string in any form. Returns where it begins among the taken bytes.
    fn string(&mut self) -> io::Result<usize> {
        let at = self.taken.len();
        let length = match self.byte()? {
            0xc0 => 1,
            0xc1 => 2,
            0xc2 => 4,
            0xc3 => {
                let compressed = self.length()?;
                self.lengths(1)?;
                compressed
            }
            first => self.length_after(first)?,
        };
        self.pass(usize::try_from(length).unwrap_or(usize::MAX))?;
        Ok(at)
    }

    /// Reads a string, and returns what it stands for.
    fn text(&mut self) -> io::Result<Vec<u8>> {
        self.taken.clear();
        let at = self.string()?;
        super::string(&self.taken[at..]).map_err(|bad| invalid(format!("a key or a library is not valid: {bad:?}")))
    }

    fn byte(&mut self) -> io::Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes_of(N)?);
        Ok(array)
    }

    fn pass(&mut self, count: usize) -> io::Result<()> {
        self.bytes_of(count).map(drop)
    }

    /// Reads bytes, which are kept until the next entry.
    fn bytes_of(&mut self, count: usize) -> io::Result<&[u8]> {
        let at = self.taken.len();
        if count > ENTRY_BYTES_MAX - at.min(ENTRY_BYTES_MAX) {
            return Err(invalid(format!("an entry has more than {ENTRY_BYTES_MAX} bytes")));
        }
        // Memory grows with the bytes that are there, not with the number that the file gives.
        let mut left = count;
        while left > 0 {
            let from = self.taken.len();
            let some = left.min(READ_BYTES);
            self.taken.resize(from + some, 0);
            self.input.read_exact(&mut self.taken[from..]).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => io::Error::new(ErrorKind::UnexpectedEof, "the file ends within an entry"),
                _ => error,
            })?;
            left -= some;
        }
        let taken = &self.taken[at..];
        self.checksum = add_to_checksum(self.checksum, taken);
        self.bytes += taken.len() as u64;
        Ok(taken)
    }

    fn check_end(&mut self) -> io::Result<()> {
        if self.version < CHECKSUM_SINCE {
            return Ok(());
        }
        let expected = self.checksum;
        match u64::from_le_bytes(self.array()?) {
            // Redis writes 0 if `rdbchecksum` is `no`.
            0 => Ok(()),
            found if found == expected => Ok(()),
            _ => Err(invalid("the checksum of the file is wrong")),
        }
    }
}

impl<R: Read> Iterator for FileEntries<R> {
    type Item = io::Result<FileEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.read().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Reason why this broker does not take the value of a payload, for a person.
pub fn refusal(payload: &[u8]) -> Option<String> {
    let kind = *payload.first()?;
    match super::value(payload).err()? {
        Bad::Type(_) => Some(match kind {
            skipped::MODULE => "it is a value of a module".to_owned(),
            skipped::STREAM | skipped::STREAM_2 | skipped::STREAM_3 => "it is a stream".to_owned(),
            skipped::HASH_EXPIRING | skipped::HASH_LISTPACK_EXPIRING => "it is a hash whose fields expire".to_owned(),
            kind => format!("it has the unknown type {kind}"),
        }),
        Bad::TooLarge => Some("it is too large".to_owned()),
        Bad::Footer | Bad::Format => Some("it is damaged".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Database 3 of redis-server 7.0.15 after: SET text hello; SET number 70000 PXAT 4102444800000; RPUSH list a b 3;
    /// SADD set x; HSET hash f v; ZADD sorted 1.5 m; and in database 0: SET zero "".
    fn file() -> Vec<u8> {
        let mut file = b"REDIS0010\xfa\x09redis-ver\x067.0.15\xfa\x04used\xc2\x00\x00\x10\x00".to_vec();
        file.extend(b"\xf5\x03lib\xfe\x00\xfb\x01\x00\x00\x04zero\x00");
        file.extend(b"\xfe\x03\xfb\x06\x01\x00\x04text\x05hello");
        file.extend([0xfc]);
        file.extend(4_102_444_800_000_u64.to_le_bytes());
        file.extend(b"\xf8\x05\x00\x06number\xc2\x70\x11\x01\x00");
        file.extend(b"\x01\x04list\x03\x01a\x01b\xc0\x03\x02\x03set\x01\x01x\x04\x04hash\x01\x01f\x01v");
        file.extend(b"\x05\x06sorted\x01\x01m");
        file.extend(1.5_f64.to_le_bytes());
        file
    }

    fn ended(mut file: Vec<u8>) -> Vec<u8> {
        file.push(mark::END);
        let checksum = add_to_checksum(0, &file);
        file.extend(checksum.to_le_bytes());
        file
    }

    fn all(file: &[u8]) -> io::Result<Vec<FileEntry>> {
        FileEntries::open(file)?.collect()
    }

    #[test]
    fn entries_are_read_with_their_database_and_expiry() {
        let file = ended(file());
        let mut entries = FileEntries::open(&file[..]).expect("a file");
        let read: Vec<FileEntry> = entries.by_ref().collect::<io::Result<_>>().expect("entries");
        assert_eq!((entries.bytes(), entries.libraries()), (file.len() as u64, &[b"lib".to_vec()][..]));
        let keys: Vec<(u64, &[u8], Option<u64>)> =
            read.iter().map(|entry| (entry.database, &entry.key[..], entry.expires_ms)).collect();
        assert_eq!(
            keys,
            [
                (0, &b"zero"[..], None),
                (3, b"text", None),
                (3, b"number", Some(4_102_444_800_000)),
                (3, b"list", None),
                (3, b"set", None),
                (3, b"hash", None),
                (3, b"sorted", None),
            ]
        );
        for entry in &read {
            assert_eq!(refusal(&entry.payload), None, "{}", entry.key.escape_ascii());
        }
    }

    #[test]
    fn files_that_are_cut_or_changed_are_refused() {
        let file = ended(file());
        for end in 0..file.len() {
            assert!(all(&file[..end]).is_err(), "cut at {end}");
        }
        let mut damaged = file.clone();
        // The name of the last member: a length would make the rest something else.
        let at = file.len() - 18;
        damaged[at] ^= 1;
        assert_eq!(all(&damaged).expect_err("damaged").to_string(), "the checksum of the file is wrong");
        let error = all(b"*3\r\n$3\r\nSET\r\n").expect_err("commands");
        assert_eq!(error.to_string(), "the file does not begin as a database file of Redis does");
        // A length is no reason to take memory.
        let error = all(b"REDIS0010\x00\x81\x00\x00\x00\x00\x10\x00\x00\x00ab").expect_err("cut");
        assert_eq!(error.to_string(), "the file ends within an entry");
        let error = all(b"REDIS0010\x00\x81\x00\x00\x00\x01\x00\x00\x00\x00ab").expect_err("too large");
        assert_eq!(error.to_string(), "an entry has more than 536870912 bytes");
        let error = all(b"REDIS0010\x63\x01k").expect_err("a type");
        assert_eq!(error.to_string(), "the file has a value of the unknown type 99");
    }

    /// Files of redis-server whose values are of no type that is taken are read to their end.
    #[test]
    fn values_that_are_not_taken_are_named() {
        let mut file = b"REDIS0011".to_vec();
        // A stream with a node, and a group with a pending entry of a consumer, as of Redis 7.2.
        file.extend(b"\x15\x06stream\x01\x10");
        file.extend([0; STREAM_ID_BYTES]);
        file.extend(b"\x02lp\x01\x05\x00\x05\x00\x00\x00\x01\x01\x01g\x05\x00\x01\x01");
        file.extend([0; STREAM_ID_BYTES + TIME_BYTES]);
        file.extend(b"\x01\x01\x01c");
        file.extend([0; 2 * TIME_BYTES]);
        file.push(1);
        file.extend([0; STREAM_ID_BYTES]);
        // A hash of Redis 7.4 with a field that expires.
        file.extend(b"\x18\x04hash");
        file.extend([0; TIME_BYTES]);
        file.extend(b"\x01\x05\x01f\x01v");
        // A value of a module with each part.
        file.extend(b"\x07\x06module\x81\x00\x00\x00\x00\x00\x00\x00\x09\x01\x05\x02\x05\x03\x00\x00\x80\x3f\x04");
        file.extend(1.0_f64.to_le_bytes());
        file.extend(b"\x05\x02ab\x00\x00\x04last\x01v");
        let read = all(&ended(file)).expect("entries");
        let refused: Vec<(String, Option<String>)> =
            read.iter().map(|entry| (entry.key.escape_ascii().to_string(), refusal(&entry.payload))).collect();
        let because = |key: &str, why: Option<&str>| (key.to_owned(), why.map(str::to_owned));
        assert_eq!(
            refused,
            [
                because("stream", Some("it is a stream")),
                because("hash", Some("it is a hash whose fields expire")),
                because("module", Some("it is a value of a module")),
                because("last", None),
            ]
        );
    }
}
