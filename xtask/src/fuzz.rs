//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/` for a limited time.

use crate::run::{Call, Outcome, root};

pub const TARGETS: [&str; 24] = [
    "frames",
    "request",
    "response",
    "record_batch",
    "producers",
    "pattern",
    "service",
    "kafka_request",
    "redis_request",
    "queue_filter",
    "pubsub_schema",
    "sqs_request",
    "pubsub_request",
    "credential",
    "redis_rules",
    "sqs_policy",
    "node_link",
    "join_message",
    "join_token",
    "node_manifest",
    "mesh_link",
    "mesh_invitation",
    "redis_value",
    "lua_data",
];
/// Limit of a target by default.
const SECONDS: &str = "60";
/// Seed with which libFuzzer chooses a random one.
const RANDOM_SEED: &str = "0";

/// How long a target is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Seconds(u32),
    /// Number of inputs, seeds included: however fast the machine is, it tries the same ones.
    Inputs(u32),
}

impl Limit {
    fn parse(text: &str) -> Outcome<Self> {
        let (digits, limit): (&str, fn(u32) -> Self) = match text.strip_suffix('x') {
            Some(digits) => (digits, Self::Inputs),
            None => (text, Self::Seconds),
        };
        digits.parse().map(limit).map_err(|e| format!("'{text}' is neither seconds nor, with an x, inputs: {e}"))
    }

    fn argument(self) -> String {
        match self {
            Self::Seconds(seconds) => format!("-max_total_time={seconds}"),
            Self::Inputs(inputs) => format!("-runs={inputs}"),
        }
    }
}

/// Returns what is missing for fuzzing on this machine.
fn missing() -> Option<&'static str> {
    if !Call::line("rustup run nightly rustc --version").succeeds() {
        return Some("there is no nightly toolchain: rustup toolchain install nightly");
    }
    if !Call::line("rustup run nightly cargo fuzz --version").succeeds() {
        return Some("there is no cargo-fuzz: cargo install cargo-fuzz --locked");
    }
    None
}

pub fn run(args: &[&str]) -> Outcome {
    let (wanted, limit, seed) = match args {
        [] => ("all", SECONDS, RANDOM_SEED),
        [wanted] => (*wanted, SECONDS, RANDOM_SEED),
        [wanted, limit] => (*wanted, *limit, RANDOM_SEED),
        [wanted, limit, seed] => (*wanted, *limit, *seed),
        _ => return Err("the arguments are a target, a number of seconds or of inputs (2000x), and a seed".into()),
    };
    let limit = Limit::parse(limit)?;
    let seed: u32 = seed.parse().map_err(|e| format!("seed '{seed}': {e}"))?;
    let chosen: Vec<&str> = TARGETS.into_iter().filter(|target| wanted == "all" || wanted == *target).collect();
    if chosen.is_empty() {
        return Err(format!("target {wanted} does not exist: choose all, {}", TARGETS.join(", ")));
    }
    if let Some(missing) = missing() {
        return Err(missing.into());
    }
    if chosen.len() > 1 {
        // Together they use all cores: alone, the last crate of each target would use one.
        cargo_fuzz("build").run()?;
    }
    chosen.into_iter().try_for_each(|target| fuzz(target, limit, seed))
}

/// Returns a call with the options of the build: our own crates are optimized, and check their arithmetic.
fn cargo_fuzz(verb: &str) -> Call {
    let call = Call::line("rustup run nightly cargo fuzz").args([verb, "--dev", "--features", "libfuzzer"]);
    call.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
}

/// Runs one target. New inputs are stored in the target directory, so that the committed seeds stay few.
fn fuzz(target: &str, limit: Limit, seed: u32) -> Outcome {
    let found = format!("fuzz/target/corpus/{target}");
    std::fs::create_dir_all(root().join(&found)).map_err(|e| format!("{found}: {e}"))?;
    let seeds = format!("fuzz/corpus/{target}");
    println!("fuzzing {target}: {limit:?}");
    cargo_fuzz("run")
        .args([target, &found, &seeds, "--"])
        .args([limit.argument(), format!("-seed={seed}")])
        .args(["-timeout=10", "-rss_limit_mb=2048"])
        .args(["-verbosity=0", "-print_final_stats=1"])
        .run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_manifest_is_run_and_has_seeds() {
        let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("valid TOML");
        let targets = manifest["bin"].as_array().expect("targets");
        let names: Vec<&str> = targets.iter().map(|target| target["name"].as_str().expect("a name")).collect();
        assert_eq!(names, TARGETS);
        for target in TARGETS {
            let program = std::fs::read_to_string(root().join(format!("fuzz/fuzz_targets/{target}.rs"))).expect(target);
            let opening = format!("//! Program that fuzzes `{target}`.\n\n#![no_main]\n\n");
            let check = format!("libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::{target}::check(input));\n");
            assert_eq!(program, opening + &check);
            let seeds = std::fs::read_dir(root().join("fuzz/corpus").join(target)).expect(target);
            assert!(seeds.count() > 0, "{target}: cargo xtask fuzz-corpus");
        }
    }

    #[test]
    fn an_unknown_target_is_refused() {
        assert!(run(&["frame"]).is_err());
        assert!(run(&["frames", "long"]).is_err());
        assert!(run(&["frames", "1", "random"]).is_err());
        assert!(run(&["frames", "x"]).is_err());
    }

    #[test]
    fn a_limit_is_in_seconds_or_in_inputs() {
        assert_eq!(Limit::parse("60").expect("valid").argument(), "-max_total_time=60");
        assert_eq!(Limit::parse("2000x").expect("valid").argument(), "-runs=2000");
    }
}
