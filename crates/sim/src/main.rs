//! Runs simulations by hand: `thalweg-sim --help`.

use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sim::Violation;
#[cfg(feature = "nodes")]
use sim::nodes::Serving;
use sim::replicas::{self, Bug};

const HELP: &str = "\
Simulate a cluster: disks, network, clocks and faults from a seed

Usage: thalweg-sim replicas [--seeds N] [--from SEED] [--events N] [--jobs N]
       thalweg-sim replicas --bugs [--seeds N]
       thalweg-sim nodes|views [--seeds N] [--from SEED] [--events N] [--jobs N]
       thalweg-sim sites [--bugs] [--seeds N] [--from SEED] [--events N] [--jobs N]
       thalweg-sim sites --sizes N,N.. [--from SEED]
       thalweg-sim sites --tables

  replicas     the consensus, with a model of everything else
  nodes        whole nodes with their stores, whose leaders serve partitions
  views        the same, with brokers that serve a queue, a durable cache and a consumer group
  sites        the discovery of a mesh: small meshes with faults, or large ones that are measured

  --seeds N    seeds to run [10000]; with --bugs, at most so many for each bug
  --from SEED  first seed [0]
  --events N   events with faults in each run [2000]
  --jobs N     threads [all cores]
  --bugs       plant each known bug in turn and report the first seed that finds it
  --sizes N,.. numbers of sites of the meshes that are measured, such as 1000,10000
  --tables     check the tables of sites: 1000 changes of interest per second, and more topics than the limit
";

struct Options {
    seeds: u64,
    from: u64,
    events: usize,
    jobs: usize,
    has_bugs: bool,
    /// Seeds between two reports of the progress.
    report_every: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["replicas", rest @ ..] => match options(rest) {
            Ok(options) if options.has_bugs => find_bugs(
                &options,
                &Bug::ALL,
                |bug| bug.about(),
                |seed, events, bug| replicas::run(seed, events, Some(bug)).err(),
            ),
            Ok(options) => run_seeds("replicas", &options, |seed, events| replicas::run(seed, events, None)),
            Err(reason) => refuse(&reason),
        },
        #[cfg(feature = "nodes")]
        [name @ ("nodes" | "views"), rest @ ..] => match options(rest) {
            Ok(options) if options.has_bugs => refuse("bugs are planted in replicas and sites only"),
            Ok(options) => {
                let serving = if *name == "nodes" { Serving::Logs } else { Serving::Views };
                let run = |seed, events| sim::nodes::run(serving, seed, events);
                run_seeds(name, &Options { report_every: 1000, ..options }, run)
            }
            Err(reason) => refuse(&reason),
        },
        #[cfg(feature = "sites")]
        ["sites", "--sizes", sizes, rest @ ..] => match (numbers(sizes), options(rest)) {
            (Ok(sizes), Ok(options)) => measure(&sizes, options.from),
            (Err(reason), _) | (_, Err(reason)) => refuse(&reason),
        },
        #[cfg(feature = "sites")]
        ["sites", "--tables"] => check_tables(),
        #[cfg(feature = "sites")]
        ["sites", rest @ ..] => match options(rest) {
            Ok(options) if options.has_bugs => {
                use sim::sites::{Bug, run};
                find_bugs(
                    &options,
                    &Bug::ALL,
                    |bug| bug.about(),
                    |seed, events, bug| run(seed, events, Some(bug)).err(),
                )
            }
            Ok(options) => {
                let run = |seed, events| sim::sites::run(seed, events, None);
                run_seeds("sites", &Options { report_every: 1000, ..options }, run)
            }
            Err(reason) => refuse(&reason),
        },
        ["--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => refuse("choose a simulation: replicas, nodes, views or sites"),
    }
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("thalweg-sim: {reason}\n\n{HELP}");
    ExitCode::from(2)
}

fn options(args: &[&str]) -> Result<Options, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options =
        Options { seeds: 10_000, from: 0, events: 2000, jobs: cores, has_bugs: false, report_every: 100_000 };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let text = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
            text.parse::<u64>().map_err(|error| format!("{arg} {text}: {error}"))
        };
        match *arg {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--events" => options.events = number()? as usize,
            "--jobs" => options.jobs = (number()? as usize).max(1),
            "--bugs" => options.has_bugs = true,
            other => return Err(format!("there is no option {other}")),
        }
    }
    Ok(options)
}

