//! TLS sessions that clients may resume, unless their client was checked against roots that have changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

/// Maximum number of sessions in memory per listener. The oldest are evicted first.
const SESSIONS_MAX: usize = 1024;
/// Time after which a client is checked again.
const CHECKED_FOR: Duration = Duration::from_secs(3600);
/// Bytes before each session: its generation, and its creation time in seconds.
const HEAD_BYTES: usize = 16;

/// Sessions of a listener. A resumed session carries the certificate of its client without checking it again. Sessions
/// end with the roots that they were checked against, so that a client that is no longer admitted cannot resume one.
#[derive(Debug)]
pub(super) struct Sessions {
    cache: Arc<ServerSessionMemoryCache>,
    /// Generation of the client roots, which grows when clients are checked against other roots.
    generation: Arc<AtomicU64>,
    now: fn() -> SystemTime,
}

impl Sessions {
    pub fn new(generation: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self { cache: ServerSessionMemoryCache::new(SESSIONS_MAX), generation, now: SystemTime::now })
    }

    fn now(&self) -> u64 {
        (self.now)().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Returns the session without its prefix, if it is still valid.
    fn check(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let (generation, rest) = stored.split_first_chunk()?;
        let (made_at, session) = rest.split_first_chunk()?;
        let generation = u64::from_le_bytes(*generation);
        let made_at = u64::from_le_bytes(*made_at);
        let is_current = generation == self.generation.load(Ordering::Acquire);
        let age = self.now().checked_sub(made_at)?;
        (is_current && age <= CHECKED_FOR.as_secs()).then(|| session.to_vec())
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, session: Vec<u8>) -> bool {
        let mut stored = Vec::with_capacity(HEAD_BYTES + session.len());
        stored.extend_from_slice(&self.generation.load(Ordering::Acquire).to_le_bytes());
        stored.extend_from_slice(&self.now().to_le_bytes());
        stored.extend_from_slice(&session);
        self.cache.put(key, stored)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.check(&self.cache.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.check(&self.cache.take(key)?)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_until_its_clients_are_checked_otherwise() {
        let generation = Arc::new(AtomicU64::new(7));
        let mut sessions = Sessions::new(generation.clone());
        assert!(sessions.put(b"key".to_vec(), b"session".to_vec()));
        assert_eq!(sessions.get(b"key"), Some(b"session".to_vec()));
        generation.store(8, Ordering::Release);
        assert_eq!(sessions.get(b"key"), None);
        generation.store(7, Ordering::Release);
        let sessions = Arc::get_mut(&mut sessions).expect("the only one");
        sessions.now = || SystemTime::now() + CHECKED_FOR + Duration::from_secs(1);
        assert_eq!(sessions.get(b"key"), None);
        sessions.now = || SystemTime::now() - Duration::from_secs(60);
        assert_eq!(sessions.take(b"key"), None, "the clock went back");
    }
}
