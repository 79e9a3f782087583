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

/// Maximum number of scripts that were sent with `EVAL`.
const SENT_MAX: usize = 500;
/// Number of these above which a tenant loses its own before others lose theirs.
const SENT_OF_TENANT_MAX: usize = SENT_MAX / 4;
/// Maximum number of bytes of all scripts. Those that were sent are evicted for others.
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of scripts that were loaded, and of those that one tenant, or one user without a tenant, has
/// loaded. The rest is left for those that are sent.
const LOADED_BYTES_MAX: usize = 48 << 20;
const LOADED_SHARE_BYTES_MAX: usize = 8 << 20;
/// Memory that a script takes in addition to its text, about.
const SCRIPT_BYTES: usize = 512;

#[derive(Default)]
pub(in crate::redis) struct ScriptCache {
    scripts: RwLock<Known>,
    /// Number of uses so far.
    uses: AtomicU64,
    evicted: AtomicU64,
    /// Number of scripts that were not loaded for lack of room.
    refused: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// Scripts that were sent, and not loaded: at most [`SENT_MAX`], as all are visited to evict one.
    of_eval: HashMap<Sha, Sent, foldhash::fast::FixedState>,
    of_load: HashMap<Sha, Arc<Script>, foldhash::fast::FixedState>,
    sent: Share,
    loaded: Share,
    /// Scripts that each tenant has sent, by its prefix.
    sent_by: HashMap<String, Share>,
    /// Scripts that each tenant, or user without a tenant, has loaded.
    loaded_by: HashMap<String, Share>,
}

/// Number of scripts, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    count: usize,
    bytes: usize,
}

impl Share {
    fn add(&mut self, script: &Script) {
        self.count += 1;
        self.bytes += size_of(script);
    }

    fn remove(&mut self, script: &Script) {
        self.count -= 1;
        self.bytes -= size_of(script);
    }
}

struct Sent {
    script: Arc<Script>,
    /// Number of the last use.
    used: AtomicU64,
    /// Key of the share.
    owner: String,
}

/// Returns the bytes that a script takes.
fn size_of(script: &Script) -> usize {
    script.text.len() + SCRIPT_BYTES
}

impl Known {
    /// Removes a script that was sent.
    fn remove_sent(&mut self, sha: &Sha) {
        let Some(Sent { script, owner, .. }) = self.of_eval.remove(sha) else {
            return;
        };
        self.sent.remove(&script);
        if let Some(share) = self.sent_by.get_mut(&owner) {
            share.remove(&script);
            if share.count == 0 {
                self.sent_by.remove(&owner);
            }
        }
    }

    /// Removes the least recently used script that was sent: of tenants that have more than their share, if there are
    /// some. Returns `false` if there is none.
    fn evict(&mut self) -> bool {
        let exceeds = |(owner, share): (&String, &Share)| !owner.is_empty() && share.count > SENT_OF_TENANT_MAX;
        let is_any_over = self.sent_by.iter().any(exceeds);
        let is_over = |owner: &str| self.sent_by.get_key_value(owner).is_some_and(exceeds);
        let candidates = self.of_eval.iter().filter(|(_, sent)| !is_any_over || is_over(&sent.owner));
        let oldest = candidates.map(|(sha, sent)| (sent.used.load(Ordering::Relaxed), *sha)).min();
        oldest.is_some_and(|(_, sha)| {
            self.remove_sent(&sha);
            true
        })
    }

    fn bytes(&self) -> usize {
        self.sent.bytes + self.loaded.bytes
    }
}

