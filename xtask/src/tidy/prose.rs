//! Rules for prose: the width of Markdown, and words that stand for a term of the field.

use super::{TextFile, Violation};

/// Columns of a line of Markdown, except in tables, code and lines of one word, such as a URL.
const COLUMNS_MAX: usize = 100;

/// Words that prose avoids, and their replacements.
const WORDS: &[(&str, &str)] = &[
    ("whoever", "name the client, the caller or the owner"),
    ("anew", "write `again`"),
    ("so many", "name the number, as in \"`n` bytes\""),
    ("lasts", "write `is durable`, or `takes` for a time"),
];

/// Beginnings of doc comments that are not true when they are read alone, and their replacements.
const OPENINGS: &[(&str, &str)] = &[("The same", "repeat the noun: the sentence is read alone")];

/// Folders whose doc comments are checked for `WORDS` and `OPENINGS`; Markdown is checked everywhere.
const RUST_FOLDERS: &[&str] = &["crates/", "xtask/", "fuzz/", "compat/", "bench/"];

/// Page whose tables list the words to avoid.
const WORD_LIST: &str = "CONTRIBUTING.md";

/// Beginning of the line that marks a generated page: its text belongs to the program that writes it.
const GENERATED: &str = "<!-- Written by `";
/// Lines at the beginning of a page that may have the mark.
const GENERATED_LINES: usize = 5;

pub fn check(files: &[TextFile]) -> Vec<Violation> {
    check_with(files, RUST_FOLDERS)
}

fn check_with(files: &[TextFile], rust_folders: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        if file.path.ends_with(".md") && !is_generated(&file.text) {
            check_markdown(file, &mut violations);
        }
        if file.path.ends_with(".rs") && rust_folders.iter().any(|folder| file.path.starts_with(folder)) {
            check_doc_comments(file, &mut violations);
        }
    }
    violations
}

fn is_generated(text: &str) -> bool {
    text.lines().take(GENERATED_LINES).any(|line| line.starts_with(GENERATED))
}

fn check_markdown(file: &TextFile, violations: &mut Vec<Violation>) {
    let lines = markdown_lines(&file.text);
    for (line, text, part) in &lines {
        let columns = text.chars().count();
        if *part == Part::Prose && columns > COLUMNS_MAX && !is_one_word(text) {
            let advice = format!("wrap it: {columns} columns, at most {COLUMNS_MAX}");
            violations.push(Violation::new(&file.path, *line, "prose-columns", advice));
        }
    }
    let is_checked = |part: Part| part == Part::Prose || part == Part::Table && file.path != WORD_LIST;
    // Code separates words as the end of a paragraph does.
    let prose = lines.iter().map(|(line, text, part)| (*line, if is_checked(*part) { *text } else { "" }));
    check_words(&file.path, prose, violations);
}

fn check_doc_comments(file: &TextFile, violations: &mut Vec<Violation>) {
    let comments: Vec<Option<&str>> = file.text.lines().map(doc_comment).collect();
    let lines = comments.iter().enumerate().map(|(i, comment)| (i + 1, comment.unwrap_or_default()));
    for (i, comment) in comments.iter().enumerate() {
        let is_first = i == 0 || comments[i - 1].is_none();
        let Some(comment) = comment.filter(|_| is_first) else {
            continue;
        };
        for (opening, instead) in OPENINGS.iter().filter(|(opening, _)| comment.starts_with(opening)) {
            let advice = format!("begin without \"{opening}\": {instead}");
            violations.push(Violation::new(&file.path, i + 1, "opening-words", advice));
        }
    }
    check_words(&file.path, lines, violations);
}

/// Returns the text of a line that is a doc comment.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    (!text.starts_with('/')).then(|| text.trim())
}

fn check_words<'a>(path: &str, lines: impl Iterator<Item = (usize, &'a str)>, violations: &mut Vec<Violation>) {
    let found = words(lines);
    for (avoided, instead) in WORDS {
        let avoided_words: Vec<&str> = avoided.split(' ').collect();
        for window in found.windows(avoided_words.len()) {
            if window.iter().map(|(_, word)| word).eq(&avoided_words) {
                let advice = format!("avoid \"{avoided}\": {instead}");
                violations.push(Violation::new(path, window[0].0, "word", advice));
            }
        }
    }
}

/// Returns the words of lines in lower case, each with its line. An empty word stands for inline code, and for the
/// end of a paragraph.
fn words<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut is_code = false;
    for (line, text) in lines {
        if text.trim().is_empty() {
            is_code = false;
            words.push((line, String::new()));
        }
        for (i, part) in text.split('`').enumerate() {
            if i > 0 {
                is_code = !is_code;
                words.push((line, String::new()));
            }
            if !is_code {
                let separated = part.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
                words.extend(separated.map(|word| (line, word.to_lowercase())));
            }
        }
    }
    words
}

/// Part of a page that a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Prose,
    Table,
    Code,
}

