//! Programs that run clients: their installation and their calls.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::run::{Call, Outcome, root};

/// Time limit for the download of a few packages of some MB. If the server does not respond, nothing else ends it.
const FETCH: Duration = Duration::from_secs(180);
const INSTALLED: &str = "target/compat";

/// Client, or set of tools.
pub struct Client {
    /// Unique name, which is also the name of the folder of the installation.
    pub name: &'static str,
    /// `true` if `--quick` includes the client: one of each family.
    pub is_quick: bool,
    /// `true` if the client also has a program for `compat cluster`, beside the one for its scenarios.
    pub survives_failovers: bool,
    /// `true` if the client also has a program for `compat mesh`, which is in Python.
    pub has_mesh: bool,
    /// System, which is also the name of the door that it uses.
    pub system: &'static str,
    kind: Kind,
    /// `true` if the client executes calls of the system's `suite.py`; otherwise it has its own scenarios.
    is_driven: bool,
}

pub enum Kind {
    /// Python with packages from PyPI, as in `requirements.txt`.
    Python,
    /// Python without other packages.
    Script,
    Go,
    Node,
    Rust,
    /// Class in the client's folder, with these jars.
    Java(&'static str, &'static Jars),
    /// Python that drives classes of jars.
    Jars(&'static Jars),
    /// Python that drives a program of a Debian package: the program, and the package.
    Debian(&'static str, &'static str),
    /// Python that drives `client.c`, with the library of this header of a Debian package.
    C(&'static str, &'static str),
    /// Program in a language whose interpreter and libraries are Debian packages.
    Packages(&'static Packages),
}

/// Interpreter, and libraries for it, of Debian packages.
pub struct Packages {
    pub interpreter: &'static str,
    /// Name of the program in the client's folder.
    pub program: &'static str,
    /// Files that exist if all packages are installed.
    pub files: &'static [&'static str],
    pub names: &'static [&'static str],
}

/// Jars of Maven Central, with their dependencies.
pub struct Jars {
    pub pom: &'static str,
    pub folder: &'static str,
    /// Folder of the compiled classes that use them.
    pub classes: &'static str,
    /// Options of the Java virtual machine.
    pub options: &'static [&'static str],
    pub about: &'static str,
}

pub const fn client(system: &'static str, name: &'static str, kind: Kind) -> Client {
    Client { name, is_quick: false, survives_failovers: false, has_mesh: false, system, kind, is_driven: false }
}

pub const fn driven(system: &'static str, name: &'static str, kind: Kind) -> Client {
    Client { name, is_quick: false, survives_failovers: false, has_mesh: false, system, kind, is_driven: true }
}

impl Client {
    pub const fn quick(self) -> Self {
        Self { is_quick: true, ..self }
    }

    pub const fn through_failovers(self) -> Self {
        Self { survives_failovers: true, ..self }
    }

    pub const fn at_two_sites(self) -> Self {
        Self { has_mesh: true, ..self }
    }

    fn sources(&self) -> String {
        format!("compat/{}/{}", self.system, self.name)
    }

    fn installed(&self) -> String {
        format!("{INSTALLED}/{}", self.name)
    }

    /// Downloads missing parts. An error names the part that is not available.
    pub fn fetch(&self) -> Outcome {
        match self.kind {
            Kind::Go => Call::new("go").args(["-C", &self.sources(), "mod", "download"]).within(FETCH).run(),
            Kind::Debian(program, package) if !Call::line("which").arg(program).succeeds() => {
                Err(format!("{program} is missing: apt-get install {package}"))
            }
            Kind::Packages(packages) => match packages.missing() {
                None => Ok(()),
                Some(file) => Err(format!("{file} is missing: apt-get install {}", packages.names.join(" "))),
            },
            _ => self.install(),
        }
    }

    /// Installs missing parts. Prints nothing if everything is already installed.
    pub fn install(&self) -> Outcome {
        let sources = self.sources();
        let installed = self.installed();
        match self.kind {
            Kind::Python => venv(&installed, &format!("{sources}/requirements.txt")),
            Kind::Script => Ok(()),
            Kind::Go => {
                let output = root().join(&installed).display().to_string();
                Call::new("go").args(["-C", &sources, "build", "-o", &output, "."]).run()
            }
            Kind::Node => npm(&installed, &sources),
            Kind::Rust => {
                let manifest = format!("{sources}/Cargo.toml");
                let call = Call::line("cargo build --quiet --locked --manifest-path").arg(manifest);
                call.arg("--target-dir").arg(&installed).run()
            }
            Kind::Java(class, jars) => {
                jars.install()?;
                jars.compile(&format!("{sources}/{class}.java"))
            }
            Kind::Jars(jars) => jars.install(),
            Kind::Debian(program, package) => debian(program, package),
            Kind::C(header, package) => {
                if !Path::new(header).exists() {
                    apt(&[package]).map_err(|e| format!("{header} is missing: {e}"))?;
                }
                Call::line("mkdir -p").arg(INSTALLED).run()?;
                let call = Call::line("cc -O1 -Wall -Wextra -Werror -o").arg(installed);
                call.arg(format!("{sources}/client.c")).arg(format!("-l{}", self.name)).run()
            }
            Kind::Packages(packages) => match packages.missing() {
                None => Ok(()),
                Some(file) => apt(packages.names).map_err(|e| format!("{file} is missing: {e}")),
            },
        }
    }

