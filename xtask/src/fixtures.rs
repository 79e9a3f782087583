//! `cargo xtask fixtures VERSION`: files of a version that is released, for the tests that later versions still read
//! them: a data directory, and a session of the client.

use crate::run::{Call, Outcome};

/// Variable that the test which writes them reads.
const VARIABLE: &str = "FIXTURES_VERSION";

pub fn run(args: &[&str]) -> Outcome {
    let [version] = args else {
        return Err("name the version that is released, such as 0.1.0".into());
    };
    let is_version = version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok());
    if !is_version {
        return Err(format!("{version} is no version: write three numbers, such as 0.1.0"));
    }
    let test = "versions::fixtures_of_a_version_are_written";
    let call = Call::line(&format!("cargo test -p thalweg --test it {test} -- --exact --ignored"));
    call.env(VARIABLE, *version).run()
}
