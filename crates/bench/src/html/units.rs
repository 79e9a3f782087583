//! Figures with few characters.

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
}
