//! Arguments as numbers, times and patterns.

use crate::redis::errors::{Done, Fail, NOT_FLOAT, NOT_INTEGER, SYNTAX};

/// Longer than any number that says something.
const NUMBER_BYTES_MAX: usize = 256;

pub(in crate::redis) fn parse_int(arg: &[u8]) -> Done<i64> {
    engine::cache::parse_number(arg).ok_or(NOT_INTEGER)
}

/// A number of 32 bits.
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

/// A number that is not below this, or an error that says so.
pub(in crate::redis) fn parse_from(arg: &[u8], min: i64, wrong: &'static str) -> Done<i64> {
    let number = engine::cache::parse_number(arg).ok_or_else(|| Fail::new(wrong))?;
    if number < min { Err(Fail::new(wrong)) } else { Ok(number) }
}

/// A number as C reads it, in hexadecimal digits too, or an infinity; not what is none.
pub(in crate::redis) fn parse_float(arg: &[u8]) -> Option<f64> {
    if arg.is_empty() || arg.len() > NUMBER_BYTES_MAX || arg[0].is_ascii_whitespace() {
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

/// `1f.8p3`, after its `0x`.
fn parse_hex(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent: i32 = exponent.parse().ok()?;
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = whole.chars().chain(fraction.chars());
    let sum =
        digits.map(|digit| digit.to_digit(16)).try_fold(0.0, |sum, digit| Some(sum * 16.0 + f64::from(digit?)))?;
    Some(sum * 2f64.powi(exponent.saturating_sub(4 * fraction.len() as i32)))
}

/// A number as C reads it where it does not ask for one: nothing is 0, and what follows a zero byte is not seen.
pub(in crate::redis) fn loose_float(arg: &[u8]) -> Option<f64> {
    let text = arg.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii_start();
    match text {
        // Without a digit it stops where it begins.
        [] if arg.iter().all(|byte| !byte.is_ascii_whitespace()) => Some(0.0),
        text => parse_float(text),
    }
}

pub(in crate::redis) fn float(arg: &[u8]) -> Done<f64> {
    parse_float(arg).ok_or(NOT_FLOAT)
}

pub(in crate::redis) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Seconds as a number, in ms; `None` is for ever.
pub(in crate::redis) fn timeout_ms(arg: &[u8]) -> Done<Option<u64>> {
    let seconds = parse_float(arg).ok_or(Fail::new("ERR timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Fail::new("ERR timeout is negative"));
    }
    let ms = (seconds * 1000.0).ceil();
    if ms > i64::MAX as f64 {
        return Err(Fail::new("ERR timeout is out of range"));
    }
    Ok((ms > 0.0).then_some(ms as u64))
}

/// What follows a word among options.
pub(in crate::redis) fn after<'a>(args: &[&'a [u8]], at: &mut usize) -> Done<&'a [u8]> {
    *at += 1;
    args.get(*at).copied().ok_or(SYNTAX)
}

/// A pattern, which is compared with much: it is short.
pub(in crate::redis) fn pattern(arg: &[u8]) -> Done<&[u8]> {
    const PATTERN_BYTES_MAX: usize = 1024;
    match arg.len() > PATTERN_BYTES_MAX {
        true => Err(Fail::new(format!("ERR a pattern has at most {PATTERN_BYTES_MAX} bytes"))),
        false => Ok(arg),
    }
}

/// Whether a text is of a pattern: `*`, `?`, `[a-c]`, `[^a]`, and `\` before what means itself.
pub(in crate::redis) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Redis does not look at the pattern where there is nothing to compare it with: not even a star matches that.
    if text.is_empty() {
        return pattern.is_empty();
    }
    // Where the last star was, and what it has taken so far: another one makes all before it final.
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if of < pattern.len() && pattern[of] == b'*' {
            star = Some((of + 1, at));
            of += 1;
            continue;
        }
        if at == text.len() {
            return of == pattern.len();
        }
        match match_one(&pattern[of..], text[at]) {
            Some(length) => (of, at) = (of + length, at + 1),
            None => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (of, at) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
}

/// The same, for what is selected among all there is: a star takes all.
pub(in crate::redis) fn selects(pattern: &[u8], text: &[u8]) -> bool {
    pattern == b"*" || matches(pattern, text)
}

/// How much of the pattern one byte matches.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte).map(|length| length + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// How long the class is, if the byte is in it. One without an end reaches to the end of the pattern.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let is_negated = class.first() == Some(&b'^');
    let (mut at, mut is_in) = (usize::from(is_negated), false);
    loop {
        match class.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [one, ..] => {
                is_in |= *one == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let yes = ["*", "h?llo", "h*o", "h[ae]llo", "h[^x]llo", "h[a-f]llo", "h[f-a]llo", "\\hello", "*l*", "hell[o"];
        for pattern in yes {
            assert!(matches(pattern.as_bytes(), b"hello"), "{pattern}");
        }
        for pattern in ["", "h", "hell", "hello?", "h[b-d]llo", "h[^e]llo", "H*", "*x*"] {
            assert!(!matches(pattern.as_bytes(), b"hello"), "{pattern}");
        }
        assert!(matches(b"\\*", b"*") && !matches(b"\\*", b"a") && matches(b"", b"") && !matches(b"*", b""));
        // Stars do not multiply.
        assert!(!matches("*a".repeat(40).as_bytes(), "a".repeat(39).as_bytes()));
    }

    #[test]
    fn numbers_are_what_c_takes_for_some() {
        for (text, number) in [("1e3", 1000.0), ("-0x10", -16.0), ("0x1.8p1", 3.0), ("+5", 5.0), (".5", 0.5)] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
        }
        assert_eq!(parse_float(b"-inf"), Some(f64::NEG_INFINITY));
        for text in ["", " 1", "1 ", "nan", "x", "0x", "1e", "--1"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
    }
}
