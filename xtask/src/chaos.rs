//! `cargo xtask chaos`: a cluster of processes under faults from seeds, with clients whose histories are checked.

use std::path::Path;

use crate::built;
use crate::run::{Call, Outcome, root};

const MINUTES: &str = "10";
const NODES: &str = "3";
/// Folder of the report, and of histories with a violation.
const FOLDER: &str = "target/chaos";

pub fn run(args: &[&str]) -> Outcome {
    let options = Options::read(args)?;
    let programs = built::build(&["thalweg", "thalweg-bench"], options.is_release)?;
    options.call(&programs).run()
}

struct Options<'a> {
    minutes: &'a str,
    seed: &'a str,
    nodes: &'a str,
    is_loopback: bool,
    is_fresh: bool,
    is_release: bool,
    pace: &'a str,
    /// Seconds of faults of a round; by default those of the pace.
    round_seconds: Option<&'a str>,
}

impl<'a> Options<'a> {
    fn read(args: &[&'a str]) -> Outcome<Self> {
        let mut options = Self {
            minutes: MINUTES,
            seed: "1",
            nodes: NODES,
            is_loopback: false,
            is_fresh: false,
            is_release: false,
            pace: "normal",
            round_seconds: None,
        };
        let mut rest = args;
        loop {
            rest = match rest {
                [] => break,
                ["--loopback", rest @ ..] => {
                    options.is_loopback = true;
                    rest
                }
                ["--fresh", rest @ ..] => {
                    options.is_fresh = true;
                    rest
                }
                ["--release", rest @ ..] => {
                    options.is_release = true;
                    rest
                }
                ["--minutes", minutes, rest @ ..] => {
                    options.minutes = minutes;
                    rest
                }
                ["--seed", seed, rest @ ..] => {
                    options.seed = seed;
                    rest
                }
                ["--nodes", nodes @ ("3" | "5"), rest @ ..] => {
                    options.nodes = nodes;
                    rest
                }
                ["--pace", pace @ ("normal" | "dense"), rest @ ..] => {
                    options.pace = pace;
                    rest
                }
                ["--round-seconds", seconds, rest @ ..] => {
                    options.round_seconds = Some(seconds);
                    rest
                }
                [other, ..] => {
                    return Err(format!(
                        "'{other}' is not an option: --minutes N, --seed S, --nodes 3 or 5, --pace normal or \
                         dense, --round-seconds N, --loopback, --fresh, --release"
                    ));
                }
            };
        }
        let seconds = options.round_seconds.unwrap_or("0");
        for (name, number) in [("minutes", options.minutes), ("seed", options.seed), ("round-seconds", seconds)] {
            number.parse::<u64>().map_err(|e| format!("--{name} {number}: {e}"))?;
        }
        Ok(options)
    }

    /// Returns the call of the program, with the broker from the same folder of built programs.
    fn call(&self, programs: &Path) -> Call {
        let build = if self.is_release { "release" } else { "debug" };
        let call = Call::new(programs.join("chaos").display().to_string());
        let call = call.arg("--program").arg(programs.join("thalweg").display().to_string());
        let folder = root().join(FOLDER).display().to_string();
        let call = call.args(["--folder", &folder, "--minutes", self.minutes, "--seed", self.seed]);
        let call = call.args(["--nodes", self.nodes, "--pace", self.pace, "--build", build]);
        let call = call.args(self.round_seconds.map(|seconds| ["--round-seconds", seconds]).into_iter().flatten());
        let flags = [(self.is_loopback, "--loopback"), (self.is_fresh, "--fresh")];
        call.args(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        for args in [&["--minutes"][..], &["--minutes", "long"], &["--nodes", "4"], &["--pace", "fast"], &["5"]] {
            assert!(Options::read(args).is_err(), "{args:?}");
        }
        let options = Options::read(&[
            "--minutes",
            "90",
            "--seed",
            "7",
            "--nodes",
            "5",
            "--loopback",
            "--fresh",
            "--pace",
            "dense",
        ])
        .expect("valid");
        let shown = options.call(Path::new("target/debug")).to_string();
        assert!(shown.starts_with("target/debug/chaos --program target/debug/thalweg "), "{shown}");
        assert!(shown.ends_with("--seed 7 --nodes 5 --pace dense --build debug --loopback --fresh"), "{shown}");
    }
}
