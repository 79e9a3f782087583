//! `SWAPDB`: two databases exchange their keys. A database is a cache with the number in its name: the caches exchange
//! their contents, so that every connection keeps its database.

use std::collections::BTreeMap;

use broker::{Broker, Cache, Commit};
use engine::security::Operation;
use engine::{Error, ErrorKind};
use net::service::Reply;

use super::args::parse_small;
use super::find;
use super::transactions::{Held, act_for, finish};
use crate::redis::access::Needs;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Keys, Named, own};
use crate::redis::connection::{DATABASES, Session};
use crate::redis::databases::lock_or_busy;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::later::Later;
use crate::redis::names::{Tenant, cache_name};
use crate::redis::scripts::BUSY;

pub(super) const COMMAND: Command = Command {
    keys: Keys::All,
    is_write: true,
    ..own(
        "SWAPDB",
        3,
        // Clients that may only use one database see what was in another one.
        Needs::AllDatabases(&[Operation::Read, Operation::Write, Operation::Delete]),
        swapdb,
        ("4.0.0", "Exchanges the keys of two databases"),
    )
};

/// Returns the numbers of the two databases. Checks both numbers before their range, as Redis does.
pub(in crate::redis) fn databases(args: &[&[u8]]) -> Done<[usize; 2]> {
    let wrong = |which| move |_| Fail::new(format!("ERR invalid {which} DB index"));
    let first = parse_small(args[1]).map_err(wrong("first"))?;
    let second = parse_small(args[2]).map_err(wrong("second"))?;
    let number = |number| usize::try_from(number).ok().filter(|number| *number < DATABASES);
    match (number(first), number(second)) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(Fail::new("ERR DB index is out of range")),
    }
}

fn swapdb(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match swap(door, session, args) {
        Ok(commit) => session.settled(Answer::Fixed(b"+OK\r\n"), commit),
        Err(fail) => session.fail(&fail),
    }
}

fn swap(door: &Door, session: &mut Session, args: &[&[u8]]) -> Done<Commit> {
    let numbers = databases(args)?;
    // A thread must not wait for a script that holds keys of either database.
    let is_either =
        |cache: &Cache| numbers.iter().any(|number| cache.name().as_str() == cache_name(session.tenant(), *number));
    if find(args[0]).is_some_and(|command| door.scripts.refuses(command, args, is_either)) {
        return Err(BUSY);
    }
    let mut caches = BTreeMap::new();
    for number in numbers {
        caches.insert(number, session.database_of(&door.broker, number)?);
    }
    caches.values().try_for_each(|cache| cache.admit())?;
    // In the order of their numbers, which prevents deadlocks.
    let mut held = Held::new();
    for (number, cache) in &caches {
        held.insert(*number, lock_or_busy(cache, &Named::All)?);
    }
    act_for(&mut held, session.client.id);
    step(&door.broker, session.tenant(), &mut held, args)?;
    Ok(finish(held, &caches))
}

/// Exchanges the contents of two databases whose keys are all locked.
pub(in crate::redis) fn step(broker: &Broker, tenant: Tenant<'_>, held: &mut Held<'_>, args: &[&[u8]]) -> Done {
    let [first, second] = databases(args)?;
    if first == second {
        return Ok(());
    }
    let mut one = held.remove(&first).expect("invariant: both databases are locked");
    let other = held.get_mut(&second).expect("invariant: both databases are locked");
    let swapped = one.swap(other);
    held.insert(first, one);
    let names = [first, second].map(|number| cache_name(tenant, number)).join(" and ");
    broker.record_act("swap caches", &names, swapped.as_ref().err());
    swapped.map_err(failed)
}

/// Converts an error of the broker. It is never about memory.
fn failed(error: Error) -> Fail {
    match error.kind {
        ErrorKind::Busy => Fail::new(format!("TRYAGAIN {}", error.message)),
        _ => error.into(),
    }
}
