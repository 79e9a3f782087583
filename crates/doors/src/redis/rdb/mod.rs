//! Values in the format of Redis's database files (RDB), in which `DUMP` and `RESTORE` exchange them.
//!
//! A payload is a byte for the type, the value, two bytes for the version of the format, and a checksum of 8 bytes
//! (`rdb.h`, `rdb.c` and `createDumpPayload` in `cluster.c`). Every form of strings, lists, sets, hashes and sorted
//! sets up to Redis 8.0 is read, but no hash whose fields expire. The oldest form of each is written, so that Redis
//! since 4.0 reads it.

pub(super) mod libraries;
mod file;
mod lzf;
mod packed;

use std::borrow::Cow;

use engine::cache::structures::{End, Hash, List, Score, Set, Sorted, Structure};
use engine::cache::{Owned, VALUE_BYTES_MAX, Value};

pub use file::{FileEntries, FileEntry, refusal};

/// Version of the format that is written: that of Redis 4.0.
const VERSION_WRITTEN: u16 = 8;
/// Maximum version of the format that is read: that of Redis 7.4 and 8.0. New since 7.2 are only hashes whose fields
/// expire.
const VERSION_MAX: u16 = 12;
/// Size in bytes of the version and the checksum.
const FOOTER_BYTES: usize = 10;
/// Maximum size in bytes of a payload that is written. A larger one could not be an argument of `RESTORE`.
pub(super) const PAYLOAD_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Maximum size in bytes of a value that is read, decompressed, with [`PART_BYTES`] for each part.
const VALUE_ROOM_BYTES: usize = 64 << 20;
/// Memory that a part of a structure takes in addition to its bytes, about.
const PART_BYTES: usize = 64;

/// Types of values.
mod kind {
    pub(super) const STRING: u8 = 0;
    pub(super) const LIST: u8 = 1;
    pub(super) const SET: u8 = 2;
    /// Scores are texts.
    pub(super) const SORTED_TEXT: u8 = 3;
    pub(super) const HASH: u8 = 4;
    /// Scores are binary.
    pub(super) const SORTED: u8 = 5;
    pub(super) const HASH_ZIPMAP: u8 = 9;
    pub(super) const LIST_ZIPLIST: u8 = 10;
    pub(super) const SET_INTSET: u8 = 11;
    pub(super) const SORTED_ZIPLIST: u8 = 12;
    pub(super) const HASH_ZIPLIST: u8 = 13;
    /// A list of ziplists.
    pub(super) const LIST_QUICKLIST: u8 = 14;
    pub(super) const HASH_LISTPACK: u8 = 16;
    pub(super) const SORTED_LISTPACK: u8 = 17;
    /// A list of listpacks and single items.
    pub(super) const LIST_QUICKLIST_2: u8 = 18;
    pub(super) const SET_LISTPACK: u8 = 20;
}

/// Reason why a payload is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// The checksum is wrong, or the version is newer than any that is known.
    Footer,
    /// The value is not complete, or not consistent.
    Format,
    /// The value is a stream, of a module, or of a newer Redis.
    Type(u8),
    /// The value would take more than [`VALUE_ROOM_BYTES`].
    TooLarge,
}

type Read<T> = Result<T, Bad>;

/// Returns the payload of a value; `None` for a stream, which is a topic, and for a value that is too large.
pub(super) fn payload(value: Value<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match value {
        Value::Bytes(bytes) => {
            out.push(kind::STRING);
            write_string(&mut out, bytes);
        }
        Value::Structure(structure) if structure.bytes() > PAYLOAD_BYTES_MAX as u64 => return None,
        Value::Structure(Structure::List(list)) => {
            out.push(kind::LIST);
            write_length(&mut out, list.len());
            list.range(0..list.len()).for_each(|item| write_string(&mut out, item));
        }
        Value::Structure(Structure::Set(set)) => {
            out.push(kind::SET);
            write_length(&mut out, set.len());
            set.iter().for_each(|member| write_string(&mut out, member));
        }
        Value::Structure(Structure::Hash(hash)) => {
            out.push(kind::HASH);
            write_length(&mut out, hash.len());
            for (field, value) in hash.iter() {
                write_string(&mut out, field);
                write_string(&mut out, value);
            }
        }
        Value::Structure(Structure::Sorted(sorted)) => {
            out.push(kind::SORTED);
            write_length(&mut out, sorted.len());
            for (member, score) in sorted.range(0..sorted.len()) {
                write_string(&mut out, member);
                out.extend(score.get().to_le_bytes());
            }
        }
        Value::Structure(Structure::Stream(_)) => return None,
    }
    append_footer(&mut out, VERSION_WRITTEN);
    (out.len() <= PAYLOAD_BYTES_MAX + FOOTER_BYTES).then_some(out)
}

