//! Address book of a client: the addresses that it was given, those that it learned from a cluster, and the order in
//! which to try them.

use std::time::{Duration, Instant};

use engine::Error;
use parking_lot::Mutex;
use wire::{Cluster, HelloOk};

use crate::address::Address;
use crate::addresses::Addresses;

/// Time for which an address that did not answer is tried after the others.
const AVOIDED: Duration = Duration::from_secs(30);

/// Addresses that lead to one broker.
pub(crate) struct Book {
    given: Vec<Address>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Cluster, as its leader has described it last.
    cluster: Option<Cluster>,
    /// Addresses of the cluster's nodes that this client may use.
    learned: Vec<Address>,
    /// Address of the leader, if it is known and this client may use it.
    leader: Option<Address>,
    /// Address of the last connection.
    last: Option<Address>,
    /// Addresses that did not answer, with the time of that.
    failed: Vec<(Address, Instant)>,
}

impl Book {
    pub(crate) fn new(given: Addresses) -> Self {
        Self { given: given.into_vec(), state: Mutex::default() }
    }

    /// Returns all addresses in the order in which to try them: the leader, the last one that answered, the given ones
    /// and the other learned ones; after them, in the same order, those that did not answer a short time ago.
    pub(crate) fn candidates(&self, now: Instant) -> Vec<Address> {
        let state = self.state.lock();
        let known = state.leader.iter().chain(&state.last).chain(&self.given).chain(&state.learned);
        let mut order: Vec<Address> = Vec::new();
        for address in known {
            if !order.iter().any(|other| other.is_same(address)) {
                order.push(address.clone());
            }
        }
        order.sort_by_key(|address| state.is_avoided(address, now));
        order
    }

    /// Returns `true` if several nodes may answer: then a failure is not the last word.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.given.len() > 1 || self.is_cluster_known()
    }

    /// Returns `true` if a node of a cluster has answered.
    pub(crate) fn is_cluster_known(&self) -> bool {
        self.state.lock().cluster.is_some()
    }

    /// Returns the cluster, as its leader has described it last.
    pub(crate) fn cluster(&self) -> Option<Cluster> {
        self.state.lock().cluster.clone()
    }

    /// Records that an address did not answer.
    pub(crate) fn failed(&self, address: &Address, now: Instant) {
        let mut state = self.state.lock();
        state.failed.retain(|(other, at)| !other.is_same(address) && now.duration_since(*at) < AVOIDED);
        state.failed.push((address.clone(), now));
    }

    /// Records that an address answered, and learns from the answer.
    pub(crate) fn answered(&self, address: &Address, hello: &HelloOk) {
        let mut state = self.state.lock();
        state.failed.retain(|(other, _)| !other.is_same(address));
        if let Some(cluster) = &hello.cluster {
            state.learn(address, cluster);
        }
    }

    /// Records the address of a connection that is in use from now on. Returns `true` if the one before it had another.
    pub(crate) fn connected(&self, address: &Address) -> bool {
        let before = self.state.lock().last.replace(address.clone());
        before.is_some_and(|before| !before.is_same(address))
    }

    /// Returns the address of the leader, if a connection over this one is probably relayed to it.
    pub(crate) fn leader_beyond(&self, used: &Address, now: Instant) -> Option<Address> {
        let state = self.state.lock();
        state.leader.clone().filter(|leader| !leader.is_same(used) && !state.is_avoided(leader, now))
    }

    /// Records the answer of a node that it does not lead any more.
    pub(crate) fn not_leader(&self, error: &Error) {
        let mut state = self.state.lock();
        let named = error.redirect.as_deref().and_then(|address| Address::parse(address).ok());
        let usable = state.last.as_ref().zip(named).and_then(|(used, named)| used.of_node(named.host(), named.port()));
        state.leader = usable;
    }
}

impl State {
    fn is_avoided(&self, address: &Address, now: Instant) -> bool {
        self.failed.iter().any(|(failed, at)| failed.is_same(address) && now.duration_since(*at) < AVOIDED)
    }

    /// Takes the description of a cluster over, unless it is older than the known one.
    fn learn(&mut self, used: &Address, cluster: &Cluster) {
        if self.cluster.as_ref().is_some_and(|known| known.id == cluster.id && known.term > cluster.term) {
            return;
        }
        self.learned = cluster.nodes.iter().filter_map(|node| used.of_node(&node.host, node.port)).collect();
        self.leader = cluster.leader_node().and_then(|node| used.of_node(&node.host, node.port));
        self.cluster = Some(cluster.clone());
    }
}

