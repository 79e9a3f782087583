//! `thalweg cluster demo`, which has its own time limits.

use crate::support::server::program;

#[test]
fn a_cluster_whose_leader_is_killed_loses_nothing_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = program();
    command.args(["--json", "cluster", "demo", "--seconds", "6"]).env("TMPDIR", folder.path());
    let output = command.output().expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["nodes"], 3);
    assert_eq!([&report["lost"], &report["duplicated"], &report["reordered"]], [0, 0, 0], "{report}");
    let number = |name: &str| report[name].as_u64().expect("a number");
    assert!(number("kills") >= 1 && number("acknowledged") > 1000, "{report}");
    assert_eq!(number("acknowledged") + number("failed"), number("published"), "{report}");
    assert!(words.contains("killed the leader"), "{words}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
}