fn append_footer(out: &mut Vec<u8>, version: u16) {
    out.extend(version.to_le_bytes());
    out.extend(checksum(out).to_le_bytes());
}

/// Reads the value of a payload.
pub(super) fn value(payload: &[u8]) -> Read<Owned> {
    let (covered, checked) = payload.split_last_chunk::<8>().ok_or(Bad::Footer)?;
    let (value, version) = covered.split_last_chunk::<2>().ok_or(Bad::Footer)?;
    if u16::from_le_bytes(*version) > VERSION_MAX || u64::from_le_bytes(*checked) != checksum(covered) {
        return Err(Bad::Footer);
    }
    let (kind, rest) = value.split_first().ok_or(Bad::Format)?;
    let mut reader = Reader { rest, room: VALUE_ROOM_BYTES };
    let value = reader.value(*kind)?;
    if reader.rest.is_empty() { Ok(value) } else { Err(Bad::Format) }
}

/// Reads a string in any of its forms.
fn string(bytes: &[u8]) -> Read<Vec<u8>> {
    Reader { rest: bytes, room: VALUE_ROOM_BYTES }.string().map(Cow::into_owned)
}

/// Returns `true` if two payloads have equal values, in whatever form; `false` if one cannot be read.
pub fn has_equal_value(one: &[u8], other: &[u8]) -> bool {
    let (Ok(one), Ok(other)) = (value(one), value(other)) else { return false };
    as_value(&one).kind() == as_value(&other).kind() && parts(&one) == parts(&other)
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    match length {
        ..0x40 => out.push(length as u8),
        0x40..0x4000 => out.extend((0x4000 | length as u16).to_be_bytes()),
        _ => {
            out.push(0x80);
            out.extend((length as u32).to_be_bytes());
        }
    }
}

fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, bytes.len());
    out.extend(bytes);
}

/// Length of a string, or the form of one that is stored otherwise.
enum Length {
    Plain(u64),
    Int8,
    Int16,
    Int32,
    Lzf,
}

/// Structure that grows while it is read. A part that it already has is a mistake.
trait Grow: Default {
    fn grow(&mut self, part: &[u8]) -> bool;
    fn is_empty(&self) -> bool;
}

impl Grow for List {
    fn grow(&mut self, part: &[u8]) -> bool {
        self.push(End::Back, part);
        true
    }

    fn is_empty(&self) -> bool {
        List::is_empty(self)
    }
}

impl Grow for Set {
    fn grow(&mut self, part: &[u8]) -> bool {
        self.add(part)
    }

    fn is_empty(&self) -> bool {
        Set::is_empty(self)
    }
}

fn ensure(is_valid: bool) -> Read<()> {
    if is_valid { Ok(()) } else { Err(Bad::Format) }
}

fn structure(structure: Structure) -> Read<Owned> {
    ensure(!structure.is_empty())?;
    Ok(Owned::Structure(Box::new(structure)))
}

