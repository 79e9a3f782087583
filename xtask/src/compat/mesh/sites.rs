//! Two sites of a mesh on this machine, whose processes are killed and started again.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::compat::cluster::free_ports;
use crate::run::{Call, Outcome};

/// Doors of a site, in the order of their ports after that of the mesh.
const DOORS: [&str; 6] = ["native", "http", "kafka", "pubsub", "redis", "sqs"];
/// Maximum time until a process is ready, or until the sites are linked.
const READY: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Site {
    /// Site where records are written.
    Near,
    /// Site of the copies.
    Far,
}

impl Site {
    pub const BOTH: [Self; 2] = [Self::Near, Self::Far];

    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "a",
            Self::Far => "b",
        }
    }
}

/// Running sites. Dropping it kills the processes.
pub struct Sites {
    program: String,
    folder: PathBuf,
    ports: [u16; 2],
    children: [Option<Child>; 2],
}

impl Sites {
    /// Starts both sites, and waits until they are linked.
    pub fn start(program: &str, folder: PathBuf) -> Outcome<Self> {
        let first = free_ports(0)?;
        let ports = [first, free_ports(first + 10)?];
        let mut sites = Self { program: program.to_owned(), folder, ports, children: [None, None] };
        Site::BOTH.into_iter().try_for_each(|site| sites.restart(site))?;
        sites.on(Site::Near, &["mesh", "init", Site::Near.name()])?;
        let invitation = sites.on(Site::Near, &["mesh", "invite"])?;
        sites.on(Site::Far, &["mesh", "join", invitation.trim(), "--site", Site::Far.name()])?;
        for site in Site::BOTH {
            sites.until("a link", site, &["mesh", "status"], |status| {
                status["sites"].as_array().is_some_and(|all| all.iter().any(|of| of["link"] == "direct"))
            })?;
        }
        Ok(sites)
    }

    /// Returns the address of a door.
    pub fn address(&self, site: Site, door: &str) -> String {
        let digit = DOORS.iter().position(|known| *known == door).map_or(0, |at| at as u16 + 1);
        format!("127.0.0.1:{}", self.ports[site as usize] + digit)
    }

    /// Runs a command at a site.
    pub fn on(&self, site: Site, args: &[&str]) -> Outcome<String> {
        let server = self.address(site, "native");
        Call::new(&self.program).args(["--server", &server]).args(args.iter().copied()).output()
    }

    /// Starts the process of a site that does not run, with its data and its ports.
    pub fn restart(&mut self, site: Site) -> Outcome {
        let name = site.name();
        let ready = self.folder.join(format!("ready-{name}.json"));
        fs::remove_file(&ready).unwrap_or_default();
        let log = self.log(site);
        let open =
            || File::options().create(true).append(true).open(&log).map_err(|e| format!("{}: {e}", log.display()));
        let data = self.folder.join(format!("site-{name}")).display().to_string();
        let call = Call::new(&self.program).args(["serve", "--data", &data]);
        let call = call.args(["--ready-file", &ready.display().to_string()]);
        let call = call.args(DOORS.iter().flat_map(|door| [format!("--{door}"), self.address(site, door)]));
        let call = call.args(["--set".to_owned(), format!("mesh={}", self.address(site, "mesh"))]);
        let child = call.command().stdout(open()?).stderr(open()?).spawn().map_err(|e| format!("{call}: {e}"))?;
        let child = self.children[site as usize].insert(child);
        let begin = Instant::now();
        while !ready.exists() {
            let ended = child.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || begin.elapsed() > READY {
                return Err(format!("site {name} did not become ready ({ended:?}); its log is {}", log.display()));
            }
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Kills a site with SIGKILL.
    pub fn kill(&mut self, site: Site) -> Outcome {
        let Some(mut child) = self.children[site as usize].take() else { return Ok(()) };
        child.kill().map_err(|e| format!("site {}: {e}", site.name()))?;
        child.wait().map(drop).map_err(|e| format!("site {}: {e}", site.name()))
    }

    /// Waits until the JSON that a command prints at a site fulfils a condition.
    pub fn until(&self, what: &str, site: Site, args: &[&str], holds: impl Fn(&Value) -> bool) -> Outcome {
        let begin = Instant::now();
        let mut last = String::new();
        while begin.elapsed() < READY {
            last = self.on(site, &[&["--json"], args].concat())?;
            if serde_json::from_str(&last).is_ok_and(|state| holds(&state)) {
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        Err(format!("waited {} s for {what}; the last state is {last}", READY.as_secs()))
    }

    /// Returns the names of sites that panicked.
    pub fn panicked(&self) -> Vec<&'static str> {
        let has_panicked = |site: &Site| {
            let log = fs::read(self.log(*site)).unwrap_or_default();
            String::from_utf8_lossy(&log).contains("panicked at")
        };
        Site::BOTH.into_iter().filter(has_panicked).map(Site::name).collect()
    }

    fn log(&self, site: Site) -> PathBuf {
        self.folder.join(format!("site-{}.log", site.name()))
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        Site::BOTH.into_iter().for_each(|site| self.kill(site).unwrap_or_default());
    }
}
