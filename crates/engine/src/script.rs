//! Scripts for state machines: commands, each followed by its output, indented by two spaces. After an intended change,
//! `UPDATE=1 cargo test -p thalweg-engine` rewrites the outputs.

use std::fmt::Write as _;
use std::path::PathBuf;

/// Words of a command, and its `name=value` pairs.
pub(crate) struct Command<'a> {
    pub words: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Command<'a> {
    pub(crate) fn parse(line: &'a str) -> Self {
        let (named, words): (Vec<&str>, Vec<&str>) = line.split_whitespace().partition(|word| word.contains('='));
        Self { words, named: named.iter().filter_map(|pair| pair.split_once('=')).collect() }
    }

    pub(crate) fn word(&self, at: usize) -> &'a str {
        self.words.get(at).unwrap_or_else(|| panic!("'{}' wants {at} words after it", self.words[0]))
    }

    pub(crate) fn number(&self, at: usize) -> u64 {
        self.word(at).parse().unwrap_or_else(|e| panic!("'{}' is no number: {e}", self.word(at)))
    }

    pub(crate) fn named(&self, name: &str) -> Option<&'a str> {
        self.named.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    pub(crate) fn named_number(&self, name: &str) -> Option<usize> {
        self.named(name).map(|value| value.parse().unwrap_or_else(|e| panic!("{name}={value}: {e}")))
    }
}

/// Plays every script of a folder of `testdata`, each with its own state machine.
pub(crate) fn check<S>(folder: &str, new: impl Fn() -> S, run: impl Fn(&mut S, &str) -> String) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(folder);
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("testdata") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).expect("a script");
        let mut machine = new();
        let played = play(&text, |line| run(&mut machine, line));
        if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
            std::fs::write(&path, &played).expect("a script can be written");
            continue;
        }
        for (i, (is, should)) in played.lines().zip(text.lines()).enumerate() {
            assert_eq!(is, should, "{}, line {}", path.display(), i + 1);
        }
        assert_eq!(played, text, "{}", path.display());
    }
    assert!(seen > 0, "no scripts in {}", folder.display());
}

/// Returns the script with its actual outputs.
fn play(text: &str, mut run: impl FnMut(&str) -> String) -> String {
    let mut played = String::new();
    for line in text.lines().filter(|line| !line.starts_with("  ")) {
        played += line;
        played += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            for output in run(line).lines() {
                writeln!(played, "  {output}").expect("a string takes all");
            }
        }
    }
    played
}
