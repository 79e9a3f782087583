//! Renaming, moving and copying of streams. The topic of a stream has the name of its key, so a stream with another key
//! is another topic: its entries, with their ids, and its groups are copied, and a renamed or moved stream is then
//! deleted.

use std::sync::Arc;

use broker::{Broker, LockedCache};
use engine::Result;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::{Lent, Shelf, failed, others};
use crate::redis::command::Command;
use crate::redis::commands::args::is;
use crate::redis::commands::keys::{copy_replaces, database};
use crate::redis::errors::{Done, Fail};
use crate::redis::names::{Tenant, stream_topic};
use crate::redis::writer::Writer;

/// Databases of a command.
pub(super) struct Sides<'s, 'c> {
    pub(super) broker: &'s Arc<Broker>,
    pub(super) tenant: Tenant<'s>,
    pub(super) from: (usize, &'s mut LockedCache<'c>),
    pub(super) other: Option<(usize, &'s mut LockedCache<'c>)>,
}

/// Parameters of a transfer.
struct Wanted<'a> {
    to: &'a [u8],
    is_moved: bool,
    /// `true` if an existing value of the destination is replaced.
    replaces: bool,
    /// `true` if the reply is whether the command did anything, instead of `OK`.
    is_told: bool,
}

const SAME: &str = "ERR source and destination objects are the same";

/// Returns `true` if a command may give a stream another key.
pub(in crate::redis) fn is_transfer(command: &Command) -> bool {
    matches!(command.name, "RENAME" | "RENAMENX" | "COPY" | "MOVE")
}

impl<'a> Wanted<'a> {
    fn parse(args: &[&'a [u8]], has_other: bool) -> Done<Self> {
        let renamed = |replaces| Self { to: args[2], is_moved: true, replaces, is_told: !replaces };
        match args[0] {
            name if is(name, "RENAME") => Ok(renamed(true)),
            name if is(name, "RENAMENX") => Ok(renamed(false)),
            name if is(name, "MOVE") => {
                database(args[2])?;
                if !has_other {
                    return Err(Fail::new(SAME));
                }
                Ok(Self { to: args[1], is_moved: true, replaces: false, is_told: true })
            }
            _ => {
                let replaces = copy_replaces(args)?;
                if !has_other && args[1] == args[2] {
                    return Err(Fail::new(SAME));
                }
                Ok(Self { to: args[2], is_moved: false, replaces, is_told: true })
            }
        }
    }
}

/// Transfers a stream that exists and is on the shelf.
pub(super) async fn run(
    sides: Sides<'_, '_>,
    shelf: &Shelf,
    args: &[&[u8]],
    out: &mut Writer,
    later: &mut Vec<LocalBoxFuture<'static, Result<()>>>,
) -> Done {
    let Sides { broker, tenant, from: (number, from), mut other } = sides;
    let key = args[1];
    let wanted = Wanted::parse(args, other.is_some())?;
    let is_same = other.is_none() && key == wanted.to;
    let own = from.stream_id(key);
    if own.is_none() && wanted.is_moved {
        return Err(others::refusal(key));
    }
    let expires_ms = from.peek(key).and_then(|found| found.expires_ms);
    let (to_number, to) = match &mut other {
        Some((number, locked)) => (*number, &mut **locked),
        None => (number, &mut *from),
    };
    if is_same && wanted.replaces {
        out.ok();
        return Ok(());
    }
    if !wanted.replaces && to.kind(wanted.to).is_some() {
        out.flag(false);
        return Ok(());
    }
    if others::stream(broker, (tenant, to_number), wanted.to).is_some() && to.kind(wanted.to).is_none() {
        return Err(others::refusal(wanted.to));
    }
    let id = own.or_else(|| others::stream(broker, (tenant, number), key).map(|stream| stream.id()));
    let found = id.and_then(|id| shelf.borrow_mut().remove(&id));
    let Some(source) = found else {
        return Err(Fail::new("TRYAGAIN the stream is in use by other clients"));
    };
    let mut source = Lent::new(source, Some(shelf.clone()));
    source.catch_up().await.map_err(failed)?;
    let topic = stream_topic(tenant, to_number, wanted.to)?;
    to.unnoted(|to| to.delete(wanted.to));
    let mut made = to.add_stream(wanted.to, topic.as_str()).map_err(failed)?;
    match made.copy_from(&source).await {
        Ok(saved) => later.push(saved.wait().boxed_local()),
        Err(error) => {
            drop(made);
            to.delete(wanted.to);
            return Err(failed(error));
        }
    }
    if expires_ms.is_some() {
        to.set_expiry(wanted.to, expires_ms);
    }
    // Other commands of the step may use the new stream.
    drop(Lent::new(made, Some(shelf.clone())));
    drop(source);
    if wanted.is_moved {
        from.delete(key);
    }
    if wanted.is_told {
        out.flag(true)
    } else {
        out.ok()
    }
    Ok(())
}
