//! Cluster under faults: nodes as processes, open-loop clients outside of them, faults from a seed, and checkers of
//! what the clients saw. `cargo xtask chaos` builds the broker and runs this program.

mod check;
mod clients;
mod clock;
mod compare;
mod damage;
mod faults;
mod history;
mod network;
mod nodes;
mod plan;
mod report;
mod round;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clock::Clocks;
use network::{Network, Outcome};
use nodes::Nodes;
use plan::Pace;
use report::{Report, Totals};
use round::Round;
use tokio::signal::unix::{SignalKind, signal};

/// Time for the start of a cluster and for the checks at the end, roughly.
const AROUND: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(20);

/// Settings of a run.
struct Settings {
    program: PathBuf,
    folder: PathBuf,
    minutes: u64,
    seed: u64,
    nodes: usize,
    is_loopback: bool,
    /// `true` to run seeds again that are in the report.
    is_fresh: bool,
    pace: Pace,
    /// Name of the build of the program, for the report.
    build: String,
    /// Duration of the faults of a round, if it is not that of the pace. Each round has its own cluster, whose seed is
    /// the next number.
    round: Option<Duration>,
}

impl Settings {
    /// Reads the arguments, which `cargo xtask chaos` has checked.
    fn read(args: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut settings = Self {
            program: "thalweg".into(),
            folder: "target/chaos".into(),
            minutes: 10,
            seed: 1,
            nodes: 3,
            is_loopback: false,
            is_fresh: false,
            pace: Pace::Normal,
            build: String::new(),
            round: None,
        };
        let mut args = args;
        while let Some(name) = args.next() {
            match name.as_str() {
                "--loopback" => settings.is_loopback = true,
                "--fresh" => settings.is_fresh = true,
                _ => {}
            }
            if name == "--loopback" || name == "--fresh" {
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
            match name.as_str() {
                "--program" => settings.program = value.into(),
                "--folder" => settings.folder = value.into(),
                "--minutes" => settings.minutes = number()?,
                "--seed" => settings.seed = number()?,
                "--nodes" => settings.nodes = number()?.clamp(3, 5) as usize,
                "--round-seconds" => settings.round = Some(Duration::from_secs(number()?)),
                "--pace" => settings.pace = Pace::parse(&value).ok_or_else(|| format!("no pace is called {value}"))?,
                "--build" => settings.build = value,
                _ => return Err(format!("the option {name} is unknown")),
            }
        }
        Ok(settings)
    }
}

fn main() -> ExitCode {
    let ran = Settings::read(std::env::args().skip(1)).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(run_until_stopped(&settings))
    });
    match ran {
        Ok(0) => ExitCode::SUCCESS,
        Ok(violations) => {
            eprintln!("chaos: {violations} violations; the report names the folders with histories, logs and data");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until the end or a signal. Then processes, namespaces and file systems are removed as at the end of a round.
async fn run_until_stopped(settings: &Settings) -> Outcome<usize> {
    let listen = |kind| signal(kind).map_err(|error| format!("signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::select! {
        ran = Box::pin(run(settings)) => ran,
        _ = terminate.recv() => Err("stopped".to_owned()),
        _ = interrupt.recv() => Err("stopped".to_owned()),
    }
}

/// Runs the rounds that the report does not have yet. Returns the number of violations.
async fn run(settings: &Settings) -> Outcome<usize> {
    let mut report = Report::open(&settings.folder)?;
    let clocks = match Clocks::build(&settings.folder) {
        Ok(clocks) => Some(clocks),
        Err(why) => {
            println!("== chaos: all clocks stay right: {why}");
            None
        }
    };
    let begin = Instant::now();
    let mut totals = Totals::default();
    for seed in settings.seed.. {
        let rest = Duration::from_secs(60 * settings.minutes).saturating_sub(begin.elapsed());
        if rest.is_zero() || (seed > settings.seed && rest < AROUND + SHORTEST) {
            break;
        }
        if !settings.is_fresh && report.has(seed, settings.nodes, settings.pace.name(), &settings.build) {
            println!("== chaos: seed {seed} is in the report already");
            continue;
        }
        let folder = settings.folder.join(format!("seed-{seed}"));
        if folder.exists() {
            // A round that was interrupted.
            std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        // A node more may join.
        let (network, fallback) = Network::create(settings.nodes + 1, settings.is_loopback);
        if let Some(why) = fallback {
            println!("== chaos: no network namespaces, so nothing is cut: {why}");
        }
        let time = settings.round.unwrap_or(Duration::from_secs(settings.pace.round_seconds()));
        let time = time.min(rest.saturating_sub(AROUND)).max(SHORTEST);
        let nodes = Nodes::new(&settings.program, &folder, network, clocks.clone());
        let finished = Round::new(seed, time, folder, settings, nodes).run().await;
        println!("== chaos: seed {seed}: {}", finished.summary());
        finished.violations.iter().for_each(|violation| println!("VIOLATION seed {seed}: {violation}"));
        totals.add(&finished);
        report.add(&finished)?;
    }
    println!("== chaos: this run: {}", totals.summary());
    print!("{}", totals.table());
    let mut all = report.totals();
    println!("== chaos: whole report: {}", all.summary());
    print!("{}{}", all.table(), all.goals());
    Ok(totals.violations)
}
