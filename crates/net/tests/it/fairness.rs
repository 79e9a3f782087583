//! One connection that always has something to do leaves time for the others of its shard.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::harness::framed::{call, tell};
use crate::harness::stand::{Plan, Stand};
use crate::harness::{Way, until};

/// A peer that says the same again and again, without a pause, and takes everything at once.
struct Tireless {
    first: Vec<u8>,
    then: Vec<u8>,
}

impl AsyncRead for Tireless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            buf.put_slice(&first);
        } else if self.then.is_empty() {
            return Poll::Pending;
        } else {
            while buf.remaining() >= self.then.len() {
                buf.put_slice(&self.then);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tireless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn leaves_time(tireless: Tireless, is_at_it: impl Fn(&Stand) -> bool) {
    let stand = Stand::build(Plan { shards: 1, is_in_order: false, ..Plan::default() });
    stand.server.serve_pipe(tireless);
    until("it is at it", || is_at_it(&stand)).await;
    for _ in 0..3 {
        stand.dial(Way::Tcp).await.is_served().await;
    }
    assert!(!stand.end(std::time::Duration::ZERO).await.is_clean());
}

#[tokio::test]
async fn a_peer_that_never_stops_talking_leaves_time() {
    let (first, then) = (tell("note first"), call(1, &format!("echo {}", "x".repeat(1000))));
    leaves_time(Tireless { first, then }, |stand| stand.world.noted("first") > 0).await;
}

#[tokio::test]
async fn a_peer_that_never_stops_telling_leaves_time() {
    let (first, then) = (tell("note first"), tell(&format!("ignore {}", "x".repeat(1000))));
    leaves_time(Tireless { first, then }, |stand| stand.world.noted("first") > 0).await;
}

#[tokio::test]
async fn an_answer_without_end_leaves_time() {
    let first = call(1, &format!("flood-quietly x {} 10000", usize::MAX));
    leaves_time(Tireless { first, then: Vec::new() }, |stand| stand.world.noted("begin x") > 0).await;
}
