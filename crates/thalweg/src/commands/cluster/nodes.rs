//! The nodes of a running cluster: their state, who leads, and which ones leave.

use std::io::Write;
use std::time::{Duration, Instant};

use client::{Client, ClusterStatus, ErrorKind, NodeStatus};
use serde_json::{Map, Value, json};
use thalweg::config::Config;

use super::super::confirm;
use super::super::connect;
use super::super::units::{bytes, count, elapsed, table};
use super::super::user::{on, say};
use crate::args::Yes;
use crate::block_on;
use crate::output::{FAILED, Failure, Result};

/// Maximum time for another node to lead.
const ELECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval at which the state of the cluster is read in the meantime.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn status(config: &Config, is_json: bool) -> Result {
    let status = on(config, async |client| client.describe_cluster().await)?;
    let mut out = std::io::stdout();
    if is_json {
        return Ok(writeln!(out, "{}", to_json(&status))?);
    }
    let mut nodes = table();
    nodes.set_header(["NODE", "ADDRESS", "ROLE", "STATE", "BEHIND", "VERSION"]);
    for of in &status.nodes {
        nodes.add_row([of.node.to_string(), of.address.clone(), role(of), state(of), behind(of), version(of)]);
    }
    Ok(writeln!(out, "{}\n\n{nodes}", head(&status))?)
}

/// Requests a token for one new node, which is valid for the default time.
pub fn issue(config: &Config) -> Result<String> {
    let token = on(config, async |client| client.issue_join_token(client::cluster::TOKEN_MINUTES).await)?;
    Ok(token.reveal().to_owned())
}

pub fn token(config: &Config, minutes: u32, is_json: bool) -> Result {
    let token = on(config, async |client| client.issue_join_token(minutes).await)?;
    say(is_json, json!({ "token": token.reveal(), "minutes": minutes }), token.reveal())
}

fn head(status: &ClusterStatus) -> String {
    let ClusterStatus { cluster, term, committed, waiting_bytes, .. } = status;
    let leader = status.leader.map_or_else(|| "no node leads".to_owned(), |leader| format!("node {leader} leads"));
    let waiting =
        if *waiting_bytes > 0 { format!(", {} wait for a majority", bytes(*waiting_bytes)) } else { String::new() };
    format!(
        "cluster {cluster}: {leader} in term {term}\n{} committed{waiting}\n{}",
        count(*committed, "entry"),
        safety(status)
    )
}

/// Returns what the cluster survives now.
fn safety(status: &ClusterStatus) -> String {
    let voters: Vec<&NodeStatus> = status.nodes.iter().filter(|of| of.is_voter).collect();
    let alive = voters.iter().filter(|of| of.is_alive).count();
    let majority = voters.len() / 2 + 1;
    let votes = format!("{alive} of {} answer", count(voters.len() as u64, "voter"));
    match alive.saturating_sub(majority) {
        0 if voters.len() == 1 => {
            format!("{votes}: without it nothing is served; add nodes with thalweg cluster token")
        }
        0 if alive == voters.len() => format!("{votes}: if one fails, nothing is served; add a node"),
        0 => format!("{votes}: if one more fails, nothing is served; start the silent ones, or replace them"),
        spare => format!("{votes}: {} may fail", count(spare as u64, "node")),
    }
}

fn role(of: &NodeStatus) -> String {
    let role = match (of.is_leader, of.is_voter) {
        (true, _) => "leader",
        (false, true) => "voter",
        (false, false) => "learner",
    };
    role.to_owned()
}

fn state(of: &NodeStatus) -> String {
    match (of.is_alive, of.silent_ms) {
        _ if of.is_leaving => "leaves".to_owned(),
        (true, _) if of.is_catching_up => "fetches the state".to_owned(),
        (true, _) => "answers".to_owned(),
        (false, Some(ms)) => format!("silent for {}", elapsed(ms)),
        (false, None) => "not heard since this leader leads".to_owned(),
    }
}

fn behind(of: &NodeStatus) -> String {
    if of.is_leader || of.behind == 0 { "-".to_owned() } else { count(of.behind, "entry") }
}

fn version(of: &NodeStatus) -> String {
    if of.program.is_empty() { "never started".to_owned() } else { of.program.clone() }
}

