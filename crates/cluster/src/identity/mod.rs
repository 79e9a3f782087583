//! Identity of a node: its number, its cluster, and the certificates with which nodes recognise each other.
//!
//! An identity is the folder `cluster` of the data directory, which only the broker's user can read:
//!
//! | file | holds |
//! |---|---|
//! | `ca.pem`, `ca.key` | the authority of the cluster, valid for 10 years |
//! | `node.pem`, `node.key` | the certificate of this node, valid for 1 year |
//! | `node.toml` | the cluster, the node's number and address, the founder's number of directories, known nodes |
//! | `removed` | exists if the cluster has removed the node, which must not start again |
//!
//! Nothing but this authority is trusted between nodes. Every node has its key, for two reasons: the cluster has to
//! admit new nodes after the founder is lost, and each node renews its own certificate without anybody's help. A node
//! can write to every log of the cluster in any case, so a node that is taken over gives away nothing more by the key.
//! A node that was removed still has it: put the cluster's port where only its machines can connect.

mod certificates;
mod files;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use consensus::NodeId;
use engine::ids::is_host_and_port;
use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

pub(crate) use certificates::{Authority, fingerprint, node_name};
use certificates::{Leaf, NODE_CERTIFICATE_LIFE};
pub(crate) use files::{expect_empty, write_seal_key};

/// Number of the node that founds a cluster.
pub const FOUNDER: NodeId = 1;
/// Maximum bytes of a node's address: the longest name of a host, and a port.
pub const ADDRESS_BYTES_MAX: usize = 260;
/// Time that a node's certificate still has when the node renews it.
pub const RENEWAL: Duration = Duration::from_secs(30 * 86_400);
/// Maximum number of nodes that an identity knows.
pub const NODES_MAX: usize = 256;

/// Nodes with their addresses.
pub type Addresses = Vec<(NodeId, String)>;

/// Identity of a node.
pub struct Identity {
    /// Folder with its files.
    folder: PathBuf,
    cluster: u128,
    node: NodeId,
    ids: u64,
    authority: Authority,
    state: Mutex<State>,
}

/// Parts of the identity that change while a node runs.
struct State {
    leaf: Leaf,
    advertise: String,
    nodes: BTreeMap<NodeId, String>,
}

/// Everything that an identity is created from.
pub(crate) struct Founding {
    pub cluster: u128,
    pub node: NodeId,
    pub ids: u64,
    pub authority: Authority,
    pub advertise: String,
    pub nodes: Addresses,
}

impl Identity {
    /// Founds a cluster: creates its authority and the identity of its first node in the data directory `data`. `ids`
    /// is the number of the founder's directory, from which topics get their ids; `advertise` is the address at which
    /// other nodes reach this one.
    pub fn found(data: &Path, ids: u64, advertise: &str) -> Result<Self> {
        files::expect_no_identity(data)?;
        let cluster = u128::from_be_bytes(random()?);
        let authority = Authority::generate(cluster, SystemTime::now())?;
        let nodes = vec![(FOUNDER, advertise.to_owned())];
        Self::create(data, Founding { cluster, node: FOUNDER, ids, authority, advertise: advertise.to_owned(), nodes })
    }

    /// Writes a new identity; the folder appears whole or not at all.
    pub(crate) fn create(data: &Path, founding: Founding) -> Result<Self> {
        let Founding { cluster, node, ids, authority, advertise, nodes } = founding;
        check_address(&advertise)?;
        let leaf = authority.issue(cluster, node, None, SystemTime::now())?;
        let state = State { leaf, advertise, nodes: checked_nodes(nodes)? };
        let folder = data.join(files::FOLDER);
        let identity = Self { folder, cluster, node, ids, authority, state: Mutex::new(state) };
        files::create(data, &identity.files(&identity.state.lock())?)?;
        Ok(identity)
    }

    /// Reads the identity in a data directory; `None` if it has none. A certificate that is about to expire, or has
    /// expired while the node was off, is renewed.
    pub fn load(data: &Path) -> Result<Option<Self>> {
        let folder = data.join(files::FOLDER);
        let Some(description) = files::read_description(&folder)? else {
            return Ok(None);
        };
        let files::Description { cluster, node, ids, advertise, nodes } = description;
        let authority = Authority::from_pem(
            cluster,
            &files::read(&folder, files::AUTHORITY)?,
            &files::read_secret(&folder, files::AUTHORITY_KEY)?,
        )
        .map_err(|error| files::unusable(&folder.join(files::AUTHORITY), &error))?;
        let leaf = Leaf::from_pem(&files::read(&folder, files::NODE)?, &files::read_secret(&folder, files::NODE_KEY)?)
            .map_err(|error| files::unusable(&folder.join(files::NODE), &error))?;
        let state = State { leaf, advertise, nodes };
        let identity = Self { folder, cluster, node, ids, authority, state: Mutex::new(state) };
        identity.renew(SystemTime::now())?;
        Ok(Some(identity))
    }

