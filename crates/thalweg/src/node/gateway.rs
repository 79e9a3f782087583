//! The doors of a node that does not lead: they hand every connection, byte for byte, to the node that does.
//!
//! Nothing of a protocol is known here, not even TLS, which ends at the leader. Without a leader, a connection waits a
//! second for one; then it gets the answer of its protocol to that.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use broker::Door;
use cluster::link::Spliced;
use cluster::node::Node;
use cluster::transport::Stream;
use consensus::NodeId;
use net::{Accepted, Drain, Forwarded, Sockets};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{Semaphore, watch};

use super::Forwards;

/// Maximum number of connections that one node hands over.
const CONNECTIONS_MAX: usize = 65_536;
/// Time that a connection waits for a leader.
const LEADER_WAIT: Duration = Duration::from_secs(1);
/// Pause before the leader is tried again.
const AGAIN: Duration = Duration::from_millis(20);
/// Bytes that are on the way in each direction of one connection.
const COPY_BYTES: usize = 32 << 10;
/// Time without bytes after which a client that waits for no answer is let go when the process ends.
const QUIET: Duration = Duration::from_millis(20);
/// Time that a client has to read the last answer.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Address that stands for the clients of a Unix socket.
const UNIX_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Doors of a node that hand over to the leader.
pub(super) struct Gateway {
    node: Arc<Node>,
    forwards: Arc<Forwards>,
    permits: Arc<Semaphore>,
    counts: Counts,
    /// `true` once the process ends.
    ending: watch::Sender<bool>,
}

/// Counts since the start of the process.
#[derive(Default)]
pub(super) struct Counts {
    pub handed_over: AtomicU64,
    pub without_leader: AtomicU64,
    pub refused: AtomicU64,
}

impl Gateway {
    pub fn new(node: Arc<Node>, forwards: Arc<Forwards>) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let ending = watch::channel(false).0;
        Arc::new(Self { node, forwards, permits, counts: Counts::default(), ending })
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of connections that are handed over.
    pub fn open(&self) -> usize {
        CONNECTIONS_MAX - self.permits.available_permits()
    }

    /// Ends the connections that are handed over, each when its client waits for no answer, within a time. Returns
    /// `false` if some do not end.
    pub async fn finish(&self, time: Duration) -> bool {
        self.ending.send_replace(true);
        let ended = self.permits.acquire_many(CONNECTIONS_MAX as u32);
        tokio::time::timeout(time, ended).await.is_ok()
    }

    /// Accepts at the sockets of a door until the drain begins. Connections that were accepted go on.
    pub fn accept(self: &Arc<Self>, door: Door, sockets: &Sockets, mut drain: Drain) -> io::Result<()> {
        let mut acceptors = sockets.acceptors()?;
        let gateway = self.clone();
        tokio::spawn(async move {
            while let Some(accepted) = drain.or_begun(acceptors.accept()).await {
                let Ok(permit) = gateway.permits.clone().try_acquire_owned() else {
                    gateway.counts.refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let gateway = gateway.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    match accepted {
                        Accepted::Tcp(stream, peer) => {
                            let local = stream.local_addr().ok();
                            gateway.hand_over(door, stream, peer, local, false).await;
                        }
                        Accepted::Unix(stream, peer) => {
                            gateway.hand_over(door, stream, UNIX_ADDRESS, None, peer.is_owner()).await;
                        }
                    }
                });
            }
        });
        Ok(())
    }

    async fn hand_over<S>(&self, door: Door, mut stream: S, peer: SocketAddr, local: Option<SocketAddr>, owner: bool)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let spliced = Spliced { door: door as u8, peer: peer.to_string(), is_owner: owner };
        let to_leader = tokio::select! {
            biased;
            forward = self.forwards.wait(door) => {
                // This node leads meanwhile.
                return forward(Forwarded { stream: Box::new(stream), peer, local, owner });
            }
            to_leader = tokio::time::timeout(LEADER_WAIT, self.reach_leader(spliced)) => to_leader.ok(),
        };
        let Some((leader, to_leader)) = to_leader else {
            self.counts.without_leader.fetch_add(1, Ordering::Relaxed);
            return say_no_leader(door, &mut stream).await;
        };
        self.counts.handed_over.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let (mut stream, mut to_leader) = (Watched::new(stream, begin), Watched::new(to_leader, begin));
        let (asked, answered) = (stream.read.clone(), to_leader.read.clone());
        let copied = tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut to_leader, COPY_BYTES, COPY_BYTES);
        tokio::select! {
            copied = copied => if let Err(error) = copied {
                tracing::debug!(%peer, %error, "a connection that was handed over has ended");
            },
            // The one that led may hang, and would never close it. The client comes again, for the next leader.
            () = self.node.until_leader_changes(leader) => {}
            () = self.until_finished(begin, &asked, &answered) => {}
        }
    }

    /// Waits until the process ends and a client waits for no answer: the last bytes were those of the leader.
    async fn until_finished(&self, begin: Instant, asked: &AtomicU64, answered: &AtomicU64) {
        let mut ending = self.ending.subscribe();
        if ending.wait_for(|is_ending| *is_ending).await.is_err() {
            return;
        }
        loop {
            let (asked, answered) = (asked.load(Ordering::Relaxed), answered.load(Ordering::Relaxed));
            if answered >= asked && begin.elapsed() > Duration::from_micros(answered) + QUIET {
                return;
            }
            tokio::time::sleep(QUIET / 4).await;
        }
    }

    /// Opens a stream to the leader, as soon as there is one that can be reached.
    async fn reach_leader(&self, spliced: Spliced) -> (NodeId, Stream) {
        loop {
            if let Some(leader) = self.node.leader_within(LEADER_WAIT).await {
                match self.node.splice(leader, spliced.clone()).await {
                    Ok(stream) => return (leader, stream),
                    Err(error) => tracing::debug!(%error, leader, "cannot hand a connection over yet"),
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Side of a connection that notes when bytes were read from it.
struct Watched<S> {
    stream: S,
    begin: Instant,
    /// Time of the last bytes, in microseconds since the beginning; 0 if there were none.
    read: Arc<AtomicU64>,
}

impl<S> Watched<S> {
    fn new(stream: S, begin: Instant) -> Self {
        Self { stream, begin, read: Arc::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.read.store((self.begin.elapsed().as_micros() as u64).max(1), Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Tells a client in the way of its protocol that nobody leads. A client of TLS only sees that the connection ends: the
/// certificate is at the leader.
async fn say_no_leader(door: Door, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let answer = match door {
        Door::Http | Door::Sqs | Door::Pubsub => {
            let body = r#"{"error":"the cluster has no leader at the moment; try again"}"#;
            let length = body.len();
            format!(
                "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
        }
        // The word of a Redis that has just started, for which clients connect again and repeat the command.
        Door::Redis => "-LOADING the cluster has no leader at the moment; try again\r\n".to_owned(),
        // These clients connect again by themselves, and have no message for it before they have sent one.
        Door::Native | Door::Kafka => return,
    };
    let say = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing a socket with unread bytes would take the answer back.
        tokio::io::copy(stream, &mut tokio::io::sink()).await
    };
    tokio::time::timeout(LAST_WORDS, say).await.map(drop).unwrap_or_default();
}
