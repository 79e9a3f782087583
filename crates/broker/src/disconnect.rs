//! Closing a connection of a client, which is an act of the audit.

use engine::Result;

use crate::core::Core;
use crate::open_connections::ClientConnection;

impl Core {
    /// Closes a connection, as if its client had disconnected: requests in progress have no answer, and may take
    /// effect. Returns the connection.
    pub fn disconnect(&self, id: u64) -> Result<ClientConnection> {
        let found = self.open_connections().get(id);
        let name = match &found {
            Ok(of) => match of.address {
                Some(address) => format!("{address}, connection {id} at {}", of.door.key()),
                None => format!("connection {id} at {}", of.door.key()),
            },
            Err(_missing) => format!("connection {id}"),
        };
        self.record_act("disconnect client", &name, found.as_ref().err());
        if found.is_ok() {
            self.open_connections().cut(id);
        }
        found
    }
}
