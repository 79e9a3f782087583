//! `cargo xtask compat mesh`: unmodified clients read at one site what was written at another, while sites are killed.

mod program;
mod sites;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::clients::Client;
use super::report;
use super::systems::SYSTEMS;
use crate::built;
use crate::run::{Call, Outcome, root};
use program::Program;
use sites::{Site, Sites};

/// Kills if no number is given. Sites take turns.
const KILLS: u64 = 6;
const SEED: u64 = 1;
/// Time of the load around each kill.
const LOAD_PER_KILL: Duration = Duration::from_millis(2000);
/// Pause before a kill, and between a kill and the start of the process. It differs from kill to kill.
const PAUSE_MS: std::ops::Range<u64> = 200..900;
const FOLDER: &str = "target/compat/mesh";
/// Client whose producers write at the first site.
const WRITER: &str = "confluent-kafka";
/// Topics of the first site that the second one copies, with their numbers of partitions.
const MIRRORED: [(&str, &str); 4] = [("orders", "3"), ("entries", "1"), ("trimmed", "1"), (COMPACTED, "1")];
/// Topic that is compacted at the first site only, so that its copy stays as it is.
const COMPACTED: &str = "state";
const LIVE: &str = "prices";
/// Live topic that only one site has, to which clients of the other one listen. It is the Redis channel `alerts:eu`.
const ONLY_NEAR: &str = "alerts_x3a_eu";
/// Value that readers ignore.
const WARM: &str = "warm";

/// Client at both sites: one of a registry, or the command line of this project.
#[derive(Clone, Copy)]
enum Reader {
    Client(&'static Client),
    Native,
}

impl Reader {
    fn all() -> impl Iterator<Item = Self> {
        clients().filter(|client| client.has_mesh).map(Self::Client).chain([Self::Native])
    }

    fn name(self) -> &'static str {
        match self {
            Self::Client(client) => client.name,
            Self::Native => "native",
        }
    }

    fn call(self, sites: &Sites) -> Call {
        let (call, door) = match self {
            Self::Client(client) => (client.python("mesh.py"), client.system),
            Self::Native => (Call::line("python3 compat/mesh/native.py"), "native"),
        };
        call.args(Site::BOTH.map(|site| sites.address(site, door)))
    }
}

struct Options {
    readers: Vec<Reader>,
    kills: u64,
    seed: u64,
}

impl Options {
    fn read(args: &[&str]) -> Outcome<Self> {
        let mut options = Self { readers: Vec::new(), kills: KILLS, seed: SEED };
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            if let Some(reader) = Reader::all().find(|reader| reader.name() == arg) {
                options.readers.push(reader);
                continue;
            }
            let mut value = || {
                let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
                value.parse::<u64>().map_err(|e| format!("{arg}: {e}"))
            };
            match arg {
                "--kills" => options.kills = value()?,
                "--seed" => options.seed = value()?,
                _ => {
                    let names: Vec<&str> = Reader::all().map(Reader::name).collect();
                    return Err(format!(
                        "'{arg}' is neither a client ({}) nor an option: --kills N, --seed N",
                        names.join(", ")
                    ));
                }
            }
        }
        if options.readers.is_empty() {
            options.readers.extend(Reader::all());
        }
        Ok(options)
    }

    /// Returns the pause before or after a kill.
    fn pause(&self, number: u64) -> Duration {
        let spread = PAUSE_MS.end - PAUSE_MS.start;
        Duration::from_millis(PAUSE_MS.start + (self.seed.wrapping_mul(31) + number).wrapping_mul(7919) % spread)
    }
}

fn clients() -> impl Iterator<Item = &'static Client> {
    SYSTEMS.iter().flat_map(|system| system.clients)
}

/// Returns the clients of a run that are available here; none if the one that writes is missing. Prints the missing
/// parts of the others.
pub fn quick() -> Vec<&'static str> {
    let mut available = Vec::new();
    for client in clients().filter(|client| client.has_mesh) {
        match client.fetch() {
            Ok(()) => available.push(client.name),
            Err(why) => println!("== mesh without {}: {why}", client.name),
        }
    }
    if !available.contains(&WRITER) {
        return Vec::new();
    }
    available.push(Reader::Native.name());
    available
}

pub fn run(args: &[&str]) -> Outcome {
    let options = Options::read(args)?;
    let programs = built::build(&["thalweg"], false)?;
    let writer = clients().find(|client| client.name == WRITER).ok_or("no client writes")?;
    let used = options.readers.iter().filter_map(|reader| match reader {
        Reader::Client(client) => Some(*client),
        Reader::Native => None,
    });
    for client in used.chain([writer]) {
        client.install().map_err(|why| format!("{} is not available: {why}", client.name))?;
    }
    let folder = root().join(FOLDER).join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let shown = folder.display().to_string();
    let program = programs.join("thalweg").display().to_string();
    let mut sites = Sites::start(&program, folder.clone())?;
    println!("== two sites run; logs are in {shown}");
    let environment = |call: Call| {
        call.env("COMPAT_THALWEG", &program)
            .env("COMPAT_SERVER", sites.address(Site::Far, "native"))
            .env("COMPAT_SEED", options.seed.to_string())
    };
    let call = writer.python("../../mesh/write.py").args(Site::BOTH.map(|site| sites.address(site, "kafka")));
    let mut writer = Program::start("writer", &environment(call), &folder)?;
    let mut readers = Vec::new();
    for reader in &options.readers {
        readers.push(Program::start(reader.name(), &environment(reader.call(&sites)), &folder)?);
    }
    exchange(&options, &mut sites, &mut writer, &mut readers, &folder)?;
    let reports: Vec<_> = [writer].iter().chain(&readers).map(|program| program.report.clone()).collect();
    drop(readers);
    let panicked = sites.panicked();
    drop(sites);
    println!("\n{}", report::table(&reports));
    match (report::failed(&reports), &panicked[..]) {
        (0, []) => fs::remove_dir_all(&folder).map_err(|e| format!("{shown}: {e}")),
        (count, panicked) => {
            Err(format!("{count} scenarios failed, and sites panicked: {panicked:?}; logs are in {shown}"))
        }
    }
}

