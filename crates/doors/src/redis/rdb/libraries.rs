//! Libraries of functions in the format of `FUNCTION DUMP`: each is the code of its operation and its text, as in
//! Redis's database files (`functionDumpCommand` in `src/functions.c`, `rdbSaveFunctions` in `src/rdb.c`).

use super::{Bad, Reader, VALUE_ROOM_BYTES, VERSION_MAX, checksum, write_string};
use crate::redis::errors::{Done, Fail, fixed};

/// `RDB_OPCODE_FUNCTION2`: a library follows.
const LIBRARY: u8 = 245;
/// `RDB_OPCODE_FUNCTION_PRE_GA`, of release candidates of Redis 7.0.
const LIBRARY_OLD: u8 = 246;
/// Version of the format that is written: that of Redis 7.0, the first with libraries.
const VERSION_WRITTEN: u16 = 10;

/// Returns the payload of libraries with these texts.
pub(in crate::redis) fn payload<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for text in texts {
        out.push(LIBRARY);
        write_string(&mut out, text);
    }
    out.extend(VERSION_WRITTEN.to_le_bytes());
    out.extend(checksum(&out).to_le_bytes());
    out
}

/// Returns the texts of the libraries of a payload.
pub(in crate::redis) fn texts(payload: &[u8]) -> Done<Vec<Vec<u8>>> {
    const FOOTER: Fail = fixed("ERR DUMP payload version or checksum are wrong");
    let (covered, checked) = payload.split_last_chunk::<8>().ok_or(FOOTER)?;
    let (libraries, version) = covered.split_last_chunk::<2>().ok_or(FOOTER)?;
    if u16::from_le_bytes(*version) > VERSION_MAX || u64::from_le_bytes(*checked) != checksum(covered) {
        return Err(FOOTER);
    }
    let mut reader = Reader { rest: libraries, room: VALUE_ROOM_BYTES };
    let mut texts = Vec::new();
    while let Some((kind, rest)) = reader.rest.split_first() {
        reader.rest = rest;
        match *kind {
            LIBRARY => {}
            LIBRARY_OLD => return Err(fixed("ERR Pre-GA function format not supported")),
            _ => return Err(fixed("ERR given type is not a function")),
        }
        texts.push(reader.string().map_err(fail)?.into_owned());
    }
    Ok(texts)
}

fn fail(bad: Bad) -> Fail {
    match bad {
        Bad::TooLarge => fixed("ERR the functions take too much memory: restore them in parts"),
        Bad::Footer | Bad::Format | Bad::Type(_) => fixed("ERR Failed loading library code"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_survive_being_written_and_read_and_damage_is_noticed() {
        let all = [b"#!lua name=a\n".to_vec(), vec![b'x'; 100_000], Vec::new()];
        let written = payload(all.iter().map(|text| &text[..]));
        assert_eq!(texts(&written), Ok(all.to_vec()));
        for at in (0..written.len()).step_by(997).chain(written.len() - 10..written.len()) {
            let mut damaged = written.clone();
            damaged[at] ^= 1;
            assert!(texts(&damaged).is_err(), "byte {at}");
            assert!(texts(&written[..at]).is_err(), "{at} bytes");
        }
        assert_eq!(texts(&payload([].into_iter())), Ok(Vec::new()));
    }

    fn footed(bytes: &[u8], version: u16) -> Vec<u8> {
        let mut payload = [bytes, &version.to_le_bytes()].concat();
        payload.extend(checksum(&payload).to_le_bytes());
        payload
    }

    /// The reply of redis-server 7.0.15 to `FUNCTION DUMP`, whose text is compressed.
    #[test]
    fn payloads_of_redis_are_read() {
        let dumped =
            b"\xf5\xc3@R@Z\x1f#!lua name=lib\x0aredis.register_fu\x08nction('a\xa0\x00\x02', \xe0\x00\x14\x13keys, \
            args) return #@\x13\x05 end)\x0a\x0a\x00\x94\x19)k\x92\xca\x05\xf8";
        let text = "#!lua name=lib\nredis.register_function('aaaaaaaa', function(keys, args) return #keys end)\n";
        assert_eq!(texts(dumped), Ok(vec![text.as_bytes().to_vec()]));
    }

    #[test]
    fn other_payloads_are_refused_in_the_words_of_redis() {
        let error = |payload: &[u8]| {
            let fail = texts(payload).err().map(|fail| fail.text.into_owned()).unwrap_or_default();
            String::from_utf8(fail).expect("text")
        };
        assert_eq!(error(b"x"), "ERR DUMP payload version or checksum are wrong");
        assert_eq!(error(&footed(b"", VERSION_MAX + 1)), "ERR DUMP payload version or checksum are wrong");
        assert_eq!(error(&footed(b"\x00\x01a", 10)), "ERR given type is not a function");
        assert_eq!(error(&footed(b"\xf6\x01a", 10)), "ERR Pre-GA function format not supported");
        assert_eq!(error(&footed(b"\xf5\x05a", 10)), "ERR Failed loading library code");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_libraries_or_refused(bytes in proptest::collection::vec(0..=255_u8, 0..60)) {
            let _ = texts(&footed(&[&[LIBRARY][..], &bytes].concat(), VERSION_WRITTEN));
        }
    }
}
