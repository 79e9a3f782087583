//! The client for whom a thread works.
//!
//! A door sets it ([`act_for`], [`for_client`]) around all work for a client, so that limits per address and records of
//! the audit are attributed to it. The broker's own work has none.

use std::cell::RefCell;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use engine::security::UserName;
use engine::{Error, ErrorKind};

use crate::doors::Door;

/// A client, as far as it is known.
#[derive(Clone, Debug)]
pub struct Acting {
    pub door: Door,
    /// `None` for a client on this machine without an address.
    pub address: Option<IpAddr>,
    /// User as whom it has logged in; anonymous before that.
    pub user: UserName,
}

impl Acting {
    /// Creates a client that has not logged in.
    pub fn anonymous(door: Door, address: Option<IpAddr>) -> Self {
        Self { door, address, user: UserName::anonymous() }
    }
}

thread_local! {
    static ACTING: RefCell<Option<Acting>> = const { RefCell::new(None) };
}

/// Sets the client for whom this thread works from now on; `None` is the broker itself.
pub fn act_for(client: Option<Acting>) {
    ACTING.set(client);
}

/// Notes the user as whom the client of this thread has logged in.
pub fn act_as(user: &UserName) {
    ACTING.with_borrow_mut(|acting| {
        if let Some(acting) = acting {
            acting.user = user.clone();
        }
    });
}

/// Returns the client for whom this thread works.
pub(crate) fn current() -> Option<Acting> {
    ACTING.with_borrow(Clone::clone)
}

/// Returns the door of the client for whom this thread works.
pub(crate) fn door() -> Option<Door> {
    ACTING.with_borrow(|acting| acting.as_ref().map(|acting| acting.door))
}

/// Returns the address of the client for whom this thread works.
pub(crate) fn address() -> Option<IpAddr> {
    ACTING.with_borrow(|acting| acting.as_ref().and_then(|acting| acting.address))
}

/// Runs `work` for a client, on whichever threads it is polled.
pub fn for_client<F: Future>(client: Acting, work: F) -> ForClient<F> {
    ForClient { client: Some(client), work: Box::pin(work) }
}

/// Does work for the client of this thread. Once it has begun it continues to its end, even if the caller no longer
/// waits: its steps are done together.
pub async fn finish<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    let done = match current() {
        Some(client) => tokio::spawn(for_client(client, work)),
        None => tokio::spawn(work),
    };
    done.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Internal, format!("work that was begun did not end: {error}")).into())
    })
}

/// Future of work for a client.
pub struct ForClient<F> {
    /// While the work is polled, the client of the thread before.
    client: Option<Acting>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for ForClient<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { client, work } = &mut *self;
        let _swapped = Swapped::new(client);
        work.as_mut().poll(cx)
    }
}

/// Guard that exchanges the client of the thread, and exchanges it again when it is dropped: what the work notes about
/// its client stays with the work.
struct Swapped<'a>(&'a mut Option<Acting>);

impl<'a> Swapped<'a> {
    fn new(client: &'a mut Option<Acting>) -> Self {
        ACTING.with_borrow_mut(|acting| std::mem::swap(acting, client));
        Self(client)
    }
}

impl Drop for Swapped<'_> {
    fn drop(&mut self) {
        ACTING.with_borrow_mut(|acting| std::mem::swap(acting, self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn user() -> Option<String> {
        current().map(|acting| acting.user.as_str().to_owned())
    }

    #[tokio::test]
    async fn work_that_has_begun_ends_without_its_caller() {
        let (sender, ended) = tokio::sync::oneshot::channel();
        let client = Acting::anonymous(Door::Sqs, Some(IpAddr::from([192, 0, 2, 3])));
        let work = for_client(client, async {
            finish(async move {
                tokio::task::yield_now().await;
                sender.send(address()).expect("the test waits");
                Ok::<_, Error>(())
            })
            .await
        });
        let mut work = Box::pin(work);
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        assert_eq!(ended.await, Ok(Some(IpAddr::from([192, 0, 2, 3]))), "it is done for the client");
    }

    #[tokio::test]
    async fn work_keeps_its_client_and_the_thread_keeps_its_own() {
        let ann = UserName::parse("ann").expect("a name");
        let client = |last: u8| Acting::anonymous(Door::Http, Some(IpAddr::from([192, 0, 2, last])));
        act_for(Some(client(9)));
        let work = |last: u8| {
            let ann = &ann;
            for_client(client(last), async move {
                tokio::task::yield_now().await;
                act_as(ann);
                tokio::task::yield_now().await;
                (address(), user())
            })
        };
        let (first, second) = tokio::join!(work(1), work(2));
        for (last, (address, user)) in [(1, first), (2, second)] {
            assert_eq!((address, user.as_deref()), (Some(IpAddr::from([192, 0, 2, last])), Some("ann")));
        }
        assert_eq!((address(), user().as_deref()), (Some(IpAddr::from([192, 0, 2, 9])), Some("ANONYMOUS")));
        act_for(None);
        act_as(&ann);
        assert_eq!((address(), user()), (None, None));
    }
}