    /// Renews the node's certificate if less than [`RENEWAL`] is left of it; returns `true` if it did.
    pub fn renew(&self, now: SystemTime) -> Result<bool> {
        let mut state = self.state.lock();
        if state.leaf.expires_at > now + RENEWAL {
            return Ok(false);
        }
        let leaf = self.authority.issue(self.cluster, self.node, Some(&state.leaf), now)?;
        files::replace(&self.folder, files::NODE, leaf.to_pem().as_bytes())?;
        state.leaf = leaf;
        tracing::info!(days = NODE_CERTIFICATE_LIFE.as_secs() / 86_400, "the certificate of this node was renewed");
        Ok(true)
    }

    /// Returns the number of the cluster.
    pub fn cluster(&self) -> u128 {
        self.cluster
    }

    /// Returns the number of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the number of the founder's directory, from which topics get their ids.
    pub fn ids(&self) -> u64 {
        self.ids
    }

    /// Returns the address at which other nodes reach this one.
    pub fn advertise(&self) -> String {
        self.state.lock().advertise.clone()
    }

    /// Returns the nodes that this one knows, with their addresses, itself included.
    pub fn nodes(&self) -> Addresses {
        self.state.lock().nodes.iter().map(|(node, address)| (*node, address.clone())).collect()
    }

    /// Returns the fingerprint of the authority: SHA-256 of its certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.authority.certificate)
    }

    /// Returns when the node's certificate expires.
    pub fn expires_at(&self) -> SystemTime {
        self.state.lock().leaf.expires_at
    }

    /// Returns `true` if the cluster has removed this node.
    pub fn is_removed(&self) -> Result<bool> {
        files::exists(&self.folder.join(files::REMOVED))
    }

    /// Stores that the cluster has removed this node.
    pub fn save_removed(&self) -> Result<()> {
        let text = format!("Node {} was removed from the cluster {:032x}.\n", self.node, self.cluster);
        files::replace(&self.folder, files::REMOVED, text.as_bytes())
    }

    /// Stores the nodes of the cluster, which this node dials after a restart.
    pub fn save_nodes(&self, nodes: &[(NodeId, String)]) -> Result<()> {
        self.save(|state| {
            state.nodes = checked_nodes(nodes.to_vec())?;
            Ok(())
        })
    }

    /// Stores another address of this node.
    pub fn save_advertise(&self, advertise: &str) -> Result<()> {
        check_address(advertise)?;
        self.save(|state| {
            state.advertise = advertise.to_owned();
            state.nodes.insert(self.node, advertise.to_owned());
            Ok(())
        })
    }

    fn save(&self, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        change(&mut state)?;
        files::replace(&self.folder, files::DESCRIPTION, self.description(&state)?.as_bytes())
    }

    fn description(&self, State { advertise, nodes, .. }: &State) -> Result<String> {
        let (cluster, node, ids) = (self.cluster, self.node, self.ids);
        files::Description { cluster, node, ids, advertise: advertise.clone(), nodes: nodes.clone() }.to_text()
    }

    fn files(&self, state: &State) -> Result<Vec<files::NamedFile>> {
        let bytes = |text: String| Zeroizing::new(text.into_bytes());
        Ok(vec![
            (files::AUTHORITY, bytes(self.authority.to_pem())),
            (files::AUTHORITY_KEY, bytes(self.authority.key_pem())),
            (files::NODE, bytes(state.leaf.to_pem())),
            (files::NODE_KEY, bytes(state.leaf.key_pem())),
            (files::DESCRIPTION, bytes(self.description(state)?)),
        ])
    }

    /// Returns the certificates that this node presents, and its key.
    pub(crate) fn presented(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let state = self.state.lock();
        (vec![state.leaf.certificate.clone(), self.authority.certificate.clone()], state.leaf.key())
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }
}

impl fmt::Debug for Identity {
    /// Shows no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = format_args!("{:032x}", self.cluster);
        f.debug_struct("Identity").field("cluster", &cluster).field("node", &self.node).finish_non_exhaustive()
    }
}

/// Checks that a text is a host and a port.
pub fn check_address(address: &str) -> Result<()> {
    if address.len() <= ADDRESS_BYTES_MAX && is_host_and_port(address) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{address:?} is no address of a node: write HOST:PORT, such as broker-1.example:7402 or [2001:db8::1]:7402"
    )))
}

fn checked_nodes(nodes: Addresses) -> Result<BTreeMap<NodeId, String>> {
    if nodes.len() > NODES_MAX {
        return Err(Error::too_large(format!("{} nodes are more than a cluster can have ({NODES_MAX})", nodes.len())));
    }
    for (node, address) in &nodes {
        check_address(address)?;
        if *node == 0 {
            return Err(Error::invalid("no node has the number 0: choose one from 1"));
        }
    }
    Ok(nodes.into_iter().collect())
}

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the system has no random numbers: {error}")))?;
    Ok(bytes)
}

/// Returns the time in seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
