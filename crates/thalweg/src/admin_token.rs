//! The file with which programs of the same user on the same machine log in as administrators.
//!
//! A broker that requires a login or checks access control writes a random token to a file that only its own user can
//! read, and removes it when it stops. The command line logs in with that token to a broker on this machine unless it
//! has a user; it proves that it knows the token, and does not send it. So the right to administer a broker comes from
//! the file, not from the address of the client.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use client::{Addresses, Login};

/// File of a running broker. Dropping it removes the file, unless another broker has written its own.
pub(crate) struct AdminTokenFile {
    path: PathBuf,
    token: String,
}

impl AdminTokenFile {
    /// Writes a token for the broker whose native door has this address.
    pub(crate) fn create(native: SocketAddr, token: &str) -> io::Result<Self> {
        let dir = folder().ok_or_else(|| io::Error::other("neither XDG_RUNTIME_DIR nor HOME is set"))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let path = path_in(&dir, native.port());
        // A file that a killed broker left may be a link that somebody else made.
        remove(&path)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(token.as_bytes())?;
        Ok(Self { path, token: token.to_owned() })
    }
}

impl Drop for AdminTokenFile {
    fn drop(&mut self) {
        let is_own = fs::read_to_string(&self.path).is_ok_and(|token| token == self.token);
        if is_own && let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the administrator's token");
        }
    }
}

/// Returns the login of an administrator of the broker at the first of these addresses that is on this machine and
/// whose token this user may read.
pub fn login(servers: &Addresses) -> Option<Login> {
    let folder = folder()?;
    let token = servers.iter().find_map(|server| {
        let port = server.local_port()?;
        fs::read_to_string(path_in(&folder, port)).ok()
    })?;
    Login::administrator(token).ok()
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
