//! The clients of Kafka that the suite has a program for: how each is installed, and how it is called.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::run::{Call, Outcome, root};

/// For a few packages of some MB. Where nobody answers it is the only end.
const FETCH: Duration = Duration::from_secs(60);
const SOURCES: &str = "compat/kafka";
const INSTALLED: &str = "target/compat";
const JARS: &str = "target/compat/jars";
const CLASSES: &str = "target/compat/java";

/// One client, or one set of tools.
pub struct Client {
    pub name: &'static str,
    /// Whether `--quick` has it: one of each family.
    pub is_quick: bool,
    kind: Kind,
}

enum Kind {
    /// From PyPI, as `requirements.txt` says.
    Python,
    Go,
    Node,
    Rust,
    /// A class of the client's folder, with Kafka's jars.
    Java(&'static str),
    /// Python that drives classes of Kafka's jars.
    Jars,
    /// Python that drives a program of a package of Debian.
    Debian(&'static str),
}

const fn client(name: &'static str, is_quick: bool, kind: Kind) -> Client {
    Client { name, is_quick, kind }
}

pub const CLIENTS: &[Client] = &[
    client("kcat", true, Kind::Debian("kcat")),
    client("confluent-kafka", true, Kind::Python),
    client("kafka-python", true, Kind::Python),
    client("aiokafka", false, Kind::Python),
    client("franz-go", true, Kind::Go),
    client("sarama", false, Kind::Go),
    client("kafka-go", false, Kind::Go),
    client("kafkajs", false, Kind::Node),
    client("rdkafka", false, Kind::Rust),
    client("java", false, Kind::Java("Client")),
    client("tools", false, Kind::Jars),
    client("streams", false, Kind::Java("WordCount")),
    client("connect", false, Kind::Jars),
];

impl Client {
    fn sources(&self) -> String {
        format!("{SOURCES}/{}", self.name)
    }

    fn installed(&self) -> String {
        format!("{INSTALLED}/{}", self.name)
    }

    /// Brings what comes over the network, unless it is there. An error says what cannot be had.
    pub fn fetch(&self) -> Outcome {
        match self.kind {
            Kind::Go => Call::new("go").args(["-C", &self.sources(), "mod", "download"]).within(FETCH).run(),
            Kind::Debian(program) if !Call::line("which").arg(program).succeeds() => {
                Err(format!("{program} is missing: apt-get install {program}"))
            }
            _ => self.install(),
        }
    }

    /// Brings what is missing. Without a word where everything is there already.
    pub fn install(&self) -> Outcome {
        let (sources, installed) = (self.sources(), self.installed());
        match self.kind {
            Kind::Python => once(&installed, &[&format!("{sources}/requirements.txt")], || {
                Call::line("python3 -m venv --clear").arg(&installed).run()?;
                let pip = Call::new(format!("{installed}/bin/python")).args(["-m", "pip", "install", "--quiet"]);
                pip.args(["--disable-pip-version-check", "--requirement"])
                    .arg(format!("{sources}/requirements.txt"))
                    .within(FETCH)
                    .run()
            }),
            Kind::Go => {
                let output = root().join(&installed).display().to_string();
                Call::new("go").args(["-C", &sources, "build", "-o", &output, "."]).run()
            }
            Kind::Node => {
                let (package, lock) = (format!("{sources}/package.json"), format!("{sources}/package-lock.json"));
                once(&installed, &[&package, &lock], || {
                    Call::line("mkdir -p").arg(&installed).run()?;
                    Call::new("cp").args([&package, &lock, &installed]).run()?;
                    Call::line("npm ci --no-audit --no-fund --silent --prefix").arg(&installed).run()
                })
            }
            Kind::Rust => {
                let manifest = format!("{sources}/Cargo.toml");
                let call = Call::line("cargo build --quiet --locked --manifest-path").arg(manifest);
                call.arg("--target-dir").arg(&installed).run()
            }
            Kind::Java(class) => {
                jars()?;
                let call = Call::line("javac -nowarn -Xlint:none -proc:none -cp").arg(format!("{JARS}/*"));
                call.args(["-d", CLASSES]).arg(format!("{sources}/{class}.java")).run()
            }
            Kind::Jars => jars(),
            Kind::Debian(package) => debian(package, package),
        }
    }

    /// The program, for the address and the names of scenarios to be added.
    pub fn call(&self) -> Call {
        let (sources, installed) = (self.sources(), self.installed());
        match self.kind {
            Kind::Python => Call::new(format!("{installed}/bin/python")).arg(format!("{sources}/client.py")),
            Kind::Go => Call::new(installed),
            Kind::Node => {
                let modules = root().join(installed).join("node_modules").display().to_string();
                Call::new("node").arg(format!("{sources}/client.js")).env("NODE_PATH", modules)
            }
            Kind::Rust => Call::new(format!("{installed}/debug/compat-rdkafka")),
            Kind::Java(class) => Call::line("java -XX:TieredStopAtLevel=1")
                .arg(format!("-Dlog4j2.configurationFile={SOURCES}/suite/log4j2.xml"))
                .args(["-cp", &format!("{CLASSES}:{JARS}/*"), class]),
            Kind::Jars | Kind::Debian(_) => Call::new("python3").arg(format!("{sources}/client.py")),
        }
    }
}

/// Kafka's jars, and what they need.
pub fn jars() -> Outcome {
    const POM: &str = "compat/kafka/suite/pom.xml";
    once(JARS, &[POM], || {
        debian("mvn", "maven")?;
        println!("== Kafka's jars from Maven Central: 126 MB");
        let output = root().join(JARS).display().to_string();
        Call::line("rm -rf").arg(JARS).run()?;
        let call = Call::line("mvn -q -B dependency:copy-dependencies -f").arg(POM);
        call.arg(format!("-DoutputDirectory={output}")).run()
    })
}

/// A program of a package of Debian.
fn debian(program: &str, package: &str) -> Outcome {
    if Call::line("which").arg(program).succeeds() {
        return Ok(());
    }
    let call = Call::line("apt-get install -y --no-install-recommends").arg(package);
    call.run().map_err(|e| format!("{program} is missing: {e}"))
}

/// Installs a folder unless it was made of these very files. Only a whole one gets the mark.
fn once(folder: &str, from: &[&str], install: impl FnOnce() -> Outcome) -> Outcome {
    let read = |path: &&str| fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"));
    let wanted = from.iter().map(read).collect::<Outcome<String>>()?;
    let mark = root().join(format!("{folder}.installed"));
    if root().join(folder).exists() && fs::read_to_string(&mark).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("== installing {}", Path::new(folder).file_name().unwrap_or_default().display());
    install()?;
    fs::write(&mark, wanted).map_err(|e| format!("{}: {e}", mark.display()))
}
