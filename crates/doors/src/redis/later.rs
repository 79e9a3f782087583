//! Replies that exist later.

use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{Once, StreamExt};
use net::service::{Reply, once};

use super::codec::{Answer, Follow};

/// Reply to one request that exists later.
pub(super) type Later = Once<LocalBoxFuture<'static, Answer>>;

/// Calls `look` with the reply as soon as it exists.
pub(super) fn after(later: Later, look: impl FnOnce(&Answer) + 'static) -> Later {
    mapped(later, move |answer| {
        look(&answer);
        answer
    })
}

/// Returns a reply that other messages may follow.
pub(super) fn before(reply: Reply<Answer, Later>, follow: Follow) -> Reply<Answer, Later> {
    let before = move |answer: Answer| answer.before(follow);
    match reply {
        Reply::Now(answer) => Reply::Now(before(answer)),
        Reply::Last(answer) => Reply::Last(before(answer)),
        Reply::Later(later) => Reply::Later(mapped(later, before)),
        Reply::Alone(later) => Reply::Alone(mapped(later, before)),
        Reply::Blocked(later) => Reply::Blocked(mapped(later, before)),
        Reply::Again(held) => Reply::Again(held),
    }
}

pub(super) fn mapped(mut later: Later, map: impl FnOnce(Answer) -> Answer + 'static) -> Later {
    once(async move { map(later.next().await.unwrap_or(Answer::Nothing)) }.boxed_local())
}

/// Returns no reply, once there would be one.
pub(super) fn silent(mut later: Later) -> Later {
    let wait = async move {
        drop(later.next().await);
        Answer::Nothing
    };
    once(wait.boxed_local())
}
