//! Connections that this node opens.

use std::sync::Arc;
use std::time::Duration;

use consensus::NodeId;
use engine::{Error, ErrorKind, Result};
use tokio::io::split;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::outgoing::Attached;
use super::peer::{Direction, Joined, Peer};
use super::queue::{Lane, Queue};
use super::stream::{Frames, broken, closed, probe, read_frame, watch, write_frame};
use super::tls::name_of;
use super::{HANDSHAKE_LIMIT, KEEP_ALIVE, SILENCE, Shared, Stream};
use crate::identity::random;
use crate::link::{Frame, Hello, Purpose, Refusal};

/// Times between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Time until an address counts as dead. It is shorter than the handshake's, so that a machine that has just booted is
/// found soon.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Time that nobody reads what the other side of an outgoing lane says: it says only why it ends.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// Keeps one lane to a node connected.
pub(super) async fn keep(shared: Arc<Shared>, peer: Arc<Peer>, lane: Lane) {
    let mut pause = PAUSE_MIN;
    loop {
        match Box::pin(connect_lane(&shared, &peer, lane)).await {
            Ok((stream, mut joined)) => {
                let begin = Instant::now();
                let ended = Box::pin(serve(&peer, &peer.queues[lane as usize], stream, &mut joined)).await;
                if let Err(error) = ended {
                    peer.fall(&joined, &error.message, &*shared.receiver);
                }
                // A link that ends again and again is no success.
                if begin.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
            }
            Err(error) => peer.note(error.message),
        }
        // A node that has just connected can be reached.
        drop(timeout(with_jitter(pause), peer.called[lane as usize].notified()).await);
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Returns between half of the time and all of it: nodes that lost each other at one moment do not dial at one.
fn with_jitter(pause: Duration) -> Duration {
    let [byte] = random().unwrap_or([255]);
    pause / 2 + pause / 2 * u32::from(byte) / 255
}

async fn connect_lane(shared: &Shared, peer: &Peer, lane: Lane) -> Result<(TlsStream<TcpStream>, Joined)> {
    let purpose = match lane {
        Lane::Beats => Purpose::Beats,
        Lane::Entries => Purpose::Entries,
    };
    let (stream, hello) = connect(shared, peer, purpose).await?;
    watch(stream.get_ref().0, SILENCE);
    let joined = peer
        .rise(hello.process, lane, Direction::Out, &*shared.receiver)
        .map_err(|refusal| Error::new(ErrorKind::Denied, refusal.reason))?;
    Ok((stream, joined))
}

/// Opens a stream to another node.
pub(super) async fn open(shared: Arc<Shared>, to: NodeId, purpose: Purpose) -> Result<Stream> {
    if !matches!(purpose, Purpose::Bulk | Purpose::Splice(_)) {
        return Err(Error::invalid("only streams of catch-ups and of clients are opened one by one"));
    }
    let peer = shared.peer(to).ok_or_else(|| Error::not_found(format!("node {to} is no other node of the cluster")))?;
    let (stream, _hello) = Box::pin(connect(&shared, &peer, purpose)).await?;
    probe(stream.get_ref().0);
    Ok(Box::new(stream))
}

/// Connects to a node, and checks that it is the one.
async fn connect(shared: &Shared, peer: &Peer, purpose: Purpose) -> Result<(TlsStream<TcpStream>, Hello)> {
    let address = peer.address.lock().clone();
    let node = peer.node;
    let connected = match timeout(HANDSHAKE_LIMIT, Box::pin(greet(shared, node, &address, purpose))).await {
        Ok(connected) => connected,
        Err(elapsed) => Err(Error::new(ErrorKind::Timeout, format!("no answer within {HANDSHAKE_LIMIT:?}: {elapsed}"))),
    };
    connected.map_err(|error| Error::new(error.kind, format!("node {node} at {address}: {}", error.message)))
}

/// Connects to the first of a host's addresses that answers.
async fn reach(address: &str) -> Result<TcpStream> {
    let addresses = lookup_host(address).await.map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("the name is not known ({error}): check the node's address"))
    })?;
    let mut last = Error::new(ErrorKind::NotFound, "the name has no address: check the node's address");
    for address in addresses {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => {
                let text = format!("cannot connect ({error}): check that the node runs");
                last = Error::new(ErrorKind::Disconnected, text);
            }
            Err(elapsed) => {
                let text = format!("no answer within {CONNECT_LIMIT:?} ({elapsed}): check its machine and the network");
                last = Error::new(ErrorKind::Timeout, text);
            }
        }
    }
    Err(last)
}

async fn greet(
    shared: &Shared,
    node: NodeId,
    address: &str,
    purpose: Purpose,
) -> Result<(TlsStream<TcpStream>, Hello)> {
    let socket = reach(address).await?;
    socket.set_nodelay(true).map_err(broken)?;
    let name = name_of(shared.identity.cluster(), node)?;
    let connector = TlsConnector::from(shared.tls().client.clone());
    let mut stream = connector.connect(name, socket).await.map_err(|error| {
        let text = format!("{error}; the address must be that of node {node} of this cluster");
        Error::new(ErrorKind::Denied, text)
    })?;
    write_frame(&mut stream, &Frame::Hello(shared.hello(purpose.clone())).encode()).await?;
    let (kind, body) = read_frame(&mut stream, |head| Frame::body_bytes(head, false)).await?;
    match Frame::decode(kind, body, node, shared.identity.node())? {
        Frame::Hello(hello) => {
            let own = (shared.identity.cluster(), node, purpose);
            if (hello.cluster, hello.node, hello.purpose.clone()) != own {
                return Err(Error::new(ErrorKind::Denied, format!("it answered as node {} of another", hello.node)));
            }
            Ok((stream, hello))
        }
        Frame::Refusal(Refusal { reason, is_removed }) => {
            if is_removed {
                shared.receiver.removed(node);
            }
            Err(Error::new(ErrorKind::Denied, format!("refused: {reason}")))
        }
        Frame::Parts(_) => Err(Error::malformed("it sent parts before it said who it is")),
    }
}

/// Writes what is queued until the connection or its link ends. An error is the end of the connection.
async fn serve(peer: &Peer, queue: &Queue, stream: TlsStream<TcpStream>, joined: &mut Joined) -> Result<()> {
    let (reader, writer) = split(stream);
    let outgoing = peer.outgoing[queue.lane() as usize].attach(queue, Box::new(writer));
    let mut answers = Frames::new(reader, NEVER);
    tokio::select! {
        () = joined.end() => Ok(()),
        answer = answers.next() => Err(match answer? {
            None => closed(),
            Some((kind, body)) => match Frame::decode(kind, body, peer.node, 0)? {
                Frame::Refusal(Refusal { reason, .. }) => Error::new(ErrorKind::Denied, reason),
                Frame::Hello(_) | Frame::Parts(_) => Error::malformed("it sent parts against the direction"),
            },
        }),
        written = write_queue(queue, &outgoing) => written,
    }
}

async fn write_queue(queue: &Queue, outgoing: &Attached<'_>) -> Result<()> {
    loop {
        let is_called = timeout(KEEP_ALIVE, queue.ready.notified()).await.is_ok();
        // A frame without parts says that this node is alive.
        outgoing.write(!is_called).await.map_err(broken)?;
    }
}