/// Bytes that are read from the front.
struct Reader<'a> {
    rest: &'a [u8],
    /// Number of bytes that the value may still take.
    room: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Bad::Format)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Bad::Format)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Read<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reserves memory for a part.
    fn reserve(&mut self, bytes: usize) -> Read<()> {
        let needed = bytes.saturating_add(PART_BYTES);
        self.room = self.room.checked_sub(needed).ok_or(Bad::TooLarge)?;
        Ok(())
    }

    fn length(&mut self) -> Read<Length> {
        let first = self.byte()?;
        let low = u64::from(first & 0x3f);
        Ok(match (first >> 6, first) {
            (0, _) => Length::Plain(low),
            (1, _) => Length::Plain(low << 8 | u64::from(self.byte()?)),
            (_, 0x80) => Length::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            (_, 0x81) => Length::Plain(u64::from_be_bytes(self.array()?)),
            (_, 0xc0) => Length::Int8,
            (_, 0xc1) => Length::Int16,
            (_, 0xc2) => Length::Int32,
            (_, 0xc3) => Length::Lzf,
            _ => return Err(Bad::Format),
        })
    }

    fn count(&mut self) -> Read<usize> {
        match self.length()? {
            Length::Plain(count) => usize::try_from(count).or(Err(Bad::Format)),
            Length::Int8 | Length::Int16 | Length::Int32 | Length::Lzf => Err(Bad::Format),
        }
    }

    fn string(&mut self) -> Read<Cow<'a, [u8]>> {
        let text = |number: i64| Cow::Owned(number.to_string().into_bytes());
        let string = match self.length()? {
            Length::Plain(length) => Cow::Borrowed(self.take(usize::try_from(length).or(Err(Bad::Format))?)?),
            Length::Int8 => text(i8::from_le_bytes(self.array()?).into()),
            Length::Int16 => text(i16::from_le_bytes(self.array()?).into()),
            Length::Int32 => text(i32::from_le_bytes(self.array()?).into()),
            Length::Lzf => {
                let (compressed, length) = (self.count()?, self.count()?);
                let compressed = self.take(compressed)?;
                if length > self.room {
                    return Err(Bad::TooLarge);
                }
                Cow::Owned(lzf::decompress(compressed, length).ok_or(Bad::Format)?)
            }
        };
        self.reserve(string.len())?;
        Ok(string)
    }

    /// Reads a string that is an item, a member, a field or a value of a structure.
    fn part(&mut self) -> Read<Cow<'a, [u8]>> {
        let part = self.string()?;
        check_part(&part)?;
        Ok(part)
    }

    fn value(&mut self, kind: u8) -> Read<Owned> {
        match kind {
            kind::STRING => Ok(Owned::Bytes(self.string()?.into_owned().into())),
            kind::LIST => structure(Structure::List(self.parts()?)),
            kind::SET => structure(Structure::Set(self.parts()?)),
            kind::HASH => self.hash(),
            kind::SORTED_TEXT => self.sorted(Self::text_score),
            kind::SORTED => self.sorted(|reader| Ok(f64::from_le_bytes(reader.array()?))),
            kind::LIST_ZIPLIST => self.packed_list(packed::ziplist),
            kind::SET_INTSET => self.packed_set(packed::intset),
            kind::SET_LISTPACK => self.packed_set(packed::listpack),
            kind::HASH_ZIPMAP => self.packed_hash(packed::zipmap),
            kind::HASH_ZIPLIST => self.packed_hash(packed::ziplist),
            kind::HASH_LISTPACK => self.packed_hash(packed::listpack),
            kind::SORTED_ZIPLIST => self.packed_sorted(packed::ziplist),
            kind::SORTED_LISTPACK => self.packed_sorted(packed::listpack),
            kind::LIST_QUICKLIST => self.quicklist(|_| Ok(packed::ziplist)),
            kind::LIST_QUICKLIST_2 => self.quicklist(|reader| match reader.count()? {
                1 => Ok(packed::one),
                2 => Ok(packed::listpack),
                _ => Err(Bad::Format),
            }),
            kind => Err(Bad::Type(kind)),
        }
    }

    fn parts<T: Grow>(&mut self) -> Read<T> {
        let mut parts = T::default();
        for _ in 0..self.count()? {
            let part = self.part()?;
            ensure(parts.grow(&part))?;
        }
        ensure(!parts.is_empty())?;
        Ok(parts)
    }

    fn hash(&mut self) -> Read<Owned> {
        let mut hash = Hash::default();
        for _ in 0..self.count()? {
            let (field, value) = (self.part()?, self.part()?);
            ensure(hash.set(&field, &value))?;
        }
        structure(Structure::Hash(hash))
    }

    fn sorted(&mut self, score: fn(&mut Self) -> Read<f64>) -> Read<Owned> {
        let mut sorted = Sorted::default();
        for _ in 0..self.count()? {
            let member = self.part()?;
            let score = Score::new(score(self)?).ok_or(Bad::Format)?;
            ensure(sorted.set(&member, score).is_none())?;
        }
        structure(Structure::Sorted(sorted))
    }

    fn text_score(&mut self) -> Read<f64> {
        match self.byte()? {
            253 => Err(Bad::Format),
            254 => Ok(f64::INFINITY),
            255 => Ok(f64::NEG_INFINITY),
            length => number(self.take(usize::from(length))?),
        }
    }

    /// Reads a string that holds several parts, and calls `each` with every part.
    fn unpack(&mut self, unpack: Unpack, mut each: impl FnMut(&mut Self, &[u8]) -> Read<()>) -> Read<()> {
        let bytes = self.string()?;
        unpack(&bytes, &mut |part| {
            check_part(part)?;
            self.reserve(part.len())?;
            each(self, part)
        })
    }

    fn packed_list(&mut self, unpack: Unpack) -> Read<Owned> {
        let mut list = List::default();
        self.unpack(unpack, |_, part| ensure(list.grow(part)))?;
        structure(Structure::List(list))
    }

    fn packed_set(&mut self, unpack: Unpack) -> Read<Owned> {
        let mut set = Set::default();
        self.unpack(unpack, |_, part| ensure(set.add(part)))?;
        structure(Structure::Set(set))
    }

    /// Reads parts that alternate, and calls `each` with every pair.
    fn unpack_pairs(&mut self, unpack: Unpack, mut each: impl FnMut(&[u8], &[u8]) -> Read<()>) -> Read<()> {
        let mut first: Option<Vec<u8>> = None;
        self.unpack(unpack, |_, part| match first.take() {
            Some(first) => each(&first, part),
            None => {
                first = Some(part.to_vec());
                Ok(())
            }
        })?;
        ensure(first.is_none())
    }

    fn packed_hash(&mut self, unpack: Unpack) -> Read<Owned> {
        let mut hash = Hash::default();
        self.unpack_pairs(unpack, |field, value| ensure(hash.set(field, value)))?;
        structure(Structure::Hash(hash))
    }

    fn packed_sorted(&mut self, unpack: Unpack) -> Read<Owned> {
        let mut sorted = Sorted::default();
        self.unpack_pairs(unpack, |member, score| {
            let score = Score::new(number(score)?).ok_or(Bad::Format)?;
            ensure(sorted.set(member, score).is_none())
        })?;
        structure(Structure::Sorted(sorted))
    }

    /// Reads a list in several pieces, each of the form that `form` returns.
    fn quicklist(&mut self, form: fn(&mut Self) -> Read<Unpack>) -> Read<Owned> {
        let mut list = List::default();
        for _ in 0..self.count()? {
            let unpack = form(self)?;
            self.unpack(unpack, |_, part| ensure(list.grow(part)))?;
        }
        structure(Structure::List(list))
    }
}

