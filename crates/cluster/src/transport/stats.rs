//! Counts of a transport, for metrics and for people.

use consensus::NodeId;

/// State and counts of a transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub peers: Vec<PeerStats>,
    /// Connections that ended before both sides knew each other.
    pub failed_handshakes: u64,
    /// Connections whose other side is not known yet.
    pub handshakes: u64,
    /// Programs that ask to join now.
    pub joins: u64,
    /// Programs that were not admitted.
    pub join_refusals: u64,
    /// Connections that were refused after the other side had said what it is.
    pub refused: u64,
    /// Open streams of catch-ups that other nodes have opened.
    pub bulk_streams: u64,
    /// Open streams of clients that other nodes have opened.
    pub splices: u64,
}

/// State and counts of the link to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    pub node: NodeId,
    pub address: String,
    pub is_connected: bool,
    /// Bytes of messages with entries that wait, or are being written, and of those without.
    pub queued_bytes: u64,
    pub queued_beats_bytes: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Parts that were dropped because the queue was full.
    pub full_drops: u64,
    /// Parts that were dropped because an entry was larger than a frame.
    pub too_large_drops: u64,
    /// Parts that were dropped because the node was not connected.
    pub disconnected_drops: u64,
    /// Number of times that the node was connected.
    pub links: u64,
    /// Reason of the last failure; `None` while the node is connected.
    pub last_error: Option<String>,
}
