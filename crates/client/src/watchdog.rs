//! Watchdog of a TCP connection to a node of a cluster: it notices that the node does not answer any more, and that
//! another one leads.
//!
//! A machine without power sends no end of its connections, and TCP sends what was not acknowledged again for many
//! minutes. A process that hangs keeps its connections open, and its system accepts further ones. A client cannot wait
//! for either, as another node leads after a second or two. But a node that is only slow, or that delays a client
//! because of a quota, answers no request either. So the other nodes are asked: if one of them answers in a later term,
//! nothing that this connection owes will be answered any more. If none does, a machine that accepts no connections has
//! vanished.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use wire::{Cluster, Request};

use crate::address::Address;
use crate::attempt::Attempt;
use crate::book::Book;
use crate::link::Link;
use crate::settings::ClientSettings;

/// Time without anything received after which the other nodes are asked, if an answer is due.
const SILENCE: Duration = Duration::from_secs(1);
/// Time without anything received after which a machine that accepts no connections has vanished, if an acknowledgement
/// is due.
const VANISHED: Duration = Duration::from_secs(3);
/// Interval of checks for silence, which cost nothing.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Time that a machine has to accept a connection, and the node and the other nodes to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pauses after the probes of one silence: the first, and the longest one.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Maximum number of other nodes that are asked at a time.
const ASKED_MAX: usize = 4;

/// Leadership that a hello has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    cluster: u64,
    term: u64,
}

impl Leader {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { cluster: cluster.id, term: cluster.term }
    }

    fn is_after(self, other: Self) -> bool {
        self.cluster == other.cluster && self.term > other.term
    }
}

/// Other nodes, which know if the leadership of a connection is over.
pub(crate) struct Others {
    /// Address of the connection.
    own: Address,
    leader: Option<Leader>,
    settings: ClientSettings,
    book: Arc<Book>,
}

impl Others {
    pub(crate) fn new(own: &Address, leader: Option<Leader>, settings: &ClientSettings, book: &Arc<Book>) -> Self {
        Self { own: own.clone(), leader, settings: settings.clone(), book: book.clone() }
    }

    /// Returns `true` if another node answers that there is a leader of a later term.
    async fn have_a_later_leader(&self) -> bool {
        let Some(own) = self.leader else { return false };
        let candidates = self.book.candidates(Instant::now());
        let others = candidates.iter().filter(|address| !address.is_same(&self.own)).take(ASKED_MAX);
        let mut asked: FuturesUnordered<_> = others.map(|address| self.ask(address)).collect();
        while let Some(answer) = asked.next().await {
            if answer.is_some_and(|leader| leader.is_after(own)) {
                return true;
            }
        }
        false
    }

    /// Asks a node. The type of the future is not named, as an attempt starts a watchdog itself.
    fn ask<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Option<Leader>> {
        let attempt = Attempt { address, settings: &self.settings, book: &self.book };
        Box::pin(async move { timeout(PROBE_TIMEOUT, attempt.ask_for_leader()).await.ok().flatten() })
    }
}

/// Watches a link in the background until it is closed.
pub(crate) fn watch(link: &Arc<Link>, peer: SocketAddr, others: Others) {
    tokio::spawn(run(Arc::downgrade(link), peer, others));
}

async fn run(link: Weak<Link>, peer: SocketAddr, others: Others) {
    let mut pause = PAUSE;
    loop {
        sleep(CHECK_EVERY).await;
        let owes_batches = match link.upgrade() {
            Some(link) if !link.is_closed() => {
                if !link.owes_answers_for(SILENCE) {
                    pause = PAUSE;
                    continue;
                }
                link.owes_batches_for(SILENCE)
            }
            _ => return,
        };
        // A request may wait for something, and a batch does not.
        if !owes_batches && answers(&link).await {
            continue;
        }
        let probe = timeout(PROBE_TIMEOUT, TcpStream::connect(peer));
        let (is_over, probe) = tokio::join!(others.have_a_later_leader(), probe);
        let Some(link) = link.upgrade() else { return };
        let has_vanished = !probe.is_ok_and(|probe| probe.is_ok());
        if (is_over && link.owes_answers_for(SILENCE)) || (has_vanished && link.owes_batches_for(VANISHED)) {
            tracing::debug!(%peer, is_over, has_vanished, "a node does not answer any more: closing its connection");
            link.close();
            return;
        }
        drop(link);
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns `true` if the node answers a request that it need not wait for.
async fn answers(link: &Weak<Link>) -> bool {
    match link.upgrade() {
        Some(link) => link.request(&Request::Ping, PROBE_TIMEOUT).await.is_ok(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use engine::{Error, Result};
    use parking_lot::Mutex;
    use socket2::{Domain, Socket, Type};
    use tokio::sync::Notify;
    use wire::Response;

    use super::*;
    use crate::addresses::Addresses;
    use crate::link::{BatchTag, OnAck, Waiter};

    #[derive(Default)]
    struct Lost {
        error: Mutex<Option<Error>>,
        told: Notify,
    }

    impl OnAck for Lost {
        fn answered(&self, _batch: BatchTag, answer: Result<Response>) {
            panic!("no broker runs, and it answered {answer:?}");
        }

        fn lost(&self, _batch: BatchTag, error: &Error) {
            *self.error.lock() = Some(error.clone());
            self.told.notify_one();
        }
    }

    /// Returns a link over which one batch was sent to a server that answers nothing.
    async fn unanswered(peer: SocketAddr) -> (Arc<Link>, Arc<Lost>) {
        let link = Link::over_socket(TcpStream::connect(peer).await.expect("accepted"));
        let addresses = Addresses::parse(&format!("tcp://{peer}")).expect("valid");
        let book = Arc::new(Book::new(addresses.clone()));
        let own = addresses.iter().next().expect("one");
        watch(&link, peer, Others::new(own, None, &ClientSettings::default(), &book));
        let lost = Arc::new(Lost::default());
        let waiter = Waiter::Publisher(lost.clone(), BatchTag { lane: 0, number: 0 });
        link.call_with(1, [Bytes::from_static(b"batch")], waiter).expect("sent");
        (link, lost)
    }

    /// A queue of connections that is full refuses further ones as a vanished machine does: by silence.
    #[tokio::test]
    async fn a_machine_that_vanished_is_noticed_while_batches_are_in_flight() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        socket.listen(1).expect("listening");
        let peer = socket.local_addr().expect("an address").as_socket().expect("of IP");
        let (link, lost) = unanswered(peer).await;
        let mut queued = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(500), TcpStream::connect(peer)).await {
            queued.push(connected.expect("queued"));
        }
        timeout(Duration::from_secs(20), lost.told.notified()).await.expect("noticed");
        assert!(link.is_closed());
        assert_eq!(lost.error.lock().as_ref().map(Error::is_outcome_unknown), Some(true));
    }

    #[tokio::test]
    async fn a_machine_that_accepts_connections_is_only_slow() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (link, _lost) = unanswered(listener.local_addr().expect("an address")).await;
        sleep(VANISHED + CHECK_EVERY + PROBE_TIMEOUT + CHECK_EVERY).await;
        assert!(link.owes_batches_for(VANISHED));
        assert!(!link.is_closed());
    }
}
