//! How a program becomes a node: it connects to the cluster's port with a token and no certificate.
//!
//! The token names an address and the fingerprint of the cluster's authority, so the program knows that it speaks with
//! the cluster before it sends anything. It sends the token and its address; the answer has the number of the node, the
//! authority with its key, and the key with which the cluster seals secrets. With these the node issues its own
//! certificate, as it does for each renewal. So nobody parses a request for a certificate of an unknown program, and no
//! private key of a node travels.
//!
//! Any node can check a token, but only the leader admits a node; the others answer with its address.

mod message;
mod serve;
mod token;

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use consensus::NodeId;
use engine::{Error, ErrorKind, Result};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::identity::{
    Addresses, Authority, Founding, Identity, check_address, expect_empty, fingerprint, write_seal_key,
};
use crate::link::{Frame, Hello, Purpose, Refusal};
use crate::roster::FORMAT;
use crate::transport::{self, HANDSHAKE_LIMIT, read_frame, write_frame};
pub use message::{Answer, Granted, JOIN_BYTES_MAX, Request};
pub(crate) use serve::serve;
pub use token::{TOKEN_BYTES_MAX, TOKEN_PREFIX, Token, TokenId};

/// Maximum number of times that a program is sent to another node.
pub const REDIRECTS_MAX: usize = 5;
/// Maximum time until a node is admitted: its admission has to be committed by the cluster.
pub const ADMISSION_LIMIT: Duration = Duration::from_secs(30);

/// Memory of the tokens that have admitted a node.
pub trait UsedTokens {
    /// Returns `true` if a token has admitted a node. A token may be forgotten when it has expired.
    fn is_used(&self, token: TokenId) -> bool;
}

/// Program that asks to join. Its token is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Token that it used. It has to be remembered until it expires, by all nodes, together with the admission.
    pub token: TokenId,
    /// Time in seconds since 1970 at which the token expires.
    pub expires: u64,
    /// Address at which other nodes will reach the new one.
    pub advertise: String,
    /// Version of its program.
    pub program: String,
    /// Version of the log's rows that it reads.
    pub format: u32,
}

/// Decision about a program that asks to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted {
        /// Number of the new node, which no other node has had.
        node: NodeId,
        /// All nodes, with the new one.
        nodes: Addresses,
        /// Key with which the cluster seals secrets.
        seal_key: [u8; 32],
    },
    /// Another node leads; the program goes to its address.
    NotLeader { address: String },
}

/// Decision that is not there yet.
pub type Deciding<'a> = Pin<Box<dyn Future<Output = Result<Admission>> + Send + 'a>>;

/// Admission of new nodes. One candidate at a time is decided about.
pub trait Admits: UsedTokens + Send + Sync {
    /// Decides about a program whose token is valid and was not used. The message of an error is the reason that the
    /// program gets. The admission is dropped, and the program gets an error, after [`ADMISSION_LIMIT`].
    fn admit(&self, candidate: Candidate) -> Deciding<'_>;
}

/// Joins the cluster of a token, and writes the identity into the data directory `data`, which must have no data.
/// `advertise` is the address at which other nodes reach this one, `program` the version of the program.
pub async fn join(token: &str, advertise: &str, data: &Path, program: &str) -> Result<Identity> {
    expect_empty(data)?;
    check_address(advertise)?;
    let token = Token::parse(token)?;
    let request =
        Request { token: token.reveal(), advertise: advertise.to_owned(), program: program.to_owned(), format: FORMAT };
    let mut address = token.address.clone();
    for _ in 0..=REDIRECTS_MAX {
        let answer = Box::pin(ask(&token, &address, &request)).await;
        match answer.map_err(|error| Error::new(error.kind, format!("{address}: {}", error.message)))? {
            Answer::Granted(granted) => return accept(data, &token, advertise, granted),
            Answer::NotLeader { address: leader } => {
                check_address(&leader)?;
                address = leader;
            }
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!("{REDIRECTS_MAX} nodes named another one as their leader, the last one {address}: try again"),
    ))
}

async fn ask(token: &Token, address: &str, request: &Request) -> Result<Answer> {
    let connecting = timeout(HANDSHAKE_LIMIT, Box::pin(connect(token, address, &request.program))).await;
    let mut stream = connecting.map_err(|elapsed| {
        Error::new(
            ErrorKind::Timeout,
            format!("no answer within {HANDSHAKE_LIMIT:?} ({elapsed}): is it the address of a node's cluster port?"),
        )
    })??;
    write_frame(&mut stream, &request.encode()).await?;
    let answering = timeout(ADMISSION_LIMIT + HANDSHAKE_LIMIT, read_frame(&mut stream, message::answer_bytes)).await;
    let (kind, body) = answering.map_err(|elapsed| {
        Error::new(
            ErrorKind::Timeout,
            format!(
                "the cluster did not decide in time ({elapsed}): it may have no majority; see its status, then try \
                 again with a new token"
            ),
        )
    })??;
    Answer::decode(kind, body)?.map_err(|Refusal { reason, .. }| Error::new(ErrorKind::Denied, reason))
}

async fn connect(token: &Token, address: &str, program: &str) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let unreachable = |error: std::io::Error| {
        let text =
            format!("cannot connect ({error}): check that the node runs, and that this machine may connect to it");
        Error::new(ErrorKind::Disconnected, text)
    };
    let socket = TcpStream::connect(address).await.map_err(unreachable)?;
    let name = ServerName::try_from("join.thalweg").map_err(|error| Error::invalid(error.to_string()))?;
    let connector = TlsConnector::from(transport::joiner(token.fingerprint)?);
    let mut stream = connector.connect(name, socket).await.map_err(|error| {
        let text =
            format!("it is no node of the token's cluster ({error}): issue a token at the cluster that runs there");
        Error::new(ErrorKind::Denied, text)
    })?;
    let hello = Hello { cluster: 0, node: 0, process: 0, program: program.to_owned(), purpose: Purpose::Join };
    write_frame(&mut stream, &Frame::Hello(hello).encode()).await?;
    let (kind, body) = read_frame(&mut stream, |head| Frame::body_bytes(head, false)).await?;
    match Frame::decode(kind, body, 0, 0)? {
        Frame::Hello(_) => Ok(stream),
        Frame::Refusal(Refusal { reason, .. }) => Err(Error::new(ErrorKind::Denied, reason)),
        Frame::Parts(_) => Err(Error::malformed("it sent parts before it said who it is")),
    }
}

fn accept(data: &Path, token: &Token, advertise: &str, granted: Granted) -> Result<Identity> {
    let Granted { cluster, node, ids, certificate, key, seal_key, nodes } = granted;
    let authority = Authority::from_der(cluster, &certificate, &key)?;
    if fingerprint(&authority.certificate) != token.fingerprint {
        return Err(Error::new(
            ErrorKind::Denied,
            "the cluster answered with another authority than that of the token",
        ));
    }
    // The key before the identity: a directory with an identity is complete.
    write_seal_key(data, &seal_key)?;
    Identity::create(data, Founding { cluster, node, ids, authority, advertise: advertise.to_owned(), nodes })
}
