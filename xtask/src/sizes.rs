//! `cargo xtask sizes`: builds the programs that users run, and checks that they are as small as promised.

use std::fs;

use crate::compare::{THALWEG, build};
use crate::run::{Call, Outcome};

const MB: u64 = 1_000_000;

/// Profiles with the largest sizes of their programs, in bytes, that are aimed at.
const LIMITS: [(&str, u64); 2] = [("quick", 40 * MB), ("dist", 25 * MB)];

pub fn run(args: &[&str]) -> Outcome {
    if !args.is_empty() {
        return Err("it takes no arguments".into());
    }
    LIMITS.iter().try_for_each(|(profile, max)| check(profile, size(profile)?, *max))
}

/// Builds the program with this profile, and returns its size in bytes.
fn size(profile: &str) -> Outcome<u64> {
    let programs = build(&Call::line("cargo build --locked --bin thalweg --profile").arg(profile))?;
    let path = programs.get(THALWEG).ok_or("cargo names no program thalweg")?;
    fs::metadata(path).map(|file| file.len()).map_err(|e| format!("{}: {e}", path.display()))
}

fn check(profile: &str, bytes: u64, max: u64) -> Outcome {
    let text = format!("{profile}: {bytes} bytes of at most {max}");
    if bytes > max {
        return Err(format!("{text}; `cargo tree --edges normal` shows what is in it"));
    }
    println!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_too_large_is_refused_with_both_sizes() {
        assert_eq!(check("dist", 25 * MB, 25 * MB), Ok(()));
        let refused = check("dist", 25 * MB + 1, 25 * MB).expect_err("too large");
        assert!(refused.starts_with("dist: 25000001 bytes of at most 25000000"), "{refused}");
    }

    /// README.md tells users these sizes.
    #[test]
    fn the_limits_are_not_below_the_sizes_in_the_readme() {
        let readme = fs::read_to_string(crate::run::root().join("README.md")).expect("the README");
        let text = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("binary of 39 MB") && text.contains("one of 34 MB"), "the README states other sizes");
    }
}
