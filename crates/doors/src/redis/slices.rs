//! Commands over many members that run in slices, between which other commands run.

use std::rc::Rc;

use broker::{Cache, Cause, Commit};
use engine::cache::structures::Structure;
use futures_util::FutureExt;
use net::service::{Reply, once};
use tokio::sync::Notify;

use super::codec::Answer;
use super::command::{Command, Named, Step};
use super::commands::combine::Combination;
use super::commands::geo::Search;
use super::commands::work::{Pace, Sliced};
use super::commands::{keys, scan};
use super::connection::{SPARE_BYTES, Session, when_durable};
use super::databases::lock_or_busy;
use super::door::Door;
use super::errors::{Done, Fail};
use super::events;
use super::later::Later;
use super::writer::Writer;

impl Door {
    /// Runs a command in slices, between which other commands run. It ends with its connection.
    pub(super) fn slice(
        &self,
        session: &mut Session,
        (command, args): (&'static Command, &[&[u8]]),
        sliced: Sliced,
        commit: Commit,
    ) -> Reply<Answer, Later> {
        let cause = Cause { operation: events::operation(command, args), client: session.client.id };
        let cache = session.databases[session.database].clone().expect("invariant: its keys were looked at");
        let slices = self.slices.clone();
        let mut writer = session.writer();
        let mut failed = session.writer();
        writer.bytes_max = session.room();
        let work = async move {
            let done = match sliced {
                Sliced::Combine(combination) => {
                    let _turn = slices.turn(combination.units()).await;
                    combine_in_slices((&cache, cause), &combination, &mut writer).await
                }
                Sliced::Search(search) => {
                    let _turn = slices.turn(search.units()).await;
                    search_in_slices((&cache, cause), &search, &mut writer).await
                }
                Sliced::Keys(pattern) => {
                    let keys = lock_or_busy(&cache, &Named::All).map(|locked| locked.len());
                    match keys {
                        Ok(keys) => {
                            let _turn = slices.turn(keys).await;
                            scan::keys_in_slices(&cache, &pattern, &mut writer).await
                        }
                        Err(fail) => Err(fail),
                    }
                }
            };
            match done.and_then(|more| writer.check().map(|()| commit.and(more))) {
                Ok(commit) => when_durable(Answer::Written(writer.bytes), commit, failed).await,
                Err(fail) => {
                    failed.error(&fail);
                    Answer::Written(failed.bytes)
                }
            }
        };
        self.in_slices(session, work)
    }

    /// Runs work that leaves other commands their turn. It ends with its connection.
    pub(super) fn in_slices(
        &self,
        session: &mut Session,
        work: impl Future<Output = Answer> + 'static,
    ) -> Reply<Answer, Later> {
        let ending = Rc::new(Notify::new());
        let mut ended = session.writer();
        session.ending = Some(ending.clone());
        session.is_sliced = true;
        let until_ended = async move {
            tokio::select! {
                answer = work => answer,
                () = ending.notified() => {
                    ended.error(&Fail::new("TRYAGAIN the server is shutting down: connect again"));
                    Answer::Written(ended.bytes)
                }
            }
        };
        Reply::Blocked(once(until_ended.boxed_local()))
    }
}

/// Combines sets as they were when the command arrived, and stores the result if a key is given for it.
async fn combine_in_slices(on: (&Cache, Cause), combination: &Combination, out: &mut Writer) -> Done<Commit> {
    let mut pace = Pace::sliced();
    let result = combination.result(&mut pace).await?;
    let commit = match combination.kept() {
        Some(key) => store_result(on, key, &result)?,
        None => Commit::done(),
    };
    combination.write(&result, out, &mut pace).await;
    Ok(commit)
}

/// Searches a set as it was when the command arrived, and stores the result if a key is given for it.
async fn search_in_slices(on: (&Cache, Cause), search: &Search, out: &mut Writer) -> Done<Commit> {
    let mut pace = Pace::sliced();
    let found = search.found(&mut pace).await?;
    let commit = match search.to() {
        Some(key) => store_result(on, key, &search.stored(&found, &mut pace).await)?,
        None => Commit::done(),
    };
    search.write(&found, out, &mut pace).await;
    Ok(commit)
}

/// Stores the result of a command that ran in slices.
fn store_result((cache, cause): (&Cache, Cause), key: &[u8], result: &Structure) -> Done<Commit> {
    let store = || -> Done<_> {
        let mut locked = lock_or_busy(cache, &Named::These(std::iter::once(key).collect()))?;
        locked.set_cause(cause);
        let mut unused = Writer::new(false);
        let stored = keys::store(&mut Step::new(&mut locked, &mut unused), key, result.clone());
        Ok((stored, locked.finish()))
    };
    let (mut stored, mut finished) = store()?;
    if stored.as_ref().is_err_and(|fail| fail.is_full) {
        cache.shed(result.bytes() + SPARE_BYTES as u64);
        (stored, finished) = store()?;
    }
    stored?;
    cache.serve(finished.grown);
    Ok(finished.commit)
}
