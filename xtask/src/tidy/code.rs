//! Rules for Rust files: their opening, their size, and forbidden names.

use super::Violation;
use super::source::{Source, find_words};

/// Maximum number of lines of a file, not counting test code.
const FILE_LINES_MAX: usize = 800;
/// Maximum number of lines of a function that is not long; the next constant limits the percentage of long functions.
const FUNCTION_LINES_MAX: usize = 70;
const LONG_FUNCTIONS_PERCENT_MAX: usize = 2;
const COLUMNS_MAX: usize = 120;

/// Temporary macros, which are refused in tests too.
const PASSING: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Beginning of a generated file, which is neither read as a whole nor split.
const WRITTEN: &str = "//! Written by `cargo xtask codegen`";

/// Comment that allows an exception to a rule, with its reason, on the line itself or on the one before.
const EXCEPTION: &str = "// tidy: ";

/// Texts with their exact number of occurrences below a folder: the request path stays one path, and the time of day
/// comes from one place.
const COUNTS: &[(&str, &str, usize)] = &[
    ("pub async fn publish", "crates/broker/src/", 1),
    ("SystemTime::now", "crates/broker/src/", 1),
    ("SystemTime::now", "crates/storage/src/", 0),
];

pub fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations: Vec<Violation> = sources.iter().flat_map(check_file).collect();
    violations.extend(check_functions(sources));
    violations.extend(check_counts(sources));
    violations
}

fn check_file(source: &Source<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add = |line: usize, rule, advice: String| violations.push(Violation::new(source.path, line, rule, advice));

    if !opens_with_a_sentence(source.text) {
        add(1, "opening", "begin the file with a `//!` sentence that says what it holds".into());
    }
    let lines = source.lines_of_code();
    if lines > FILE_LINES_MAX && !source.text.starts_with(WRITTEN) {
        add(FILE_LINES_MAX, "file-size", format!("split it: {lines} lines of code, at most {FILE_LINES_MAX}"));
    }
    for (i, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        // A table is read by its rows; rustfmt leaves it alone as well.
        if columns > COLUMNS_MAX && !source.text.contains("#[rustfmt::skip]") {
            add(i + 1, "columns", format!("wrap it: {columns} columns, at most {COLUMNS_MAX}"));
        }
    }
    for word in PASSING {
        for at in find_words(&source.code, word) {
            add(source.line_of(at), "passing", format!("replace {word}: this macro is for temporary code only"));
        }
    }
    for at in source.find(".unwrap()") {
        add(source.line_of(at), "unwrap", "return the error, or expect(\"invariant: ..\") if one holds".into());
    }
    for at in source.find(".expect(") {
        let argument = source.text[at + ".expect(".len()..].trim_start();
        if !argument.starts_with("\"invariant: ") {
            add(source.line_of(at), "expect", "name it: expect(\"invariant: ..\"), or return the error".into());
        }
    }
    for at in source.find("map_err(|_") {
        let line = source.line_of(at);
        if !is_excepted(source.text, line) {
            let advice = "keep the cause in the new error, or give the reason in a comment `// tidy: ..`";
            add(line, "lost-cause", advice.into());
        }
    }
    violations
}

/// Returns `true` if the first paragraph of the opening comment ends as sentences do.
fn opens_with_a_sentence(text: &str) -> bool {
    let paragraph = text.lines().map_while(|line| line.strip_prefix("//! "));
    paragraph.last().is_some_and(|last| last.trim_end().ends_with(['.', ':', '?', '!']))
}

/// Returns `true` if a line, counted from 1, or the one before it gives a reason.
fn is_excepted(text: &str, line: usize) -> bool {
    let first = line.saturating_sub(2);
    text.lines()
        .skip(first)
        .take(line - first)
        .any(|line| line.split_once(EXCEPTION).is_some_and(|(_, reason)| !reason.trim().is_empty()))
}

/// Reports long functions. They should be rare: if there are too many, each of them is named.
fn check_functions(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut count = 0;
    let mut long = Vec::new();
    for source in sources {
        let functions = source.functions();
        count += functions.len();
        long.extend(
            functions
                .iter()
                .filter(|f| f.lines > FUNCTION_LINES_MAX)
                .map(|f| (source.path, source.line_of(f.at), format!("{} has {} lines", f.name, f.lines))),
        );
    }
    if long.len() * 100 <= count * LONG_FUNCTIONS_PERCENT_MAX {
        return Vec::new();
    }
    let share = format!("{} of {count} functions have more than {FUNCTION_LINES_MAX}", long.len());
    let advice = |what: String| format!("split it: {what}, and {share}, more than {LONG_FUNCTIONS_PERCENT_MAX} %");
    long.into_iter().map(|(path, line, what)| Violation::new(path, line, "function-size", advice(what))).collect()
}

