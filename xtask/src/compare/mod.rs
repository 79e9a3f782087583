//! `cargo xtask compare OLD_COMMIT`: compares the speed of this tree with that of an earlier commit.
//!
//! It builds both trees, each with its own release profile and toolchain, and measures each figure in rounds: old, new,
//! old, new. The speed of a machine drifts from minute to minute, so the result is the median of the ratios within
//! rounds. Every run has its own server process, and the load is another process. Programs whose phases take a fixed
//! time run together on one processor instead ([`figures::Kind::TimedBench`]).
//!
//! **One load for both.** If a load can connect to a running server, it is `thalweg bench` of the new tree for both
//! servers, so that only the servers differ. A change of the client or of the load itself then changes both sides, and
//! no ratio shows it. Other programs start their own server ([`figures::Kind::Own`]), or have the broker in their own
//! process ([`figures::Kind::Bench`]). Each tree runs its own such program, and a change of it shows in the ratio.

mod figures;
mod number;
mod ratio;
mod sample;
mod trees;

use std::fs;
use std::time::Instant;

use figures::{Figure, Selection};
use ratio::Comparison;
use trees::Tree;
pub use trees::build;

use crate::run::Outcome;

/// Program that is the server of most figures.
pub const THALWEG: &str = "thalweg";
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;
const LEAST: f64 = 0.98;
const USAGE: &str = "the arguments are OLD_COMMIT, --rounds N, --only NAME (which may be repeated), --quick, \
                     --least RATIO, --old-binary PATH and --new-binary PATH";

/// Arguments of the command.
#[derive(Debug, Default, PartialEq)]
struct Options<'a> {
    commit: Option<&'a str>,
    old_binary: Option<&'a str>,
    new_binary: Option<&'a str>,
    rounds: usize,
    only: Vec<&'a str>,
    is_quick: bool,
    least: f64,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a str]) -> Outcome<Self> {
        let mut options = Self { least: LEAST, ..Self::default() };
        let mut rounds = None;
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value: {USAGE}"));
            match arg {
                "--rounds" => rounds = Some(parse_rounds(value()?)?),
                "--only" => options.only.push(value()?),
                "--least" => options.least = parse_least(value()?)?,
                "--old-binary" => options.old_binary = Some(value()?),
                "--new-binary" => options.new_binary = Some(value()?),
                "--quick" => options.is_quick = true,
                _ if arg.starts_with('-') => return Err(format!("option '{arg}' does not exist: {USAGE}")),
                _ if options.commit.is_none() => options.commit = Some(arg),
                _ => return Err(format!("'{arg}' is a second commit: {USAGE}")),
            }
        }
        if options.commit.is_some() == options.old_binary.is_some() {
            return Err(format!("the old tree is either OLD_COMMIT or --old-binary PATH, name one of them: {USAGE}"));
        }
        options.rounds = rounds.unwrap_or(if options.is_quick { ROUNDS_QUICK } else { ROUNDS });
        Ok(options)
    }
}

fn parse_rounds(text: &str) -> Outcome<usize> {
    let rounds = text.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
    rounds.ok_or_else(|| format!("--rounds {text} is not a number from 1 to 1000: try --rounds {ROUNDS}"))
}

fn parse_least(text: &str) -> Outcome<f64> {
    let least = text.parse().ok().filter(|least| (0.0..=10.0).contains(least));
    least.ok_or_else(|| format!("--least {text} is not a ratio from 0 to 10: try --least {LEAST}"))
}

