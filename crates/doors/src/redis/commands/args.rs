//! Parsing of arguments as numbers, times and patterns.

use engine::glob::Matcher;

use crate::redis::errors::{Done, Fail, NOT_FLOAT, NOT_INTEGER, SYNTAX};

pub(in crate::redis) fn parse_int(arg: &[u8]) -> Done<i64> {
    engine::cache::parse_number(arg).ok_or(NOT_INTEGER)
}

/// Parses a number of 32 bits.
pub(in crate::redis) fn parse_small(arg: &[u8]) -> Done<i64> {
    let number = parse_int(arg)?;
    match i32::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(Fail::new("ERR value is out of range, value must between -2147483648 and 2147483647")),
    }
}

pub(in crate::redis) fn parse_usize(arg: &[u8]) -> Option<usize> {
    usize::try_from(engine::cache::parse_number(arg)?).ok()
}

/// Parses a number that is not below `min`; otherwise returns the error `wrong`.
pub(in crate::redis) fn parse_from(arg: &[u8], min: i64, wrong: &'static str) -> Done<i64> {
    let number = engine::cache::parse_number(arg).ok_or_else(|| Fail::new(wrong))?;
    if number < min { Err(Fail::new(wrong)) } else { Ok(number) }
}

/// Parses a number as C does, also in hexadecimal digits, or an infinity. Returns `None` if the text is not a number,
/// or a number that is too large or too small for a double.
pub(in crate::redis) fn parse_float(arg: &[u8]) -> Option<f64> {
    nearest_float(arg).filter(|number| !is_out_of_range(*number, arg))
}

/// Returns `true` if C would report `ERANGE`: the number is infinite or zero, but the text has digits that say
/// otherwise.
fn is_out_of_range(number: f64, arg: &[u8]) -> bool {
    if number.is_finite() && number != 0.0 {
        return false;
    }
    let arg = arg.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_hex = arg.iter().any(|byte| matches!(byte, b'x' | b'X'));
    let mut digits = arg.iter().take_while(|byte| match byte {
        b'p' | b'P' => false,
        b'e' | b'E' => is_hex,
        _ => true,
    });
    match number {
        0.0 => digits.any(|byte| matches!(byte, b'1'..=b'9') || is_hex && byte.is_ascii_hexdigit() && *byte != b'0'),
        _ => digits.any(u8::is_ascii_digit),
    }
}

/// Parses a number as C does, and returns the nearest double if the number is too large or too small.
pub(in crate::redis) fn nearest_float(arg: &[u8]) -> Option<f64> {
    if arg.is_empty() || arg[0].is_ascii_whitespace() {
        return None;
    }
    let text = std::str::from_utf8(arg).ok()?;
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = match unsigned.get(..2) {
        Some("0x" | "0X") => {
            let whole = parse_hex(&unsigned[2..])?;
            if text.starts_with('-') { -whole } else { whole }
        }
        _ => text.parse().ok()?,
    };
    (!f64::is_nan(number)).then_some(number)
}

/// Parses `1f.8p3`, without the leading `0x`.
fn parse_hex(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = exponent.strip_prefix(['+', '-']).unwrap_or(exponent).bytes().all(|byte| byte.is_ascii_digit());
    let far = if exponent.starts_with('-') { i32::MIN } else { i32::MAX };
    let exponent: i32 = exponent.parse().ok().or((is_number && exponent.len() > 1).then_some(far))?;
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = whole.chars().chain(fraction.chars());
    let sum =
        digits.map(|digit| digit.to_digit(16)).try_fold(0.0, |sum, digit| Some(sum * 16.0 + f64::from(digit?)))?;
    Some(sum * 2f64.powi(exponent.saturating_sub(4 * fraction.len() as i32)))
}

/// Parses a number as C does without checking for one: an empty text is 0, and the text ends at a zero byte.
pub(in crate::redis) fn loose_float(arg: &[u8]) -> Option<f64> {
    match arg.split(|byte| *byte == 0).next().unwrap_or_default() {
        [] => Some(0.0),
        // Without a digit the parser stops at the beginning, so whitespace alone is invalid.
        text => nearest_float(text.trim_ascii_start()),
    }
}

/// Parses the weight of an item that is sorted. A number out of range is invalid, even if it is nearly 0.
pub(in crate::redis) fn weight(arg: &[u8]) -> Option<f64> {
    loose_float(arg).filter(|number| !number.is_subnormal() && !is_out_of_range(*number, arg))
}

pub(in crate::redis) fn float(arg: &[u8]) -> Done<f64> {
    parse_float(arg).ok_or(NOT_FLOAT)
}

