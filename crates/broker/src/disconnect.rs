//! Closing a connection of a client, which is an act of the audit.

use engine::Result;

use crate::core::Core;
use crate::doors::Door;
use crate::open_connections::ClientConnection;

/// Name of the act in the audit.
const ACTION: &str = "disconnect client";

impl Core {
    /// Records in the audit that a client closes a connection, with the user and the address of the one that is closed.
    pub fn record_disconnect(&self, door: Door, id: u64, user: Option<&str>, address: Option<&str>) {
        let user = user.map(|user| format!("User:{user}"));
        let from = address.map(|address| format!("from {address}"));
        let client: Vec<String> = user.into_iter().chain(from).collect();
        let client = if client.is_empty() { "a client".to_owned() } else { client.join(" ") };
        self.record_act(ACTION, &format!("{client}, connection {id} at {}", door.key()), None);
    }

    /// Closes a connection, as if its client had disconnected: requests in progress have no answer, and may take
    /// effect. Returns the connection.
    pub fn disconnect(&self, id: u64) -> Result<ClientConnection> {
        let found = self.open_connections().get(id);
        match &found {
            Ok(of) => {
                let address = of.address.map(|address| address.to_string());
                self.record_disconnect(of.door, id, of.user.as_deref(), address.as_deref());
            }
            Err(missing) => self.record_act(ACTION, &format!("connection {id}"), Some(missing)),
        }
        if found.is_ok() {
            self.open_connections().cut(id);
        }
        found
    }
}
