//! Systems whose clients are tested: their clients, the brokers of this tree for them, and the servers against which
//! the scenarios are validated.

use super::broker::{self, Broker};
use super::clients::{Client, Jars, Kind, Packages, client, debian, driven, venv};
use crate::run::{Call, Outcome};

/// System: its folder in `compat`, and the door that its clients use.
pub struct System {
    pub name: &'static str,
    pub clients: &'static [Client],
    /// Starts a broker of this tree with a door for them.
    pub start: fn() -> Outcome<Broker>,
    /// Peers of the system. The first one is the default of `--peer`.
    pub peers: &'static [Peer],
    /// Options of the command that become variables of the programs.
    pub options: &'static [(&'static str, &'static str)],
    /// Beginning of its page of the documentation.
    pub page: &'static str,
}

/// Other server of the same protocol. Its limitations are in `suite/NAME.lacks` of the system.
pub struct Peer {
    pub name: &'static str,
    /// Scenarios that it supports; all, if this is empty.
    pub only: &'static [&'static str],
    pub install: fn() -> Outcome,
    /// Starts the server, with a folder for its data; its address is then in `ready.json` of this folder.
    pub start: fn(&str) -> Call,
}

pub static SYSTEMS: &[&System] = &[&KAFKA, &SQS, &PUBSUB, &REDIS];

static KAFKA_JARS: Jars = Jars {
    pom: "compat/kafka/suite/pom.xml",
    folder: "target/compat/jars",
    classes: "target/compat/java",
    options: &["-Dlog4j2.configurationFile=compat/kafka/suite/log4j2.xml"],
    about: "Kafka's jars from Maven Central: 126 MB",
};

static KAFKA: System = System {
    name: "kafka",
    clients: &[
        client("kafka", "kcat", Kind::Debian("kcat", "kcat")).quick(),
        client("kafka", "confluent-kafka", Kind::Python).quick().through_failovers().at_two_sites(),
        client("kafka", "kafka-python", Kind::Python).quick().at_two_sites(),
        client("kafka", "aiokafka", Kind::Python),
        client("kafka", "franz-go", Kind::Go).quick().through_failovers(),
        client("kafka", "sarama", Kind::Go),
        client("kafka", "kafka-go", Kind::Go),
        client("kafka", "kafkajs", Kind::Node),
        client("kafka", "rdkafka", Kind::Rust),
        client("kafka", "java", Kind::Java("Client", &KAFKA_JARS)).through_failovers(),
        client("kafka", "tools", Kind::Jars(&KAFKA_JARS)),
        client("kafka", "streams", Kind::Java("WordCount", &KAFKA_JARS)),
        client("kafka", "connect", Kind::Jars(&KAFKA_JARS)),
    ],
    start: broker::kafka,
    peers: &[Peer {
        name: "kafka",
        only: &[],
        install: || KAFKA_JARS.install(),
        start: |folder| Call::line("python3 compat/kafka/suite/peer.py --until-eof").arg(folder),
    }],
    options: &[
        ("--sasl-address", "COMPAT_SASL"),
        ("--sasl-tls-address", "COMPAT_SASL_TLS"),
        ("--ca", "COMPAT_CA"),
        ("--user", "COMPAT_USER"),
        ("--password", "COMPAT_PASSWORD"),
    ],
    page: "# Kafka clients: test results

<!-- Written by `cargo xtask compat kafka --table FILE`: run the clients, do not change this file. -->

This page lists the tests of unmodified Kafka clients and tools from the public registries. They ran
against a broker of this source tree with a data directory, and against a second one that requires
logins and accepts TLS. Each scenario checks contents, not only counts, and also passes against
Apache Kafka. [compat/kafka](../../compat/kafka/README.md) describes the scenarios and how to run
them.
",
};

static AWS_JARS: Jars = Jars {
    pom: "compat/sqs/aws-sdk-java/pom.xml",
    folder: "target/compat/aws-sdk-java-jars",
    classes: "target/compat/aws-sdk-java",
    options: &[],
    about: "the jars of AWS's SDK from Maven Central: 12 MB",
};
static ELASTICMQ_JARS: Jars = Jars {
    pom: "compat/sqs/suite/pom.xml",
    folder: "target/compat/elasticmq-jars",
    classes: "",
    options: &[],
    about: "ElasticMQ's jars from Maven Central: 70 MB",
};
const MOTO: &str = "target/compat/moto";

