//! Developer commands: `cargo xtask <command>`.

mod beside;
mod built;
mod chaos;
mod ci;
mod codegen;
mod compare;
mod compat;
mod corpus;
mod deny;
mod dashboards;
mod docs;
mod fixtures;
mod fuzz;
mod kafka_apis;
mod kafka_messages;
mod package;
mod package_check;
mod permissions;
mod run;
mod simulate;
mod sizes;
mod soak;
mod sqs_model;
mod tidy;

use std::process::ExitCode;

use run::{Call, Outcome};

/// Command: its name with its arguments, its purpose, and its function.
struct Command {
    usage: &'static str,
    about: &'static str,
    run: fn(&[&str]) -> Outcome,
}

impl Command {
    fn name(&self) -> &str {
        self.usage.split(' ').next().unwrap_or_default()
    }

    fn line(&self) -> String {
        format!("{:<29} {}", self.usage, self.about)
    }
}

const COMMANDS: &[Command] = &[
    Command { usage: "ci", about: "All checks that must pass before a change is merged", run: |_| ci::run() },
    Command { usage: "tidy", about: "Check the rules that no compiler checks", run: |_| tidy::run() },
    Command {
        usage: "docs [--check]",
        about: "Generate the pages of docs/reference, or check that they are up to date",
        run: docs::run,
    },
    Command {
        usage: "dashboards [--check]",
        about: "Generate the dashboards of docs/dashboards, or check that they are up to date",
        run: dashboards::run,
    },
    Command {
        usage: "deny",
        about: "Check dependencies: licences, sources, duplicates, known vulnerabilities (needs cargo-deny)",
        run: deny::run,
    },
    Command {
        usage: "fuzz [target|all] [seconds|inputs, such as 2000x] [seed]",
        about: "Fuzz one target or each in turn, 60 seconds by default (needs nightly and cargo-fuzz)",
        run: fuzz::run,
    },
    Command {
        usage: "fuzz-corpus",
        about: "Generate the seeds of the fuzz targets from the vectors of the tests",
        run: |_| corpus::run(),
    },
    Command {
        usage: "fixtures VERSION",
        about: "Write the files of a released version, which the tests of later versions read",
        run: fixtures::run,
    },
    Command {
        usage: "kafka-messages [jar]",
        about: "Generate the messages of the Kafka door from the schemas in the jar of Kafka's client",
        run: kafka_messages::run,
    },
    Command {
        usage: "codegen [folder..]",
        about: "Generate the messages of the Pub/Sub door from Google's definitions on npm",
        run: codegen::run,
    },
    Command {
        usage: "sqs-model [version]",
        about: "Extract botocore's model of the SQS requests, for the test that tries all of them",
        run: sqs_model::run,
    },
    Command {
        usage: "compat batches",
        about: "Read this project's record batches with kafka-python",
        run: compat::run,
    },
    Command {
        usage: "compat kafka [client..]",
        about: "Run Kafka's clients and tools against the broker (--quick: a few of them)",
        run: compat::run,
    },
    Command {
        usage: "compat sqs [client..]",
        about: "Run SDKs of SQS against the broker (--peer: against moto, --peer=elasticmq: against ElasticMQ)",
        run: compat::run,
    },
    Command {
        usage: "compat pubsub [client..]",
        about: "Run clients of Google Pub/Sub against the broker (--peer: against Google's emulator)",
        run: compat::run,
    },
    Command {
        usage: "compat redis [client..]",
        about: "Run clients of Redis against the broker (--peer: against redis-server)",
        run: compat::run,
    },
    Command {
        usage: "compat cluster [client..]",
        about: "Kill leaders under the load of clients, and check it (--kills 20, --one, --release, --json FILE)",
        run: compat::run,
    },
    Command {
        usage: "compat mesh [client..]",
        about: "Read at one site what is written at another, while sites are killed (--kills 6, --seed 1)",
        run: compat::run,
    },
    Command {
        usage: "compat console",
        about: "Use the web console in headless Chromium: actions, accessibility, sizes, screenshots in both themes",
        run: compat::run,
    },
    Command {
        usage: "compare OLD_COMMIT",
        about: "Measure whether this tree is as fast as that commit (--rounds N, --only NAME, --quick, --least 0.98)",
        run: compare::run,
    },
    Command {
        usage: "sizes",
        about: "Build the programs of the profiles quick and dist, and check their sizes",
        run: sizes::run,
    },
    Command {
        usage: "package [--target T]",
        about: "Make an archive, an image folder and a .deb (--profile P, --program FILE, --deb; --check: the files)",
        run: package::run,
    },
    Command {
        usage: "soak storage [--minutes N]",
        about: "Power cuts, faults, damage, repairs and kills with new seeds, 10 minutes by default",
        run: soak::run,
    },
    Command {
        usage: "soak kills [--minutes N]",
        about: "A broker that is killed under writers of every door, with new seeds, 10 minutes by default",
        run: soak::run,
    },
    Command {
        usage: "soak hardening [--minutes N]",
        about: "Hostile clients with more connections, topics and calls than in ci, 10 minutes by default",
        run: soak::run,
    },
    Command {
        usage: "simulate [nodes|views] [seeds] [--from N]",
        about: "Simulate the consensus, or whole nodes, with faults from seeds, and find bugs planted in the consensus",
        run: simulate::run,
    },
    Command {
        usage: "simulate sites [seeds] [--from N]",
        about: "Simulate the discovery of a mesh: faults, planted bugs, and up to 100,000 sites (--sizes N,N.. only)",
        run: simulate::run,
    },
    Command {
        usage: "chaos [--minutes N]",
        about: "Faults for a cluster under load, then checks (--seed S, --nodes 3|5, --loopback, --fresh, --release)",
        run: chaos::run,
    },
    Command {
        usage: "data",
        about: "Fetch the data sets that the demo and the benchmarks use",
        run: |_| Call::new("bash").arg("scripts/fetch-data.sh").run(),
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some((name, rest)) = args.split_first() else {
        return usage();
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name() == *name) else {
        return usage();
    };
    if rest.iter().any(|arg| matches!(*arg, "--help" | "-h")) {
        COMMANDS.iter().filter(|other| other.name() == *name).for_each(|other| println!("{}", other.line()));
        return ExitCode::SUCCESS;
    }
    match (command.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {name}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo xtask <command>\n");
    COMMANDS.iter().for_each(|command| eprintln!("  {}", command.line()));
    ExitCode::from(2)
}
