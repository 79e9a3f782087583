//! Formatting of numbers with their units, for tables.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
pub use console::units::elapsed;
use thalweg::config::units::{TimeUnit, show_time};

const SIZES: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Formats bytes as `64 MiB`, or as `1.5 GiB` if they are not a whole number of the unit.
pub fn bytes(n: u64) -> String {
    let Some((unit, one)) = SIZES.into_iter().find(|(_, one)| n >= *one) else {
        return format!("{n} B");
    };
    match n % one {
        0 => format!("{} {unit}", n / one),
        _ => format!("{:.1} {unit}", n as f64 / one as f64),
    }
}

/// Formats a time without loss, in the form that options accept: `7d`, `90m`, `500ms`.
pub fn millis(ms: u64) -> String {
    show_time(ms, TimeUnit::Millis)
}

/// Returns the error in a text that should be JSON, without the terms of the parser.
pub fn json_fault(error: &serde_json::Error) -> String {
    if error.is_syntax() || error.is_eof() {
        format!("this is not JSON (column {})", error.column())
    } else {
        error.to_string()
    }
}

/// Returns a number with its noun: `1 record`, `2 records`, `2 entries`, `2 keys`.
pub fn count(n: u64, one: &str) -> String {
    let stem = one.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match (n, stem) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{n} {stem}ies"),
        (_, None) => format!("{n} {one}s"),
    }
}

/// Returns the line that replaces an empty list. The broker lists only what its reader may describe.
pub fn nothing(names: &str, advice: &str) -> String {
    format!("no {names} yet, or none that you may describe; {advice}")
}

/// Creates a table without lines. It is as wide as its contents; a terminal wraps lines that are too long.
pub fn table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_unit_that_fits() {
        for (n, text) in [(0, "0 B"), (1023, "1023 B"), (67_108_864, "64 MiB"), (1536, "1.5 KiB"), (1 << 40, "1 TiB")] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(
            (count(1, "record"), count(2, "record"), count(0, "entry"), count(2, "key")),
            ("1 record".into(), "2 records".into(), "0 entries".into(), "2 keys".into())
        );
    }
}