pub fn run(args: &[&str]) -> Outcome {
    let begin = Instant::now();
    let options = Options::parse(args)?;
    let is_built = options.old_binary.is_none() && options.new_binary.is_none();
    let selection = Selection::new(&options.only, options.is_quick, is_built)?;
    let old = match (options.commit, options.old_binary) {
        (Some(commit), _) => Tree::of_commit(commit, &selection)?,
        (None, path) => Tree::of_binary("--old-binary", path.unwrap_or_default())?,
    };
    let new = match options.new_binary {
        Some(path) => Tree::of_binary("--new-binary", path)?,
        None => Tree::of_this(&selection)?,
    };
    println!("{}", head(&options, &old, &new));
    let mut failures = Vec::new();
    for figures in selection.runs() {
        match measure(figures, &options, &old, &new) {
            Ok(comparisons) => {
                for (figure, found) in figures.iter().zip(&comparisons) {
                    println!("{}", row(figure, found));
                    failures.extend(failure(figure, found, options.least));
                }
            }
            // The other figures are still worth measuring.
            Err(error) => {
                let names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
                eprintln!("== compare: {}: {error}", names.join(", "));
                failures.push(format!("{} (not measured)", names.join(", ")));
            }
        }
    }
    if !selection.omitted.is_empty() {
        let names: Vec<_> = selection.omitted.iter().map(|figure| figure.name).collect();
        println!("\nNot measured with these options: {}.", names.join(", "));
    }
    eprintln!("== compare: all done in {:.0} s", begin.elapsed().as_secs_f64());
    verdict(&failures, &options)
}

/// Returns the comparisons of figures that take their numbers from the same run.
fn measure(figures: &[&Figure], options: &Options<'_>, old: &Tree, new: &Tree) -> Outcome<Vec<Comparison>> {
    let Some(Figure { name, run, .. }) = figures.first() else {
        return Ok(Vec::new());
    };
    let mut rounds = vec![Vec::new(); figures.len()];
    for round in 1..=options.rounds {
        let outputs = timed(&format!("{name}, round {round} of {}", options.rounds), || {
            sample::round(run, options.is_quick, [old, new])
        })?;
        for (figure, rounds) in figures.iter().zip(&mut rounds) {
            let [old, new] = &outputs;
            rounds.push([figure.number.choose(old)?, figure.number.choose(new)?]);
        }
    }
    figures.iter().zip(&rounds).map(|(figure, rounds)| Comparison::of(rounds, figure.better)).collect()
}

/// Runs a step, and prints its name and duration on the standard error. The standard output contains only results.
fn timed<T>(what: &str, step: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let begin = Instant::now();
    eprintln!("== compare: {what}");
    let done = step()?;
    eprintln!("== compare: done in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(done)
}

/// Returns the conditions of the figures, and the head of their table.
fn head(options: &Options<'_>, old: &Tree, new: &Tree) -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let system = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    format!(
        "{} x {}, Linux {}, load average {}\nold: {}\nnew: {}\nrounds: {}{}\n\n{}\n{}",
        std::thread::available_parallelism().map_or(1, usize::from),
        cpu.unwrap_or("unknown processor"),
        system("/proc/sys/kernel/osrelease"),
        system("/proc/loadavg"),
        old.title,
        new.title,
        options.rounds,
        if options.is_quick { ", quick" } else { "" },
        cells(["Figure", "Old", "New", "Ratio", "Spread", "Measured quantity"]),
        cells(["---"; 6]),
    )
}

fn cells([figure, old, new, ratio, spread, about]: [&str; 6]) -> String {
    format!("| {figure:<21} | {old:>8} | {new:>8} | {ratio:>6} | {spread:<14} | {about} |")
}

fn row(figure: &Figure, found: &Comparison) -> String {
    let about = if figure.is_checked { figure.about.to_owned() } else { format!("{} (not checked)", figure.about) };
    let spread = format!("{:.3} to {:.3}", found.ratio_min, found.ratio_max);
    let ratio = format!("{:.3}", found.ratio);
    cells([figure.name, &short(found.old), &short(found.new), &ratio, &spread, &about])
}

/// Returns a number with about four digits.
fn short(number: f64) -> String {
    let (number, unit) = match number {
        n if n >= 1e6 => (n / 1e6, " M"),
        n if n >= 1e4 => (n / 1e3, " k"),
        n => (n, ""),
    };
    let decimals = if number >= 100.0 {
        1
    } else if number >= 1.0 {
        2
    } else {
        4
    };
    format!("{number:.decimals$}{unit}")
}

fn failure(figure: &Figure, found: &Comparison, least: f64) -> Option<String> {
    let is_low = figure.is_checked && found.ratio < least;
    is_low.then(|| format!("{} ({:.3})", figure.name, found.ratio))
}

