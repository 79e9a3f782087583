//! Rules for every text file: no paths of one machine, no broken path in a guide, no uneven table in Markdown.

use std::collections::BTreeSet;

use super::{TextFile, Violation};

/// Folders on a developer's machine, outside of the repository.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/", "work"), concat!("/", "root"), concat!("/", "home")];

/// Documents that describe the repository.
const GUIDES: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];
/// File name of the design of one part, next to its code. Its paths begin at its own folder, or at the root.
const DESIGN: &str = "/DESIGN.md";

pub fn check(files: &[TextFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        for (i, line) in file.text.lines().enumerate() {
            for folder in MACHINE_FOLDERS.iter().filter(|folder| names_folder(line, folder)) {
                let advice = format!("remove {folder}: that folder does not exist on every machine");
                violations.push(Violation::new(&file.path, i + 1, "machine-path", advice));
            }
        }
    }
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for line in uneven_rows(&file.text) {
            let advice = "give the row as many cells as the header of its table: further ones are not displayed";
            violations.push(Violation::new(&file.path, line, "table-row", advice));
        }
    }
    let places = Places::new(files);
    for file in files.iter().filter(|file| is_guide(&file.path)) {
        let folder = file.path.rsplit_once('/').map(|(folder, _)| folder);
        for (line, path) in quoted_words(&file.text) {
            let is_beside = || folder.is_some_and(|folder| places.has(&format!("{folder}/{path}")));
            if !places.has(path) && !is_beside() {
                let advice = format!("fix `{path}`: the repository has no such path");
                violations.push(Violation::new(&file.path, line, "guide-path", advice));
            }
        }
    }
    violations
}

fn is_guide(path: &str) -> bool {
    GUIDES.contains(&path) || path.ends_with(DESIGN)
}

/// Returns `true` if a line has this folder at the root, not as a part of a longer path or word.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        let is_part = |c: char| c.is_alphanumeric() || "_-.~".contains(c);
        !before.is_some_and(|c| is_part(c) || "}/*".contains(c)) && !after.is_some_and(is_part)
    })
}

/// Returns the lines of rows, outside of fenced blocks, that do not have as many cells as the first row of their table.
fn uneven_rows(text: &str) -> Vec<usize> {
    let mut is_fenced = false;
    let mut width = None;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        is_fenced ^= line.trim_start().starts_with("```");
        if is_fenced || !line.starts_with('|') {
            width = None;
            continue;
        }
        // A bar with a backslash is part of its cell.
        let cells = line.matches('|').count() - line.matches("\\|").count();
        if *width.get_or_insert(cells) != cells {
            lines.push(i + 1);
        }
    }
    lines
}

/// Returns the texts between single backticks, outside of fenced blocks, with their lines.
fn quoted_words(text: &str) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let mut words = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            words.extend(line.split('`').skip(1).step_by(2).map(|word| (i + 1, word)));
        }
    }
    words
}

/// Files of the repository and their folders.
struct Places<'a> {
    paths: BTreeSet<&'a str>,
}

impl<'a> Places<'a> {
    fn new(files: &'a [TextFile]) -> Self {
        let mut paths = BTreeSet::new();
        for file in files {
            paths.insert(file.path.as_str());
            paths.extend(file.path.match_indices('/').map(|(at, _)| &file.path[..at]));
        }
        Self { paths }
    }

    /// Returns `false` for a word that looks like a path of the repository and does not exist.
    fn has(&self, word: &str) -> bool {
        let is_path_char = |c: char| c.is_alphanumeric() || "/._-*{},".contains(c);
        if word.is_empty() || !word.chars().all(is_path_char) {
            return true;
        }
        let path = word.trim_end_matches('/');
        let (top, is_deep) = path.split_once('/').map_or((path, false), |(top, _)| (top, true));
        let ends_as_file = path.ends_with(".rs") || path.ends_with(".md");
        if !is_deep {
            // A single name is a path only if it has a file extension; then it may be in any folder.
            return !ends_as_file || self.paths.iter().any(|known| known.rsplit('/').next() == Some(path));
        }
        if !ends_as_file && !self.paths.contains(top) {
            return true;
        }
        // For a path with a wildcard or a choice, the folder before it is checked.
        let fixed =
            path.find(['*', '{']).map_or(path, |at| path[..at].rsplit_once('/').map_or("", |(folder, _)| folder));
        fixed.is_empty() || self.paths.contains(fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let files = [file(path, text), file("crates/engine/src/record.rs", "")];
        check(&files).into_iter().map(|violation| violation.rule.to_owned()).collect()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let [work, root, home] = MACHINE_FOLDERS;
        for text in
            [format!("cd {work}/main"), format!("\"{root}\""), format!("`{home}/me/.cargo`"), format!("x={work}")]
        {
            assert_eq!(found("a.txt", &text), ["machine-path"], "{text}");
        }
        for text in [format!("docs{work}"), format!("{root}s"), format!("a{home}"), format!("http://x.example{work}")] {
            assert!(found("a.txt", &text).is_empty(), "{text}");
        }
    }

    #[test]
    fn rows_have_the_cells_of_their_header() {
        let good = "| a | b |\n|---|---|\n| 1 | `x \\| y` |\n\n| a |\n|---|\n| 1 |\n```\n| 1 | 2 |\n```\n";
        assert!(found("docs/a.md", good).is_empty());
        for bad in ["| a | b |\n|---|---|\n| 1 | 2 | 3 |\n", "| a | b |\n|---|---|\n| 1 |\n"] {
            assert_eq!(found("docs/a.md", bad), ["table-row"], "{bad}");
            assert!(found("a.txt", bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn paths_in_guides_exist() {
        let good = "`crates/engine`, `crates/engine/src/`, `crates/*/src`, `record.rs`, `text/event-stream`,\n\
                    `/topics/{t}/records`, `rg \"fn publish\" crates`, `thalweg.toml`\n```\n`crates/none`\n```\n";
        assert!(found("ARCHITECTURE.md", good).is_empty());
        for bad in ["`crates/none`", "x `none.rs` y", "`none/a.md`", "`crates/none/*`", "`crates/engine/none.txt`"] {
            assert_eq!(found("ARCHITECTURE.md", bad), ["guide-path"], "{bad}");
        }
        assert!(found("README.md", "`crates/none`").is_empty());
    }

    #[test]
    fn paths_in_a_design_begin_at_its_folder_or_at_the_root() {
        let path = "crates/engine/DESIGN.md";
        assert!(found(path, "`src/record.rs`, `src`, `crates/engine/src/record.rs`").is_empty());
        for bad in ["`src/none.rs`", "`crates/engine/src/none.rs`"] {
            assert_eq!(found(path, bad), ["guide-path"], "{bad}");
        }
    }
}
