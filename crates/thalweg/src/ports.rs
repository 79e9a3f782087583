//! Ports of the doors: they are bound all together, so that one error names all that are in use.

use std::io;
use std::net::SocketAddr;

use broker::Door;
use net::{Ports, Sockets};

use crate::config::Config;

/// Binds the sockets of every door that is not off. One error names all the doors whose ports are in use.
pub(crate) fn bind(config: &Config) -> io::Result<Vec<(Door, Sockets)>> {
    let mut bound = Vec::new();
    let mut taken = Vec::new();
    for (door, address) in config.doors().map_err(io::Error::other)? {
        match Sockets::bind(&ports(config, door, address)) {
            Ok(sockets) => bound.push((door, sockets)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken.push((door, address)),
            Err(error) => return Err(at(door, address, &error)),
        }
    }
    if taken.is_empty() { Ok(bound) } else { Err(in_use(&taken)) }
}

fn ports(config: &Config, door: Door, address: SocketAddr) -> Ports {
    let quic_sockets = if door == Door::Native { config.quic_endpoints().max(1) } else { 0 };
    Ports { address, unix: config.unix_socket(door), quic_sockets }
}

/// Adds the door and its address to an error.
pub(crate) fn at(door: Door, address: SocketAddr, error: &io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot open the {} door at {address}: {error}{hint}", door.key()))
}

/// Lists the ports in use, and how to move or turn off the door of each.
fn in_use(taken: &[(Door, SocketAddr)]) -> io::Error {
    let row = |(door, address): &(Door, SocketAddr)| {
        let door = door.key();
        format!("\n  {door:<7} {address:<21} move it with --{door} PORT, turn it off with --{door} off")
    };
    let rows: String = taken.iter().map(row).collect();
    let ports = if taken.len() == 1 { "a port is" } else { "ports are" };
    io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("{ports} in use by another program (port 0 selects a free one):{rows}"),
    )
}
