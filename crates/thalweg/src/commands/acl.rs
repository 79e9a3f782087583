//! `thalweg acl`: add, list and delete access control entries.

use std::io::Write;

use client::security::{Acl, AclFilter, Pattern, PatternKind, Principal, Resource, ResourceKind};
use doors::permissions::{self, Call, Need, Table};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::{connect, units};
use crate::args::AclCommand;
use crate::block_on;
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: AclCommand, is_json: bool) -> Result {
    if let AclCommand::Calls { door } = &command {
        return print_calls(door.as_deref(), is_json);
    }
    block_on(async {
        let client = connect(config).await?;
        match command {
            AclCommand::Add { principal, operations, kind, name, prefix, glob, deny, host } => {
                let name = name.unwrap_or_else(|| Resource::CLUSTER_NAME.to_owned());
                if kind == ResourceKind::Cluster && name != Resource::CLUSTER_NAME {
                    return Err(Failure::new(USAGE, "the cluster has no name: omit it"));
                }
                let principal = Principal::parse(&principal)?;
                let matching = match (prefix, glob) {
                    (true, _) => PatternKind::Prefix,
                    (false, true) => PatternKind::Glob,
                    (false, false) => PatternKind::Literal,
                };
                let pattern = Pattern { kind, name, matching };
                let acl = |operation| Acl {
                    pattern: pattern.clone(),
                    principal: principal.clone(),
                    host: host.clone(),
                    operation,
                    is_allowed: !deny,
                };
                let acls: Vec<Acl> = operations.0.into_iter().map(acl).collect();
                client.create_acls(acls.clone()).await?;
                if client.stats().await?.lines().any(|line| line == "thalweg_authorization 0") {
                    eprintln!(
                        "warning: authorization is off: entries take effect once the broker has authorization = true"
                    );
                }
                print(&acls, is_json, "nothing was added")?;
            }
            AclCommand::List(filter) => {
                let filter = filter.get()?;
                let none = if filter == AclFilter::default() {
                    "no entries yet: with authorization = true only super users and members of built-in roles may do \
                     anything; `thalweg acl add PRINCIPAL OPERATION KIND NAME` adds one"
                } else {
                    "no entry matches; without options, `thalweg acl list` shows all"
                };
                print(&client.list_acls(filter).await?, is_json, none)?;
            }
            AclCommand::Delete { filter, all } => {
                let filter = filter.get()?;
                if (filter == AclFilter::default()) != all {
                    return Err(Failure::new(
                        USAGE,
                        "name the entries to delete, such as --principal User:NAME, or use --all",
                    ));
                }
                let gone = client.delete_acls(filter).await?;
                print(&gone, is_json, "no entry matches: nothing was deleted")?;
            }
            // It has returned above, as it needs no broker.
            AclCommand::Calls { .. } => {}
        }
        client.close().await;
        Ok(())
    })
}

fn print(acls: &[Acl], is_json: bool, none: &str) -> Result {
    let mut out = std::io::stdout();
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(acls.iter().map(to_json).collect()))?);
    }
    if acls.is_empty() {
        return Ok(writeln!(out, "{none}")?);
    }
    let mut table = units::table();
    table.set_header(["PRINCIPAL", "MAY", "OPERATION", "KIND", "NAME", "HOST"]);
    for acl in acls {
        let suffix = match acl.pattern.matching {
            PatternKind::Literal => "",
            PatternKind::Prefix => "* (prefix)",
            PatternKind::Glob => " (glob)",
        };
        table.add_row([
            acl.principal.to_string(),
            may(acl).to_owned(),
            acl.operation.name().to_owned(),
            acl.pattern.kind.name().to_owned(),
            format!("{}{suffix}", acl.pattern.name),
            acl.host.clone(),
        ]);
    }
    Ok(writeln!(out, "{table}")?)
}

/// Prints the permissions that calls require, from the tables by which the doors decide.
fn print_calls(door: Option<&str>, is_json: bool) -> Result {
    let tables = permissions::tables();
    let keys: Vec<&str> = tables.iter().map(|table| table.door.key()).collect();
    if let Some(door) = door.filter(|door| !keys.contains(door)) {
        return Err(Failure::new(USAGE, format!("there is no door {door}: choose one of {}", keys.join(", "))));
    }
    let wanted = tables.iter().filter(|table| door.is_none_or(|door| door == table.door.key()));
    let mut out = std::io::stdout();
    if is_json {
        return Ok(writeln!(out, "{}", Value::Array(wanted.map(table_to_json).collect()))?);
    }
    let mut rows = units::table();
    rows.set_header(["DOOR", "CALL", "OPERATION", "KIND", "RESOURCE", "WHEN"]);
    for table in wanted {
        for call in &table.calls {
            let name = [table.door.key(), &call.name];
            if call.needs.is_empty() {
                rows.add_row([&name[..], &["none", "", if call.is_open { "no login" } else { "" }, ""]].concat());
            }
            for need in &call.needs {
                let when = if need.is_filter { "or omitted" } else { need.when };
                rows.add_row([&name[..], &[need.operation.name(), need.kind.name(), need.of, when]].concat());
            }
        }
    }
    Ok(writeln!(out, "{rows}")?)
}

fn table_to_json(table: &Table) -> Value {
    let calls: Vec<Value> = table.calls.iter().map(call_to_json).collect();
    json!({ "door": table.door.key(), "about": table.about, "calls": calls })
}

fn call_to_json(call: &Call) -> Value {
    let needs: Vec<Value> = call.needs.iter().map(need_to_json).collect();
    json!({ "call": call.name, "needs": needs, "needs_login": !call.is_open, "note": call.note })
}

fn need_to_json(need: &Need) -> Value {
    let or = need.or.map(|or| json!({ "operation": or.operation.name(), "kind": or.kind.name(), "of": or.of }));
    json!({
        "operation": need.operation.name(),
        "kind": need.kind.name(),
        "of": need.of,
        "when": need.when,
        "or": or,
        "is_filter": need.is_filter,
    })
}

fn may(acl: &Acl) -> &'static str {
    if acl.is_allowed { "allow" } else { "deny" }
}

fn to_json(acl: &Acl) -> Value {
    json!({
        "principal": acl.principal.to_string(),
        "permission": may(acl),
        "operation": acl.operation.name(),
        "kind": acl.pattern.kind.name(),
        "name": acl.pattern.name,
        "pattern": acl.pattern.matching.name(),
        "host": acl.host,
    })
}