    /// Builds the program for `compat cluster`, after [`Client::install`].
    pub fn install_failover(&self) -> Outcome {
        let sources = self.sources();
        match self.kind {
            Kind::Go => {
                let output = root().join(self.installed_failover()).display().to_string();
                Call::new("go").args(["-C", &sources, "build", "-o", &output, "./failover"]).run()
            }
            Kind::Java(_, jars) => jars.compile(&format!("{sources}/Failover.java")),
            _ => Ok(()),
        }
    }

    fn installed_failover(&self) -> String {
        format!("{}-failover", self.installed())
    }

    /// Returns the call of the program for `compat cluster`, to which a history and the addresses are added.
    pub fn failover(&self) -> Call {
        match self.kind {
            Kind::Go => Call::new(self.installed_failover()),
            Kind::Java(_, jars) => jars.call("Failover"),
            _ => self.python("failover.py"),
        }
    }

    /// Returns the call of a program of a client in Python.
    pub fn python(&self, program: &str) -> Call {
        Call::new(format!("{}/bin/python", self.installed())).arg(format!("{}/{program}", self.sources()))
    }

    /// Returns the call of the program, to which the address and the names of scenarios are added.
    pub fn call(&self) -> Call {
        let program = self.program();
        if !self.is_driven {
            return program;
        }
        program.after(Call::new("python3").arg(format!("compat/{}/suite/suite.py", self.system))).arg("--")
    }

    fn program(&self) -> Call {
        let sources = self.sources();
        let installed = self.installed();
        match self.kind {
            Kind::Python => Call::new(format!("{installed}/bin/python")).arg(format!("{sources}/client.py")),
            Kind::Go => Call::new(installed),
            Kind::Node => {
                let modules = root().join(installed).join("node_modules").display().to_string();
                Call::new("node").arg(format!("{sources}/client.js")).env("NODE_PATH", modules)
            }
            Kind::Rust => Call::new(format!("{installed}/debug/compat-{}", self.name)),
            Kind::Java(class, jars) => jars.call(class),
            Kind::Script | Kind::Jars(_) | Kind::Debian(..) | Kind::C(..) => {
                Call::new("python3").arg(format!("{sources}/client.py"))
            }
            Kind::Packages(packages) => Call::new(packages.interpreter).arg(format!("{sources}/{}", packages.program)),
        }
    }
}

impl Packages {
    /// Returns the first file that is not installed.
    fn missing(&self) -> Option<&'static str> {
        self.files.iter().copied().find(|file| !Path::new(file).exists())
    }
}

impl Jars {
    pub fn install(&self) -> Outcome {
        once(self.folder, &[self.pom], || {
            debian("mvn", "maven")?;
            println!("== {}", self.about);
            let output = root().join(self.folder).display().to_string();
            Call::line("rm -rf").arg(self.folder).run()?;
            let call = Call::line("mvn -q -B dependency:copy-dependencies -f").arg(self.pom);
            call.arg(format!("-DoutputDirectory={output}")).run()
        })
    }

    fn compile(&self, file: &str) -> Outcome {
        let call = Call::line("javac -nowarn -Xlint:none -proc:none -cp").arg(format!("{}/*", self.folder));
        call.args(["-d", self.classes, file]).run()
    }

    fn call(&self, class: &str) -> Call {
        let call = Call::line("java -XX:TieredStopAtLevel=1").args(self.options.iter().copied());
        call.args(["-cp", &format!("{}:{}/*", self.classes, self.folder), class])
    }
}

/// Installs the packages of a requirements file into a separate Python environment.
pub fn venv(folder: &str, requirements: &str) -> Outcome {
    once(folder, &[requirements], || {
        Call::line("python3 -m venv --clear").arg(folder).run()?;
        let pip = Call::new(format!("{folder}/bin/python")).args(["-m", "pip", "install", "--quiet"]);
        pip.args(["--disable-pip-version-check", "--requirement"]).arg(requirements).within(FETCH).run()
    })
}

/// Installs the packages of a folder with `package.json` and its lock file.
pub fn npm(folder: &str, sources: &str) -> Outcome {
    let package = format!("{sources}/package.json");
    let lock = format!("{sources}/package-lock.json");
    once(folder, &[&package, &lock], || {
        Call::line("mkdir -p").arg(folder).run()?;
        Call::new("cp").args([&package, &lock]).arg(folder).run()?;
        Call::line("npm ci --no-audit --no-fund --silent --prefix").arg(folder).run()
    })
}

/// Installs a program of a Debian package.
pub fn debian(program: &str, package: &str) -> Outcome {
    if Call::line("which").arg(program).succeeds() {
        return Ok(());
    }
    apt(&[package]).map_err(|e| format!("{program} is missing: {e}"))
}

fn apt(packages: &[&str]) -> Outcome {
    Call::line("apt-get install -y --no-install-recommends").args(packages.iter().copied()).run()
}

/// Installs a folder unless it was made from exactly these files. Only a complete installation is marked.
fn once(folder: &str, from: &[&str], install: impl FnOnce() -> Outcome) -> Outcome {
    let read = |path: &&str| fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"));
    let wanted = from.iter().map(read).collect::<Outcome<String>>()?;
    let mark = root().join(format!("{folder}.installed"));
    if root().join(folder).exists() && fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    println!("== installing {}", Path::new(folder).file_name().unwrap_or_default().display());
    install()?;
    fs::write(&mark, wanted).map_err(|e| format!("{}: {e}", mark.display()))
}
