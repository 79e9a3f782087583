//! `cargo xtask deny`: checks licences, sources, duplicates and known vulnerabilities of all dependencies, by
//! cargo-deny.

use std::path::{Path, PathBuf};

use crate::run::{Call, Outcome};

const CHECKS: &str = "cargo deny --locked check --hide-inclusion-graph bans licenses sources";
/// Command for advisories. The database is not updated: a check must not depend on the publications of the last hour.
const ADVISORIES: &str = "cargo deny --locked --offline check --hide-inclusion-graph advisories";

/// Returns what prevents the checks from running here.
pub fn missing() -> Option<&'static str> {
    let found = Call::line("cargo deny --version").succeeds();
    (!found).then_some("cargo-deny is not installed: cargo install --locked cargo-deny")
}

/// Returns the checks that can run here: those of advisories need a snapshot of their database.
pub fn calls() -> Vec<Call> {
    let mut calls = vec![Call::line(CHECKS)];
    if has_advisories(&databases()) {
        calls.push(Call::line(ADVISORIES));
    } else {
        println!("\n== deny: advisories are not checked, there is no snapshot of their database: cargo deny fetch db");
    }
    calls
}

pub fn run(args: &[&str]) -> Outcome {
    if !args.is_empty() {
        return Err("the command has no arguments".into());
    }
    if let Some(missing) = missing() {
        return Err(missing.into());
    }
    calls().iter().try_for_each(Call::run)
}

/// Returns the folder in which cargo-deny keeps snapshots of advisory databases.
fn databases() -> PathBuf {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    cargo_home.or(home).unwrap_or_default().join("advisory-dbs")
}

fn has_advisories(databases: &Path) -> bool {
    std::fs::read_dir(databases).is_ok_and(|mut found| found.any(|one| one.is_ok_and(|one| one.path().is_dir())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_a_folder_among_the_databases() {
        let folder = std::env::temp_dir().join(format!("xtask-deny-{}", std::process::id()));
        assert!(!has_advisories(&folder), "there is no such folder");
        std::fs::create_dir_all(&folder).expect("created");
        std::fs::write(folder.join("db.lock"), "").expect("written");
        assert!(!has_advisories(&folder), "a lock is no database");
        std::fs::create_dir(folder.join("advisory-db-1")).expect("created");
        assert!(has_advisories(&folder));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
