//! Rust files for the rules: their code, their test code, and the extent of functions.
//!
//! This is not a parser. It recognizes comments, literals and brackets, which is enough for these rules.

use std::collections::BTreeSet;
use std::ops::Range;

use super::TextFile;

#[derive(Debug)]
pub struct Source<'a> {
    pub path: &'a str,
    pub text: &'a str,
    /// Text with spaces in place of comments and literals, byte for byte; line ends are kept.
    pub code: String,
    /// `true` if the whole file is test code.
    pub is_test: bool,
    /// Items under `#[cfg(test)]`, from the attribute to their end.
    test_items: Vec<Range<usize>>,
}

/// Function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    pub name: &'a str,
    /// Position of its `fn`, in bytes.
    pub at: usize,
    pub lines: usize,
}

impl<'a> Source<'a> {
    /// Reads all Rust files. A module that is declared under `#[cfg(test)]` is test code as a whole.
    pub fn read_all(files: &'a [TextFile]) -> Vec<Self> {
        let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
        let mut sources: Vec<Self> = rust.map(|file| Self::read(&file.path, &file.text)).collect();
        let mut test_files: BTreeSet<String> = BTreeSet::new();
        loop {
            let before = test_files.len();
            for source in &sources {
                let is_test = source.is_test || test_files.contains(source.path);
                let modules = source.declared_modules().into_iter();
                let of_tests = modules.filter(|(at, _)| is_test || source.is_test_at(*at));
                test_files.extend(of_tests.flat_map(|(_, paths)| paths));
            }
            if test_files.len() == before {
                break;
            }
        }
        for source in &mut sources {
            source.is_test |= test_files.contains(source.path);
        }
        sources
    }

    pub fn read(path: &'a str, text: &'a str) -> Self {
        let code = blank(text);
        let test_items = find_test_items(&code);
        let is_test = path.starts_with("compat/")
            || path.split('/').any(|part| part == "tests" || part == "benches" || part == "fuzz");
        Self { path, text, code, is_test, test_items }
    }

    pub fn is_test_at(&self, at: usize) -> bool {
        self.is_test || self.test_items.iter().any(|item| item.contains(&at))
    }

    /// Returns the number of the line with this byte, counted from 1.
    pub fn line_of(&self, at: usize) -> usize {
        1 + self.text[..at].bytes().filter(|byte| *byte == b'\n').count()
    }

    /// Returns the positions of `needle` in code outside of tests, at word boundaries if it begins or ends with a word.
    pub fn find(&self, needle: &str) -> Vec<usize> {
        let found = find_words(&self.code, needle);
        found.into_iter().filter(|at| !self.is_test_at(*at)).collect()
    }

    pub fn lines_of_code(&self) -> usize {
        if self.is_test {
            return 0;
        }
        let lines = |range: Range<usize>| self.text[range].lines().count();
        let test_lines: usize = self.test_items.iter().map(|item| lines(item.clone())).sum();
        self.text.lines().count() - test_lines
    }

    /// Returns the functions outside of test code.
    pub fn functions(&self) -> Vec<Function<'_>> {
        let functions = self.find("fn").into_iter().filter_map(|at| {
            let rest = &self.code[at + 2..];
            let name = rest.trim_start();
            let name_bytes = name.find(|c: char| !is_word(c)).unwrap_or(name.len());
            let begin = at + 2 + (rest.len() - name.len());
            let end = end_of_item(&self.code, begin);
            // Without a name it is a type, without braces a declaration.
            let is_whole = name_bytes > 0 && self.code[..end].ends_with('}');
            is_whole.then(|| Function {
                name: &self.code[begin..begin + name_bytes],
                at,
                lines: self.line_of(end) - self.line_of(at) + 1,
            })
        });
        functions.collect()
    }

    /// Returns `mod name;` declarations: their positions, and the possible files of each.
    fn declared_modules(&self) -> Vec<(usize, Vec<String>)> {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        let stem = file.trim_end_matches(".rs");
        let owns_folder = matches!(stem, "mod" | "lib" | "main");
        let children = if owns_folder { folder.to_owned() } else { format!("{folder}/{stem}") };
        let declared = find_words(&self.code, "mod").into_iter().filter_map(|at| {
            let rest = self.code[at + 3..].trim_start();
            let name_bytes = rest.find(|c: char| !is_word(c))?;
            let name = &rest[..name_bytes];
            if name.is_empty() || !rest[name_bytes..].trim_start().starts_with(';') {
                return None;
            }
            let paths = match self.path_attribute_before(at) {
                Some(path) => vec![joined(folder, path)],
                None => vec![format!("{children}/{name}.rs"), format!("{children}/{name}/mod.rs")],
            };
            Some((at, paths))
        });
        declared.collect()
    }

    /// Returns the value of `#[path = ".."]` among the attributes before a declaration.
    fn path_attribute_before(&self, at: usize) -> Option<&'a str> {
        let begin = self.code[..at].rfind([';', '}', '{']).map_or(0, |end| end + 1);
        let attribute = begin + self.code[begin..at].find("#[path")?;
        self.text[attribute..at].split('"').nth(1)
    }
}

