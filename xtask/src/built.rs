//! Programs of this tree that other commands run.

use std::path::PathBuf;

use crate::run::{Call, Outcome};

/// Variable that says that the programs of the profile `dev` are built.
const IS_BUILT: &str = "XTASK_IS_BUILT";

/// Builds the programs of these packages, together: so they use the same builds of their dependencies. Returns the
/// folder that they are in.
pub fn build(packages: &[&str], is_release: bool) -> Outcome<PathBuf> {
    if is_release || std::env::var_os(IS_BUILT).is_none() {
        let packages = packages.iter().flat_map(|package| ["--package", package]);
        let profile = is_release.then_some("--release");
        Call::line("cargo build --quiet --bins").args(packages).args(profile).run()?;
    }
    Ok(target()?.join(if is_release { "release" } else { "debug" }))
}

/// Builds all programs together with the tests. A program that is built alone has other features of its dependencies,
/// so all of them would be built twice.
pub fn with_tests() -> Call {
    Call::line("cargo build --workspace --bins --tests")
}

/// Has a command use the programs of [`with_tests`].
pub fn use_built(call: Call) -> Call {
    call.env(IS_BUILT, "1")
}

/// Returns the folder of built programs.
fn target() -> Outcome<PathBuf> {
    let metadata = Call::line("cargo metadata --format-version 1 --no-deps").output()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    metadata["target_directory"].as_str().map(Into::into).ok_or_else(|| "cargo names no target directory".to_owned())
}
