//! Wall clocks of nodes that are wrong: a library in front of the system's adds a number of seconds, which is in a file
//! that it maps. Durations stay right, as on a machine whose clock was set.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::network::{Outcome, call};

const SOURCE: &str = include_str!("clock.c");

/// Library that was built for a run.
#[derive(Clone)]
pub struct Clocks {
    library: PathBuf,
}

impl Clocks {
    /// Builds the library, which needs a C compiler.
    pub fn build(folder: &Path) -> Outcome<Self> {
        let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
        std::fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
        let (from, to) = (source.display().to_string(), library.display().to_string());
        call("cc", &["-O2", "-shared", "-fPIC", "-o", &to, &from, "-ldl"])?;
        let library = library.canonicalize().map_err(|error| format!("{to}: {error}"))?;
        Ok(Self { library })
    }

    /// Lets a process have the clock of a file, which has to exist.
    pub fn apply(&self, command: &mut Command, file: &Path) {
        command.env("LD_PRELOAD", &self.library).env("CHAOS_CLOCK", file);
    }
}

/// Sets the seconds by which a clock is wrong, also of a process that runs.
pub fn set(file: &Path, seconds: i64) -> Outcome {
    use std::io::Write;
    let opened = std::fs::File::options().create(true).truncate(false).write(true).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(&seconds.to_ne_bytes()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}
