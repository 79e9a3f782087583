//! Figures of live screens: short, with their unit, and of about the same width.

/// Formats a number in at most six characters, below 1000 T: 999, 10.0 k, 1.5 M.
pub fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", " k", " M", " G", " T"])
}

/// Formats bytes with decimal units, which are usual for rates.
pub fn bytes(value: f64) -> String {
    scaled_unit(value, 1000.0, &["B", "kB", "MB", "GB", "TB"])
}

/// Formats bytes with binary units, which are usual for memory.
pub fn size(value: f64) -> String {
    scaled_unit(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

pub fn per_s(text: String) -> String {
    format!("{text}/s")
}

/// Formats a time in a suitable unit: 8.2 us, 1.5 ms, 2 s.
pub fn seconds(value: f64) -> String {
    let (number, unit) = match value {
        v if v < 1e-3 => (v * 1e6, "us"),
        v if v < 1.0 => (v * 1e3, "ms"),
        v => (v, "s"),
    };
    if number >= 100.0 || number.fract() == 0.0 { format!("{number:.0} {unit}") } else { format!("{number:.1} {unit}") }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (value, unit) = scale(value, step, units);
    match unit {
        // Small rates are shown in tenths.
        "" if value > 0.0 && value < 10.0 && value.fract() != 0.0 => format!("{value:.1}"),
        "" => format!("{value:.0}"),
        unit => format!("{}{unit}", three_digits(value)),
    }
}

fn scaled_unit(value: f64, step: f64, units: &[&str]) -> String {
    let (value, unit) = scale(value, step, units);
    if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") }
}

fn scale<'a>(mut value: f64, step: f64, units: &[&'a str]) -> (f64, &'a str) {
    let mut at = 0;
    // Up to 9999, a number without a unit is as short as one with a unit, and exact.
    while value >= if at == 0 { step * 10.0 } else { step } && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    (value, units.get(at).copied().unwrap_or_default())
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.4, "0.4"),
            (9.0, "9"),
            (9.96, "10.0"),
            (42.3, "42"),
            (1000.0, "1000"),
            (9999.0, "9999"),
            (10_000.0, "10.0 k"),
            (123_456.0, "123 k"),
            (1_234_567.0, "1.2 M"),
            (5e13, "50.0 T"),
            (9e16, "90000 T"),
        ] {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(0.0, "0 B"), (9000.0, "9000 B"), (40e6, "40.0 MB"), (1.5e9, "1.5 GB")] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(size(f64::from(64 << 20)), "64.0 MiB");
        assert_eq!(size(f64::from(1 << 30)), "1.0 GiB");
        for (value, text) in
            [(8.192e-6, "8.2 us"), (0.0015, "1.5 ms"), (0.25, "250 ms"), (1.0, "1 s"), (17.18, "17.2 s")]
        {
            assert_eq!(seconds(value), text);
        }
    }
}
