//! `cargo xtask tidy`: rules that no compiler checks. A test runs it too.

mod arrows;
mod circles;
mod code;
mod prose;
mod source;
mod text;

use std::fmt;

use crate::run::{Call, Outcome, root};
use source::Source;

/// Violation of a rule at one place, with advice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    /// Line, counted from 1.
    pub line: usize,
    pub rule: &'static str,
    pub advice: String,
}

impl Violation {
    pub fn new(path: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, advice: advice.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.advice)
    }
}

/// Text file of the repository. Its path has `/` between folders and begins at the root.
#[derive(Debug)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}

pub fn run() -> Outcome {
    let files = read_files()?;
    let violations = check(&files);
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files comply with every rule", files.len());
            Ok(())
        }
        count => Err(format!("{count} violations in {} files", files.len())),
    }
}

/// Returns all violations, in the order of their paths and lines.
pub fn check(files: &[TextFile]) -> Vec<Violation> {
    let sources = Source::read_all(files);
    let mut violations = [
        arrows::check(files, &sources),
        circles::check(&sources),
        code::check(&sources),
        text::check(files),
        prose::check(files),
    ]
    .concat();
    violations.sort();
    violations
}

/// Reads the text files that are in git or would be added: neither ignored nor deleted.
fn read_files() -> Outcome<Vec<TextFile>> {
    let names = Call::line("git ls-files -z --cached --others --exclude-standard").output()?;
    let mut files = Vec::new();
    for path in names.split_terminator('\0') {
        let Ok(bytes) = std::fs::read(root().join(path)) else {
            continue;
        };
        if bytes.contains(&0) {
            continue;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(TextFile { path: path.to_owned(), text });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let violations = check(&read_files().expect("git lists the files"));
        let shown: String = violations.iter().map(|violation| format!("{violation}\n")).collect();
        assert!(violations.is_empty(), "{} violations:\n{shown}", violations.len());
    }
}
