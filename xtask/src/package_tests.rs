//! Packages of a small program, and the installer that fetches them from a server on this machine.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Folder of one test, which is removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("thalweg-package-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("created");
        Self(path)
    }

    /// Writes a program that answers as this one does.
    fn program(&self, version: &str) -> PathBuf {
        let path = self.0.join(format!("program-{version}"));
        let text = format!(
            "#!/bin/sh\ncase \"$1\" in\nman) echo page > \"$2/thalweg.1\" ;;\ncompletions) echo \"for $2\" ;;\n\
             --version) echo 'thalweg {version}' ;;\nesac\n"
        );
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// Serves files by their paths over HTTP until the test ends. Returns the address.
fn serve(files: BTreeMap<String, Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = Vec::new();
            let mut part = [0; 1024];
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut part) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => head.extend(&part[..read]),
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match files.get(path) {
                Some(body) => ("200 OK", body.as_slice()),
                None => ("404 Not Found", &b"there is no such file"[..]),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A client that has seen the status may close the connection.
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).unwrap_or_default();
        }
    });
    format!("http://{address}")
}

/// Returns the files of a release below `latest` and `v1.2.3`.
fn release(folder: &Folder) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (version, path) in [("1.3.0", "latest/download"), ("1.2.3", "download/v1.2.3")] {
        let archive = archive(&folder.0.join(version), own_target(), &folder.program(version)).expect("packaged");
        let name = format!("/{path}/thalweg-{}.tar.gz", own_target());
        files.insert(format!("{name}.sha256"), fs::read(archive.with_extension("gz.sha256")).expect("a checksum"));
        files.insert(name, fs::read(archive).expect("an archive"));
    }
    files
}

