//! `thalweg acl`: add, list and delete access control entries.

use std::io::Write;

use client::security::{Acl, AclFilter, Pattern, PatternKind, Principal, Resource, ResourceKind};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::{connect, units};
use crate::args::AclCommand;
use crate::block_on;
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: AclCommand, is_json: bool) -> Result {
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