/// Joins a path, which may contain `..`, to a folder.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the positions of `needle` in `code` where it is not a part of a longer word.
pub fn find_words(code: &str, needle: &str) -> Vec<usize> {
    let first = needle.starts_with(is_word);
    let last = needle.ends_with(is_word);
    let found = code.match_indices(needle).map(|(at, _)| at).filter(|at| {
        let before = code[..*at].chars().next_back().is_some_and(is_word);
        let after = code[at + needle.len()..].starts_with(is_word);
        !(first && before || last && after)
    });
    found.collect()
}

fn find_test_items(code: &str) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (at, _) in code.match_indices(attribute) {
            if items.iter().any(|item| item.contains(&at)) {
                continue;
            }
            // The other attributes of the item are brackets after `#`, which the search for its end skips.
            items.push(at..end_of_item(code, at));
        }
    }
    items
}

/// Returns the end of an item that begins at `at`: after its `;`, or after the brace that closes its body.
fn end_of_item(code: &str, at: usize) -> usize {
    let mut depth = 0usize;
    let mut braces = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 || braces > 0 => braces += 1,
            b'}' if braces == 1 => return i + 1,
            b'}' if braces > 1 => braces -= 1,
            b';' if depth == 0 && braces == 0 => return i + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns the text with spaces in place of comments and literals.
fn blank(text: &str) -> String {
    let mut code = text.as_bytes().to_vec();
    let mut at = 0;
    while at < text.len() {
        let literal = literal_bytes(&text[at..], text[..at].chars().next_back());
        if literal == 0 {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        for byte in &mut code[at..at + literal] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += literal;
    }
    String::from_utf8(code).expect("invariant: whole characters became spaces")
}

/// Returns the length of the comment or literal at the beginning of `text`; 0 if `text` begins with neither.
fn literal_bytes(text: &str, before: Option<char>) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment_bytes(text);
    }
    if text.starts_with('"') {
        return quoted_bytes(text, '"');
    }
    if let Some(rest) = text.strip_prefix('\'') {
        let mut chars = rest.chars();
        let first = chars.next();
        let second = chars.next();
        // Otherwise it is a lifetime.
        return if first == Some('\\') || second == Some('\'') { quoted_bytes(text, '\'') } else { 0 };
    }
    if before.is_some_and(is_word) {
        return 0;
    }
    let raw = text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'));
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let begin = text.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return text[begin..].find(&close).map_or(text.len(), |at| begin + at + close.len());
        }
    }
    0
}

fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let cases = [
            ("a // b.unwrap()\nc", "a              \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"{", '"', 'a, b'{')"#, r#"f(      ,    , 'a, b   )"#),
            (r##"g(r#"}"{"#, br"\", r#fn)"##, "g(        ,      , r#fn)"),
            ("h('\\'', '\u{e4}', \"\u{e4}\")", "h(    ,     ,     )"),
        ];
        for (text, expected) in cases {
            assert_eq!(blank(text), expected, "{text}");
            assert_eq!(blank(text).len(), text.len(), "{text}");
        }
    }

    const FILE: &str = "\
fn one(x: [u8; 2]) -> u8 {
    x[0]
}

#[cfg(test)]
const _: () = assert!(true);

trait T {
    fn declared(&self);
    fn given(&self, f: fn(u8) -> u8) { f(1); }
}

#[cfg(test)]
#[allow(dead_code)]
mod tests {
    fn of_tests() { \"}\"; }
}

fn two() {}
";

    #[test]
    fn functions_and_test_items_have_their_extent() {
        let source = Source::read("crates/x/src/lib.rs", FILE);
        let functions: Vec<_> = source.functions().iter().map(|f| (f.name, f.lines, source.line_of(f.at))).collect();
        assert_eq!(functions, [("one", 3, 1), ("given", 1, 10), ("two", 1, 19)]);
        assert_eq!(source.lines_of_code(), 19 - 2 - 5);
        assert!(source.find("of_tests").is_empty());
        assert!(source.find("on").is_empty(), "only whole words");
    }

    #[test]
    fn modules_declared_for_tests_are_test_code_with_all_below_them() {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let files = [
            file("crates/x/src/lib.rs", "mod a;\n#[cfg(test)]\nmod tests;\n"),
            file("crates/x/src/a.rs", "fn a() {}\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;\n"),
            file("crates/x/src/a_tests.rs", "mod helper;\n"),
            file("crates/x/src/a_tests/helper.rs", ""),
            file("crates/x/src/tests.rs", ""),
            file("crates/x/tests/it/main.rs", ""),
        ];
        let code: Vec<_> = Source::read_all(&files).into_iter().filter(|s| !s.is_test).map(|s| s.path).collect();
        assert_eq!(code, ["crates/x/src/lib.rs", "crates/x/src/a.rs"]);
    }
}
