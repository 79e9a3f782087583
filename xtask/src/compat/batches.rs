//! `cargo xtask compat batches`: kafka-python reads the record batches that this project writes.

use std::path::Path;

use crate::run::{Call, Outcome, root};

const BATCHES: &str = "crates/engine/testdata/batches";
const VENV: &str = "target/kafka-venv";
/// Output of the example, to be read by the other implementation.
const ENCODED: &str = "target/encoded-batches.txt";

pub fn run() -> Outcome {
    let python = format!("{VENV}/bin/python");
    if !Path::new(&root()).join(&python).exists() {
        Call::line("python3 -m venv").arg(VENV).run()?;
    }
    // Prints nothing if everything is already installed.
    let requirements = format!("{BATCHES}/requirements.txt");
    Call::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement", &requirements]).run()?;

    let encoded = Call::line("cargo run --quiet -p thalweg-engine --example encode_batch").output()?;
    let count = encoded.lines().count();
    std::fs::write(root().join(ENCODED), encoded).map_err(|e| format!("{ENCODED}: {e}"))?;
    // The redirection needs a shell.
    let decoded = Call::new("sh").arg("-c").arg(format!("{python} {BATCHES}/verify.py < {ENCODED}")).output()?;
    println!("kafka-python read {count} batches with {} records as they were written", decoded.lines().count());
    Ok(())
}
