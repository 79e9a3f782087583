//! Parsing and formatting of times and start positions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::Start;
use thalweg::config::units::parse_duration;

use crate::output::{Failure, Result, USAGE};

/// Returns the time of day in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Parses `earliest`, `live` or `latest`, an offset, `@TIME` (UTC) or `@-5m`, given as the value of an option.
pub fn parse_start(option: &str, text: &str) -> Result<Start> {
    let wrong = |why: &str| {
        Failure::new(
            USAGE,
            format!("{option} {text}: {why}; write earliest, latest, an offset, @2026-11-21T08:00:00Z or @-5m"),
        )
    };
    match text {
        "live" | "latest" => return Ok(Start::Live),
        "earliest" => return Ok(Start::Earliest),
        _ => {}
    }
    let Some(time) = text.strip_prefix('@') else {
        return text.parse().ok().map(Start::Offset).ok_or_else(|| wrong("not an offset"));
    };
    if let Some(ago) = time.strip_prefix('-') {
        let seconds = parse_duration(ago).ok_or_else(|| wrong("not a duration"))?;
        return Ok(Start::Time(Duration::from_millis(now_ms()).saturating_sub(seconds).as_millis() as i64));
    }
    parse_time(time).map(Start::Time).ok_or_else(|| wrong("not a time"))
}

/// Parses `2026-11-21`, `2026-11-21T08:00:00` or `2026-11-21T08:00:00Z` into milliseconds since 1970.
fn parse_time(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
    let numbers =
        |text: &str, separator| text.split(separator).map(|n| n.parse::<i64>().ok()).collect::<Option<Vec<_>>>();
    let [year, month, day] = numbers(date, '-')?.try_into().ok()?;
    let [hour, minute, second] = numbers(time, ':')?.try_into().ok()?;
    let is_valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    is_valid.then(|| (days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second) * 1000)
}

/// Returns the days since 1970 of a date in the Gregorian calendar (Howard Hinnant's `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Formats a time as RFC 3339, UTC, to the millisecond.
pub fn format_time(timestamp_ms: i64) -> String {
    let days = timestamp_ms.div_euclid(86_400_000);
    let ms = timestamp_ms.rem_euclid(86_400_000);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let day = doy - (153 * mp + 2) / 5 + 1;
    let s = ms / 1000;
    let ms = ms % 1000;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_and_formatted() {
        for (text, ms) in [
            ("1970-01-01", 0),
            ("2000-02-29T12:30:01Z", 951_827_401_000),
            ("2026-11-21T08:00:00", 1_795_248_000_000),
            ("1969-12-31T23:59:59Z", -1000),
        ] {
            assert_eq!(parse_time(text), Some(ms), "{text}");
            assert_eq!(parse_time(&format_time(ms).replace(".000", "")), Some(ms));
        }
        for bad in ["", "2026", "2026-13-01", "2026-01-01T25:00:00", "x-y-z"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
    }

    #[test]
    fn starts_are_parsed_as_documented() {
        for end in ["live", "latest"] {
            assert_eq!(parse_start("--from", end).expect("valid"), Start::Live);
        }
        assert_eq!(parse_start("--from", "17").expect("valid"), Start::Offset(17));
        assert!(matches!(parse_start("--from", "@-5m"), Ok(Start::Time(_))));
        for bad in ["soon", "-1", "@", "@-", "@-5", "@-5y"] {
            assert!(parse_start("--from", bad).is_err(), "{bad}");
        }
    }
}
