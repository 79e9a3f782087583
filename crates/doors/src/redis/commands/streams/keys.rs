//! Streams as keys: of what kind they are, whether they are there, and deleted. A key is a stream where the cache has
//! nothing for it, and there is a topic of its name that was made for a stream, or whose entries groups are given.

use net::service::Reply;

use super::{Context, begin, failed};
use crate::redis::codec::Answer;
use crate::redis::commands::Command;
use crate::redis::connection::{Door, Later, Session};
use crate::redis::errors::Done;
use crate::redis::names::topic_of;

/// Whether a command about keys may be about a stream: one of them is the name of a topic.
pub(in crate::redis) fn is_about_streams(door: &Door, command: &Command, args: &[&[u8]]) -> bool {
    let is_topic = |key: &&[u8]| topic_of(key).is_ok_and(|topic| door.broker.has_topic(topic.as_str()));
    matches!(command.name, "TYPE" | "EXISTS" | "DEL" | "UNLINK") && args[1..].iter().any(is_topic)
}

pub(in crate::redis) fn serve(
    door: &Door,
    session: &mut Session,
    command: &'static Command,
    args: &[&[u8]],
) -> Reply<Answer, Later> {
    match command.name {
        // Of a key that is in the cache that is known there.
        "TYPE" => begin(door, session, args, kind),
        "EXISTS" => begin(door, session, args, exists),
        _ => begin(door, session, args, delete),
    }
}

async fn kind(context: &mut Context, args: &[&[u8]]) -> Done {
    let kind = context.cache.lock([args[1]]).peek(args[1]).map(|found| found.value.kind());
    let name = match kind {
        Some(kind) => kind.name(),
        None if context.has_stream(args[1]).await? => "stream",
        None => "none",
    };
    context.settled().await?;
    context.out.simple(name);
    Ok(())
}

async fn exists(context: &mut Context, args: &[&[u8]]) -> Done {
    let mut count = 0;
    for key in &args[1..] {
        let is_cached = context.cache.lock([*key]).peek(key).is_some();
        count += i64::from(is_cached || context.has_stream(key).await?);
    }
    context.settled().await?;
    context.out.int(count);
    Ok(())
}

async fn delete(context: &mut Context, args: &[&[u8]]) -> Done {
    let mut count = 0;
    for key in &args[1..] {
        let is_deleted = context.cache.lock([*key]).delete(key) || context.delete_stream(key).await?;
        count += i64::from(is_deleted);
    }
    context.settled().await?;
    context.out.int(count);
    Ok(())
}

impl Context {
    /// What is said of the cache lasts.
    async fn settled(&self) -> Done {
        Ok(self.cache.settled().lasts().await?)
    }

    async fn has_stream(&self, key: &[u8]) -> Done<bool> {
        match topic_of(key) {
            Ok(topic) => self.broker.has_stream(topic.as_str()).await.map_err(failed),
            // What no topic can be called is none.
            Err(_) => Ok(false),
        }
    }

    async fn delete_stream(&self, key: &[u8]) -> Done<bool> {
        match topic_of(key) {
            Ok(topic) => self.broker.delete_stream(topic.as_str()).await.map_err(failed),
            Err(_) => Ok(false),
        }
    }
}
