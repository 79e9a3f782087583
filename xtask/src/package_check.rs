//! `cargo xtask package --check`: the files of `packaging` and of the release, by the tools of their formats.

use std::fs;

use crate::run::{Call, Outcome, root};

/// Check of a file by the tool of its format.
struct Check {
    /// Program that has to be installed.
    tool: &'static str,
    /// Command line.
    line: &'static str,
}

const CHECKS: [Check; 9] = [
    Check { tool: "shellcheck", line: "shellcheck packaging/install.sh packaging/deb/postinst packaging/deb/postrm" },
    Check { tool: "ruby", line: "ruby -c packaging/homebrew/thalweg.rb" },
    Check { tool: "actionlint", line: "actionlint .github/workflows/release.yml" },
    Check { tool: "helm", line: "helm lint --strict --quiet packaging/helm/thalweg --set insecure=true" },
    Check { tool: "podman-compose", line: "podman-compose --file packaging/docker/compose.yaml config" },
    Check { tool: "podman-compose", line: "podman-compose --file packaging/docker/compose.cluster.yaml config" },
    Check { tool: "systemd-analyze", line: "systemd-analyze verify --man=no target/packages/check/thalweg.service" },
    Check {
        tool: "systemd-analyze",
        line: "systemd-analyze security --offline=yes --threshold=20 target/packages/check/thalweg.service",
    },
    Check {
        tool: "kubernetes-validate",
        line: "kubernetes-validate --kubernetes-version 1.30 --strict --quiet target/packages/check/insecure.yaml \
               target/packages/check/secure.yaml",
    },
];

/// Values of the charts that are rendered, with the names of their files.
const CHARTS: [(&str, &[&str]); 2] = [
    ("insecure.yaml", &["insecure=true"]),
    ("secure.yaml", &["tls.secretName=tls", "admin.secretName=admin", "config.disk_retention_ms=7d", "replicas=5"]),
];

pub fn run() -> Outcome {
    let folder = root().join("target/packages/check");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let write = |name: &str, text: String| {
        fs::write(folder.join(name), text).map_err(|e| format!("{}: {e}", folder.join(name).display()))
    };
    // The program of the unit need not be installed where it is checked.
    let unit = root().join("packaging/systemd/thalweg.service");
    let unit = fs::read_to_string(&unit).map_err(|e| format!("{}: {e}", unit.display()))?;
    write("thalweg.service", unit.replace("/usr/bin/thalweg", "/bin/true"))?;
    if has("helm") {
        for (name, values) in CHARTS {
            let sets = values.iter().flat_map(|value| ["--set", value]);
            let chart = Call::line("helm template --kube-version 1.30.0 t packaging/helm/thalweg").args(sets);
            write(name, chart.output()?)?;
        }
    }
    let mut missing = Vec::new();
    for Check { tool, line } in CHECKS {
        if has(tool) {
            println!("{line}");
            Call::line(line).output().map_err(|e| format!("{e}; run it to see why"))?;
        } else {
            missing.push(tool);
        }
    }
    missing.dedup();
    match missing.as_slice() {
        [] => println!("all files are valid"),
        missing => println!("not checked, as these are not installed: {}", missing.join(", ")),
    }
    Ok(())
}

fn has(tool: &str) -> bool {
    Call::line("which").arg(tool).succeeds()
}
