//! Counters of one listener.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

use super::refusal::Reason;

/// Counters of one listener since its start.
#[derive(Debug, Default)]
pub struct HttpStats {
    connections: AtomicU64,
    failed_handshakes: AtomicU64,
    /// Requests by the first digit of their status, from 1.
    requests: [AtomicU64; 5],
    refused: [AtomicU64; Reason::ALL.len()],
    stalled: AtomicU64,
    overdue: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl HttpStats {
    /// Returns the number of connections that were served.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of TLS handshakes that failed or took too long.
    pub fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }

    /// Returns the number of requests by the class of their answer, `1xx` to `5xx`, including refusals.
    pub fn requests(&self) -> [u64; 5] {
        std::array::from_fn(|class| self.requests[class].load(Ordering::Relaxed))
    }

    /// Returns the number of requests and connections that were refused for this reason.
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were cut because the client did not read its answers.
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were cut because they did not end in time.
    pub fn overdue(&self) -> u64 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Returns the bytes of HTTP that were received and sent, without the overhead of TLS.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes_read.load(Ordering::Relaxed), self.bytes_written.load(Ordering::Relaxed))
    }

    pub(super) fn add_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.requests.get(class.wrapping_sub(1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn add_refused(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_overdue(&self) {
        self.overdue.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_read(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_written(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