/// Returns the lines of a page with their numbers, counted from 1. Code is fenced, or indented by four columns after
/// an empty line.
fn markdown_lines(text: &str) -> Vec<(usize, &str, Part)> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    let mut may_be_code = true;
    for (i, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let part = if let Some(end) = fence {
            if trimmed.starts_with(end) {
                fence = None;
            }
            Part::Code
        } else if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            let rest = trimmed.trim_start_matches(['`', '~']);
            fence = Some(&trimmed[..trimmed.len() - rest.len()]);
            Part::Code
        } else if may_be_code && line.starts_with("    ") {
            Part::Code
        } else if trimmed.starts_with('|') {
            Part::Table
        } else {
            Part::Prose
        };
        may_be_code = trimmed.is_empty() || part == Part::Code && fence.is_none() && line.starts_with("    ");
        lines.push((i + 1, line, part));
    }
    lines
}

/// Returns `true` if a line cannot be wrapped: one word after its list marker or after the name of a link, as in
/// `[name]: URL`.
fn is_one_word(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| is_marker(word));
    words.next().is_some() && words.next().is_none()
}

fn is_marker(word: &str) -> bool {
    let number = word.trim_end_matches(['.', ')']);
    ["-", "*", "+", ">"].contains(&word)
        || word.starts_with('[') && word.ends_with("]:")
        || number.len() < word.len() && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rules that a file with this text breaks, each with its line, if Rust is checked below `crates/`.
    fn broken(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let files = [TextFile { path: path.into(), text: text.into() }];
        check_with(&files, &["crates/"]).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    #[test]
    fn long_lines_of_markdown_are_found() {
        let long = format!("{} {}", "x".repeat(60), "y".repeat(40));
        let url = format!("https://x.example/{long}").replace(' ', "/");
        let full = &long[1..];
        let cases: [(String, &[(usize, &str)]); 13] = [
            (full.to_owned(), &[]),
            (format!("a\n{long}"), &[(2, "prose-columns")]),
            (format!("- {full}"), &[(1, "prose-columns")]),
            (format!("# {full}"), &[(1, "prose-columns")]),
            ("\u{2713}".repeat(50) + " " + &"\u{2713}".repeat(49), &[]),
            (format!("| {long} |"), &[]),
            (format!("```text\n{long}\n```\n{long}"), &[(4, "prose-columns")]),
            (format!("````text\n```\n{long}\n````\n{long}"), &[(5, "prose-columns")]),
            (format!("a\n\n    {long}\n    {long}\n\n    {long}"), &[]),
            (format!("- a\n    {long}"), &[(2, "prose-columns")]),
            (format!("{url}\n- {url}\n> 1. [a]({url}).\n[a]: {url}"), &[]),
            (format!("see {url}"), &[(1, "prose-columns")]),
            (format!("# A\n\n<!-- Written by `x` -->\n\n{long}"), &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(broken("docs/a.md", &text), expected, "{text}");
        }
        assert_eq!(broken("docs/a.txt", &long), []);
    }

    #[test]
    fn avoided_words_are_found_in_markdown() {
        let cases: [(&str, &[(usize, &str)]); 10] = [
            ("It lasts.", &[(1, "word")]),
            ("a\nWhoever's turn\n| starts anew, |", &[(2, "word"), (3, "word")]),
            ("after so\nmany bytes", &[(1, "word")]),
            ("so\n\nmany", &[]),
            ("so `n` many", &[]),
            ("blasts, last, anew2, as many", &[]),
            ("`lasts` and `a\nlasts b` and lasts", &[(2, "word")]),
            ("```\nlasts\n```", &[]),
            ("a\n\n    lasts", &[]),
            ("<!-- Written by `x` -->\nlasts", &[]),
        ];
        for (text, expected) in cases {
            let found = broken("README.md", text);
            assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
            assert!(expected.iter().all(|one| found.contains(one)), "{text}: {found:?}");
        }
        assert_eq!(broken(WORD_LIST, "| lasts | is durable |\n\nlasts"), [(3, "word")]);
    }

    #[test]
    fn avoided_words_and_openings_are_found_in_doc_comments() {
        let path = "crates/x/src/a.rs";
        let cases: [(&str, &[(usize, &str)]); 8] = [
            ("//! The same, for a.\n", &[(1, "opening-words")]),
            ("fn f() {\n    /// The same as g.\n}\n", &[(2, "opening-words")]),
            ("/// Returns a.\n/// The same holds for b.\n", &[]),
            ("/// Says `The same`.\n", &[]),
            ("/// Evicts so\n/// many bytes.\n", &[(1, "word")]),
            ("/// Evicts so\nfn f();\n/// Many.\n", &[]),
            ("// It lasts.\n//// It lasts.\nlet lasts = 1;\n", &[]),
            ("/// It `lasts`, then lasts.\n", &[(1, "word")]),
        ];
        for (text, expected) in cases {
            assert_eq!(broken(path, text), expected, "{text}");
        }
        assert_eq!(broken("xtask/src/a.rs", "/// The same.\n"), [], "only the folders that are listed");
    }
}