fn check_counts(sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (what, folder, expected) in COUNTS {
        let below = || sources.iter().filter(|source| source.path.starts_with(folder));
        let found: Vec<_> = below().flat_map(|s| s.find(what).into_iter().map(|at| (s.path, s.line_of(at)))).collect();
        if found.len() == *expected || below().next().is_none() {
            continue;
        }
        let advice = format!("have `{what}` {expected} time(s) in {folder}, not {}", found.len());
        let places = if found.is_empty() { vec![(*folder, 1)] } else { found };
        violations.extend(places.into_iter().map(|(path, line)| Violation::new(path, line, "count", advice.clone())));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/x/src/a.rs";

    /// Returns the rules that a file with this text breaks, each with its line.
    fn broken(text: &str) -> Vec<(usize, &'static str)> {
        check(&[Source::read(PATH, text)]).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn each_rule_finds_its_violations() {
        let long = format!("//! A file.\n// {}\n", "x".repeat(118));
        let cases: [(&str, &[(usize, &str)]); 12] = [
            ("//! A file.\nfn f() {}\n", &[]),
            ("//! A file that\n//! goes on.\n//!\n//! More\n", &[]),
            ("fn f() {}\n", &[(1, "opening")]),
            ("//! No sentence\nfn f() {}\n", &[(1, "opening")]),
            (&long, &[(2, "columns")]),
            ("//! A.\nfn f() {\n    todo!()\n}\n", &[(3, "passing")]),
            ("//! A.\nfn f() { x.unwrap(); y.unwrap_or(1) }\n", &[(2, "unwrap")]),
            ("//! A.\nfn f() { x.expect(\"invariant: y\"); x.expect(\"y\") }\n", &[(2, "expect")]),
            ("//! A.\n#[cfg(test)]\nmod tests { fn f() { x.unwrap().map_err(|_| 1) } }\n", &[]),
            ("//! A.\nfn f() { x.map_err(|_| y) }\n", &[(2, "lost-cause")]),
            ("//! A.\n// tidy: the error has no fields\nfn f() { x.map_err(|_| y) }\n", &[]),
            ("//! A.\n// tidy: \nfn f() { x.map_err(|_| y) }\n", &[(3, "lost-cause")]),
        ];
        for (text, expected) in cases {
            assert_eq!(broken(text), expected, "{text}");
        }
    }

    #[test]
    fn long_functions_are_named_once_they_are_too_many() {
        let long = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(FUNCTION_LINES_MAX - 1));
        let short = "fn short() {}\n";
        assert_eq!(broken(&format!("//! A.\n{long}{}", short.repeat(48))), [(2, "function-size")]);
        assert_eq!(broken(&format!("//! A.\n{long}{}", short.repeat(49))), []);
        assert_eq!(broken(&format!("//! A.\n{}", long.replacen("    x();\n", "", 1))), []);
    }

    #[test]
    fn a_large_file_is_found_unless_its_tests_make_it_large() {
        let lines = "const X: u8 = 1;\n".repeat(FILE_LINES_MAX - 1);
        assert_eq!(broken(&format!("//! A.\n{lines}#[cfg(test)]\nmod tests {{\n}}\n")), []);
        assert_eq!(broken(&format!("//! A.\n{lines}fn f() {{}}\n")), [(FILE_LINES_MAX, "file-size")]);
    }

    #[test]
    fn exactly_one_publish_function_is_required() {
        let path = "crates/broker/src/a.rs";
        let broken = |text: &str| {
            let violations = check(&[Source::read(path, text)]);
            violations.iter().filter(|violation| violation.advice.contains("publish")).count()
        };
        assert_eq!(broken("//! A.\npub async fn publish() {}\npub async fn publish_all() {}\n"), 0);
        assert_eq!(broken("//! A.\n"), 1);
        assert_eq!(broken("//! A.\npub async fn publish() {}\npub async fn publish() {}\n"), 2);
    }

    #[test]
    fn the_time_of_day_comes_from_one_place() {
        let broken = |path: &str, times: usize| {
            let text = format!("//! A.\nfn f() {{ {} }}\n", "SystemTime::now();".repeat(times));
            let violations = check(&[Source::read(path, &text)]);
            violations.iter().filter(|violation| violation.advice.contains("SystemTime")).count()
        };
        let counts = [0, 1, 2].map(|times| broken("crates/broker/src/a.rs", times));
        assert_eq!(
            (counts, broken("crates/storage/src/a.rs", 0), broken("crates/storage/src/a.rs", 1)),
            ([1, 0, 2], 0, 1)
        );
    }
}
