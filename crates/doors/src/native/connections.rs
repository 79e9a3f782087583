//! Maps requests about open connections of clients to calls of the broker.

use broker::{Broker, ClientConnection, Door};
use engine::{Error, Result};
use wire::connections::{ConnectionInfo, ConnectionPage};
use wire::{ConnectionRequest, ConnectionResponse, Response};

/// Maximum number of connections in one answer.
const PAGE_MAX: usize = 1000;

/// Answers a request of the client with the connection `own`.
pub(super) fn answer(broker: &Broker, own: u64, request: ConnectionRequest) -> Result<Response> {
    let answer = match request {
        ConnectionRequest::List { after, count_max, door, user } => {
            let door = door.map(|key| Door::of_key(&key)).transpose()?;
            let is_wanted = |of: &ClientConnection| {
                door.is_none_or(|door| of.door == door) && (user.is_none() || of.user.as_deref() == user.as_deref())
            };
            let count_max = (count_max as usize).clamp(1, PAGE_MAX);
            let (found, is_last) = broker.open_connections().list(after, count_max, is_wanted);
            ConnectionResponse::Listed(ConnectionPage { connections: found.iter().map(info).collect(), is_last })
        }
        ConnectionRequest::Disconnect { connection } if connection == own => {
            let message =
                format!("connection {own} is that of this request: close it at the client, or from another one");
            return Err(Error::invalid(message));
        }
        ConnectionRequest::Disconnect { connection } => {
            ConnectionResponse::Disconnected(info(&broker.disconnect(connection)?))
        }
    };
    Ok(Response::Connection(answer))
}

fn info(of: &ClientConnection) -> ConnectionInfo {
    ConnectionInfo {
        connection: of.id,
        door: of.door.key().to_owned(),
        user: of.user.as_deref().map(str::to_owned),
        address: of.address.map(|address| address.to_string()),
        age_ms: of.age_ms,
        requests: of.requests,
    }
}
