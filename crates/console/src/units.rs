//! Figures and times for pages and reports.

const TIMES: [(&str, u64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];

/// Formats three significant digits, without trailing zeros.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats microseconds in the appropriate unit.
pub fn latency(us: f64) -> String {
    match us {
        n if n >= 1e6 => format!("{} s", short(n / 1e6)),
        n if n >= 1e3 => format!("{} ms", short(n / 1e3)),
        n => format!("{} µs", short(n)),
    }
}

/// Formats a quantile in percent, with up to four decimals.
pub fn percent(quantile: f64) -> String {
    let text = format!("{:.4}", quantile * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a count with separated thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a duration with its two largest units: `3d 4h`, `12m 5s`.
pub fn elapsed(ms: u64) -> String {
    let mut left = ms;
    let parts = TIMES.into_iter().filter_map(|(unit, one)| {
        let n = left / one;
        left %= one;
        (n > 0).then(|| format!("{n}{unit}"))
    });
    let shown: Vec<String> = parts.take(2).collect();
    if shown.is_empty() { "0s".to_owned() } else { shown.join(" ") }
}

/// Formats milliseconds since 1970 as date and time, UTC.
pub fn format_time(ms: u64) -> String {
    let days = (ms / 86_400_000) as i64;
    let seconds = ms / 1000 % 86_400;
    // Howard Hinnant's `civil_from_days`.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.5, 1.25, 12.34, 100.0, 1234.5].map(short), ["0", "0.5", "1.25", "12.3", "100", "1234"]);
        assert_eq!([0.5, 80.0, 1260.0, 2_500_000.0].map(latency), ["0.5 µs", "80 µs", "1.26 ms", "2.5 s"]);
        assert_eq!([0.0, 0.5, 0.999, 0.99999].map(percent), ["0", "50", "99.9", "99.999"]);
        assert_eq!([0, 999, 1000, 10_358_890].map(count), ["0", "999", "1,000", "10,358,890"]);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(format_time(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(format_time(951_827_401_000), "2000-02-29 12:30:01 UTC");
        assert_eq!(format_time(1_795_248_000_000), "2026-11-21 08:00:00 UTC");
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (ms, text) in [(900, "0s"), (61_000, "1m 1s"), (90_061_000, "1d 1h"), (3_600_000, "1h")] {
            assert_eq!(elapsed(ms), text);
        }
    }
}