pub(in crate::redis) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Parses a number of seconds. Returns milliseconds; `None` means forever.
pub(in crate::redis) fn timeout_ms(arg: &[u8]) -> Done<Option<u64>> {
    let seconds = nearest_float(arg).ok_or(Fail::new("ERR timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Fail::new("ERR timeout is negative"));
    }
    let ms = (seconds * 1000.0).ceil();
    // Redis first converts a value that is too large for its clock, and gets a number below 0.
    if ms >= i64::MAX as f64 {
        return Err(Fail::new("ERR timeout is negative"));
    }
    // A number that is too small for a double is above 0 for Redis, which uses 80-bit numbers.
    let is_tiny = ms == 0.0 && is_out_of_range(seconds, arg) && !arg.starts_with(b"-");
    Ok((ms > 0.0 || is_tiny).then_some(ms.max(1.0) as u64))
}

/// Returns the argument that follows an option, and advances `at`.
pub(in crate::redis) fn after<'a>(args: &[&'a [u8]], at: &mut usize) -> Done<&'a [u8]> {
    *at += 1;
    args.get(*at).copied().ok_or(SYNTAX)
}

/// Checks the length of a pattern. It is limited because a pattern is compared with many names.
pub(in crate::redis) fn pattern(arg: &[u8]) -> Done<&[u8]> {
    const PATTERN_BYTES_MAX: usize = 1024;
    if arg.len() > PATTERN_BYTES_MAX {
        Err(Fail::new(format!("ERR a pattern has at most {PATTERN_BYTES_MAX} bytes")))
    } else {
        Ok(arg)
    }
}

/// Compiles a pattern of a limited length.
pub(in crate::redis) fn matcher(arg: &[u8]) -> Done<Matcher> {
    pattern(arg).map(Matcher::new)
}

/// Selection of keys or of parts of a key by a pattern: a single star also selects an empty text.
pub(in crate::redis) enum Selection {
    All,
    Matching(Matcher),
}

impl Selection {
    pub(in crate::redis) fn new(arg: &[u8]) -> Done<Self> {
        if arg == b"*" { Ok(Self::All) } else { matcher(arg).map(Self::Matching) }
    }

    pub(in crate::redis) fn has(&mut self, text: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Matching(matcher) => matcher.matches(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of redis-server 7.0 to `BLPOP`.
    #[test]
    fn timeouts_are_rounded_up_and_refused_as_in_redis() {
        assert_eq!(timeout_ms(b"0"), Ok(None));
        assert_eq!(timeout_ms(b"0.0001"), Ok(Some(1)));
        assert_eq!(timeout_ms(b"1e-400"), Ok(Some(1)));
        assert_eq!(timeout_ms(b"1.5"), Ok(Some(1500)));
        for text in ["-1", "1e400", "1e17"] {
            assert_eq!(timeout_ms(text.as_bytes()), Err(Fail::new("ERR timeout is negative")), "{text}");
        }
        assert!(timeout_ms(b"9223372036854774").is_ok());
    }

    #[test]
    fn numbers_are_parsed_as_c_does() {
        for (text, number) in [("1e3", 1000.0), ("-0x10", -16.0), ("0x1.8p1", 3.0), ("+5", 5.0), (".5", 0.5)] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
        }
        assert_eq!(parse_float(b"-inf"), Some(f64::NEG_INFINITY));
        for text in ["", " 1", "1 ", "nan", "x", "0x", "1e", "--1"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
        // In redis-server 7.0 a number out of range is invalid if C reports it, and the nearest number otherwise.
        let long = format!("{}1.5", "0".repeat(300));
        assert_eq!(parse_float(long.as_bytes()), Some(1.5));
        for (text, nearest) in [("1e400", f64::INFINITY), ("-1e400", f64::NEG_INFINITY), ("1e-400", 0.0)] {
            assert_eq!((parse_float(text.as_bytes()), nearest_float(text.as_bytes())), (None, Some(nearest)), "{text}");
        }
        for text in ["0x1p5000", "0x1p-5000", "0x1p99999999999", "0xap-9999"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
        for text in ["0", "-0.0", "0e400", "0x0p9", "5e-324"] {
            assert!(parse_float(text.as_bytes()).is_some(), "{text}");
        }
        assert_eq!(parse_float(b"infinity"), Some(f64::INFINITY));
    }

    /// Weights by which redis-server 7.0 sorts.
    #[test]
    fn a_weight_ends_at_a_zero_byte() {
        for (text, number) in [("", 0.0), (" 2", 2.0), ("2\0x", 2.0), ("\0", 0.0), ("\0 1", 0.0), ("0\x001", 0.0)] {
            assert_eq!(weight(text.as_bytes()), Some(number), "{text:?}");
        }
        for text in [" ", " \0", "x\0", "2 ", "1e-400\0"] {
            assert_eq!(weight(text.as_bytes()), None, "{text:?}");
        }
    }
}
