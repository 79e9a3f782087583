//! Clients that block on a key: the command that is retried for them, and the end of their wait.

use std::sync::Arc;

use broker::{Cache, LockedCache, Waiting};
use engine::Result;
use smallvec::SmallVec;

use super::access::Recheck;
use super::clients::Client;
use super::connection::Session;
use super::writer::Writer;
use crate::redis::command::{Block, Data, Named, Step};

/// Registers a blocking command. It is retried each time that a key for which it waits has more data of its kind, and
/// refused if it is no longer permitted then, or if its reply has no memory.
pub(super) fn begin_to_wait(
    locked: &LockedCache<'_>,
    recheck: Arc<Recheck>,
    (run, block): (Data, Block),
    args: &[&[u8]],
    is_resp3: bool,
) -> Result<Arc<Waiting>> {
    let keys = match recheck.command().keys(args) {
        Named::These(keys) => keys,
        Named::All => SmallVec::new(),
    };
    let attempt = move |locked: &mut LockedCache<'_>, key: &[u8]| {
        let args: SmallVec<[&[u8]; 8]> = recheck.args().iter().map(|arg| &**arg).collect();
        let mut writer = Writer::new(is_resp3);
        if locked.is_noted() {
            locked.set_cause(recheck.cause());
        }
        let mut step = Step { again: Some(key), ..Step::new(locked, &mut writer) };
        let done = recheck.check().and_then(|()| recheck.find_room(&args)).and_then(|()| run(&mut step, &args));
        let done = done.and_then(|()| step.out.check());
        let is_blocked = step.block.is_some();
        if let Err(fail) = done {
            writer.bytes.clear();
            writer.error(&fail);
        }
        (!is_blocked).then(|| recheck.charge(writer.bytes))
    };
    let (sources, others) = keys.split_at(block.sources.min(keys.len()));
    locked.wait(Some(block.kind), sources, others, Box::new(attempt))
}

impl Session {
    /// Registers a wait, which other clients can end from here on.
    pub(super) fn begin_wait(&self, cache: Arc<Cache>, waiting: Arc<Waiting>, recheck: Arc<Recheck>) -> Wait {
        *self.client.waiting.lock() = Some(Arc::downgrade(&waiting));
        Wait { cache, waiting, client: self.client.clone(), recheck }
    }
}

/// Guard that ends the wait when the connection ends.
pub(super) struct Wait {
    pub(super) cache: Arc<Cache>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) client: Arc<Client>,
    pub(super) recheck: Arc<Recheck>,
}

impl Wait {
    /// Returns when there is an answer or the wait has ended, and answers with an error when the command is no longer
    /// permitted.
    pub(super) async fn over(&self) {
        tokio::select! {
            biased;
            () = self.waiting.answered() => {}
            fail = self.recheck.refused() => {
                let mut writer = Writer::new(false);
                writer.error(&fail);
                // An answer that came first is kept.
                self.waiting.answer(writer.bytes);
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.cache.stop_waiting(&self.waiting);
        *self.client.waiting.lock() = None;
    }
}
