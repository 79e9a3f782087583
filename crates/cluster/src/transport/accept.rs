//! Connections that others open.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::peer::{Direction, Joined, Peer};
use super::queue::Lane;
use super::stream::{Counted, Frames, broken, closed, probe, read_frame, watch, write_frame};
use super::tls::is_of_node;
use super::{HANDSHAKE_LIMIT, HANDSHAKES_MAX, SILENCE, Shared};
use crate::join;
use crate::link::{FRAME_HEAD_BYTES, Frame, Hello, Purpose, Refusal};

/// Pause after the system refused a connection, for instance for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections whose other side is not known yet, the oldest first.
#[derive(Default)]
struct Handshakes(Mutex<VecDeque<(u64, AbortHandle)>>);

/// Place of one of these connections; dropping it makes room.
struct Handshake {
    all: Arc<Handshakes>,
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.0.lock().retain(|(number, _)| *number != self.number);
        self.shared.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections for ever.
pub(super) async fn run(shared: &Arc<Shared>, listener: TcpListener) {
    let all = Arc::new(Handshakes::default());
    for number in 0.. {
        let socket = match listener.accept().await {
            Ok((socket, _address)) => socket,
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    tracing::warn!(%error, "a connection at the cluster's address was not accepted");
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        shared.handshakes.fetch_add(1, Ordering::Relaxed);
        let handshake = Handshake { all: all.clone(), shared: shared.clone(), number };
        let task = tokio::spawn(serve(shared.clone(), socket, handshake));
        let oldest = {
            let mut all = all.0.lock();
            all.push_back((number, task.abort_handle()));
            if all.len() > HANDSHAKES_MAX { all.pop_front() } else { None }
        };
        if let Some((_, oldest)) = oldest {
            shared.failed_handshakes.fetch_add(1, Ordering::Relaxed);
            oldest.abort();
        }
    }
}

async fn serve(shared: Arc<Shared>, socket: TcpStream, handshake: Handshake) {
    let greeted = timeout(HANDSHAKE_LIMIT, Box::pin(greet(&shared, socket))).await;
    drop(handshake);
    let (stream, hello) = match greeted {
        Ok(Ok(greeted)) => greeted,
        Ok(Err(error)) => {
            shared.failed_handshakes.fetch_add(1, Ordering::Relaxed);
            return tracing::debug!(%error, "a connection at the cluster's address failed");
        }
        Err(elapsed) => {
            shared.failed_handshakes.fetch_add(1, Ordering::Relaxed);
            return tracing::debug!(%elapsed, "a connection at the cluster's address said nothing");
        }
    };
    if let Err(error) = Box::pin(serve_known(&shared, stream, hello)).await {
        tracing::debug!(%error, "a connection at the cluster's address ended");
    }
}

/// Reads the hello of the other side.
async fn greet(shared: &Shared, socket: TcpStream) -> Result<(TlsStream<TcpStream>, Hello)> {
    socket.set_nodelay(true).map_err(broken)?;
    let acceptor = TlsAcceptor::from(shared.tls().server.clone());
    let mut stream = acceptor.accept(socket).await.map_err(broken)?;
    let read = read_frame(&mut stream, |head: [u8; FRAME_HEAD_BYTES]| Frame::body_bytes(head, false)).await;
    let hello = read.and_then(|(kind, body)| match Frame::decode(kind, body, 0, 0)? {
        Frame::Hello(hello) => Ok(hello),
        Frame::Refusal(Refusal { reason, .. }) => Err(Error::new(ErrorKind::Denied, reason)),
        Frame::Parts(_) => Err(Error::malformed("it sent parts before it said who it is")),
    });
    match hello {
        Ok(hello) => Ok((stream, hello)),
        Err(error) => {
            refuse(&mut stream, &Refusal::new(error.message.as_str())).await;
            Err(error)
        }
    }
}

async fn refuse(stream: &mut TlsStream<TcpStream>, refusal: &Refusal) {
    // The other side may have gone.
    if write_frame(stream, &Frame::Refusal(refusal.clone()).encode()).await.is_ok() {
        drop(stream.shutdown().await);
    }
}

/// Serves a connection by its purpose, until it ends or is handed over.
async fn serve_known(shared: &Arc<Shared>, mut stream: TlsStream<TcpStream>, hello: Hello) -> Result<()> {
    if hello.purpose == Purpose::Join {
        let Ok(_place) = shared.joins.try_acquire() else {
            let why = "too many programs ask to join at a time: try again in a minute";
            shared.join_refusals.fetch_add(1, Ordering::Relaxed);
            return refused(shared, &mut stream, &Refusal::new(why)).await;
        };
        write_frame(&mut stream, &Frame::Hello(shared.hello(Purpose::Join)).encode()).await?;
        return join::serve(shared, &mut stream).await;
    }
    let peer = match recognise(shared, &stream, &hello) {
        Ok(peer) => peer,
        Err(refusal) => return refused(shared, &mut stream, &refusal).await,
    };
    let answer = Frame::Hello(shared.hello(hello.purpose.clone())).encode();
    let (lane, places) = match hello.purpose {
        Purpose::Beats => (Lane::Beats, None),
        Purpose::Entries => (Lane::Entries, None),
        Purpose::Bulk => (Lane::Entries, Some(&shared.bulk)),
        Purpose::Splice(_) | Purpose::Join => (Lane::Entries, Some(&shared.splices)),
    };
    if let Some(places) = places {
        return hand_over(shared, places, stream, hello, answer).await;
    }
    watch(stream.get_ref().0, SILENCE);
    let mut joined = match peer.rise(hello.process, lane, Direction::In, &*shared.receiver) {
        Ok(joined) => joined,
        Err(refusal) => return refused(shared, &mut stream, &refusal).await,
    };
    let result = match write_frame(&mut stream, &answer).await {
        Ok(()) => read_lane(shared, &peer, stream, &mut joined).await,
        Err(error) => Err(error),
    };
    if let Err(error) = &result {
        peer.fall(&joined, &error.message, &*shared.receiver);
    }
    result
}

async fn refused(shared: &Shared, stream: &mut TlsStream<TcpStream>, refusal: &Refusal) -> Result<()> {
    let why = &refusal.reason;
    shared.refused.fetch_add(1, Ordering::Relaxed);
    // A node that is refused tries again and again.
    let is_new = std::mem::replace(&mut *shared.last_refusal.lock(), why.clone()) != *why;
    if is_new {
        tracing::warn!(why, "a connection at the cluster's address was refused");
    }
    drop(timeout(HANDSHAKE_LIMIT, refuse(stream, refusal)).await);
    Ok(())
}

/// Returns the node that the other side is, or why it is none.
fn recognise(shared: &Shared, stream: &TlsStream<TcpStream>, hello: &Hello) -> Result<Arc<Peer>, Refusal> {
    let Hello { cluster, node, .. } = *hello;
    let own = shared.identity.node();
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate
        .ok_or_else(|| Refusal::new("the connection has no certificate: only a node of the cluster may do this"))?;
    if cluster != shared.identity.cluster() {
        return Err(Refusal::new(format!("node {node} belongs to another cluster than node {own}")));
    }
    if !is_of_node(certificate, cluster, node) {
        let why = format!("the certificate is not that of node {node}: its data directory was changed or mixed up");
        return Err(Refusal::new(why));
    }
    if node == own {
        return Err(Refusal::new(format!(
            "this is node {node} itself: a second process has its number; stop one of the two, and give each node its \
             own data directory"
        )));
    }
    if shared.removed.lock().contains(&node) {
        let reason = format!("node {node} was removed from the cluster");
        return Err(Refusal { reason, is_removed: true });
    }
    shared.peer(node).ok_or_else(|| {
        Refusal::new(format!("node {own} does not know node {node} as one of the cluster yet: it has just joined"))
    })
}

/// Gives the stream to its receiver, if there is room.
async fn hand_over(
    shared: &Shared,
    places: &Arc<Semaphore>,
    mut stream: TlsStream<TcpStream>,
    hello: Hello,
    answer: Vec<bytes::Bytes>,
) -> Result<()> {
    let permit = match places.clone().try_acquire_owned() {
        Ok(permit) => permit,
        Err(full) => {
            let why = format!("too many streams of other nodes are open ({full}): try again later");
            return refused(shared, &mut stream, &Refusal::new(why)).await;
        }
    };
    write_frame(&mut stream, &answer).await?;
    probe(stream.get_ref().0);
    (shared.on_stream)(hello.purpose, hello.node, Box::new(Counted { stream, _permit: permit }));
    Ok(())
}

/// Reads parts until the connection or its link ends. An error is the end of the connection.
async fn read_lane(shared: &Shared, peer: &Peer, stream: TlsStream<TcpStream>, joined: &mut Joined) -> Result<()> {
    let mut frames = Frames::new(stream, SILENCE);
    loop {
        let next = tokio::select! {
            biased;
            () = joined.end() => return Ok(()),
            next = frames.next() => next?,
        };
        let (kind, body) = next.ok_or_else(closed)?;
        peer.counts.received_bytes.fetch_add((FRAME_HEAD_BYTES + body.len()) as u64, Ordering::Relaxed);
        match Frame::decode(kind, body, peer.node, shared.identity.node())? {
            Frame::Parts(parts) if parts.is_empty() => {}
            Frame::Parts(parts) => {
                // The other side may have known earlier that the link is up. An answer would be dropped before it is.
                if timeout(HANDSHAKE_LIMIT, joined.up()).await.is_err() {
                    return Err(Error::new(ErrorKind::Timeout, "it sends, and cannot be connected to"));
                }
                if joined.is_present() {
                    shared.receiver.received(peer.node, parts);
                }
            }
            Frame::Refusal(Refusal { reason, .. }) => return Err(Error::new(ErrorKind::Denied, reason)),
            Frame::Hello(_) => return Err(Error::malformed("it said twice who it is")),
        }
    }
}
