//! Network namespaces of sites.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Outcome;

/// Folder in which `ip netns` keeps the namespaces.
const FOLDER: &str = "/run/netns";
/// Beginning of the names of namespaces, before the number of the process that owns them.
const PREFIX: &str = "wan";

/// Network namespace. Dropping it removes the namespace once no process is in it.
pub struct Space {
    name: String,
}

/// Entrance of a namespace, for threads that may outlive the [`Space`].
pub struct Entrance(File);

impl Space {
    /// Creates a namespace for a site, whose loopback interface works.
    pub fn create(site: usize) -> Outcome<Self> {
        let name = format!("{PREFIX}{}-{site}", std::process::id());
        ip(&["netns", "add", &name])?;
        // From here on, a failure removes it.
        let space = Self { name };
        space.ip(&["link", "set", "lo", "up"])?;
        Ok(space)
    }

    pub fn entrance(&self) -> io::Result<Entrance> {
        Ok(Entrance(File::open(Path::new(FOLDER).join(&self.name))?))
    }

    /// Calls a function on a thread that is in the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let entrance = self.entrance()?;
        std::thread::scope(|scope| {
            let done = scope.spawn(|| entrance.enter().and_then(|()| work())).join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns a command that runs a program in the namespace, with the number of its process.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, args: &[&str]) -> Outcome {
        ip(&[&["-n", &self.name], args].concat())
    }

    /// Removes namespaces of processes that no longer exist, such as killed ones.
    pub fn remove_abandoned() {
        for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
            if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
                // One that cannot be removed is only in the list.
                ip(&["netns", "del", &name]).unwrap_or_default();
            }
        }
    }
}

impl Entrance {
    /// Moves the calling thread into the namespace.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // A failure leaves a namespace behind that nothing uses; the next run removes it.
        ip(&["netns", "del", &self.name]).unwrap_or_default();
    }
}

fn ip(args: &[&str]) -> Outcome {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run `ip`: {error}; install iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {}`: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
