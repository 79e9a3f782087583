//! Quotas of connections: back-pressure, for the doors whose protocols have no other, and the connections of clients
//! that log in with each request.

use std::sync::Arc;

use broker::{Broker, Door, Hold, Identity, Usage};
use engine::Result;
use net::OpenConnection;
use net::http::{Caller, Newcomers};
use net::service::{Held, Spent};

/// Use that is charged to every quota: each request of such a connection may be anything.
const ANY: Usage = Usage { requests: 1, bytes_in: 1, bytes_out: 1 };

/// Returns `true` if a client has exceeded a quota, so that no request of it is handled now.
#[inline]
pub(crate) fn is_wanted(broker: &Broker, identity: &Identity) -> bool {
    broker.security.has_quotas() && !broker.security.debt(identity, None, ANY).is_zero()
}

/// Charges what a connection has used. Returns the pause of the connection, if its client has exceeded a quota.
pub(crate) fn pause(broker: &Broker, door: Door, identity: &Arc<Identity>, usage: Usage) -> Option<Held> {
    let is_in_debt = !broker.security.charge(door, identity, None, usage).is_zero() || is_wanted(broker, identity);
    is_in_debt.then(|| Box::pin(broker.security.clone().repaid(identity.clone(), ANY)) as Held)
}

/// Returns the use of a connection, of whose written bytes some are charged elsewhere.
pub(crate) fn usage(spent: Spent) -> Usage {
    Usage { requests: spent.requests, bytes_in: spent.bytes_read, bytes_out: spent.bytes_written }
}

/// Returns the check of the addresses of new connections at a door that speaks HTTP.
pub(crate) fn newcomers(broker: &Arc<Broker>, door: Door) -> Newcomers {
    let security = broker.security.clone();
    Newcomers::new(move |address| security.connected(door, Some(address)).map(|unwelcome| unwelcome.error.message))
}

/// Counts a connection for the client that has logged in on it, and names the client in the list of connections.
pub(crate) fn hold_connection(
    broker: &Broker,
    door: Door,
    identity: &Identity,
    held: &mut Option<Hold>,
    entry: &OpenConnection,
) -> Result<()> {
    broker.security.hold_connection(door, identity, held)?;
    entry.set_user(identity.user().as_str());
    Ok(())
}

/// Counts the connection of a request for the sender, instead of for that of the request before. Refuses a request
/// whose sender has as many connections as a quota allows.
pub(crate) fn count_connection(broker: &Broker, door: Door, caller: &Caller, identity: &Identity) -> Result<()> {
    let mut attachment = caller.connection.attachment.lock();
    let mut hold = attachment.take().and_then(|hold| hold.downcast::<Hold>().ok()).map(|hold| *hold);
    let counted = hold_connection(broker, door, identity, &mut hold, caller.connection.entry());
    *attachment = hold.map(|hold| Box::new(hold) as _);
    counted
}