/// Reads numbers with commas between them.
#[cfg(feature = "sites")]
fn numbers(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(|one| one.parse().map_err(|error| format!("--sizes {text}: {error}"))).collect()
}

/// Measures meshes of these sizes, the first one first.
#[cfg(feature = "sites")]
fn measure(sizes: &[usize], seed: u64) -> ExitCode {
    let measured: Result<Vec<_>, Violation> = sizes.iter().map(|sites| sim::sites::measure(*sites, seed)).collect();
    match measured {
        Ok(measured) => {
            print!("{}", sim::sites::table(&measured));
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("seed {seed}: {}", violation.0);
            ExitCode::FAILURE
        }
    }
}

/// Seconds of changes of interest, and topics above the limit.
#[cfg(feature = "sites")]
const TABLES: (u64, usize) = (60, 1000);

#[cfg(feature = "sites")]
fn check_tables() -> ExitCode {
    let changed = sim::sites::change_interest(TABLES.0, 0);
    let refused = sim::sites::exceed_limit(TABLES.1);
    match (changed, refused) {
        (Ok(tables), Ok(refused)) => {
            println!("{tables}\n{refused} topics above the limit of a site were refused by every directory");
            ExitCode::SUCCESS
        }
        (Err(violation), _) | (_, Err(violation)) => {
            eprintln!("{}", violation.0);
            ExitCode::FAILURE
        }
    }
}

/// Panics of the engine are caught and reported as violations: their text on the screen would only hide them.
fn hide_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Runs all seeds of a simulation.
fn run_seeds<R>(name: &str, options: &Options, run: impl Fn(u64, usize) -> Result<R, Violation> + Sync) -> ExitCode
where
    R: AddAssign + Default + Display + Send,
{
    if options.seeds > 1 {
        hide_panics();
    }
    let begun = Instant::now();
    let (next, done, has_failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let sums = Mutex::new(R::default());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                let mut own = R::default();
                while !has_failed.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= options.seeds {
                        break;
                    }
                    let seed = options.from + number;
                    match catch(|| run(seed, options.events)) {
                        Ok(run) => {
                            own += run;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(violation) => {
                            has_failed.store(true, Ordering::Relaxed);
                            eprintln!("seed {seed}: {}", violation.0);
                            eprintln!(
                                "repeat just this with: thalweg-sim {name} --from {seed} --seeds 1 --events {}",
                                options.events
                            );
                        }
                    }
                    if number > 0 && number % options.report_every == 0 {
                        eprintln!("{number} of {} seeds, {:.0} s", options.seeds, begun.elapsed().as_secs_f64());
                    }
                }
                *sums.lock().unwrap_or_else(PoisonError::into_inner) += own;
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let seeds = done.into_inner();
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{seeds} seeds in {seconds:.1} s ({:.0} a minute): {sums}", seeds as f64 / seconds * 60.0);
    if has_failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Makes a violation of a panic.
fn catch<R>(run: impl FnOnce() -> Result<R, Violation>) -> Result<R, Violation> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("it panicked: {}", text.unwrap_or_default())))
    })
}

/// Plants each bug in turn, and runs seeds until one of them finds it.
fn find_bugs<B: Copy>(
    options: &Options,
    bugs: &[B],
    about: impl Fn(B) -> &'static str,
    run: impl Fn(u64, usize, B) -> Option<Violation>,
) -> ExitCode {
    hide_panics();
    let mut missed = 0;
    for bug in bugs {
        let found = (options.from..options.from + options.seeds)
            .find_map(|seed| Some((seed, run(seed, options.events, *bug)?)));
        match found {
            Some((seed, violation)) => println!("{:<58} seed {seed:>5}: {}", about(*bug), violation.0),
            None => {
                missed += 1;
                println!("{:<58} NOT FOUND in {} seeds", about(*bug), options.seeds);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