static SQS: System = System {
    name: "sqs",
    clients: &[
        driven("sqs", "boto3", Kind::Python).quick().through_failovers().at_two_sites(),
        driven("sqs", "boto3-query", Kind::Python).quick(),
        driven("sqs", "aws-cli", Kind::Python),
        driven("sqs", "aws-sdk-js", Kind::Node).quick(),
        driven("sqs", "aws-sdk-go", Kind::Go).quick(),
        driven("sqs", "aws-sdk-java", Kind::Java("Client", &AWS_JARS)),
        driven("sqs", "aws-sdk-rust", Kind::Rust),
        client("sqs", "celery", Kind::Python),
    ],
    start: broker::sqs,
    peers: &[
        Peer {
            name: "moto",
            only: &[],
            install: || venv(MOTO, "compat/sqs/suite/moto.txt"),
            start: |folder| peer(folder, &[&format!("{MOTO}/bin/moto_server"), "-H", "127.0.0.1", "-p", "{port}"]),
        },
        Peer { name: "elasticmq", only: &[], install: || ELASTICMQ_JARS.install(), start: elasticmq },
    ],
    options: &[("--signed-address", "COMPAT_SIGNED"), ("--user", "COMPAT_USER"), ("--password", "COMPAT_PASSWORD")],
    page: "# SQS clients: test results

<!-- Written by `cargo xtask compat sqs --table FILE`: run the clients, do not change this file. -->

This page lists the tests of unmodified SQS clients from the public registries. They ran against a
broker of this source tree with a data directory. All clients except Celery run the same scenarios;
calls have the names that AWS gives them. Each scenario checks contents and the error class of the
library. The scenarios also pass against moto and ElasticMQ, except for features that these lack.
[compat/sqs](../../compat/sqs/README.md) describes the scenarios and how to run them.
",
};

fn elasticmq(folder: &str) -> Call {
    let command = [
        "java",
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-Drest-sqs.bind-hostname=127.0.0.1",
        "-Drest-sqs.bind-port={port}",
        "-Dnode-address.port={port}",
        "-Drest-stats.enabled=false",
        "-cp",
        &format!("{}/*", ELASTICMQ_JARS.folder),
        "org.elasticmq.server.Main",
    ];
    peer(folder, &command)
}

const EMULATOR: &str = "/usr/lib/google-cloud-sdk/platform/pubsub-emulator/bin/cloud-pubsub-emulator";
const PSTEST: Client = client("pubsub", "pstest", Kind::Go);

static PUBSUB: System = System {
    name: "pubsub",
    clients: &[
        driven("pubsub", "pubsub-python", Kind::Python).quick().through_failovers().at_two_sites(),
        driven("pubsub", "pubsub-go", Kind::Go).quick(),
        driven("pubsub", "pubsub-node", Kind::Node),
        driven("pubsub", "pubsub-rest", Kind::Script).quick(),
    ],
    start: || broker::one("pubsub", &["pubsub_push_allow=127.0.0.0/8,::1".to_owned()]),
    peers: &[
        Peer {
            name: "emulator",
            only: &[],
            install: || debian(EMULATOR, "google-cloud-cli-pubsub-emulator"),
            start: |folder| peer(folder, &[EMULATOR, "--host=127.0.0.1", "--port={port}"]),
        },
        Peer {
            name: "pstest",
            // The peer exits on some other calls.
            only: &[
                "topic_labels",
                "subscription_labels",
                "filter_has",
                "filter_equals",
                "filter_differs",
                "filter_prefix",
                "filter_and_not",
                "filter_or",
                "filter_quoted",
            ],
            install: || PSTEST.install(),
            start: |folder| peer(folder, &["target/compat/pstest", "127.0.0.1:{port}"]),
        },
    ],
    options: &[],
    page: "# Google Pub/Sub clients: test results

<!-- Written by `cargo xtask compat pubsub --table FILE`: run the clients, do not change this file. -->

This page lists the tests of unmodified Google Pub/Sub clients from the public registries, and of
the same calls over REST without a client library. They ran against a broker of this source tree
with a data directory; the clients find it through `PUBSUB_EMULATOR_HOST`. All clients run the same
scenarios, which check contents. The scenarios also pass against Google's emulator and Google's fake
for Go, except for features that these lack.
[compat/pubsub](../../compat/pubsub/README.md) describes the scenarios and how to run them.
",
};

static JEDIS_JARS: Jars = Jars {
    pom: "compat/redis/jedis/pom.xml",
    folder: "target/compat/jedis-jars",
    classes: "target/compat/jedis",
    options: &[],
    about: "the jars of Jedis from Maven Central: 4 MB",
};

static REDISSON_JARS: Jars = Jars {
    pom: "compat/redis/libraries-java/pom.xml",
    folder: "target/compat/redisson-jars",
    classes: "target/compat/libraries-java",
    options: &[],
    about: "the jars of Redisson from Maven Central: 21 MB",
};
static SIDEKIQ: Packages =
    Packages { interpreter: "ruby", program: "client.rb", files: &["/usr/bin/sidekiq"], names: &["ruby-sidekiq"] };
