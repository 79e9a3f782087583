//! The file with which programs of the same user on the same machine log in as administrators.
//!
//! A broker that requires a login or checks access control writes a random token to a file that only its own user can
//! read, and removes it when it stops. The command line logs in with that token to a broker on this machine unless it
//! has a user; it proves that it knows the token, and does not send it. So the right to administer a broker comes from
//! the file, not from the address of the client.
//!
//! The nodes of a cluster have the leader's token in their files, followed by the addresses of the native doors of all
//! nodes, one a line: the command line on any of their machines administers the cluster, at any node.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use client::{Address, Addresses, Login};

/// File of a running broker. Dropping it removes the file, unless another broker has written its own.
pub(crate) struct AdminTokenFile {
    path: PathBuf,
    text: String,
}

impl AdminTokenFile {
    /// Writes a token for the broker whose native door has this address. It is valid at other addresses too.
    pub(crate) fn create(native: SocketAddr, token: &str, elsewhere: &[String]) -> io::Result<Self> {
        let dir = folder().ok_or_else(|| io::Error::other("neither XDG_RUNTIME_DIR nor HOME is set"))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let path = path_in(&dir, native.port());
        // A file that a killed broker left may be a link that somebody else made.
        remove(&path)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let text = std::iter::once(token).chain(elsewhere.iter().map(String::as_str)).collect::<Vec<_>>().join("\n");
        file.write_all(text.as_bytes())?;
        Ok(Self { path, text })
    }
}

impl Drop for AdminTokenFile {
    fn drop(&mut self) {
        let is_own = fs::read_to_string(&self.path).is_ok_and(|text| text == self.text);
        if is_own && let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the administrator's token");
        }
    }
}

/// Returns the login of an administrator of the broker at the first of these addresses that is on this machine and
/// whose token this user may read, or is that of another node of the cluster of such a broker.
pub fn login(servers: &Addresses) -> Option<Login> {
    let folder = folder()?;
    let text = servers.iter().find_map(|server| match server.local_port() {
        Some(port) => fs::read_to_string(path_in(&folder, port)).ok(),
        None => of_other_node(&folder, server),
    })?;
    Login::administrator(text.lines().next()?).ok()
}

/// Returns the text of the file that names the address of another machine.
fn of_other_node(folder: &Path, server: &Address) -> Option<String> {
    let is_named = |text: &String| {
        let mut named = text.lines().skip(1).filter_map(|line| Address::parse(line).ok());
        named.any(|address| address.local_port().is_none() && address.is_same_broker(server))
    };
    let files = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let files = files.filter(|name| name.starts_with("admin-") && name.ends_with(".token"));
    files.filter_map(|name| fs::read_to_string(folder.join(name)).ok()).find(is_named)
}

/// Returns the folder of the tokens of this user.
fn folder() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || of("HOME").map(|home| home.join(".local").join("state"));
    Some(of("XDG_RUNTIME_DIR").or_else(home)?.join("thalweg"))
}

fn path_in(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!("admin-{port}.token"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_node_is_found_by_the_address_of_another_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("admin-1.token", "single");
        write("admin-2.token", "cluster\n10.0.0.1:7400\nb.lan:7410\n127.0.0.1:7420");
        write("notes", "notes\nc.lan:7400");
        let found = |address| {
            let address = Address::parse(address).expect("an address");
            of_other_node(folder.path(), &address).and_then(|text| text.lines().next().map(str::to_owned))
        };
        assert_eq!(found("tls://B.lan:7410").as_deref(), Some("cluster"));
        assert_eq!(found("10.0.0.1").as_deref(), Some("cluster"));
        for other in ["b.lan:7400", "c.lan:7400", "10.0.0.2"] {
            assert_eq!(found(other), None, "{other}");
        }
        // Each machine has its own loopback address.
        assert_eq!(found("127.0.0.1:7420"), None);
    }
}
