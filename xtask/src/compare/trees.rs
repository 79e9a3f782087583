//! Trees that are compared, and their programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::figures::Selection;
use super::{THALWEG, timed};
use crate::run::{Call, Outcome, root};

/// Digits of a commit in the name of its folder.
const DIGITS: usize = 12;
/// Folder of worktrees and programs.
const FOLDER: &str = "target/compare";

/// Programs of one tree.
pub struct Tree {
    /// Name of the tree in the report.
    pub title: String,
    programs: BTreeMap<String, PathBuf>,
}

impl Tree {
    /// Creates a tree of which only this program is known.
    pub fn of_binary(option: &str, path: &str) -> Outcome<Self> {
        let binary = fs::canonicalize(path).map_err(|e| {
            format!("{option} {path}: {e}; name the file of a program `thalweg`, or leave {option} out to build one")
        })?;
        let version = Call::new(binary.display().to_string()).arg("--version").output()?;
        let title = format!("{} ({})", binary.display(), version.lines().next().unwrap_or_default());
        Ok(Self { title, programs: [(THALWEG.to_owned(), binary)].into() })
    }

    /// Builds this commit in a worktree, which is kept.
    pub fn of_commit(commit: &str, selection: &Selection) -> Outcome<Self> {
        let hash = full_hash(commit)?;
        let folder = format!("{FOLDER}/{}", &hash[..DIGITS]);
        check_out(&folder, &hash)?;
        // That tree chooses its toolchain itself: this process has the variable from rustup, for the other tree.
        let cargo = Call::line("env -u RUSTUP_TOOLCHAIN -C").arg(&folder).arg("cargo");
        Self::build(title(&hash)?, selection, |line| cargo.clone().args(words(line)).args(["--target-dir", "target"]))
    }

    /// Builds the tree of this command, as it is.
    pub fn of_this(selection: &Selection) -> Outcome<Self> {
        let is_changed = !Call::line("git status --porcelain").output()?.is_empty();
        let title = title(&full_hash("HEAD")?)?;
        let title = if is_changed { format!("{title}, with uncommitted changes") } else { title };
        let mut tree = Self::build(title, selection, |line| Call::new("cargo").args(words(line)))?;
        // A build of this tree while its figures are measured must not replace them.
        let folder = root().join(FOLDER).join("new");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (name, path) in &mut tree.programs {
            let copy = folder.join(name);
            fs::copy(&path, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
            *path = copy;
        }
        Ok(tree)
    }

    fn build(title: String, selection: &Selection, cargo: impl Fn(&str) -> Call) -> Outcome<Self> {
        let mut programs = BTreeMap::new();
        if selection.needs_thalweg() {
            programs.extend(build(&cargo("build --release --bin thalweg"))?);
        }
        let benches = selection.benches();
        if !benches.is_empty() {
            let targets: String = benches.iter().map(|bench| format!(" --bench {bench}")).collect();
            programs.extend(build(&cargo(&format!("bench --no-run -p thalweg-broker{targets}")))?);
        }
        Ok(Self { title, programs })
    }

    /// Returns the path of a program: `thalweg`, or a bench target.
    pub fn program(&self, name: &str) -> Outcome<String> {
        let path = self.programs.get(name).map(|path| path.display().to_string());
        path.ok_or_else(|| format!("cargo has not built {name} of {}: is it a target of that tree?", self.title))
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ')
}

/// Returns the hash of a commit for any name of it.
fn full_hash(commit: &str) -> Outcome<String> {
    let call = Call::line("git rev-parse --verify --quiet --end-of-options").arg(format!("{commit}^{{commit}}"));
    let found = if call.succeeds() { call.output()? } else { String::new() };
    // With that option git prints the option as well.
    found.lines().last().map(str::to_owned).ok_or_else(|| {
        format!(
            "commit '{commit}' does not exist in this repository: name one of `git log --oneline`, a branch or a tag, \
             or run `git fetch` first"
        )
    })
}

/// Returns the hash of a commit and its subject.
fn title(hash: &str) -> Outcome<String> {
    let subject = Call::line("git log -1 --format=%s").arg(hash).output()?;
    Ok(format!("{} ({})", &hash[..DIGITS], subject.trim()))
}

/// Creates a worktree of the commit in this folder of the repository, unless it exists from an earlier run.
fn check_out(folder: &str, hash: &str) -> Outcome {
    if !root().join(folder).exists() {
        // Git may still know a worktree of this path whose folder was deleted.
        let call = Call::line("git worktree add --force --detach --quiet").args([folder, hash]);
        return timed(&call.to_string(), || call.run());
    }
    let git = |line: &str| Call::line("git -C").arg(folder).args(words(line)).output();
    if git("rev-parse HEAD")?.trim() == hash && git("status --porcelain --untracked-files=no")?.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{folder} is not commit {hash} without changes: remove it with `git worktree remove --force {folder}`, and run \
         this again"
    ))
}

/// Runs a build, and returns its programs by name.
pub fn build(call: &Call) -> Outcome<BTreeMap<String, PathBuf>> {
    let with_messages = call.clone().arg("--message-format=json-render-diagnostics");
    Ok(programs(&timed(&call.to_string(), || with_messages.output())?))
}

/// Returns the programs in cargo's messages, including those that were already built.
fn programs(messages: &str) -> BTreeMap<String, PathBuf> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let path = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(path)))
    };
    messages.lines().filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_commit_is_refused_with_advice() {
        for commit in ["no-such-commit", "--all", "", "HEAD:Cargo.toml"] {
            let refused = full_hash(commit).expect_err("no commit");
            assert!(refused.contains(&format!("commit '{commit}' does not exist")), "{refused}");
            assert!(refused.contains("git log --oneline"), "{refused}");
        }
    }

    #[test]
    fn programs_are_those_that_cargo_names() {
        let messages = r#"
            {"reason":"compiler-artifact","target":{"name":"broker"},"executable":null}
            {"reason":"compiler-artifact","target":{"name":"thalweg"},"executable":"target/release/thalweg"}
            {"reason":"compiler-artifact","target":{"name":"queue_load"},"executable":"deps/queue_load-1"}
            {"reason":"build-finished","success":true}"#;
        let found: Vec<_> =
            programs(messages).into_iter().map(|(name, path)| (name, path.display().to_string())).collect();
        let expected = [("queue_load", "deps/queue_load-1"), ("thalweg", "target/release/thalweg")];
        assert_eq!(found, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
    }

    #[test]
    fn a_commit_has_one_hash_however_it_is_named() {
        let hash = full_hash("HEAD").expect("this is a checkout");
        assert!(hash.len() >= 40 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{hash}");
        assert_eq!(full_hash(&hash[..DIGITS]), Ok(hash));
    }

    #[test]
    fn a_missing_program_is_refused_with_advice() {
        let refused = Tree::of_binary("--old-binary", "no/such/thalweg").err().expect("no file");
        assert!(refused.contains("--old-binary no/such/thalweg") && refused.contains("leave --old-binary out"));
    }
}