fn install(base: &str, bin: &Path, version: Option<&str>) -> Output {
    let mut command = Command::new("sh");
    command.arg(root().join("packaging/install.sh")).env("THALWEG_BASE_URL", base).env("THALWEG_BIN", bin);
    match version {
        Some(version) => command.env("THALWEG_VERSION", version),
        None => command.env_remove("THALWEG_VERSION"),
    };
    command.output().expect("the installer runs")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn installed(bin: &Path) -> String {
    let output = Command::new(bin.join("thalweg")).arg("--version").output().expect("installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn an_archive_has_its_checksum_and_the_same_files_make_the_same_bytes() {
    let folder = Folder::new();
    let program = folder.program("1.3.0");
    let make = |name: &str| archive(&folder.0.join(name), TARGET, &program).expect("packaged");
    let (one, other) = (make("a"), make("b"));
    assert_eq!(fs::read(&one).expect("read"), fs::read(&other).expect("read"));
    let sum = fs::read_to_string(one.with_extension("gz.sha256")).expect("a checksum");
    let found = Call::new("sha256sum").arg(one.display().to_string()).output().expect("a checksum");
    assert_eq!(sum.split(' ').next(), found.split(' ').next());
    assert!(sum.ends_with("  thalweg-x86_64-unknown-linux-musl.tar.gz\n"), "{sum}");
    let list = Call::line("tar --list --file").arg(one.display().to_string()).output().expect("a list");
    let wanted = ["bin/thalweg", "man/thalweg.1", "completions/_thalweg", "thalweg.toml", "thalweg.service", "LICENSE"];
    for file in wanted {
        assert!(list.lines().any(|line| line == format!("thalweg-{TARGET}/{file}")), "{file}: {list}");
    }
}

#[test]
fn an_image_has_the_program_its_user_and_the_trusted_roots_alone() {
    let folder = Folder::new();
    let whole = image(&folder.0, TARGET, &folder.program("1.3.0")).expect("made");
    assert!(whole.ends_with("image-amd64"));
    let mut files: Vec<String> = Call::line("find -type f -printf %P\\n")
        .after(Call::new("env").arg(format!("--chdir={}", whole.display())))
        .output()
        .expect("a list")
        .lines()
        .map(str::to_owned)
        .collect();
    files.sort_unstable();
    assert_eq!(files, ["etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "usr/bin/thalweg"]);
    let users = fs::read_to_string(whole.join("etc/passwd")).expect("users");
    assert!(users.contains("thalweg:x:65532:65532:"), "{users}");
}

#[test]
fn the_installer_installs_the_newest_or_the_named_version() {
    let folder = Folder::new();
    let base = serve(release(&folder));
    let bin = folder.0.join("bin");
    let done = install(&base, &bin, None);
    assert!(done.status.success(), "{}", errors(&done));
    assert_eq!(installed(&bin), "thalweg 1.3.0");
    assert!(errors(&done).contains("to PATH; next: "), "{}", errors(&done));
    // An installed program is replaced.
    let done = install(&base, &bin, Some("1.2.3"));
    assert!(done.status.success(), "{}", errors(&done));
    assert_eq!(installed(&bin), "thalweg 1.2.3");
    let names: Vec<_> =
        fs::read_dir(&bin).expect("a folder").filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    assert_eq!(names, ["thalweg"]);
}

#[test]
fn a_download_that_is_not_the_expected_one_installs_nothing() {
    let folder = Folder::new();
    let whole = release(&folder);
    let bin = folder.0.join("bin");
    let archive = format!("/latest/download/thalweg-{}.tar.gz", own_target());
    let sum = format!("{archive}.sha256");
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut files = whole.clone();
        change(files.get_mut(name).expect("a file"));
        files
    };
    let without = |name: &str| {
        let mut files = whole.clone();
        files.remove(name).expect("a file");
        files
    };
    let cases = [
        ("one byte of the archive", changed(&archive, &|bytes| bytes[40] ^= 1), "expected"),
        ("a shorter archive", changed(&archive, &|bytes| bytes.truncate(100)), "expected"),
        ("another checksum", changed(&sum, &|bytes| bytes[..64].fill(b'0')), "expected 0000"),
        ("a page instead of a checksum", changed(&sum, &|bytes| *bytes = b"<html>".to_vec()), "has no checksum"),
        ("no checksum", changed(&sum, &Vec::clear), "has no checksum"),
        ("no file with a checksum", without(&sum), "cannot fetch"),
        ("no archive", without(&archive), "cannot fetch"),
    ];
    for (case, files, message) in cases {
        let done = install(&serve(files), &bin, None);
        assert!(!done.status.success(), "{case}");
        assert!(errors(&done).contains(message), "{case}: {}", errors(&done));
        assert!(!bin.exists(), "{case}: nothing was installed");
    }
}

#[test]
fn arguments_are_checked() {
    let request = Request::parse(&["--target", "aarch64-unknown-linux-musl", "--deb"]).expect("valid");
    assert_eq!((request.target, request.profile, request.has_deb), ("aarch64-unknown-linux-musl", "dist", true));
    for (wrong, message) in [
        (&["--target"][..], "its value is missing"),
        (&["--target", "riscv64gc-unknown-linux-gnu"], "x86_64 and aarch64"),
        (&["--what", "x"], "unknown argument"),
    ] {
        let error = Request::parse(wrong).expect_err("refused");
        assert!(error.contains(message), "{error}");
    }
}

/// The project moves by one edit: every file that names its place on the web names the one of `Cargo.toml`.
#[test]
fn every_file_names_the_repository_of_the_manifest() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file");
    let manifest: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let repository = manifest["workspace"]["package"]["repository"].as_str().expect("a text").to_owned();
    let image = repository.replace("https://github.com/", "ghcr.io/");
    for path in
        ["packaging/install.sh", "packaging/homebrew/thalweg.rb", "packaging/helm/thalweg/Chart.yaml", "README.md"]
    {
        assert!(read(path).contains(&repository), "{path}");
    }
    for path in
        ["packaging/docker/compose.yaml", "packaging/docker/compose.cluster.yaml", "packaging/helm/thalweg/values.yaml"]
    {
        assert!(read(path).contains(&image), "{path}");
    }
    let version = manifest["workspace"]["package"]["version"].as_str().expect("a text");
    let chart = read("packaging/helm/thalweg/Chart.yaml");
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
}
