//! `thalweg cluster`: found a cluster, join one, and look after its nodes.

mod nodes;

use std::io::{BufRead, stdin};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use client::Address;
use cluster::identity::Identity;
use cluster::join::Token;
use serde_json::json;
use storage::{RealDisk, Store};
use thalweg::VERSION;
use thalweg::config::Config;

use super::user::say;
use crate::args::{Cluster, Global};
use crate::block_on;
use crate::output::{FAILED, Failure, NO_BROKER, Result, USAGE};
use crate::{load, load_without_context};

pub fn run(global: &Global, command: Cluster) -> Result {
    let offline = || load_without_context(global, Vec::new());
    match command {
        Cluster::Init { data, advertise, if_needed } => {
            let config = offline()?;
            let data = directory(&config, data)?;
            if if_needed && is_node(&data, global.json)? {
                return Ok(());
            }
            init(global, &config, &data, &advertise)
        }
        Cluster::Join { token, ask, founder, if_needed, data, advertise } => {
            let config = offline()?;
            let data = directory(&config, data)?;
            if if_needed && is_node(&data, global.json)? {
                return Ok(());
            }
            let token = match token {
                Some(token) => token,
                None if ask => {
                    let asking = load(global, Vec::new())?;
                    if founder.as_ref() == Some(&advertise) && !has_listener(&asking)? {
                        return init(global, &config, &data, &advertise);
                    }
                    nodes::issue(&asking).map_err(without_leader)?
                }
                None => stdin().lock().lines().next().transpose()?.unwrap_or_default(),
            };
            join(global, token.trim(), &data, &advertise)
        }
        Cluster::Token { data: Some(data), minutes } => token(&data, minutes, global.json),
        Cluster::Demo { seconds } => super::cluster_demo::run(seconds, global.json),
        command => operate(&load(global, Vec::new())?, command, global.json).map_err(without_leader),
    }
}

/// Runs a command that a running cluster carries out.
fn operate(config: &Config, command: Cluster, is_json: bool) -> Result {
    match command {
        Cluster::Status => nodes::status(config, is_json),
        Cluster::Token { minutes, .. } => nodes::token(config, minutes, is_json),
        Cluster::Transfer { node } => nodes::transfer(config, node, is_json),
        Cluster::Drain { node } => nodes::drain(config, node, is_json),
        Cluster::Leave { node, yes } => nodes::leave(config, node, yes, is_json),
        Cluster::Replace { node, minutes, yes } => nodes::replace(config, node, minutes, yes, is_json),
        Cluster::Init { .. } | Cluster::Join { .. } | Cluster::Demo { .. } => {
            Err(Failure::new(USAGE, "this command works on files, not on a running cluster"))
        }
    }
}

/// Adds to the failure of a connection that the nodes may run, and have no leader.
fn without_leader(failure: Failure) -> Failure {
    if failure.code != NO_BROKER {
        return failure;
    }
    let message = format!(
        "{}; if a node runs there, the cluster has no leader: more than half of its nodes have to run and to reach \
         each other. GET /readyz at cluster_status of a node, or its log, gives the reason",
        failure.message
    );
    Failure::new(NO_BROKER, message)
}

fn directory(config: &Config, named: Option<PathBuf>) -> Result<PathBuf> {
    named
        .or_else(|| config.data())
        .ok_or_else(|| Failure::new(USAGE, "a node needs a data directory; name one with --data DIR"))
}

/// Time after which an address without an answer has no listener.
const LISTENER_TIME_MAX: Duration = Duration::from_secs(5);

/// Returns `true` if a program listens at any of the addresses that clients connect to. A node that listens and has no
/// leader is a reason to wait, not to found a second cluster.
fn has_listener(config: &Config) -> Result<bool> {
    let addresses = client::Addresses::parse(config.server_address())?;
    let listens = |host: &str, port: u16| {
        // A name that does not resolve is that of a node that has never run.
        let found = (host, port).to_socket_addrs().into_iter().flatten();
        found.into_iter().any(|address| TcpStream::connect_timeout(&address, LISTENER_TIME_MAX).is_ok())
    };
    Ok(addresses.iter().any(|address| match address {
        Address::Quic { host, port } | Address::Tcp { host, port } | Address::Tls { host, port } => {
            listens(host, *port)
        }
        Address::Unix { path } => path.exists(),
        _ => false,
    }))
}

