//! Watchdog of a TCP connection to a node of a cluster: it notices that the machine of the node has vanished while
//! batches are in flight.
//!
//! A machine without power sends no end of its connections, and TCP sends what was not acknowledged again for many
//! minutes. A publisher cannot wait for that, as another node leads after a second. A node that is only slow, or that
//! delays a client because of a quota, answers no request either, but its system still accepts connections.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::link::Link;

/// Time without anything received after which the machine is probed, if an acknowledgement is due.
const SILENCE: Duration = Duration::from_secs(3);
/// Interval of checks for silence, which cost nothing.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time that a machine has to accept a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a successful probe.
const PROBE_PAUSE: Duration = Duration::from_secs(7);

/// Watches a link in the background until it is closed.
pub(crate) fn watch(link: &Arc<Link>, peer: SocketAddr) {
    tokio::spawn(run(Arc::downgrade(link), peer));
}

async fn run(link: Weak<Link>, peer: SocketAddr) {
    loop {
        sleep(CHECK_EVERY).await;
        match link.upgrade() {
            Some(link) if !link.is_closed() => {
                if !link.owes_batches_for(SILENCE) {
                    continue;
                }
            }
            _ => return,
        }
        let is_alive = timeout(PROBE_TIMEOUT, TcpStream::connect(peer)).await.is_ok_and(|probe| probe.is_ok());
        if is_alive {
            sleep(PROBE_PAUSE).await;
        } else if let Some(link) = link.upgrade()
            && link.owes_batches_for(SILENCE)
        {
            tracing::debug!(%peer, "a node accepts no connections any more: closing the one to it");
            link.close();
            return;
        }
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
        watch(&link, peer);
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
        sleep(SILENCE + CHECK_EVERY + PROBE_TIMEOUT + CHECK_EVERY).await;
        assert!(link.owes_batches_for(SILENCE));
        assert!(!link.is_closed());
    }
}
