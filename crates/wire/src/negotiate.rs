//! Negotiation before the first request: the version and the features.

use engine::{Error, ErrorKind, Result};

/// Version of the protocol. It changes only when the header or the hello does.
pub const VERSION: u16 = 1;
/// First four bytes of a hello: "THLW".
pub const MAGIC: u32 = 0x5448_4c57;
/// Name of the protocol in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"thalweg/1";

/// Features beyond version 1, one bit each. A new meaning is a new bit, never a wider old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// The answer to the hello names the nodes of the broker's cluster.
    pub const CLUSTER: Self = Self(1);

    /// Features that this implementation supports.
    pub const KNOWN: Self = Self::CLUSTER;

    /// Returns `true` if all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Returns the features that the connection will use: those that are required or offered, and known. A version other
/// than [`VERSION`] or an unknown required bit is `unsupported`.
pub fn agree(version: u16, required: Features, offered: Features) -> Result<Features> {
    if version != VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("this side speaks protocol version {VERSION}, not {version}"),
        ));
    }
    if !Features::KNOWN.contains(required) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("unknown required features {:#x}", required.0 & !Features::KNOWN.0),
        ));
    }
    Ok(Features((required.0 | offered.0) & Features::KNOWN.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_may_be_unknown_a_requirement_may_not() {
        assert_eq!(agree(VERSION, Features(0), Features(u64::MAX)), Ok(Features::KNOWN));
        assert_eq!(agree(VERSION, Features(1 << 63), Features(0)).map_err(|e| e.kind), Err(ErrorKind::Unsupported));
        assert_eq!(agree(VERSION + 1, Features(0), Features(0)).map_err(|e| e.kind), Err(ErrorKind::Unsupported));
    }
}
