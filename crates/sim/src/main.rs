//! Runs simulations by hand: `thalweg-sim --help`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use sim::replicas::{self, Bug, Run};

const HELP: &str = "\
Simulate the nodes of a shard: disks, network, clocks and faults from a seed

Usage: thalweg-sim replicas [--seeds N] [--from SEED] [--events N] [--jobs N]
       thalweg-sim replicas --bugs [--seeds N]

  --seeds N    seeds to run [10000]; with --bugs, at most so many for each bug
  --from SEED  first seed [0]
  --events N   events with faults in each run [2000]
  --jobs N     threads [all cores]
  --bugs       plant each known bug in turn and report the first seed that finds it
";

struct Options {
    seeds: u64,
    from: u64,
    events: usize,
    jobs: usize,
    has_bugs: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["replicas", rest @ ..] => match options(rest) {
            Ok(options) if options.has_bugs => find_bugs(&options),
            Ok(options) => run_seeds(&options),
            Err(reason) => refuse(&reason),
        },
        ["--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => refuse("choose a simulation: replicas"),
    }
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("thalweg-sim: {reason}\n\n{HELP}");
    ExitCode::from(2)
}

fn options(args: &[&str]) -> Result<Options, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { seeds: 10_000, from: 0, events: 2000, jobs: cores, has_bugs: false };
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

/// Sums of all runs.
#[derive(Default)]
struct Sums {
    seeds: AtomicU64,
    events: AtomicU64,
    elections: AtomicU64,
    committed: AtomicU64,
    changes: AtomicU64,
    installs: AtomicU64,
    reads: AtomicU64,
    crashes: AtomicU64,
}

impl Sums {
    fn add(&self, run: &Run) {
        let add = |sum: &AtomicU64, number| {
            sum.fetch_add(number, Ordering::Relaxed);
        };
        add(&self.seeds, 1);
        add(&self.events, run.events);
        add(&self.elections, run.elections);
        add(&self.committed, run.committed);
        add(&self.changes, run.changes);
        add(&self.installs, run.installs);
        add(&self.reads, run.reads);
        add(&self.crashes, run.crashes);
    }
}

/// Panics of the engine are caught and reported as violations: their text on the screen would only hide them.
fn hide_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

fn run_seeds(options: &Options) -> ExitCode {
    if options.seeds > 1 {
        hide_panics();
    }
    let begun = Instant::now();
    let (next, sums, has_failed) = (AtomicU64::new(0), Sums::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= options.seeds {
                        break;
                    }
                    let seed = options.from + number;
                    match replicas::run(seed, options.events, None) {
                        Ok(run) => sums.add(&run),
                        Err(violation) => {
                            has_failed.store(true, Ordering::Relaxed);
                            eprintln!("seed {seed}: {}", violation.0);
                            eprintln!(
                                "repeat just this with: thalweg-sim replicas --from {seed} --seeds 1 --events {}",
                                options.events
                            );
                        }
                    }
                    if number > 0 && number % 100_000 == 0 {
                        eprintln!("{number} of {} seeds, {:.0} s", options.seeds, begun.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let sum = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    let seeds = sum(&sums.seeds);
    println!(
        "{seeds} seeds in {seconds:.1} s ({:.0} a minute): {} events, {} elections, {} entries committed, {} changes \
         of members, {} states installed, {} reads, {} crashes",
        seeds as f64 / seconds * 60.0,
        sum(&sums.events),
        sum(&sums.elections),
        sum(&sums.committed),
        sum(&sums.changes),
        sum(&sums.installs),
        sum(&sums.reads),
        sum(&sums.crashes),
    );
    if has_failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn find_bugs(options: &Options) -> ExitCode {
    hide_panics();
    let mut missed = 0;
    for bug in Bug::ALL {
        let found = (options.from..options.from + options.seeds)
            .find_map(|seed| Some((seed, replicas::run(seed, options.events, Some(bug)).err()?)));
        match found {
            Some((seed, violation)) => println!("{:<58} seed {seed:>5}: {}", bug.about(), violation.0),
            None => {
                missed += 1;
                println!("{:<58} NOT FOUND in {} seeds", bug.about(), options.seeds);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