fn verdict(failures: &[String], options: &Options<'_>) -> Outcome {
    let least = options.least;
    if failures.is_empty() {
        println!("\nEvery checked ratio is at least {least}.");
        return Ok(());
    }
    Err(format!(
        "below {least}, or not measured: {}; leave the machine idle and repeat them with --only NAME and --rounds 11 \
         before you search for the change that costs this",
        failures.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &[&str]) -> String {
        Options::parse(args).expect_err("wrong arguments")
    }

    fn figure(name: &str) -> &'static Figure {
        figures::FIGURES.iter().find(|figure| figure.name == name).expect("a figure")
    }

    fn comparison(ratio: f64) -> Comparison {
        Comparison { old: 5_093_549.0, new: 4_900_000.0, ratio, ratio_min: 0.9, ratio_max: 1.0312 }
    }

    #[test]
    fn arguments_have_defaults_and_a_quick_run_has_fewer_rounds() {
        let options = Options::parse(&["HEAD~3"]).expect("a commit");
        assert_eq!((options.commit, options.rounds, options.least), (Some("HEAD~3"), ROUNDS, LEAST));
        assert_eq!(Options::parse(&["main", "--quick"]).expect("quick").rounds, ROUNDS_QUICK);
        let all = ["--only", "rpc-1", "main", "--only", "idle", "--rounds", "9", "--quick", "--least", "0.95"];
        let options = Options::parse(&all).expect("all");
        assert_eq!((options.rounds, options.least, options.only), (9, 0.95, vec!["rpc-1", "idle"]));
        let given = Options::parse(&["--old-binary", "a", "--new-binary", "b"]).expect("programs");
        assert_eq!((given.old_binary, given.new_binary), (Some("a"), Some("b")));
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_allowed_ones() {
        assert!(refused(&[]).contains("either OLD_COMMIT or --old-binary"));
        assert!(refused(&["main", "--old-binary", "a"]).contains("either OLD_COMMIT or --old-binary"));
        assert!(refused(&["main", "HEAD"]).contains("'HEAD' is a second commit"));
        assert!(refused(&["main", "--fast"]).contains("option '--fast' does not exist: the arguments are OLD_COMMIT"));
        assert!(refused(&["main", "--only"]).contains("--only needs a value"));
        for rounds in ["0", "many", "-1", "2000"] {
            assert!(refused(&["main", "--rounds", rounds]).contains("from 1 to 1000"), "{rounds}");
        }
        for least in ["NaN", "-1", "98%", "98"] {
            assert!(refused(&["main", "--least", least]).contains("from 0 to 10"), "{least}");
        }
    }

    #[test]
    fn an_unknown_figure_is_refused_before_anything_is_built() {
        let refused = run(&["no-such-commit", "--only", "speed"]).expect_err("no figure");
        assert!(refused.starts_with("figure 'speed' does not exist: choose one of "), "{refused}");
        let refused = run(&["no-such-commit"]).expect_err("no commit");
        assert!(refused.starts_with("commit 'no-such-commit' does not exist"), "{refused}");
    }

    #[test]
    fn a_low_ratio_fails_and_is_named_unless_it_is_only_shown() {
        let options = Options { least: 0.98, ..Options::default() };
        let failures = |name: &str, ratio: f64| failure(figure(name), &comparison(ratio), options.least);
        assert_eq!(failures("rpc-1", 0.98), None);
        assert_eq!(failures("one-tcp-p99", 0.5), None);
        assert_eq!(verdict(&[], &options), Ok(()));
        let failures: Vec<_> = ["rpc-1", "idle-ready"].into_iter().filter_map(|name| failures(name, 0.9794)).collect();
        let verdict = verdict(&failures, &options).expect_err("two are low");
        assert!(verdict.starts_with("below 0.98") && verdict.contains("rpc-1 (0.979), idle-ready (0.979)"));
    }

    #[test]
    fn a_row_has_both_medians_the_ratio_and_its_spread() {
        let row = row(figure("fanout-1"), &comparison(0.9619));
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1..6], ["fanout-1", "5.09 M", "4.90 M", "0.962", "0.900 to 1.031"]);
        assert_eq!(
            [0.0706, 21.695, 416.0, 3637.0, 23_698.0, 20_959_232.0].map(short),
            ["0.0706", "21.70", "416.0", "3637.0", "23.70 k", "20.96 M"]
        );
    }
}
