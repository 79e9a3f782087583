//! Tells the program the commit that it is built from, and the linker to make it smaller.

use std::path::Path;
use std::process::Command;

/// Digits of a commit that are shown.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=.cargo_vcs_info.json");
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    // The packager knows; else the packed crate, else the repository.
    let commit = std::env::var("BUILD_COMMIT").ok().or_else(of_package).or_else(of_repository);
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.get(..DIGITS).unwrap_or(&commit));
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Functions with the same code become one. Rust's own linker, which this target has by default, can do that.
    if is("TARGET", "x86_64-unknown-linux-gnu") && is("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Returns the commit that `cargo package` recorded.
fn of_package() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    rest.split('"').next().map(str::to_owned)
}

fn of_repository() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--absolute-git-dir", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let (directory, commit) = text.trim().split_once('\n')?;
    // Each commit moves the log of HEAD.
    let log = Path::new(directory).join("logs/HEAD");
    println!("cargo::rerun-if-changed={}", log.display());
    Some(commit.to_owned())
}