impl ScriptCache {
    /// Returns a script, and counts as a use of it.
    pub(in crate::redis) fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        let known = self.scripts.read();
        if let Some(script) = known.of_load.get(sha) {
            return Some(script.clone());
        }
        let sent = known.of_eval.get(sha)?;
        sent.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(sent.script.clone())
    }

    pub(in crate::redis) fn contains(&self, sha: &Sha) -> bool {
        let known = self.scripts.read();
        known.of_load.contains_key(sha) || known.of_eval.contains_key(sha)
    }

    /// Returns the script with this text, which is kept for later calls by its SHA-1. `owner` is the prefix of the
    /// client's tenant.
    pub(in crate::redis) fn sent(&self, owner: &str, text: &[u8]) -> Done<Arc<Script>> {
        if let Some(script) = self.find(&sha_of(text)) {
            return Ok(script);
        }
        let script = Arc::new(Script::new(text)?);
        Scripts::check(&script)?;
        let mut known = self.scripts.write();
        // Another thread may have been faster.
        let known_by_now = known.of_load.get(&script.sha).or(known.of_eval.get(&script.sha).map(|sent| &sent.script));
        if let Some(script) = known_by_now {
            return Ok(script.clone());
        }
        while known.sent.count >= SENT_MAX || known.bytes() + size_of(&script) > BYTES_MAX {
            if !known.evict() {
                break;
            }
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        let used = AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed));
        known.sent.add(&script);
        known.sent_by.entry(owner.to_owned()).or_default().add(&script);
        known.of_eval.insert(script.sha, Sent { script: script.clone(), used, owner: owner.to_owned() });
        Ok(script)
    }

    /// Keeps a script until all are forgotten. `owner` is the client's tenant, or its user if it has none.
    pub(in crate::redis) fn load(&self, owner: &str, text: &[u8]) -> Done<Arc<Script>> {
        let script = Arc::new(Script::new(text)?);
        Scripts::check(&script)?;
        let mut known = self.scripts.write();
        if known.of_load.contains_key(&script.sha) {
            return Ok(script);
        }
        let bytes = size_of(&script);
        let of_owner = known.loaded_by.get(owner).copied().unwrap_or_default();
        let limits = [
            (of_owner.bytes, LOADED_SHARE_BYTES_MAX, "scripts that this tenant or user has loaded"),
            (known.loaded.bytes, LOADED_BYTES_MAX, "loaded scripts"),
        ];
        for (taken, max, what) in limits {
            if taken + bytes > max {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Fail::new(format!(
                    "ERR the {what} take {taken} bytes, at most {max} are allowed, and this one needs {bytes}: send \
                     scripts with EVAL, pass data as arguments, or forget all scripts with SCRIPT FLUSH"
                )));
            }
        }
        // It is no longer one of those that were sent.
        known.remove_sent(&script.sha);
        while known.bytes() + bytes > BYTES_MAX && known.evict() {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        known.loaded.add(&script);
        known.loaded_by.entry(owner.to_owned()).or_default().add(&script);
        known.of_load.insert(script.sha, script.clone());
        Ok(script)
    }

    /// Forgets all scripts.
    pub(in crate::redis) fn flush(&self) {
        *self.scripts.write() = Known::default();
    }

    /// Returns the number of scripts, and their bytes.
    pub(in crate::redis) fn size(&self) -> (usize, usize) {
        let known = self.scripts.read();
        let count = known.sent.count + known.loaded.count;
        (count, known.bytes() - count * SCRIPT_BYTES)
    }

    pub(in crate::redis) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> Written {
        let (count, bytes) = self.size();
        out.gauge("thalweg_redis_scripts", "Scripts that Redis clients may call by their SHA-1", count as u64)?;
        out.gauge("thalweg_redis_script_bytes", "Bytes of these scripts", bytes as u64)?;
        let loaded = self.scripts.read().loaded.bytes as u64;
        out.gauge("thalweg_redis_loaded_script_bytes", "Memory of the scripts of SCRIPT LOAD in bytes", loaded)?;
        let refused = self.refused.load(Ordering::Relaxed);
        out.counter("thalweg_redis_script_loads_refused", "Scripts that SCRIPT LOAD had no room for", refused)?;
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
        let loaded = cache.load("u", b"return 'loaded'").expect("loaded").sha;
        let first = cache.sent("", text(0).as_bytes()).expect("sent").sha;
        let second = cache.sent("", text(1).as_bytes()).expect("sent").sha;
        (2..SENT_MAX).for_each(|at| drop(cache.sent("", text(at).as_bytes()).expect("sent")));
        assert!(cache.find(&first).is_some(), "the use that keeps it");
        drop(cache.sent("", text(SENT_MAX).as_bytes()).expect("sent"));
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
        let first = cache.sent("", text(0).as_bytes()).expect("sent").sha;
        let second = cache.sent("", text(1).as_bytes()).expect("sent").sha;
        assert_eq!(cache.load("u", text(1).as_bytes()).expect("loaded").sha, second);
        (2..100).for_each(|at| drop(cache.sent("", text(at).as_bytes()).expect("sent")));
        assert!(!cache.contains(&first) && cache.contains(&second));
        let (count, bytes) = cache.size();
        assert!((60..80).contains(&count) && bytes <= BYTES_MAX, "{count} scripts of {bytes} bytes");
        cache.flush();
        assert_eq!(cache.scripts.read().sent, Share::default());
    }

    #[test]
    fn each_owner_has_a_share_of_the_scripts() {
        let cache = ScriptCache::default();
        let text = |of: &str, at: usize, bytes: usize| format!("return '{of} {at}' --{}", "x".repeat(bytes));
        let load = |of: &str, at: usize| cache.load(of, text(of, at, 1020 << 10).as_bytes()).map(|script| script.sha);
        (0..8).for_each(|at| assert!(load("a", at).is_ok()));
        let refused = load("a", 8).expect_err("its share is full");
        let message = String::from_utf8_lossy(&refused.text);
        assert!(message.contains("at most 8388608 are allowed"), "{message}");
        assert!(load("a", 0).is_ok(), "it is loaded already");
        // Scripts that were sent are evicted for those that are loaded, which are kept.
        (0..20).for_each(|at| drop(cache.sent("", text("sent", at, 1020 << 10).as_bytes()).expect("sent")));
        for owner in ["b", "c", "d", "e", "f"] {
            (0..8).for_each(|at| assert!(load(owner, at).is_ok(), "{owner} {at}"));
        }
        let message = load("g", 0).expect_err("all is full").text;
        assert!(message.starts_with(b"ERR the loaded scripts take "), "{}", message.escape_ascii());
        assert_eq!(cache.refused.load(Ordering::Relaxed), 2);
        let known = cache.scripts.read();
        assert!(known.bytes() <= BYTES_MAX && known.loaded.count == 48 && known.sent.count > 10);
        assert!(cache.evicted() > 0);
    }

    #[test]
    fn a_tenant_that_sends_many_scripts_evicts_its_own() {
        let cache = ScriptCache::default();
        let send = |of: &str, at: usize| cache.sent(of, format!("return '{of}{at}'").as_bytes()).expect("sent").sha;
        let first = send("b.", 0);
        for at in 0..2 * SENT_MAX {
            send("a.", at);
        }
        assert!(cache.contains(&first), "that of another tenant");
        assert_eq!(cache.size().0, SENT_MAX);
    }

    #[test]
    fn a_script_that_cannot_be_compiled_is_not_kept() {
        let cache = ScriptCache::default();
        let fail = cache.sent("", b"return return").err().expect("refused");
        assert_eq!(
            String::from_utf8_lossy(&fail.text),
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near 'return'"
        );
        assert!(cache.load("u", b"\x1bLua").is_err(), "compiled code");
        assert_eq!(cache.size().0, 0);
    }
}
