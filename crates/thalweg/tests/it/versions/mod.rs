//! Released versions: the directory that each has written, and the bytes of a session of its client.
//!
//! `cargo xtask fixtures VERSION` writes both with the program and the client of this tree, when a version is released.
//! `old_directory` in the tests of the broker opens the directories, and a test here repeats the sessions.

mod recorder;
mod session;
mod writing;

use std::path::PathBuf;

/// Variable with the version for which [`fixtures_of_a_version_are_written`] writes files.
const VARIABLE: &str = "FIXTURES_VERSION";
/// Folders with the files of all versions.
const DIRECTORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../broker/tests/testdata");
const SESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/versions/sessions");
/// Maximum size of the files of one version.
const BYTES_MAX: u64 = 200_000;

/// Writes the fixtures of the version that the variable names: they are committed with its release, and never written
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "it writes files into the repository: cargo xtask fixtures VERSION"]
async fn fixtures_of_a_version_are_written() {
    let version = std::env::var(VARIABLE).expect("a version");
    let archive = PathBuf::from(DIRECTORIES).join(format!("made-by-{version}.tar.gz"));
    let recorded = PathBuf::from(SESSIONS).join(format!("{version}.txt"));
    assert!(!archive.exists() && !recorded.exists(), "the fixtures of {version} exist, and must stay as they are");
    session::record(&recorded).await;
    writing::write_directory(&archive).await;
    let bytes = [&archive, &recorded].map(|path| std::fs::metadata(path).expect("written").len());
    assert!(bytes.iter().sum::<u64>() < BYTES_MAX, "{bytes:?} bytes are too many");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_each_released_version_is_answered_as_it_was() {
    let mut count = 0;
    for entry in std::fs::read_dir(SESSIONS).expect("sessions") {
        session::repeat(&entry.expect("readable").path()).await;
        count += 1;
    }
    assert!(count > 0, "there is no session");
}
