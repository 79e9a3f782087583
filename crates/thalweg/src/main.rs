//! The binary: reads the command line and the configuration, then runs one command.

extern crate thalweg_client as client;

mod args;
mod commands;
mod output;

use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches;
use thalweg::config::contexts::Chosen;
use thalweg::config::{Config, Sources};

use args::{Bench, Cli, Command, Global};
use output::{Failure, Result, USAGE};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Environment variable that turns on the log of commands other than `serve`.
const LOG_VARIABLE: &str = "THALWEG_LOG";
/// Configuration file that is read from the working directory if no file is named.
const DEFAULT_FILE: &str = "thalweg.toml";

fn main() -> ExitCode {
    let parsed = args::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return args::explain(error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn run(mut cli: Cli) -> Result {
    if matches!(cli.command, Command::Bench(Bench::Rpc(_))) {
        // In `bench rpc` this option names a profile, which the arguments of the command contain, too.
        cli.global.config = None;
    }
    let global = &cli.global;
    if !matches!(cli.command, Command::Serve(_)) && std::env::var_os(LOG_VARIABLE).is_some() {
        // A client logs nothing unless this variable is set.
        commands::serve::start_log(&load_without_context(global, Vec::new())?)?;
    }
    if let (Command::Bench(_), None, Some(_)) = (&cli.command, &cli.global.server, &cli.global.context) {
        // A context that is named names a running broker; the current one does not.
        cli.global.server = commands::context::chosen(&cli.global)?.map(|chosen| chosen.context.server().to_owned());
    }
    let global = &cli.global;
    match cli.command {
        Command::Serve(args) => commands::serve::run(global, &args),
        Command::Init(args) => commands::init::run(&args, global.json),
        Command::Demo(args) => commands::demo::run(&args, global.json),
        Command::Publish(args) => commands::publish::run(&load(global, Vec::new())?, args, global.json),
        Command::Subscribe(args) => commands::subscribe::run(&load(global, Vec::new())?, args, global.json),
        Command::Reply(args) => commands::reply::run(&load(global, Vec::new())?, &args, global.json),
        Command::Status => commands::status::run(&load(global, Vec::new())?, global.json),
        Command::Request(args) => commands::request::run(&load(global, Vec::new())?, &args, global.json),
        Command::Connections(args) => commands::connections::list(&load(global, Vec::new())?, &args, global.json),
        Command::Disconnect(args) => commands::connections::disconnect(&load(global, Vec::new())?, &args, global.json),
        Command::Cluster(args) => commands::cluster::run(global, args),
        Command::Mesh(args) => commands::mesh::run(&load(global, Vec::new())?, args, global.json),
        Command::Topic(args) => commands::topic::run(&load(global, Vec::new())?, args, global.json),
        Command::Group(args) => commands::group::run(&load(global, Vec::new())?, args, global.json),
        Command::Queue(args) => commands::queue::run(&load(global, Vec::new())?, args, global.json),
        Command::Cache(args) => commands::cache::run(&load(global, Vec::new())?, args, global.json),
        Command::User(args) => commands::user::run(&load(global, Vec::new())?, args, global.json),
        Command::Role(args) => commands::role::run(&load(global, Vec::new())?, args, global.json),
        Command::Tenant(args) => commands::tenant::run(&load(global, Vec::new())?, args, global.json),
        Command::Key(args) => commands::access_key::run(&load(global, Vec::new())?, args, global.json),
        Command::Audit(args) => commands::audit::run(&load(global, Vec::new())?, &args, global.json),
        Command::Token(args) => commands::token::run(&load(global, Vec::new())?, args, global.json),
        Command::Quota(args) => commands::quota::run(&load(global, Vec::new())?, args, global.json),
        Command::Acl(args) => commands::acl::run(&load(global, Vec::new())?, args, global.json),
        Command::Context(args) => commands::context::run(global, args),
        Command::Login(args) => commands::login::log_in(global, &args),
        Command::Logout(args) => commands::login::log_out(global, &args),
        Command::Config(args) => commands::config::run(&load(global, Vec::new())?, &args, global.json),
        Command::Doctor(args) => commands::doctor::run(global, &args),
        Command::Bench(args) => commands::bench::run(global, args),
        Command::Top(args) => commands::top::run(&load(global, Vec::new())?, &args, global.json),
        Command::Backup(args) => commands::backup::run(&load(global, Vec::new())?, &args, global.json),
        Command::Restore(args) => {
            commands::backup::restore(&load_without_context(global, Vec::new())?, &args, global.json)
        }
        Command::Inspect(args) => commands::inspect::run(&load_without_context(global, Vec::new())?, args, global.json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "thalweg", &mut script);
            Ok(std::io::stdout().write_all(&script)?)
        }
        Command::Man { directory } => {
            std::fs::create_dir_all(&directory)?;
            Ok(clap_mangen::generate_to(args::command(), &directory)?)
        }
    }
}

/// Loads the configuration of a command from its flags, the environment, the context and the file.
fn load(global: &Global, flags: Vec<(&'static str, String)>) -> Result<Config> {
    load_with(global, flags, commands::context::chosen(global)?)
}

/// Loads the configuration of a command that connects to no broker, or to its own.
fn load_without_context(global: &Global, flags: Vec<(&'static str, String)>) -> Result<Config> {
    load_with(global, flags, None)
}

fn load_with(global: &Global, mut flags: Vec<(&'static str, String)>, context: Option<Chosen>) -> Result<Config> {
    let named = |name: &'static str, value: &Option<String>| value.clone().map(|value| (name, value));
    flags.extend(named("server", &global.server));
    flags.extend(named("ca_file", &global.ca_file));
    flags.extend(named("token_file", &global.token_file));
    flags.extend(set_flags(global)?);
    let file = global.config.clone().or_else(|| {
        let here = std::path::PathBuf::from(DEFAULT_FILE);
        here.exists().then_some(here)
    });
    Ok(Config::load(&Sources { file, context, flags, ..Sources::default() }.with_env())?)
}

/// Returns the keys of `--set` with their values.
fn set_flags(global: &Global) -> Result<Vec<(&'static str, String)>> {
    let split = |pair: &String| {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Failure::new(USAGE, format!("--set {pair}: write KEY=VALUE")));
        };
        Ok((thalweg::config::key_name(name, "--set")?, value.to_owned()))
    };
    global.set.iter().map(split).collect()
}

/// Runs a command that talks to a broker: one thread is enough for that.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
