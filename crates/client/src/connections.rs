//! Open connections of clients at all doors: a list of them, and the end of one.

use engine::Result;
use wire::connections::{ConnectionInfo, ConnectionPage, ConnectionRequest, ConnectionResponse};
use wire::{Request, Response};

use crate::client::Client;
use crate::link::unexpected;

impl Client {
    /// Lists open connections of clients with numbers above `after`, the oldest first: at one door if `door` has its
    /// key, such as `kafka`, and of one user if `user` has a name. The broker returns at most 1000 at a time; the next
    /// page begins after the last connection of this one.
    pub async fn list_connections(
        &self,
        after: u64,
        count_max: u32,
        door: Option<&str>,
        user: Option<&str>,
    ) -> Result<ConnectionPage> {
        let [door, user] = [door, user].map(|text| text.map(str::to_owned));
        match self.of_connections(ConnectionRequest::List { after, count_max, door, user }).await? {
            ConnectionResponse::Listed(page) => Ok(page),
            other => Err(unexpected(&Response::Connection(other))),
        }
    }

    /// Closes a connection by its number, as if its client had disconnected: its requests in progress have no answer,
    /// and may take effect. Returns the connection. Its client may connect again.
    pub async fn disconnect_client(&self, connection: u64) -> Result<ConnectionInfo> {
        match self.of_connections(ConnectionRequest::Disconnect { connection }).await? {
            ConnectionResponse::Disconnected(connection) => Ok(connection),
            other => Err(unexpected(&Response::Connection(other))),
        }
    }

    async fn of_connections(&self, request: ConnectionRequest) -> Result<ConnectionResponse> {
        match self.session.call(&Request::Connection(request)).await? {
            Response::Connection(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}
