//! Commands whose keys a script holds: they wait without their thread, and are handled again.

use std::sync::Arc;
use std::time::Instant;

use broker::Cache;
use net::service::{Held, Reply};

use super::codec::Answer;
use super::command::{Command, Does, Named};
use super::connection::Session;
use super::door::Door;
use super::errors::Done;
use super::later::Later;
use super::scripts::{BUSY, LONG};

impl Door {
    /// Returns `true` if a script holds keys of a command that begins now. A script that waits for a thread has its
    /// place among the others.
    pub(super) fn is_held(&self, session: &Session, command: &Command, args: &[&[u8]]) -> bool {
        let begins = session.transaction.is_none() || command.is_of_transactions();
        begins
            && !matches!(command.does, Does::Script(_))
            && self.scripts.holds_now(command, args, |cache| session.is_in(cache))
    }

    /// Replies to a command that has not begun, as a script holds keys of this cache.
    pub(super) fn held(
        &self,
        session: &mut Session,
        cache: Done<Arc<Cache>>,
        command: &Command,
        args: &[&[u8]],
    ) -> Reply<Answer, Later> {
        match cache.and_then(|cache| self.again(session, &cache, &held_keys(command, args))) {
            Ok(ended) => Reply::Again(ended),
            Err(fail) => session.fail(&fail),
        }
    }

    /// Returns the end of the scripts that run now, after which a request that waits for keys is handled again. Fails
    /// if it has waited for so long that clients do not wait for scripts.
    pub(super) fn again(&self, session: &mut Session, cache: &Arc<Cache>, keys: &Named<'_>) -> Done<Held> {
        let since = session.waits.take().map_or_else(Instant::now, |(since, _)| since);
        if since.elapsed() >= self.scripts.busy_after() {
            return Err(BUSY);
        }
        let awaited = match keys {
            Named::These(keys) => cache.await_keys(Some(keys.iter().copied())),
            Named::All => cache.await_keys(None::<std::iter::Empty<&[u8]>>),
        };
        session.waits = Some((since, awaited));
        let ended = self.scripts.clone().ended(session.tenant.clone());
        Ok(Box::pin(async move {
            let began = Instant::now();
            ended.await;
            if began.elapsed() < LONG {
                // What holds the keys is no script, or has just begun.
                tokio::time::sleep(LONG).await;
            }
        }))
    }
}

/// Returns the keys for which a command waits if a script holds them. Those of a transaction are in its queue.
pub(super) fn held_keys<'a>(command: &Command, args: &[&'a [u8]]) -> Named<'a> {
    if command.name == "EXEC" { Named::All } else { command.keys(args) }
}