#[cfg(test)]
mod tests {
    use engine::ErrorKind;
    use wire::{ClusterNode, Features};

    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).expect("valid")
    }

    fn book(text: &str) -> Book {
        Book::new(Addresses::parse(text).expect("valid"))
    }

    fn cluster(id: u64, term: u64, leader: u64, hosts: &[&str]) -> Cluster {
        let node = |(id, host): (u64, &&str)| ClusterNode { id, host: (*host).to_owned(), port: 7400 };
        Cluster { id, term, leader, nodes: (1..).zip(hosts).map(node).collect() }
    }

    fn hello(cluster: Cluster) -> HelloOk {
        HelloOk {
            version: 1,
            features: Features::CLUSTER,
            body_bytes_max: 1,
            publishes_in_flight_max: 1,
            instance: 1,
            server: String::new(),
            cluster: Some(cluster),
        }
    }

    fn order(book: &Book, now: Instant) -> String {
        let order: Vec<String> = book.candidates(now).iter().map(ToString::to_string).collect();
        order.join(" ").replace("quic://", "").replace(":7400", "")
    }

    #[test]
    fn the_leader_is_tried_first_and_what_does_not_answer_last() {
        let book = book("a,b");
        let now = Instant::now();
        assert_eq!((order(&book, now).as_str(), book.is_of_cluster()), ("a b", true));
        book.answered(&address("b"), &hello(cluster(9, 5, 3, &["a", "b", "c"])));
        assert!(!book.connected(&address("b")), "the first connection");
        assert_eq!(order(&book, now), "c b a");
        assert_eq!(book.leader_beyond(&address("b"), now).map(|a| a.to_string()).as_deref(), Some("quic://c:7400"));
        assert!(book.leader_beyond(&address("c"), now).is_none());
        book.failed(&address("c"), now);
        assert_eq!(order(&book, now), "b a c");
        assert!(book.leader_beyond(&address("b"), now).is_none());
        assert_eq!(order(&book, now + AVOIDED), "c b a");
        book.answered(&address("c"), &hello(cluster(9, 5, 3, &["a", "b", "c"])));
        assert_eq!(order(&book, now), "c b a");
        assert!(book.connected(&address("c")), "it moved");
    }

    #[test]
    fn an_older_term_of_the_same_cluster_is_ignored() {
        let book = book("a");
        let now = Instant::now();
        assert!(!book.is_of_cluster());
        book.answered(&address("a"), &hello(cluster(9, 5, 2, &["a", "b"])));
        book.answered(&address("a"), &hello(cluster(9, 4, 1, &["a", "b"])));
        assert_eq!(order(&book, now), "b a");
        book.answered(&address("a"), &hello(cluster(9, 6, 1, &["a"])));
        assert_eq!(order(&book, now), "a");
        // A cluster that was founded again begins with low terms.
        book.answered(&address("a"), &hello(cluster(8, 1, 2, &["a", "c"])));
        assert_eq!(order(&book, now), "c a");
    }

    #[test]
    fn a_node_that_does_not_lead_any_more_is_not_preferred() {
        let book = book("a");
        let now = Instant::now();
        book.answered(&address("a"), &hello(cluster(9, 5, 2, &["a", "b", "c"])));
        book.connected(&address("b"));
        book.not_leader(&Error::not_leader("elected", Some("c:7400")));
        assert_eq!(order(&book, now), "c b a");
        book.not_leader(&Error::new(ErrorKind::NotLeader, "in an election"));
        assert_eq!(order(&book, now), "b a c");
    }

    #[test]
    fn learned_addresses_are_no_less_safe_than_the_given_one() {
        let learned = |used: &str, host: &str| {
            let book = book(used);
            book.answered(&address(used), &hello(cluster(9, 5, 1, &[host])));
            book.candidates(Instant::now()).len() == 2
        };
        assert!(learned("quic://a", "b") && learned("tls://a", "10.0.0.1") && learned("tcp://a", "b"));
        assert!(learned("tcp://127.0.0.1:1", "127.0.0.1") && learned("quic://127.0.0.1", "b"));
        assert!(!learned("tcp://127.0.0.1", "b"), "without TLS nothing leaves this machine unasked");
        assert!(!learned("tls://a", "127.0.0.1"), "on this machine any certificate is accepted");
        assert!(!learned("unix:/run/a.sock", "b"));
        assert!(!learned("quic://a", ""));
    }
}
