//! Open connections of a door, as the broker lists them.

use std::sync::Arc;

use broker::{ClientConnection, ConnectionTable, Door};
use net::{Connections, OpenConnection};

/// Table of the open connections of one door.
pub struct Table {
    pub door: Door,
    pub connections: Arc<Connections>,
}

impl Table {
    fn shown(&self, of: &OpenConnection) -> ClientConnection {
        ClientConnection {
            id: of.id,
            door: self.door,
            user: of.user(),
            address: of.address,
            age_ms: u64::try_from(of.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
            requests: of.requests(),
        }
    }
}

impl ConnectionTable for Table {
    fn after(&self, id: u64, count_max: usize) -> Vec<ClientConnection> {
        self.connections.after(id, count_max).iter().map(|of| self.shown(of)).collect()
    }

    fn get(&self, id: u64) -> Option<ClientConnection> {
        self.connections.get(id).map(|of| self.shown(&of))
    }

    fn cut(&self, id: u64) {
        if let Some(of) = self.connections.get(id) {
            of.cut();
        }
    }
}
