//! `thalweg role`: give users roles, and list the members of roles.

use std::io::Write;

use client::security::{RoleName, UserName};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::units;
use super::user::{on, say};
use crate::args::Role;
use crate::output::Result;

pub fn run(config: &Config, command: Role, is_json: bool) -> Result {
    match command {
        Role::Add { role, user } => {
            set(config, &role, &user, true)?;
            say(is_json, json!({ "role": role, "user": user }), &format!("user {user} has the role {role}"))
        }
        Role::Remove { role, user } => {
            set(config, &role, &user, false)?;
            let text = format!("user {user} no longer has the role {role}");
            say(is_json, json!({ "role": role, "removed": user }), &text)
        }
        Role::List => {
            let members = on(config, async |client| client.list_members().await)?;
            list(&members, is_json)
        }
    }
}

fn set(config: &Config, role: &str, user: &str, is_present: bool) -> Result {
    let role = RoleName::parse(role)?;
    let user = UserName::parse(user)?;
    on(config, async |client| client.set_member(user, role, is_present).await)
}

fn list(members: &[(UserName, Vec<RoleName>)], is_json: bool) -> Result {
    let mut out = std::io::stdout();
    let names = |roles: &[RoleName]| roles.iter().map(ToString::to_string).collect::<Vec<_>>();
    if is_json {
        let row = |(user, roles): &(UserName, Vec<RoleName>)| json!({ "user": user.as_str(), "roles": names(roles) });
        return Ok(writeln!(out, "{}", Value::Array(members.iter().map(row).collect()))?);
    }
    if members.is_empty() {
        return Ok(writeln!(out, "no user has a role yet; `thalweg role add ROLE USER` gives one")?);
    }
    let mut table = units::table();
    table.set_header(["USER", "ROLES"]);
    for (user, roles) in members {
        table.add_row([user.to_string(), names(roles).join(", ")]);
    }
    Ok(writeln!(out, "{table}")?)
}
