//! Test vectors of open connections.

use wire::connections::{ConnectionInfo, ConnectionPage};
use wire::{ConnectionRequest, ConnectionResponse};

pub fn requests() -> Vec<(&'static str, ConnectionRequest)> {
    let of = |door: Option<&str>, user: Option<&str>| ConnectionRequest::List {
        after: 1 << 50,
        count_max: 100,
        door: door.map(str::to_owned),
        user: user.map(str::to_owned),
    };
    vec![
        ("connection_list", of(None, None)),
        ("connection_list_of_a_user_at_a_door", of(Some("kafka"), Some("ann"))),
        ("connection_disconnect", ConnectionRequest::Disconnect { connection: 1 << 50 }),
    ]
}

pub fn responses() -> Vec<(&'static str, ConnectionResponse)> {
    let logged_in = ConnectionInfo {
        connection: 1 << 50,
        door: "kafka".to_owned(),
        user: Some("ann".to_owned()),
        address: Some("192.0.2.1:5000".to_owned()),
        age_ms: 61_000,
        requests: 7,
    };
    let unknown = ConnectionInfo { connection: 1 << 51, user: None, address: None, ..logged_in.clone() };
    let page = ConnectionPage { connections: vec![logged_in.clone(), unknown], is_last: false };
    vec![
        ("connections", ConnectionResponse::Listed(page)),
        ("connections_none", ConnectionResponse::Listed(ConnectionPage { connections: Vec::new(), is_last: true })),
        ("connection_disconnected", ConnectionResponse::Disconnected(logged_in)),
    ]
}