/// Has records written at one site and read at the other one: first without a disturbance, then while sites are killed.
fn exchange(
    options: &Options,
    sites: &mut Sites,
    writer: &mut Program,
    readers: &mut [Program],
    folder: &Path,
) -> Outcome {
    let path = |name: &str| folder.join(format!("{name}.json")).display().to_string();
    create_topics(sites, writer)?;
    all(readers, "ready")?;
    await_live_readers(sites, readers)?;
    let steady = path("steady");
    writer.run(&format!("steady {steady}"))?;
    all(readers, &format!("steady {steady}"))?;
    all(readers, "live")?;
    all(readers, "refused")?;

    let load = LOAD_PER_KILL * options.kills.max(1) as u32;
    writer.tell(&format!("cut {}", load.as_secs_f64()))?;
    for kill in 0..options.kills {
        let site = if kill % 2 == 0 { Site::Far } else { Site::Near };
        sleep(options.pause(2 * kill));
        sites.kill(site)?;
        sleep(options.pause(2 * kill + 1));
        sites.restart(site)?;
        println!("== kill {} of {}: site {}", kill + 1, options.kills, site.name());
    }
    writer.finish()?;
    // The copy has to continue after records that were deleted before it could have them.
    sites.kill(Site::Far)?;
    writer.run("trim")?;
    sites.restart(Site::Far)?;
    let cut = path("cut");
    writer.run(&format!("save {cut}"))?;
    all(readers, &format!("cut {cut}"))?;

    for (topic, _) in MIRRORED {
        sites.on(Site::Far, &["topic", "alter", &format!("a.{topic}"), "--mesh", "off"])?;
    }
    all(readers, "writable")
}

/// Creates the topics at both sites. Before they are mirrored, one has lost its first records, and another one is
/// compacted.
fn create_topics(sites: &Sites, writer: &mut Program) -> Outcome {
    for (topic, partitions) in MIRRORED {
        let compact = (topic == COMPACTED).then_some("--compact");
        let create = ["topic", "create", topic, "--partitions", partitions];
        sites.on(Site::Near, &create.into_iter().chain(compact).collect::<Vec<_>>())?;
    }
    writer.run("begin")?;
    for (topic, partitions) in MIRRORED {
        sites.on(Site::Far, &["topic", "create", topic, "--partitions", partitions, "--mesh", "mirror"])?;
        sites.on(Site::Near, &["topic", "alter", topic, "--mesh", "mirror"])?;
    }
    for site in Site::BOTH {
        sites.on(site, &["topic", "create", LIVE, "--mesh", "live"])?;
    }
    sites.on(Site::Near, &["topic", "create", ONLY_NEAR, "--mesh", "live"])?;
    for (topic, partitions) in MIRRORED {
        let copy = format!("a.{topic}");
        let is_copied = |topics: &Value| {
            let count = |of: &Value| of["partitions"].as_array().map_or(0, Vec::len).to_string();
            let has = |of: &Value| of["topic"] == copy.as_str() && count(of) == partitions;
            topics.as_array().is_some_and(|all| all.iter().any(has))
        };
        sites.until(&copy, Site::Far, &["topic", "list"], is_copied)?;
    }
    Ok(())
}

/// Publishes to the live topic until its site knows that the other one reads it.
fn await_live_readers(sites: &Sites, readers: &[Program]) -> Outcome {
    if !readers.iter().any(|reader| reader.report.client == "redis-py") {
        return Ok(());
    }
    sites.on(Site::Near, &["publish", LIVE, WARM])?;
    sites.until("readers of the live topic", Site::Near, &["mesh", "topics"], |topics| {
        let is_sent = |of: &Value| of["topic"] == LIVE && of["sites"].as_array().is_some_and(|sites| !sites.is_empty());
        topics.as_array().is_some_and(|all| all.iter().any(is_sent))
    })
}

/// Gives all programs a command, and waits until they have executed it.
fn all(programs: &mut [Program], command: &str) -> Outcome {
    programs.iter_mut().try_for_each(|program| program.tell(command))?;
    programs.iter_mut().try_for_each(Program::finish)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let all = Options::read(&[]).expect("all");
        assert!(all.readers.len() > 5 && all.kills == KILLS && all.seed == SEED);
        let some = Options::read(&["boto3", "--kills", "2", "native", "--seed", "7"]).expect("two");
        assert_eq!(some.readers.iter().map(|reader| reader.name()).collect::<Vec<_>>(), ["boto3", "native"]);
        assert_eq!((some.kills, some.seed), (2, 7));
        for wrong in [&["--kills"][..], &["--seed", "many"], &["nobody"]] {
            assert!(Options::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_program_of_a_client_exists() {
        for client in clients().filter(|client| client.has_mesh) {
            let path = root().join(format!("compat/{}/{}/mesh.py", client.system, client.name));
            assert!(path.exists(), "{}", path.display());
        }
    }
}
