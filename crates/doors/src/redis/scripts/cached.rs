//! Cache of scripts by their SHA-1. Those that clients have sent with `EVAL` are evicted, least recently used first, as
//! by Redis 7.4 (`luaScriptsLRUAdd` in `src/eval.c`); those of `SCRIPT LOAD` are kept.

use std::collections::HashMap;
use std::fmt::Result as Written;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::metrics::Exposition;
use parking_lot::RwLock;

use super::Scripts;
use super::sha::{Sha, sha_of};
use super::text::Script;
use crate::redis::errors::{Done, Fail};

/// Maximum number of scripts that were sent with `EVAL`, and of their bytes.
const SENT_MAX: usize = 500;
const SENT_BYTES_MAX: usize = 32 << 20;
/// Maximum number of scripts that were loaded, and of their bytes.
const LOADED_MAX: usize = 4096;
const LOADED_BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
pub(in crate::redis) struct ScriptCache {
    scripts: RwLock<Known>,
    /// Number of uses so far.
    uses: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Default)]
struct Known {
    by_sha: HashMap<Sha, Entry, foldhash::fast::FixedState>,
    loaded: usize,
    loaded_bytes: usize,
    /// Bytes of the scripts that were sent.
    sent_bytes: usize,
}

struct Entry {
    script: Arc<Script>,
    /// Number of the last use; `None` for a loaded script.
    used: Option<AtomicU64>,
}

impl ScriptCache {
    /// Returns a script, and counts as a use of it.
    pub(in crate::redis) fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        let known = self.scripts.read();
        let entry = known.by_sha.get(sha)?;
        if let Some(used) = &entry.used {
            used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
        Some(entry.script.clone())
    }

    pub(in crate::redis) fn contains(&self, sha: &Sha) -> bool {
        self.scripts.read().by_sha.contains_key(sha)
    }

    /// Returns the script with this text, which is kept for later calls by its SHA-1.
    pub(in crate::redis) fn sent(&self, text: &[u8]) -> Done<Arc<Script>> {
        if let Some(script) = self.find(&sha_of(text)) {
            return Ok(script);
        }
        let script = Arc::new(Script::new(text)?);
        Scripts::check(&script)?;
        let mut known = self.scripts.write();
        // Another thread may have been faster.
        if let Some(entry) = known.by_sha.get(&script.sha) {
            return Ok(entry.script.clone());
        }
        while known.by_sha.len() - known.loaded >= SENT_MAX || known.sent_bytes + text.len() > SENT_BYTES_MAX {
            let used = |entry: &Entry| entry.used.as_ref().map(|used| used.load(Ordering::Relaxed));
            let oldest = known.by_sha.iter().filter_map(|(sha, entry)| Some((used(entry)?, *sha))).min();
            let Some((_, sha)) = oldest else {
                break;
            };
            if let Some(entry) = known.by_sha.remove(&sha) {
                known.sent_bytes -= entry.script.text.len();
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        let used = AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed));
        known.sent_bytes += text.len();
        known.by_sha.insert(script.sha, Entry { script: script.clone(), used: Some(used) });
        Ok(script)
    }

    /// Keeps a script until all are forgotten.
    pub(in crate::redis) fn load(&self, text: &[u8]) -> Done<Arc<Script>> {
        let script = Arc::new(Script::new(text)?);
        Scripts::check(&script)?;
        let mut known = self.scripts.write();
        if known.by_sha.get(&script.sha).is_some_and(|entry| entry.used.is_none()) {
            return Ok(script);
        }
        let bytes = known.loaded_bytes + text.len();
        if known.loaded == LOADED_MAX || bytes > LOADED_BYTES_MAX {
            return Err(Fail::new(format!(
                "ERR the limit of loaded scripts is reached: {LOADED_MAX} of {LOADED_BYTES_MAX} bytes together. Send \
                 scripts with EVAL, pass data as arguments, or forget all scripts with SCRIPT FLUSH"
            )));
        }
        known.loaded += 1;
        known.loaded_bytes = bytes;
        let entry = Entry { script, used: None };
        let script = entry.script.clone();
        if let Some(sent) = known.by_sha.insert(script.sha, entry) {
            // It is no longer one of those that were sent.
            known.sent_bytes -= sent.script.text.len();
        }
        Ok(script)
    }

    /// Forgets all scripts.
    pub(in crate::redis) fn flush(&self) {
        *self.scripts.write() = Known::default();
    }

    /// Returns the number of scripts, and their bytes.
    pub(in crate::redis) fn size(&self) -> (usize, usize) {
        let known = self.scripts.read();
        (known.by_sha.len(), known.by_sha.values().map(|entry| entry.script.text.len()).sum())
    }

    pub(in crate::redis) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> Written {
        let (count, bytes) = self.size();
        out.gauge("thalweg_redis_scripts", "Scripts that Redis clients may call by their SHA-1", count as u64)?;
        out.gauge("thalweg_redis_script_bytes", "Bytes of these scripts", bytes as u64)?;
        out.counter("thalweg_redis_scripts_evicted", "Scripts of EVAL that others have displaced", self.evicted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_eval_are_evicted_and_loaded_ones_are_kept() {
        let cache = ScriptCache::default();
        let text = |at: usize| format!("return {at}");
        let loaded = cache.load(b"return 'loaded'").expect("loaded").sha;
        let first = cache.sent(text(0).as_bytes()).expect("sent").sha;
        let second = cache.sent(text(1).as_bytes()).expect("sent").sha;
        (2..SENT_MAX).for_each(|at| drop(cache.sent(text(at).as_bytes()).expect("sent")));
        assert!(cache.find(&first).is_some(), "the use that keeps it");
        drop(cache.sent(text(SENT_MAX).as_bytes()).expect("sent"));
        assert_eq!((cache.size().0, cache.evicted()), (SENT_MAX + 1, 1));
        assert!(cache.contains(&first) && cache.contains(&loaded) && !cache.contains(&second));
        cache.flush();
        assert_eq!(cache.size(), (0, 0));
        assert!(!cache.contains(&loaded));
    }

    #[test]
    fn scripts_of_eval_are_evicted_by_their_bytes() {
        let cache = ScriptCache::default();
        let text = |at: usize| format!("return {at} --{}", "x".repeat(900 << 10));
        let first = cache.sent(text(0).as_bytes()).expect("sent").sha;
        let second = cache.sent(text(1).as_bytes()).expect("sent").sha;
        assert_eq!(cache.load(text(1).as_bytes()).expect("loaded").sha, second);
        (2..50).for_each(|at| drop(cache.sent(text(at).as_bytes()).expect("sent")));
        assert!(!cache.contains(&first) && cache.contains(&second));
        let (count, bytes) = cache.size();
        assert!((30..40).contains(&count) && bytes <= SENT_BYTES_MAX + (1 << 20), "{count} scripts of {bytes} bytes");
        cache.flush();
        assert_eq!(cache.scripts.read().sent_bytes, 0);
    }

    #[test]
    fn a_script_that_cannot_be_compiled_is_not_kept() {
        let cache = ScriptCache::default();
        let fail = cache.sent(b"return return").err().expect("refused");
        assert_eq!(
            String::from_utf8_lossy(&fail.text),
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near 'return'"
        );
        assert!(cache.load(b"\x1bLua").is_err(), "compiled code");
        assert_eq!(cache.size().0, 0);
    }
}
