//! `thalweg quota`: set, list and delete quotas.

use std::collections::BTreeSet;
use std::io::{self, Write};

use client::security::{QuotaEntity, QuotaKind, QuotaSubject, RoleName, TenantName, UserName, Which};
use client::{Error, QuotaChange};
use serde_json::{Map, Value, json};
use thalweg::config::Config;
use thalweg::config::units::{parse_bytes, show_bytes};

use super::units;
use super::user::{on, say};
use crate::args::{Quota, QuotaOf};
use crate::output::{Failure, Result, USAGE};

pub fn run(config: &Config, command: Quota, is_json: bool) -> Result {
    match command {
        Quota::Set { of, rates } => {
            let entity = entity_of(of)?;
            let rates = rates.iter().map(|text| rate_of(&entity, text)).collect::<Result<Vec<_>>>()?;
            let change = |(kind, value)| QuotaChange { entity: entity.clone(), kind, value: Some(value) };
            let changes = rates.into_iter().map(change).collect();
            on(config, async |client| client.change_quotas(changes).await)?;
            say(is_json, json!({ "set": entity.to_string() }), &format!("set the quotas of {entity}"))
        }
        Quota::List => {
            let quotas = on(config, async |client| client.list_quotas().await)?;
            list(&quotas, is_json)
        }
        Quota::Delete { of, quotas } => {
            let entity = entity_of(of)?;
            let kinds: BTreeSet<QuotaKind> = quotas.iter().map(|name| name.parse()).collect::<client::Result<_>>()?;
            let deleted = on(config, async |client| {
                let all = client.list_quotas().await?;
                let present = all.into_iter().find(|(of, _)| *of == entity).map_or(Vec::new(), |(_, values)| values);
                let wanted = |kind: &QuotaKind| kinds.is_empty() || kinds.contains(kind);
                let gone: Vec<QuotaKind> = present.iter().map(|(kind, _)| *kind).filter(wanted).collect();
                if gone.is_empty() {
                    return Err(Error::not_found(format!("{entity} has no such quota; see thalweg quota list")));
                }
                let change = |kind: &QuotaKind| QuotaChange { entity: entity.clone(), kind: *kind, value: None };
                client.change_quotas(gone.iter().map(change).collect()).await?;
                Ok(gone)
            })?;
            let names: Vec<&str> = deleted.iter().map(|kind| kind.name()).collect();
            let text = format!("deleted {} of {entity}", names.join(", "));
            say(is_json, json!({ "deleted": names, "of": entity.to_string() }), &text)
        }
    }
}

fn entity_of(of: QuotaOf) -> Result<QuotaEntity> {
    let QuotaOf { user, each_user, role, tenant, client, each_client, address, each_address } = of;
    let subject = match (user, role, tenant) {
        (Some(user), ..) => Some(QuotaSubject::User(UserName::parse(&user)?)),
        (_, Some(role), _) => Some(QuotaSubject::Role(RoleName::parse(&role)?)),
        (.., Some(tenant)) => Some(QuotaSubject::Tenant(TenantName::parse(&tenant)?)),
        (None, None, None) => each_user.then_some(QuotaSubject::EachUser),
    };
    let client = client.map(|id| Which::One(id.into_boxed_str())).or(each_client.then_some(Which::Default));
    let address = match address {
        Some(text) => {
            let wrong = |error| Failure::new(USAGE, format!("--address {text}: {error}; write an IP address"));
            Some(Which::One(text.parse::<std::net::IpAddr>().map_err(wrong)?.to_canonical()))
        }
        None => each_address.then_some(Which::Default),
    };
    let entity = QuotaEntity { subject, client, address };
    entity.validate()?;
    Ok(entity)
}

/// Parses `bytes_in=10M` or `topics=100`.
fn rate_of(entity: &QuotaEntity, text: &str) -> Result<(QuotaKind, f64)> {
    let wrong = |why: &str| Failure::new(USAGE, format!("'{text}': {why}; write bytes_in=10M, requests=500, ..."));
    let (name, rate) = text.split_once('=').ok_or_else(|| wrong("not a quota and its value"))?;
    let kind: QuotaKind = name.parse()?;
    let rate = if kind.is_of_bytes() {
        parse_bytes(rate).map_err(|why| wrong(&why))? as f64
    } else {
        rate.parse().map_err(|error: std::num::ParseFloatError| wrong(&error.to_string()))?
    };
    entity.validate_value(kind, rate)?;
    Ok((kind, rate))
}

fn shown(kind: QuotaKind, value: f64) -> String {
    if kind.is_of_bytes() { show_bytes(value as u64) } else { value.to_string() }
}

fn list(quotas: &[(QuotaEntity, Vec<(QuotaKind, f64)>)], is_json: bool) -> Result {
    let mut out = io::stdout();
    if is_json {
        let rows: Vec<Value> = quotas.iter().map(|(entity, values)| row(entity, values)).collect();
        return Ok(writeln!(out, "{}", Value::Array(rows))?);
    }
    if quotas.is_empty() {
        return Ok(writeln!(out, "no quotas yet; `thalweg quota set --user NAME bytes_in=10M` sets one")?);
    }
    let mut table = units::table();
    let is_set = |kind: &QuotaKind| quotas.iter().any(|(_, values)| values.iter().any(|(of, _)| of == kind));
    let kinds: Vec<QuotaKind> = QuotaKind::ALL.into_iter().filter(is_set).collect();
    let head = |kind: &QuotaKind| format!("{}{}", kind.name().to_uppercase(), if kind.is_rate() { "/S" } else { "" });
    table.set_header(["CLIENTS".to_owned()].into_iter().chain(kinds.iter().map(head)));
    for (entity, values) in quotas {
        let cell = |kind: &QuotaKind| {
            values.iter().find(|(of, _)| of == kind).map_or_else(String::new, |(_, v)| shown(*kind, *v))
        };
        table.add_row([entity.to_string()].into_iter().chain(kinds.iter().map(cell)));
    }
    Ok(writeln!(out, "{table}")?)
}

/// Returns an entity with its quotas; a part that stands for each is null, and one that is not named is missing.
fn row(entity: &QuotaEntity, values: &[(QuotaKind, f64)]) -> Value {
    let QuotaEntity { subject, client, address } = entity;
    let mut row = Map::new();
    match subject {
        Some(QuotaSubject::User(user)) => drop(row.insert("user".into(), user.as_str().into())),
        Some(QuotaSubject::EachUser) => drop(row.insert("user".into(), Value::Null)),
        Some(QuotaSubject::Role(role)) => drop(row.insert("role".into(), role.as_str().into())),
        Some(QuotaSubject::Tenant(tenant)) => drop(row.insert("tenant".into(), tenant.as_str().into())),
        None => {}
    }
    match client {
        Some(Which::One(client)) => drop(row.insert("client".into(), (**client).into())),
        Some(Which::Default) => drop(row.insert("client".into(), Value::Null)),
        None => {}
    }
    match address {
        Some(Which::One(address)) => drop(row.insert("address".into(), address.to_string().into())),
        Some(Which::Default) => drop(row.insert("address".into(), Value::Null)),
        None => {}
    }
    row.extend(values.iter().map(|(kind, value)| (kind.name().to_owned(), json!(value))));
    Value::Object(row)
}
