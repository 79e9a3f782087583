//! Files of an identity.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use consensus::NodeId;
use engine::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::check_address;

/// Folder in the data directory.
pub(super) const FOLDER: &str = "cluster";
/// Folder that becomes [`FOLDER`] when all its files are durable.
const NEW_FOLDER: &str = "cluster.new";
pub(super) const AUTHORITY: &str = "ca.pem";
pub(super) const AUTHORITY_KEY: &str = "ca.key";
pub(super) const NODE: &str = "node.pem";
pub(super) const NODE_KEY: &str = "node.key";
pub(super) const DESCRIPTION: &str = "node.toml";
/// File of a node that was removed from its cluster.
pub(super) const REMOVED: &str = "removed";
/// Entries of a data directory that has data. The storage creates them.
const DATA: [&str; 3] = ["checkpoint", "topics", "journal"];
/// Maximum bytes of a file of an identity.
const FILE_BYTES_MAX: u64 = 1 << 20;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Version of `node.toml`.
const VERSION: u32 = 1;

/// File of an identity: its name and its contents.
pub(super) type NamedFile = (&'static str, Zeroizing<Vec<u8>>);

/// Contents of `node.toml`.
pub(super) struct Description {
    pub cluster: u128,
    pub node: NodeId,
    pub ids: u64,
    pub advertise: String,
    pub nodes: BTreeMap<NodeId, String>,
}

/// Contents of `node.toml` as it is written. Numbers that TOML cannot hold are hexadecimal texts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    cluster: String,
    node: NodeId,
    ids: String,
    advertise: String,
    nodes: BTreeMap<String, String>,
}

impl Description {
    pub fn to_text(&self) -> Result<String> {
        let written = Written {
            version: VERSION,
            cluster: format!("{:032x}", self.cluster),
            node: self.node,
            ids: format!("{:016x}", self.ids),
            advertise: self.advertise.clone(),
            nodes: self.nodes.iter().map(|(node, address)| (node.to_string(), address.clone())).collect(),
        };
        let text = toml::to_string(&written)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("{DESCRIPTION} cannot be written: {error}")))?;
        Ok(format!("# Written by Thalweg: the identity of this node. Do not copy it to another node.\n{text}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let written: Written = toml::from_str(text).map_err(|error| Error::invalid(error.to_string()))?;
        if written.version != VERSION {
            let text = format!("it has version {}, this program reads {VERSION}", written.version);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let number = |text: &str| u128::from_str_radix(text, 16).map_err(|error| Error::invalid(error.to_string()));
        let ids = u64::try_from(number(&written.ids)?).map_err(|error| Error::invalid(error.to_string()))?;
        let nodes = written.nodes.into_iter().map(|(node, address)| {
            let node = node.parse().map_err(|error| Error::invalid(format!("{node:?} is no node: {error}")))?;
            check_address(&address).map(|()| (node, address))
        });
        check_address(&written.advertise)?;
        if written.node == 0 {
            return Err(Error::invalid("no node has the number 0"));
        }
        Ok(Self {
            cluster: number(&written.cluster)?,
            node: written.node,
            ids,
            advertise: written.advertise,
            nodes: nodes.collect::<Result<_>>()?,
        })
    }
}

/// Fails if the data directory has an identity.
pub(super) fn expect_no_identity(data: &Path) -> Result<()> {
    let path = data.join(FOLDER);
    if !exists(&path)? {
        return Ok(());
    }
    let path = path.display();
    Err(Error::new(
        ErrorKind::AlreadyExists,
        format!("{path} exists: this directory belongs to a node of a cluster; start it, or choose another directory"),
    ))
}

/// Fails if the data directory has an identity or data: a node joins with nothing.
pub(crate) fn expect_empty(data: &Path) -> Result<()> {
    expect_no_identity(data)?;
    for name in DATA {
        let path = data.join(name);
        if exists(&path)? {
            let path = path.display();
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "{path} exists: the directory has the data of a broker, which joining would lose; join with an \
                     empty directory"
                ),
            ));
        }
    }
    Ok(())
}

pub(super) fn exists(path: &Path) -> Result<bool> {
    match path.try_exists() {
        // A file where the data directory should be has no files of a node.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        exists => exists.map_err(failed("read", path)),
    }
}

/// Writes the files of a new identity. They appear together.
pub(super) fn create(data: &Path, files: &[NamedFile]) -> Result<()> {
    let new = data.join(NEW_FOLDER);
    let create_folder = |path: &Path| DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
    create_folder(data).map_err(failed("create", data))?;
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &new)(error)),
        _removed_or_absent => {}
    }
    create_folder(&new).map_err(failed("create", &new))?;
    for (name, bytes) in files {
        write(&new.join(name), bytes)?;
    }
    sync(&new)?;
    let folder = data.join(FOLDER);
    fs::rename(&new, &folder).map_err(failed("create", &folder))?;
    sync(data)
}

/// Writes a file of an identity again; it has its old or its new contents at any time.
pub(super) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &new)(error)),
        _removed_or_absent => {}
    }
    write(&new, bytes)?;
    fs::rename(&new, &path).map_err(failed("write", &path))?;
    sync(folder)
}

/// Writes the key with which the cluster seals secrets; the storage reads it.
pub(crate) fn write_seal_key(data: &Path, key: &[u8; 32]) -> Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(data).map_err(failed("create", data))?;
    replace(data, "seal.key", key)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(failed("write", path))
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
}

/// Reads `node.toml`; returns `None` if there is no identity.
pub(super) fn read_description(folder: &Path) -> Result<Option<Description>> {
    if !exists(folder)? {
        return Ok(None);
    }
    let text = read_text(folder, DESCRIPTION)?;
    Description::parse(&text).map(Some).map_err(|error| unusable(&folder.join(DESCRIPTION), &error))
}

pub(super) fn read(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let bytes = fs::metadata(&path).map_err(failed("read", &path))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(unusable(&path, &Error::too_large(format!("it has {bytes} bytes, at most {FILE_BYTES_MAX}"))));
    }
    fs::read(&path).map_err(failed("read", &path))
}

/// Reads a private key. Fails if other users can read it.
pub(super) fn read_secret(folder: &Path, name: &str) -> Result<Zeroizing<String>> {
    let path = folder.join(name);
    let mode = fs::metadata(&path).map_err(failed("read", &path))?.mode();
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(Error::new(
            ErrorKind::Denied,
            format!("other users can read {path}: remove their permissions with `chmod 600 {path}`"),
        ));
    }
    read_text(folder, name).map(Zeroizing::new)
}

fn read_text(folder: &Path, name: &str) -> Result<String> {
    String::from_utf8(read(folder, name)?)
        .map_err(|error| unusable(&folder.join(name), &Error::invalid(error.utf8_error().to_string())))
}

/// Returns the error for a file of an identity that cannot be used.
pub(super) fn unusable(path: &Path, error: &Error) -> Error {
    let message = format!("{}: {}; restore the folder from a copy, or join again", path.display(), error.message);
    Error::new(error.kind, message)
}

fn failed<'p>(action: &'static str, path: &'p (impl AsRef<Path> + ?Sized)) -> impl FnOnce(io::Error) -> Error + 'p {
    move |error| {
        let path: PathBuf = path.as_ref().to_owned();
        let kind = match error.kind() {
            io::ErrorKind::StorageFull => ErrorKind::DiskFull,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _other => ErrorKind::Internal,
        };
        Error::new(kind, format!("cannot {action} {}: {error}", path.display()))
    }
}
