//! Open connections of clients at all doors on the wire: a list of them, and the end of one.

use bytes::{Buf, BufMut, BytesMut};
use engine::Result;

use crate::field::{Fields, get_code, non_empty, put_list, put_str};

/// Action of a request about connections: the first byte of its body, and of that of its answer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum ConnectionAction {
    List = 1,
    Disconnect = 2,
}

impl ConnectionAction {
    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        get_code(f, "action", |code| [Self::List, Self::Disconnect].into_iter().find(|of| *of as u8 == code))
    }
}

/// Request about open connections of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionRequest {
    /// Lists connections in the order of their numbers, the oldest first.
    List {
        /// Number after which the list begins; 0 for the first page.
        after: u64,
        /// Maximum number of connections in the answer. The broker has a lower maximum.
        count_max: u32,
        /// Key of a door, such as `kafka`; `None` for all doors.
        door: Option<String>,
        /// Name of a user; `None` for all clients.
        user: Option<String>,
    },
    /// Closes a connection as if its client had disconnected.
    Disconnect {
        /// Number of the connection.
        connection: u64,
    },
}

/// Answer about open connections of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionResponse {
    /// Answers [`ConnectionRequest::List`].
    Listed(ConnectionPage),
    /// Connection that is being closed; answers [`ConnectionRequest::Disconnect`].
    Disconnected(ConnectionInfo),
}

/// Part of a list of open connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPage {
    /// Connections in the order of their numbers.
    pub connections: Vec<ConnectionInfo>,
    /// `true` if no other follows; otherwise the next page begins after the last of these.
    pub is_last: bool,
}

/// Open connection of a client at any door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Number of the connection, unique until the broker restarts.
    pub connection: u64,
    /// Key of its door, such as `kafka`.
    pub door: String,
    /// User as whom the client has logged in; `None` before that.
    pub user: Option<String>,
    /// Address of the client; `None` for one on the broker's machine without an address.
    pub address: Option<String>,
    /// Time since it was accepted, in ms.
    pub age_ms: u64,
    /// Number of requests that have begun.
    pub requests: u64,
}

impl ConnectionRequest {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::List { after, count_max, door, user } => {
                b.put_u8(ConnectionAction::List as u8);
                b.put_u64(*after);
                b.put_u32(*count_max);
                put_str(b, door.as_deref().unwrap_or_default());
                put_str(b, user.as_deref().unwrap_or_default());
            }
            Self::Disconnect { connection } => {
                b.put_u8(ConnectionAction::Disconnect as u8);
                b.put_u64(*connection);
            }
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match ConnectionAction::get(f)? {
            ConnectionAction::List => Self::List {
                after: f.u64()?,
                count_max: f.u32()?,
                door: non_empty(f.str()?),
                user: non_empty(f.str()?),
            },
            ConnectionAction::Disconnect => Self::Disconnect { connection: f.u64()? },
        })
    }
}

impl ConnectionResponse {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Listed(ConnectionPage { connections, is_last }) => {
                b.put_u8(ConnectionAction::List as u8);
                b.put_u8(u8::from(*is_last));
                put_list(b, connections, put_connection);
            }
            Self::Disconnected(connection) => {
                b.put_u8(ConnectionAction::Disconnect as u8);
                put_connection(b, connection);
            }
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match ConnectionAction::get(f)? {
            ConnectionAction::List => {
                let is_last = f.bool()?;
                Self::Listed(ConnectionPage { is_last, connections: f.list(CONNECTION_BYTES_MIN, get_connection)? })
            }
            ConnectionAction::Disconnect => Self::Disconnected(get_connection(f)?),
        })
    }
}

/// Minimum bytes of a connection.
const CONNECTION_BYTES_MIN: usize = 30;

fn put_connection(b: &mut BytesMut, of: &ConnectionInfo) {
    b.put_u64(of.connection);
    put_str(b, &of.door);
    put_str(b, of.user.as_deref().unwrap_or_default());
    put_str(b, of.address.as_deref().unwrap_or_default());
    b.put_u64(of.age_ms);
    b.put_u64(of.requests);
}

fn get_connection<B: Buf>(f: &mut Fields<B>) -> Result<ConnectionInfo> {
    Ok(ConnectionInfo {
        connection: f.u64()?,
        door: f.str()?,
        user: non_empty(f.str()?),
        address: non_empty(f.str()?),
        age_ms: f.u64()?,
        requests: f.u64()?,
    })
}