static LARAVEL: Packages = Packages {
    interpreter: "php",
    program: "client.php",
    files: &[
        "/usr/bin/php",
        "/usr/share/doc/php-redis",
        "/usr/share/php/Illuminate/Bus/autoload.php",
        "/usr/share/php/Illuminate/Cache/autoload.php",
        "/usr/share/php/Illuminate/Events/autoload.php",
        "/usr/share/php/Illuminate/Queue/autoload.php",
        "/usr/share/php/Illuminate/Redis/autoload.php",
    ],
    names: &[
        "php-cli",
        "php-redis",
        "php-illuminate-bus",
        "php-illuminate-cache",
        "php-illuminate-events",
        "php-illuminate-queue",
        "php-illuminate-redis",
    ],
};

static REDIS: System = System {
    name: "redis",
    clients: &[
        driven("redis", "redis-cli", Kind::Debian("redis-cli", "redis-tools")).quick(),
        driven("redis", "redis-py", Kind::Python).quick().through_failovers().at_two_sites(),
        driven("redis", "redis-py-hiredis", Kind::Python),
        driven("redis", "redis-py-asyncio", Kind::Python),
        driven("redis", "hiredis", Kind::C("/usr/include/hiredis/hiredis.h", "libhiredis-dev")),
        driven("redis", "ioredis", Kind::Node),
        driven("redis", "node-redis", Kind::Node),
        driven("redis", "go-redis", Kind::Go),
        driven("redis", "jedis", Kind::Java("Client", &JEDIS_JARS)),
        client("redis", "libraries", Kind::Python).quick(),
        client("redis", "libraries-node", Kind::Node).quick(),
        client("redis", "libraries-go", Kind::Go),
        client("redis", "libraries-ruby", Kind::Packages(&SIDEKIQ)),
        client("redis", "libraries-php", Kind::Packages(&LARAVEL)),
        client("redis", "libraries-java", Kind::Java("Client", &REDISSON_JARS)),
        client("redis", "differential", Kind::Script).quick(),
        client("redis", "linearizability", Kind::Go),
        client("redis", "pressure", Kind::Script).quick(),
    ],
    start: broker::redis,
    peers: &[Peer {
        name: "redis-server",
        only: &[],
        install: || debian("redis-server", "redis-server"),
        start: |folder| {
            let server = ["redis-server", "--bind", "127.0.0.1", "--port", "{port}", "--dir", "{dir}"];
            let in_memory = ["--save", "", "--appendonly", "no"];
            Call::line("env LC_ALL=C python3 compat/suite/peer.py --until-eof --and-empty")
                .arg(folder)
                .args([&server[..], &in_memory].concat())
        },
    }],
    options: &[("--empty-address", "COMPAT_EMPTY")],
    page: "# Redis clients: test results

<!-- Written by `cargo xtask compat redis --table FILE`: run the clients, do not change this file. -->

This page lists the tests of unmodified Redis clients from the public registries. They ran against a
broker of this source tree with a data directory. All clients run the same scenarios, which check
contents and the texts of errors, and which also pass against redis-server. Programs that use
libraries built on Redis have their own scenarios, in `libraries` and `libraries-*`; the table of
[libraries](#libraries) says what each of them runs. Three further programs test the broker as a
whole:

- `differential` sends the same random commands to a separate broker and to a redis-server.
- `linearizability` searches for an order that explains the replies to several concurrent clients.
- `pressure` blocks ten thousand clients, and lets a million keys expire at the same time.

[compat/redis](../../compat/redis/README.md) describes the scenarios and how to run them.
",
};

/// Returns the call of a script that starts the peer on a free port and waits until it responds there.
fn peer(folder: &str, command: &[&str]) -> Call {
    Call::line("python3 compat/suite/peer.py --until-eof").arg(folder).args(command.iter().copied())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::run::root;

    /// The first table of a door's page has all its calls; the page of its clients names the scenarios that prove each.
    #[test]
    fn every_call_of_a_door_is_made_by_a_scenario() {
        let page = |name: String| std::fs::read_to_string(root().join("docs/reference").join(name)).expect("a page");
        for system in ["sqs", "pubsub"] {
            let served = page(format!("{system}.md"));
            let tried = page(format!("{system}-clients.md"));
            let rows = served.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
            let rows = rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
            let calls: Vec<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
            assert!(calls.len() > 20, "{system}: {calls:?}");
            let untried = |call: &&&str| !tried.contains(&format!("\n| `{call}` | `"));
            assert_eq!(calls.iter().filter(untried).collect::<Vec<_>>(), Vec::<&&str>::new(), "{system}");
        }
    }

    #[test]
    fn no_two_clients_are_installed_into_one_place() {
        let names: Vec<&str> = SYSTEMS.iter().flat_map(|system| system.clients).map(|client| client.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}
