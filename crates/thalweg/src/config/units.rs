//! Parsing and formatting of sizes and times: `64MiB`, `1h`.

use std::time::Duration;

/// Units of time with their lengths in microseconds, largest first.
const TIMES: [(&str, u64); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)];
/// Units of size with their powers of two, largest first.
const SIZES: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Unit of a time that is written without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
}

impl TimeUnit {
    fn micros(self) -> u64 {
        match self {
            Self::Micros => 1,
            Self::Millis => 1000,
            Self::Seconds => 1_000_000,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Micros => "microseconds",
            Self::Millis => "milliseconds",
            Self::Seconds => "seconds",
        }
    }
}

/// Splits a text into its number and its unit. Returns `None` if it does not begin with a number that fits.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    Some((text[..digits].replace('_', "").parse().ok()?, text[digits..].trim()))
}

/// Parses a number of bytes: `4096`, `64KiB`, `16 MiB`, `1GiB`; `k`, `m` and `g` mean the same.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a number of bytes: write 4096, 64KiB, 16MiB or 1GiB");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(wrong()),
    };
    number.checked_shl(shift).filter(|n| n >> shift == number).ok_or_else(|| format!("'{text}' is too many bytes"))
}

/// Parses a time into a number of `unit`: `90s`, `1h`, `500ms`, or a plain number of `unit`.
///
/// A time that is not a whole number of `unit` is refused.
pub fn parse_time(text: &str, unit: TimeUnit) -> Result<u64, String> {
    let wrong = || {
        let unit = unit.name();
        format!("'{text}' is not a time: write 500ms, 90s, 5m, 2h or 7d, or a number of {unit}")
    };
    let (number, name) = split(text).ok_or_else(wrong)?;
    if name.is_empty() {
        return Ok(number);
    }
    let (_, micros) = TIMES.into_iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
    let micros = u128::from(number) * u128::from(micros);
    if micros % u128::from(unit.micros()) != 0 {
        return Err(format!("'{text}' is not a whole number of {}", unit.name()));
    }
    u64::try_from(micros / u128::from(unit.micros())).map_err(|e| format!("'{text}' is too long: {e}"))
}

/// Parses a time that names its unit: `500ms`, `90s`, `5m`, `2h` or `7d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (_, unit) = split(text)?;
    let micros = parse_time(text, TimeUnit::Micros).ok()?;
    (!unit.is_empty()).then(|| Duration::from_micros(micros))
}

/// Formats a number of bytes in the largest unit that keeps it whole: `64MiB`.
pub fn show_bytes(bytes: u64) -> String {
    let fits = |shift: &u32| bytes != 0 && bytes.trailing_zeros() >= *shift;
    match SIZES.into_iter().find(|(_, shift)| fits(shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Formats a time in the largest unit that keeps it whole: `1h`. Zero and times that overflow are plain numbers.
pub fn show_time(number: u64, unit: TimeUnit) -> String {
    let Some(micros) = number.checked_mul(unit.micros()).filter(|micros| *micros != 0) else {
        return number.to_string();
    };
    match TIMES.into_iter().find(|(_, of)| micros.is_multiple_of(*of)) {
        Some((name, of)) => format!("{}{name}", micros / of),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("1 GiB", 1 << 30), ("2m", 2 << 20)] {
            assert_eq!(parse_bytes(text), Ok(expected));
        }
        for wrong in ["99999999999999TiB", "-1", "1 XiB", "", "many", "99999999999999999999"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units_and_plain_numbers_are_in_the_unit_of_their_key() {
        let millis = |text| parse_time(text, TimeUnit::Millis);
        for (text, expected) in [("250", 250), ("500ms", 500), ("90s", 90_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            assert_eq!(millis(text), Ok(expected), "{text}");
        }
        assert_eq!(parse_time("2ms", TimeUnit::Micros), Ok(2000));
        assert_eq!(parse_time("1m", TimeUnit::Seconds), Ok(60));
        assert_eq!(millis("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(millis("250us"), Err("'250us' is not a whole number of milliseconds".into()));
        for wrong in ["", "h", "1y", "-1s", "1.5h", "99999999999999999999", "18446744073709551615d"] {
            assert!(millis(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("90"), None, "a unit is named");
    }

    #[test]
    fn printed_values_parse_to_the_same_value() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (65_536, "64KiB"), (3 << 29, "1536MiB"), (1 << 40, "1TiB")] {
            assert_eq!((show_bytes(bytes).as_str(), parse_bytes(text)), (text, Ok(bytes)));
        }
        for (ms, text) in
            [(0, "0"), (1, "1ms"), (90_000, "90s"), (86_400_000, "1d"), (u64::MAX, "18446744073709551615")]
        {
            assert_eq!((show_time(ms, TimeUnit::Millis).as_str(), parse_time(text, TimeUnit::Millis)), (text, Ok(ms)));
        }
        assert_eq!(show_time(250, TimeUnit::Micros), "250us");
    }
}