/// Returns `true` if a directory is that of a node, and prints of which one.
fn is_node(data: &Path, is_json: bool) -> Result<bool> {
    let Some(identity) = Identity::load(data)? else { return Ok(false) };
    if identity.is_removed()? {
        return Err(Failure::new(FAILED, thalweg::removed(data, &identity)));
    }
    let cluster = format!("{:032x}", identity.cluster());
    let text = format!("{} is node {} of the cluster {cluster} already", data.display(), identity.node());
    say(is_json, json!({ "cluster": cluster, "node": identity.node(), "data": data }), &text)?;
    Ok(true)
}

fn init(global: &Global, config: &Config, data: &Path, advertise: &str) -> Result {
    if let Some(identity) = Identity::load(data)? {
        if identity.is_removed()? {
            return Err(Failure::new(FAILED, thalweg::removed(data, &identity)));
        }
        let (node, cluster, shown) = (identity.node(), identity.cluster(), data.display());
        let serve = serve(global, data);
        let message = format!("{shown} is node {node} of the cluster {cluster:032x} already: {serve}");
        return Err(Failure::new(FAILED, message));
    }
    // The directory is opened once, so that it exists, is not in use, and is not damaged.
    let clock = config.broker().clock.read();
    let opened = Store::open(Arc::new(RealDisk), data, config.store(), clock, &mut |_| {});
    let (store, topics) = opened.map_err(|error| in_use(data, advertise, error))?;
    broker::Leadership::check_topics(&topics)?;
    let ids = store.directory();
    store.stop()?;
    drop(store);
    let identity = Identity::found(data, ids, advertise)?;
    let cluster = format!("{:032x}", identity.cluster());
    let (shown, serve) = (data.display(), serve(global, data));
    let text = format!(
        "{shown} is node 1 of the cluster {cluster}, reached at {advertise}.\nStart it: {serve}\n\
         Then, for each further node: thalweg cluster token"
    );
    let report = json!({ "cluster": cluster, "node": identity.node(), "advertise": advertise, "data": data });
    say(global.json, report, &text)
}

/// Returns the command that starts the node of a directory with the configuration of this command.
fn serve(global: &Global, data: &Path) -> String {
    let config = global.config.iter().map(|file| format!(" --config {}", file.display()));
    format!("thalweg serve{} --data {}", config.collect::<String>(), data.display())
}

/// Explains the error of a directory that a broker uses: it becomes a node while it is stopped.
fn in_use(data: &Path, advertise: &str, error: engine::Error) -> Failure {
    if error.kind != engine::ErrorKind::Denied || !error.message.contains("in use") {
        return error.into();
    }
    let data = data.display();
    let pid = std::fs::read_to_string(Path::new(&format!("{data}/thalweg.lock"))).unwrap_or_default();
    let pid = pid.split_whitespace().next().map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let message = format!(
        "a broker{pid} uses {data}, and becomes a node while it is stopped:\n  1. stop it: systemctl stop thalweg, or \
         Ctrl-C\n  2. thalweg cluster init --data {data} --advertise {advertise}\n  3. start it with the same command \
         as before\nNothing is copied: its topics keep their ids and records, and clients reconnect as after a restart"
    );
    Failure::new(FAILED, message)
}

fn token(data: &Path, minutes: u32, is_json: bool) -> Result {
    let Some(identity) = Identity::load(data)? else {
        let shown = data.display();
        return Err(Failure::new(FAILED, format!("{shown} is not the directory of a node: thalweg cluster init")));
    };
    if identity.is_removed()? {
        return Err(Failure::new(FAILED, thalweg::removed(data, &identity)));
    }
    let expires = SystemTime::now() + Duration::from_secs(60 * u64::from(minutes));
    let token = Token::issue(&identity, &identity.advertise(), expires)?.reveal();
    say(is_json, json!({ "token": token, "minutes": minutes }), &token)
}

fn join(global: &Global, token: &str, data: &Path, advertise: &str) -> Result {
    let identity = block_on(async { Ok(cluster::join::join(token, advertise, data, VERSION).await?) })?;
    let cluster = format!("{:032x}", identity.cluster());
    let (node, shown, serve) = (identity.node(), data.display(), serve(global, data));
    let text = format!("{shown} is node {node} of the cluster {cluster}, reached at {advertise}.\nStart it: {serve}");
    say(global.json, json!({ "cluster": cluster, "node": node, "advertise": advertise, "data": data }), &text)
}