fn to_json(status: &ClusterStatus) -> Value {
    let node = |of: &NodeStatus| {
        let doors: Map<String, Value> = of.doors.iter().map(|(door, at)| (door.clone(), at.as_str().into())).collect();
        json!({
            "node": of.node,
            "address": of.address,
            "program": of.program,
            "doors": doors,
            "is_leader": of.is_leader,
            "is_voter": of.is_voter,
            "is_alive": of.is_alive,
            "is_catching_up": of.is_catching_up,
            "is_leaving": of.is_leaving,
            "behind": of.behind,
            "silent_ms": of.silent_ms,
        })
    };
    json!({
        "cluster": status.cluster,
        "node": status.node,
        "leader": status.leader,
        "term": status.term,
        "committed": status.committed,
        "applied": status.applied,
        "elections": status.elections,
        "waiting_bytes": status.waiting_bytes,
        "catch_ups": status.catch_ups,
        "caught_up_bytes": status.caught_up_bytes,
        "format": status.format,
        "nodes": status.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

pub fn transfer(config: &Config, to: u64, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let before = client.describe_cluster().await?;
        if before.leader == Some(to) {
            let (text, json) = (format!("node {to} leads already"), json!({ "leader": to, "term": before.term }));
            return say(is_json, json, &text);
        }
        let term = hand_over(&client, to).await?;
        say(is_json, json!({ "leader": to, "term": term }), &format!("node {to} leads in term {term}"))
    })
}

pub fn drain(config: &Config, node: u64, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let status = client.describe_cluster().await?;
        status.known(node)?;
        if status.leader != Some(node) {
            let leader = status.leader.map_or_else(|| "none".to_owned(), |leader| format!("node {leader}"));
            let text = format!("node {node} does not lead, {leader} does: nothing was to be done");
            return say(is_json, json!({ "node": node, "leader": status.leader, "is_changed": false }), &text);
        }
        let Some(to) = status.successor() else {
            let message = format!("no other node can lead in place of node {node}; see thalweg cluster status");
            return Err(Failure::new(FAILED, message));
        };
        let term = hand_over(&client, to).await?;
        let text = format!("node {to} leads in term {term}; node {node} follows, and can be stopped");
        say(is_json, json!({ "node": node, "leader": to, "is_changed": true }), &text)
    })
}

/// Has a node lead, and waits until it does. Returns its term.
async fn hand_over(client: &Client, to: u64) -> Result<u64> {
    match client.transfer_leadership(to).await {
        Ok(()) => {}
        // The leader may end before its response is sent.
        Err(error) if matches!(error.kind, ErrorKind::Disconnected | ErrorKind::NotLeader) => {}
        Err(error) => return Err(error.into()),
    }
    let until = Instant::now() + ELECTION_TIME_MAX;
    loop {
        if let Ok(status) = client.describe_cluster().await
            && status.leader == Some(to)
        {
            return Ok(status.term);
        }
        if Instant::now() > until {
            let waited = ELECTION_TIME_MAX.as_secs();
            let message =
                format!("node {to} does not lead after {waited} s; see thalweg cluster status, and try again");
            return Err(Failure::new(FAILED, message));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

pub fn leave(config: &Config, node: u64, yes: Yes, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let status = client.describe_cluster().await?;
        let address = status.known(node)?.address.clone();
        status.check_removal(node)?;
        confirm::ask(yes, &format!("Remove node {node} at {address} for good?"))?;
        remove(config, &client, node).await?;
        let text = format!(
            "node {node} at {address} has left the cluster, and its number is never given again.\nIt stops by \
             itself. Delete its data directory: it cannot come back. A new node needs an empty one."
        );
        say(is_json, json!({ "removed": node, "address": address }), &text)
    })
}

/// Removes a node. A leader that leaves may be gone before its answer: then the next one is asked.
async fn remove(config: &Config, client: &Client, node: u64) -> Result {
    let Err(error) = client.remove_node(node).await else { return Ok(()) };
    if error.kind != ErrorKind::Disconnected {
        return Err(error.into());
    }
    let end = Instant::now() + ELECTION_TIME_MAX;
    while Instant::now() < end {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(client) = connect(config).await else { continue };
        if let Ok(status) = client.describe_cluster().await {
            return if status.known(node).is_err() { Ok(()) } else { Err(error.into()) };
        }
    }
    Err(error.into())
}

pub fn replace(config: &Config, node: u64, minutes: u32, yes: Yes, is_json: bool) -> Result {
    block_on(async {
        let client = connect(config).await?;
        let status = client.describe_cluster().await?;
        let lost = status.known(node)?;
        if lost.is_alive {
            let message =
                format!("node {node} answers, so it is not lost: use thalweg cluster leave {node}, or stop it");
            return Err(Failure::new(FAILED, message));
        }
        status.check_removal(node)?;
        let address = lost.address.clone();
        confirm::ask(yes, &format!("Remove node {node} at {address} for good?"))?;
        client.remove_node(node).await?;
        let token = client.issue_join_token(minutes).await?;
        let text = format!(
            "node {node} was removed, and its directory cannot come back. Add the node that replaces it within \
             {minutes} minutes:\nthalweg cluster join {} --data DIR --advertise {address}\nthalweg serve --data DIR",
            token.reveal()
        );
        say(is_json, json!({ "removed": node, "token": token.reveal(), "minutes": minutes }), &text)
    })
}
