//! `cargo xtask package`: what a release consists of: an archive with its checksum, the folder of the image, and a
//! Debian package.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Call, Outcome, root};

/// Folder of all results, below the root of the repository.
const FOLDER: &str = "target/packages";
/// Roots that TLS clients trust, as Debian installs them. The image has no others.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Shells with the names of their completion scripts.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "thalweg.bash"), ("zsh", "_thalweg"), ("fish", "thalweg.fish")];
/// Files of the repository that an archive contains, with their names there.
const FILES: [(&str, &str); 5] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("packaging/thalweg.toml", "thalweg.toml"),
    ("packaging/systemd/thalweg.service", "thalweg.service"),
];

/// Build that is packaged.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    target: &'a str,
    profile: &'a str,
    /// Program that is built already.
    program: Option<&'a str>,
    /// Whether a Debian package is made, too.
    has_deb: bool,
}

impl<'a> Request<'a> {
    fn parse(args: &[&'a str]) -> Outcome<Self> {
        let mut request = Self { target: own_target(), profile: "dist", program: None, has_deb: false };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if *name == "--deb" {
                request.has_deb = true;
                continue;
            }
            let value = *args.next().ok_or_else(|| format!("{name}: its value is missing"))?;
            match *name {
                "--target" => request.target = value,
                "--profile" => request.profile = value,
                "--program" => request.program = Some(value),
                other => {
                    return Err(format!("unknown argument {other}: it takes --target, --profile, --program, --deb"));
                }
            }
        }
        architecture(request.target)?;
        Ok(request)
    }
}

/// Returns the target of static programs of this machine.
fn own_target() -> &'static str {
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-musl" } else { "x86_64-unknown-linux-musl" }
}

/// Returns the name of a target's architecture in images and in Debian.
fn architecture(target: &str) -> Outcome<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => Err(format!("{target}: packages are made for x86_64 and aarch64")),
    }
}

pub fn run(args: &[&str]) -> Outcome {
    if args == ["--check"] {
        return crate::package_check::run();
    }
    let request = Request::parse(args)?;
    let program = match request.program {
        Some(program) => PathBuf::from(program),
        None => build(&request)?,
    };
    let folder = root().join(FOLDER);
    let archive = archive(&folder, request.target, &program)?;
    println!("{}", archive.display());
    println!("{}", image(&folder, request.target, &program)?.display());
    if request.has_deb {
        // Names of the package's files in `crates/thalweg/Cargo.toml`.
        let whole = folder.join("deb");
        copy_folder(&folder.join(format!("thalweg-{}", request.target)), &whole)?;
        Call::line("cargo deb --no-build --no-strip --locked --package thalweg --target")
            .arg(request.target)
            .args(["--output", FOLDER])
            .run()?;
    }
    Ok(())
}

/// Builds the program. Zig's compiler has the C library and the headers of every target.
fn build(request: &Request<'_>) -> Outcome<PathBuf> {
    let Request { target, profile, .. } = request;
    Call::line("cargo zigbuild --locked --package thalweg --bin thalweg")
        .args(["--target", target, "--profile", profile])
        .run()
        .map_err(|e| format!("{e}; it needs `rustup target add {target}` and `pip install cargo-zigbuild ziglang`"))?;
    Ok(root().join("target").join(target).join(profile).join("thalweg"))
}

/// Makes the archive of a program, with its checksum next to it. The same files make the same bytes.
fn archive(folder: &Path, target: &str, program: &Path) -> Outcome<PathBuf> {
    let name = format!("thalweg-{target}");
    let whole = folder.join(&name);
    if whole.exists() {
        fs::remove_dir_all(&whole).map_err(|e| format!("{}: {e}", whole.display()))?;
    }
    copy(program, &whole.join("bin/thalweg"))?;
    for (from, to) in FILES {
        copy(&root().join(from), &whole.join(to))?;
    }
    let program = whole.join("bin/thalweg").display().to_string();
    let hint = |e: String| format!("{e}; make the packages of a target on a machine that runs its programs");
    let manual = whole.join("man");
    create(&manual)?;
    Call::new(&program).arg("man").arg(manual.display().to_string()).run().map_err(hint)?;
    create(&whole.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        let script = Call::new(&program).args(["completions", shell]).output()?;
        let path = whole.join("completions").join(file);
        fs::write(&path, script).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let time = Call::line("git log -1 --format=%ct").output()?;
    Call::line("tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w --mtime")
        .arg(format!("@{}", time.trim()))
        .args(["--directory", &folder.display().to_string()])
        .args(["--use-compress-program", "gzip --no-name --best"])
        .args(["--create", "--file", &archive.display().to_string(), &name])
        .run()?;
    let sum = Call::new("sha256sum").arg(archive.display().to_string()).output()?;
    let sum = sum.split_whitespace().next().ok_or("sha256sum printed nothing")?.to_owned();
    let path = folder.join(format!("{name}.tar.gz.sha256"));
    fs::write(&path, format!("{sum}  {name}.tar.gz\n")).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(archive)
}

/// Makes the folder that becomes the root of an image.
fn image(folder: &Path, target: &str, program: &Path) -> Outcome<PathBuf> {
    let whole = folder.join(format!("image-{}", architecture(target)?));
    copy_folder(&root().join("packaging/docker/rootfs"), &whole)?;
    copy(program, &whole.join("usr/bin/thalweg"))?;
    copy(Path::new(CERTIFICATES), &whole.join("etc/ssl/certs/ca-certificates.crt"))?;
    create(&folder.join("image-home"))?;
    Ok(whole)
}

fn create(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Outcome {
    create(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

/// Replaces a folder by a copy of another one.
fn copy_folder(from: &Path, to: &Path) -> Outcome {
    if to.exists() {
        fs::remove_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    create(to.parent().unwrap_or(to))?;
    Call::line("cp --recursive").args([from.display().to_string(), to.display().to_string()]).run()
}

#[cfg(test)]
#[path = "package_tests.rs"]
mod tests;
