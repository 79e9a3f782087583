//! Gate of a service: whether it may still answer.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Permission of a service to answer its clients. A service that may lose it at any moment, because another process
/// takes over, asks before it handles a request and before it sends an answer. Once the gate is closed, connections
/// are closed instead.
pub trait Gate: Send + Sync {
    /// Returns `true` if the service may answer now. Called in each turn of each connection, so it has to be fast.
    fn is_open(&self) -> bool;
}

impl fmt::Debug for dyn Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate(..)")
    }
}

/// Fails if there is a gate and it is closed.
pub(crate) fn expect_open(gate: Option<&Arc<dyn Gate>>) -> io::Result<()> {
    match gate {
        Some(gate) if !gate.is_open() => Err(closed()),
        _ => Ok(()),
    }
}

#[cold]
fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this process may no longer answer: another one takes over")
}
