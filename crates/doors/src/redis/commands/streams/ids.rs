//! Parsing of entry ids.

use engine::streams::{EntryId, parse_part};

use crate::redis::errors::{Done, Fail};

const INVALID: &str = "ERR Invalid stream ID specified as stream command argument";

/// Parses `ms-seq`, or `ms` with an implied sequence number.
pub(super) fn parse(arg: &[u8], missing_seq: u64) -> Done<EntryId> {
    let id = match arg.iter().position(|byte| *byte == b'-') {
        Some(at) => part(&arg[..at]).zip(part(&arg[at + 1..])).map(|(ms, seq)| EntryId::new(ms, seq)),
        None => part(arg).map(|ms| EntryId::new(ms, missing_seq)),
    };
    id.ok_or(Fail::new(INVALID))
}

/// Parses a number as `strtoull` of C does, which Redis uses: leading spaces and a plus sign are allowed.
fn part(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let text = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    parse_part(text.strip_prefix(b"+").unwrap_or(text))
}

/// Parses an id, or `-` for the smallest and `+` for the largest id.
pub(super) fn parse_bound(arg: &[u8], missing_seq: u64) -> Done<EntryId> {
    match arg {
        b"-" => Ok(EntryId::ZERO),
        b"+" => Ok(EntryId::MAX),
        arg => parse(arg, missing_seq),
    }
}

/// Parses the start of a range: an id, or `(` and an id that is excluded.
pub(super) fn parse_start(arg: &[u8]) -> Done<EntryId> {
    match arg {
        [b'(', id @ ..] => parse(id, 0)?.next().ok_or(Fail::new("ERR invalid start ID for the interval")),
        id => parse_bound(id, 0),
    }
}

/// Parses the end of a range: an id, or `(` and an id that is excluded.
pub(super) fn parse_end(arg: &[u8]) -> Done<EntryId> {
    match arg {
        [b'(', id @ ..] => parse(id, u64::MAX)?.prev().ok_or(Fail::new("ERR invalid end ID for the interval")),
        id => parse_bound(id, u64::MAX),
    }
}

/// Parses ids, none of which may be `-` or `+`.
pub(super) fn parse_all(args: &[&[u8]]) -> Done<Vec<EntryId>> {
    args.iter().map(|arg| parse(arg, 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_or_have_a_number_that_is_understood() {
        assert_eq!(parse(b"5", 7), Ok(EntryId::new(5, 7)));
        assert_eq!(parse(b"5-1", 7), Ok(EntryId::new(5, 1)));
        assert_eq!((parse(b" +5", 7), parse(b"5- 1", 7)), (Ok(EntryId::new(5, 7)), Ok(EntryId::new(5, 1))));
        for bad in ["", "-", "+", "x", "5-", "-5", "5-x", "(5", "18446744073709551616", "$", ">"] {
            assert_eq!(parse(bad.as_bytes(), 0), Err(Fail::new(INVALID)), "{bad}");
        }
    }

    #[test]
    fn ranges_may_leave_out_their_ends() {
        assert_eq!((parse_start(b"-"), parse_end(b"+")), (Ok(EntryId::ZERO), Ok(EntryId::MAX)));
        assert_eq!((parse_start(b"5"), parse_end(b"5")), (Ok(EntryId::new(5, 0)), Ok(EntryId::new(5, u64::MAX))));
        assert_eq!((parse_start(b"(5"), parse_end(b"(5-0")), (Ok(EntryId::new(5, 1)), Ok(EntryId::new(4, u64::MAX))));
        assert_eq!(parse_start(b"(18446744073709551615-18446744073709551615").map_err(|fail| fail.text.len()), Err(37));
        assert!(parse_end(b"(0-0").is_err() && parse_start(b"(-").is_err() && parse_end(b"(+").is_err());
    }
}