/// Refuses a part that no command could add.
fn check_part(part: &[u8]) -> Read<()> {
    if part.len() > VALUE_BYTES_MAX { Err(Bad::TooLarge) } else { Ok(()) }
}

/// Function that reads the parts in a string, and calls another one with each.
type Unpack = fn(&[u8], &mut dyn FnMut(&[u8]) -> Read<()>) -> Read<()>;

fn number(text: &[u8]) -> Read<f64> {
    super::commands::args::parse_float(text).ok_or(Bad::Format)
}

fn checksum(bytes: &[u8]) -> u64 {
    add_to_checksum(0, bytes)
}

/// Returns the checksum of bytes that follow those of another checksum: CRC-64 of Jones, as Redis computes it
/// (`crc64.c`).
fn add_to_checksum(before: u64, bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = {
        /// Polynomial 0xad93d23594c935a9 with its bits reversed.
        const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u64;
            let mut bit = 0;
            while bit < 8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(before, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

/// Reads a value without its footer, and checks that it survives being written and read. Returns `true` if it is valid;
/// panics if it changes. For fuzzing.
pub fn check_value(bytes: &[u8]) -> bool {
    let mut given = bytes.to_vec();
    append_footer(&mut given, VERSION_MAX);
    let Ok(read) = value(&given) else { return false };
    let Some(written) = payload(as_value(&read)) else { return true };
    let again = value(&written).expect("invariant: a payload that was written is valid");
    assert_eq!(parts(&again), parts(&read));
    true
}

fn as_value(value: &Owned) -> Value<'_> {
    match value {
        Owned::Bytes(bytes) => Value::Bytes(bytes),
        Owned::Structure(structure) => Value::Structure(structure),
    }
}

/// Returns the parts of a value, each with its value or score. Those of sets and hashes are sorted.
fn parts(value: &Owned) -> Vec<(&[u8], Vec<u8>)> {
    fn alone(part: &[u8]) -> (&[u8], Vec<u8>) {
        (part, Vec::new())
    }
    let structure = match value {
        Owned::Bytes(bytes) => return vec![alone(bytes)],
        Owned::Structure(structure) => structure,
    };
    let mut parts: Vec<(&[u8], Vec<u8>)> = match &**structure {
        Structure::List(list) => return list.range(0..list.len()).map(alone).collect(),
        Structure::Set(set) => set.iter().map(alone).collect(),
        Structure::Hash(hash) => hash.iter().map(|(field, value)| (field, value.to_vec())).collect(),
        Structure::Sorted(sorted) => {
            let bits = |score: Score| score.get().to_bits().to_be_bytes().to_vec();
            return sorted.range(0..sorted.len()).map(|(member, score)| (member, bits(score))).collect();
        }
        Structure::Stream(_) => Vec::new(),
    };
    parts.sort_unstable();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test value of `crc64.c`.
    #[test]
    fn checksums_are_those_of_redis() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    fn with_footer(value: &[u8]) -> Vec<u8> {
        let mut payload = value.to_vec();
        append_footer(&mut payload, VERSION_MAX);
        payload
    }

    /// Returns the parts of a value as text: fields before their values, members before their scores.
    fn shown(value: &Owned) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match value {
            Owned::Bytes(bytes) => vec![text(bytes)],
            Owned::Structure(structure) => match &**structure {
                Structure::List(list) => list.range(0..list.len()).map(text).collect(),
                Structure::Set(set) => set.iter().map(text).collect(),
                Structure::Hash(hash) => hash.iter().flat_map(|(field, value)| [text(field), text(value)]).collect(),
                Structure::Sorted(sorted) => sorted
                    .range(0..sorted.len())
                    .flat_map(|(member, score)| [text(member), score.get().to_string()])
                    .collect(),
                Structure::Stream(_) => Vec::new(),
            },
        }
    }

    fn read(value: &[u8]) -> Read<Vec<String>> {
        super::value(&with_footer(value)).map(|value| shown(&value))
    }

    #[test]
    fn values_survive_being_written_and_read() {
        let long = "x".repeat(500);
        let parts = ["a", "", "5", &long, "\u{e4}"];
        let (mut list, mut set, mut hash, mut sorted) =
            (List::default(), Set::default(), Hash::default(), Sorted::default());
        for (at, part) in parts.iter().enumerate() {
            list.push(End::Back, part.as_bytes());
            set.add(part.as_bytes());
            hash.set(part.as_bytes(), b"value");
            sorted.set(part.as_bytes(), Score::new(at as f64 - 1.5).expect("a number"));
        }
        (0..70).for_each(|number| list.push(End::Back, number.to_string().as_bytes()));
        let structures = [Structure::List(list), Structure::Set(set), Structure::Hash(hash), Structure::Sorted(sorted)];
        let values = structures.map(|structure| Owned::Structure(Box::new(structure)));
        for before in values.iter().chain(&[Owned::Bytes((*b"bytes\0").into())]) {
            let payload = payload(as_value(before)).expect("a payload");
            assert_eq!(shown(&value(&payload).expect("valid")), shown(before));
            for at in 0..payload.len() {
                let mut damaged = payload.clone();
                damaged[at] ^= 1;
                assert_eq!(value(&damaged).err(), Some(Bad::Footer), "byte {at}");
                assert!(value(&payload[..at]).is_err());
            }
        }
    }

    /// Replies of redis-server 7.0.15 to `DUMP`.
    #[test]
    fn payloads_of_redis_are_read() {
        let hash = b"\x10<<\x00\x00\x00\x0e\x00\x81a\x02\x01\x01\x81b\x02\xc7\xd0\x02\x81d\x02\xdf\xff\x02\x81e\x02\
            \xf2\x90\xee\xfe\x04\x81f\x02\xf4\x00\xf2\x05*\x01\x00\x00\x00\x09\x81g\x02\xf1\xd0\x8a\x03\x81i\x02\xf2\
            \x00\x12z\x04\xff\x0a\x00\xa1\x03J\x97\xedv6z";
        let list =
            b"\x12\x01\x02\x0f\x0f\x00\x00\x00\x03\x00\x81a\x02\x81b\x02\x03\x01\xff\x0a\x00\xdc\xa1\xe6}P\x05PH";
        let set = b"\x0b\x0e\x02\x00\x00\x00\x03\x00\x00\x00\xd0\x8a\x01\x00\x02\x00\x0a\x00^+\x90\xae\x13\xa2\x1b<";
        let sorted = b"\x11\x15\x15\x00\x00\x00\x04\x00\x81b\x02\xdf\xfe\x02\x81a\x02\x831.5\x04\xff\
            \x0a\x00l5\x9d\xf63\xd0\x8b]";
        let parts = |payload: &[u8]| value(payload).map(|value| shown(&value).join(" "));
        let fields = "a 1 b 2000 d -1 e -70000 f 5000000000 g -30000 i 8000000";
        assert_eq!(parts(hash), Ok(fields.to_owned()));
        assert_eq!(parts(list), Ok("a b 3".to_owned()));
        assert_eq!(parts(set), Ok("-30000 1 2".to_owned()));
        assert_eq!(parts(sorted), Ok("b -2 a 1.5".to_owned()));
    }

    #[test]
    fn values_that_are_too_large_are_not_written() {
        let mut list = List::default();
        list.push(End::Back, &vec![0; PAYLOAD_BYTES_MAX]);
        assert_eq!(payload(Value::Structure(&Structure::List(list))), None);
        assert!(payload(Value::Bytes(&vec![0; VALUE_BYTES_MAX - 10])).is_some());
    }

    #[test]
    fn each_form_of_a_string_is_read() {
        assert_eq!(read(b"\x00\x03abc"), Ok(vec!["abc".to_owned()]));
        assert_eq!(read(b"\x00\xc0\xff"), Ok(vec!["-1".to_owned()]));
        assert_eq!(read(b"\x00\xc1\x00\x80"), Ok(vec!["-32768".to_owned()]));
        assert_eq!(read(b"\x00\xc2\x01\x00\x01\x00"), Ok(vec!["65537".to_owned()]));
        assert_eq!(read(b"\x00\x80\x00\x00\x00\x02ab"), Ok(vec!["ab".to_owned()]));
        assert_eq!(read(b"\x00\x81\x00\x00\x00\x00\x00\x00\x00\x01a"), Ok(vec!["a".to_owned()]));
        // A letter, then 9 bytes copied from the one before.
        assert_eq!(read(b"\x00\xc3\x05\x0a\x00a\xe0\x00\x00"), Ok(vec!["a".repeat(10)]));
        assert_eq!(read(b"\x03\x01\x01m\xfe"), Ok(vec!["m".to_owned(), "inf".to_owned()]));
        assert_eq!(read(b"\x03\x01\x01m\x031.5"), Ok(vec!["m".to_owned(), "1.5".to_owned()]));
    }

    #[test]
    fn values_that_are_not_consistent_are_refused() {
        for value in [
            &b""[..],
            b"\x00",
            b"\x00\x05ab",
            b"\x00\x01ab",
            b"\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x00\xc3\x05\x0b\x00a\xe0\x00\x00",
            b"\x01\x00",
            b"\x02\x02\x01a\x01a",
            b"\x04\x01\x01a",
            b"\x05\x01\x01m\x00\x00\x00\x00\x00\x00\xf8\x7f",
            b"\x03\x01\x01m\xfd",
            b"\x12\x01\x03\x00",
        ] {
            assert_eq!(read(value), Err(Bad::Format), "{value:?}");
        }
        assert_eq!(read(b"\x0f\x00"), Err(Bad::Type(15)));
        assert_eq!(read(b"\x00\xc3\x04\x80\xff\xff\xff\xff\x00a\xe0\x00"), Err(Bad::TooLarge));
        // A list with one item that is longer than any value.
        let length = u32::try_from(VALUE_BYTES_MAX + 1).expect("small").to_be_bytes();
        let list = [&b"\x01\x01\x80"[..], &length, &vec![b'x'; VALUE_BYTES_MAX + 1]].concat();
        assert_eq!(read(&list), Err(Bad::TooLarge));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_value_or_refused(kind in 0..24_u8, bytes in proptest::collection::vec(0..=255_u8, 0..60)) {
            check_value(&[&[kind][..], &bytes].concat());
        }

        /// Bytes that are packed in a string of a valid length reach the readers of packed parts.
        #[test]
        fn any_packed_bytes_are_a_value_or_refused(
            kind in 9..21_u8, bytes in proptest::collection::vec(0..=255_u8, 0..60),
        ) {
            check_value(&[&[kind, bytes.len() as u8][..], &bytes].concat());
            check_value(&[&[kind, 1, 2, bytes.len() as u8][..], &bytes].concat());
        }
    }
}
