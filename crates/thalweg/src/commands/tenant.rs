//! `thalweg tenant`: put users into tenants, take them out, and list them.

use std::io::Write;

use client::security::{TenantName, UserName};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::units;
use super::user::{on, say};
use crate::args::Tenant;
use crate::output::Result;

pub fn run(config: &Config, command: Tenant, is_json: bool) -> Result {
    match command {
        Tenant::Assign { tenant, user } => {
            let name = TenantName::parse(&tenant)?;
            let prefix = name.prefix().to_owned();
            set(config, &user, Some(name))?;
            let text = format!("user {user} is in the tenant {tenant}, whose names begin with {prefix}");
            say(is_json, json!({ "tenant": tenant, "user": user, "prefix": prefix }), &text)
        }
        Tenant::Unassign { user } => {
            set(config, &user, None)?;
            say(is_json, json!({ "unassigned": user }), &format!("user {user} has no tenant any more"))
        }
        Tenant::List => {
            let tenants = on(config, async |client| client.list_tenants().await)?;
            list(&tenants, is_json)
        }
    }
}

fn set(config: &Config, user: &str, tenant: Option<TenantName>) -> Result {
    let user = UserName::parse(user)?;
    on(config, async |client| client.set_tenant(user, tenant).await)
}

fn list(tenants: &[(UserName, TenantName)], is_json: bool) -> Result {
    let mut out = std::io::stdout();
    if is_json {
        let row = |(user, tenant): &(UserName, TenantName)| {
            let prefix = tenant.prefix();
            json!({ "user": user.as_str(), "tenant": tenant.as_str(), "prefix": prefix })
        };
        return Ok(writeln!(out, "{}", Value::Array(tenants.iter().map(row).collect()))?);
    }
    if tenants.is_empty() {
        return Ok(writeln!(out, "no user has a tenant; `thalweg tenant assign TENANT USER` assigns one")?);
    }
    let mut table = units::table();
    table.set_header(["USER", "TENANT", "NAMES BEGIN WITH"]);
    for (user, tenant) in tenants {
        table.add_row([user.as_str(), tenant.as_str(), tenant.prefix()]);
    }
    Ok(writeln!(out, "{table}")?)
}
