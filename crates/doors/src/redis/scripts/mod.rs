//! Scripts of clients, in Lua 5.1 (`EVAL`). What a script is and how it runs is described in `../DESIGN.md`.

pub(super) mod batch;
mod bits;
mod cached;
pub(super) mod functions;
mod check;
pub(super) mod host;
mod json;
pub(super) mod lanes;
mod msgpack;
mod packed;
mod pattern;
mod random;
mod reply;
pub(super) mod run;
pub(super) mod running;
pub(super) mod sha;
mod state;
mod straight;
mod strings;
pub(super) mod text;

use std::fmt::Result as Written;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::Cache;
use broker::metrics::Exposition;
use engine::security::TenantName;

pub(super) use cached::ScriptCache;
pub use check::check_data;
pub(super) use functions::{Functions, restore_all};
pub(super) use lanes::Lanes;
use running::Running;

use super::command::Command;
use super::errors::{Done, Fail, fixed};
use super::pause::Pause;
use text::Script;

/// Time after which clients no longer wait for a script in ms, which `CONFIG SET busy-reply-threshold` changes.
const BUSY_DEFAULT_MS: u64 = 5000;
/// Duration of a script from which on clients wait for it without their threads.
pub(super) const LONG: Duration = Duration::from_millis(1);

/// Error for a client that wants keys of a script that takes long, in the words of Redis.
pub(super) const BUSY: Fail =
    fixed("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.");

/// Scripts of the door: those that clients may call by their SHA-1, and the threads that run them.
pub(super) struct Scripts {
    pub(super) cache: ScriptCache,
    pub(super) lanes: Arc<Lanes>,
    pub(super) functions: Functions,
    busy_ms: AtomicU64,
}

impl Default for Scripts {
    fn default() -> Self {
        let busy_ms = AtomicU64::new(BUSY_DEFAULT_MS);
        Self { cache: ScriptCache::default(), lanes: Arc::default(), functions: Functions::default(), busy_ms }
    }
}

impl Scripts {
    /// Sets the time after which clients no longer wait for a script; 0 makes them wait until it ends.
    pub(super) fn set_busy_ms(&self, ms: u64) {
        self.busy_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the time for which clients wait for scripts.
    pub(super) fn busy_after(&self) -> Duration {
        match self.busy_ms.load(Ordering::Relaxed) {
            0 => Duration::MAX,
            ms => Duration::from_millis(ms),
        }
    }

    /// Returns `false` if [`holds`](Self::holds) is `false` for every command.
    #[inline]
    pub(super) fn may_hold(&self) -> bool {
        self.lanes.is_any_running() || !self.functions.are_restored()
    }

    /// Returns `true` if a command has to wait: for a script of its tenant, which holds keys of the command, or for
    /// functions that are not restored yet. The keys may be those of another database, as the session is not known.
    pub(super) fn holds(&self, command: &Command, args: &[&[u8]], tenant: impl Fn() -> Option<TenantName>) -> bool {
        let waits_for_functions = matches!(command.name, "FCALL" | "FCALL_RO" | "FUNCTION" | "EXEC");
        if waits_for_functions && !self.functions.are_restored() && !self.functions.are_restored_of(tenant().as_ref()) {
            return true;
        }
        if !self.lanes.is_any_running() || !command.takes(args.len()) {
            return false;
        }
        let (busy_after, tenant) = (self.busy_after(), tenant());
        // Tenants have no caches in common.
        let waits = |running: &Arc<Running>| {
            running.tenant == tenant
                && running.began.elapsed() < busy_after
                && running.holds(LONG, command, args, |_| true)
        };
        self.lanes.running().iter().any(waits)
    }

    /// Waits for the end of a pause, and then for scripts and functions as a command of a tenant does.
    pub(super) async fn over(self: Arc<Self>, pause: Arc<Pause>, tenant: Option<TenantName>) {
        pause.over().await;
        self.functions.restored(tenant.as_ref()).await;
        self.ended(tenant).await;
    }

    /// Waits until the scripts of a tenant that run now have ended, or take so long that clients do not wait for them.
    pub(super) async fn ended(self: Arc<Self>, tenant: Option<TenantName>) {
        let until = |running: &Arc<Running>| running.began.checked_add(self.busy_after());
        let is_long = |running: &Arc<Running>| running.tenant == tenant && running.began.elapsed() >= LONG;
        for running in self.lanes.running().into_iter().filter(is_long) {
            let ended = self.lanes.ended(&running);
            match until(&running) {
                // Both the end and the time limit are the end of the wait.
                Some(until) => drop(tokio::time::timeout_at(until.into(), ended).await),
                None => ended.await,
            }
        }
    }

    /// Waits until no script holds what a command wants of a cache, as `is_held` checks. The thread does not wait.
    /// Fails once a script has run for so long that clients do not wait for it.
    pub(super) async fn free(&self, cache: &Cache, is_held: impl Fn() -> bool) -> Done {
        while is_held() {
            let Some(running) = self.lanes.holder(cache) else {
                // It has just ended, or just begun.
                tokio::time::sleep(LONG).await;
                continue;
            };
            let ended = self.lanes.ended(&running);
            match running.began.checked_add(self.busy_after()) {
                Some(until) => tokio::time::timeout_at(until.into(), ended).await.or(Err(BUSY))?,
                None => ended.await,
            }
        }
        Ok(())
    }

    /// Waits until no script holds what a command wants of a cache, however long a script takes. The thread does not
    /// wait.
    pub(super) async fn freed(&self, cache: &Cache, is_held: impl Fn() -> bool) {
        while is_held() {
            match self.lanes.holder(cache) {
                Some(running) => self.lanes.ended(&running).await,
                None => tokio::time::sleep(LONG).await,
            }
        }
    }

    /// Returns `true` if a command is refused, because a script that takes long holds its keys in one of these caches.
    pub(super) fn refuses(&self, command: &Command, args: &[&[u8]], of: impl Fn(&Cache) -> bool) -> bool {
        self.lanes.is_any_running()
            && self.lanes.running().iter().any(|running| running.holds(self.busy_after(), command, args, &of))
    }

    /// Returns `true` if a script holds keys of a command in one of these caches, however short it has run.
    pub(super) fn holds_now(&self, command: &Command, args: &[&[u8]], of: impl Fn(&Cache) -> bool) -> bool {
        self.lanes.is_any_running()
            && self.lanes.running().iter().any(|running| running.holds(Duration::ZERO, command, args, &of))
    }

    /// Checks that a script can be compiled.
    pub(super) fn check(script: &Arc<Script>) -> Done {
        state::with(|state| state.check(script))?
    }

    /// Returns the script, or the function, that has run for the longest time, of those that `is_of` selects.
    pub(super) fn longest(&self, is_of: impl Fn(&Running) -> bool) -> Option<Arc<Running>> {
        self.lanes.running().into_iter().filter(|running| is_of(running)).min_by_key(|running| running.began)
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> Written {
        self.cache.expose(out)?;
        self.functions.expose(out)?;
        self.lanes.expose(out)
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        self.lanes.close();
    }
}
