//! Circles among the files of a crate whose layers are a rule: which of two files is below the other must be clear.
//!
//! A file uses another one if a path in its code, outside of tests, leads there. Re-exports (`pub use`) do not count:
//! the file that declares modules shows their types.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::source::{Source, find_words};

/// Crates with the circles that they may have, as files below `src`.
const LAYERED: &[(&str, &[&[&str]])] = &[("broker", &[&["partition/mod.rs", "subscriber.rs", "wakes.rs"]])];

/// Path of a module from the root of its crate.
type Module<'a> = Vec<&'a str>;

pub fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    LAYERED.iter().flat_map(|(name, allowed)| check_crate(sources, name, allowed)).collect()
}

fn check_crate(sources: &[Source<'_>], name: &str, allowed: &[&[&str]]) -> Vec<Violation> {
    let prefix = format!("crates/{name}/src/");
    let files = sources.iter().filter(|source| !source.is_test);
    let files: Vec<(&str, &Source<'_>)> =
        files.filter_map(|source| Some((source.path.strip_prefix(&*prefix)?, source))).collect();
    let modules: BTreeMap<Module<'_>, usize> =
        files.iter().enumerate().map(|(at, (file, _))| (module_of(file), at)).collect();
    let uses: Vec<BTreeSet<usize>> = files.iter().map(|(file, source)| used_by(file, source, &modules)).collect();
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|from| reachable(from, &uses)).collect();
    let mut violations = Vec::new();
    for (at, (file, source)) in files.iter().enumerate() {
        let circle: Vec<&str> =
            reached[at].iter().filter(|to| reached[**to].contains(&at)).map(|to| files[*to].0).collect();
        let is_allowed = allowed.iter().any(|allowed| circle.iter().all(|file| allowed.contains(file)));
        // Each circle is reported once, at its first file.
        if circle.first() == Some(file) && !is_allowed {
            let advice =
                format!("{} use each other: move what they share to a file that uses none of them", circle.join(", "));
            violations.push(Violation::new(source.path, 1, "circle", advice));
        }
    }
    violations
}

fn module_of(file: &str) -> Module<'_> {
    let mut parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    if matches!(parts.last(), Some(&("mod" | "lib"))) {
        parts.pop();
    }
    parts
}

fn reachable(from: usize, uses: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        next.extend(uses[at].iter().filter(|to| reached.insert(**to)));
    }
    reached
}

/// Returns the other files to which paths in this file lead.
fn used_by(file: &str, source: &Source<'_>, modules: &BTreeMap<Module<'_>, usize>) -> BTreeSet<usize> {
    let here = module_of(file);
    let own = modules.get(&here);
    let paths = paths_in(source);
    let found = paths.iter().filter_map(|path| {
        let target = resolve(&here, path, modules)?;
        let longest = (0..=target.len()).rev().find_map(|len| modules.get(&target[..len]));
        longest.filter(|found| Some(*found) != own).copied()
    });
    found.collect()
}

/// Returns the path from the root of the crate; `None` for a path into another crate.
fn resolve<'p>(here: &[&'p str], path: &[&'p str], modules: &BTreeMap<Module<'_>, usize>) -> Option<Module<'p>> {
    let (first, rest) = path.split_first()?;
    match *first {
        "crate" => Some(rest.to_vec()),
        "self" => Some([here, rest].concat()),
        "super" => {
            let ups = path.iter().take_while(|part| **part == "super").count();
            Some([here.get(..here.len().checked_sub(ups)?)?, &path[ups..]].concat())
        }
        _ => {
            let child = [here, path].concat();
            modules.contains_key(&child[..=here.len()]).then_some(child)
        }
    }
}

/// Returns the paths of at least two names in the code of a file.
fn paths_in<'s>(source: &'s Source<'_>) -> Vec<Vec<&'s str>> {
    let mut paths = Vec::new();
    let mut imports = Vec::new();
    for at in find_words(&source.code, "use") {
        let end = source.code[at..].find(';').map_or(source.code.len(), |len| at + len);
        let before = source.code[..at].trim_end();
        if !source.is_test_at(at) && !before.ends_with("pub") && !before.ends_with(')') {
            expand(&mut Vec::new(), source.code[at + 3..end].trim(), &mut paths);
        }
        imports.push(at..end);
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut at = 0;
    for text in source.code.split(|c| !is_path(c)) {
        let is_import = imports.iter().any(|import| import.contains(&at));
        if text.contains("::") && !is_import && !source.is_test_at(at) {
            paths.push(text.split("::").filter(|part| !part.is_empty()).collect());
        }
        at += text.len() + source.code[at + text.len()..].chars().next().map_or(0, char::len_utf8);
    }
    paths
}

/// Adds all paths of a tree such as `a::{b, c::{d, e}}`.
fn expand<'s>(prefix: &mut Vec<&'s str>, tree: &'s str, paths: &mut Vec<Vec<&'s str>>) {
    let names = |text: &'s str| text.split("::").map(str::trim).filter(|part| !part.is_empty());
    let len = prefix.len();
    match tree.split_once('{') {
        Some((head, group)) => {
            prefix.extend(names(head));
            let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
            let mut depth = 0;
            let is_end = |c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ',' && depth == 0
            };
            group
                .split(is_end)
                .filter(|part| !part.trim().is_empty())
                .for_each(|part| expand(prefix, part.trim(), paths));
        }
        None => {
            prefix.extend(names(tree.split(" as ").next().unwrap_or(tree)));
            paths.push(prefix.clone());
        }
    }
    prefix.truncate(len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::TextFile;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| TextFile { path: format!("crates/broker/src/{path}"), text: (*text).into() };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        check(&Source::read_all(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_is_found_however_its_paths_are_written() {
        let upper = "use super::lower::Lower;";
        for lower in [
            "use crate::upper::Upper;",
            "use crate::{upper::{Upper, other}, core::Core};",
            "use super::upper as above;",
            "fn f(_: crate::upper::Upper) {}",
            "fn f() { super::upper::f(1, super::core::x()) }",
        ] {
            let found = circles(&[("core.rs", ""), ("lower.rs", lower), ("upper.rs", upper)]);
            assert_eq!(found.len(), 1, "{lower}: {found:?}");
            assert!(found[0].contains("lower.rs, upper.rs use each other"), "{found:?}");
        }
        let mods = [("queues/mod.rs", "mod dead;\nstruct Q(dead::Dead);"), ("queues/dead.rs", "use super::Q;")];
        assert_eq!(circles(&mods).len(), 1);
        let three = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", "use crate::a::A;")];
        assert_eq!(circles(&three).len(), 1);
    }

    #[test]
    fn re_exports_tests_and_other_crates_make_no_circle() {
        for lower in [
            "pub use crate::upper::Upper;",
            "pub(crate) use super::upper::Upper;",
            "#[cfg(test)]\nmod tests { use crate::upper::Upper; }",
            "// crate::upper\nuse engine::upper::Upper;",
        ] {
            let found = circles(&[("lower.rs", lower), ("upper.rs", "use super::lower::Lower;")]);
            assert!(found.is_empty(), "{lower}: {found:?}");
        }
        let allowed = [
            ("partition/mod.rs", "use crate::subscriber::Subscriber;"),
            ("subscriber.rs", "use crate::partition::PartitionCell;"),
        ];
        assert!(circles(&allowed).is_empty());
    }
}
