//! `thalweg token`: create, list and delete tokens. The broker gets only the hash of a token.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;
use client::security::{RoleName, TokenId, TokenText, UserName};
use client::{Error, ErrorKind, TokenInfo};
use serde_json::{Value, json};
use thalweg::config::Config;
use thalweg::config::units::parse_duration;
use zeroize::Zeroizing;

use super::time::format_time;
use super::units;
use super::user::{on, say};
use crate::args::Token;
use crate::output::{Failure, Result, USAGE, remark};

/// Value of an option for a token or an access key that does not expire.
pub(super) const NEVER: &str = "never";

pub fn run(config: &Config, command: Token, is_json: bool) -> Result {
    match command {
        Token::Create { user, role, expires } => create(config, &user, &role, &expires, is_json),
        Token::List => {
            let tokens = on(config, async |client| client.list_tokens().await)?;
            list(&tokens, is_json)
        }
        Token::Delete { id } => {
            let id: TokenId = id.parse()?;
            on(config, async |client| client.delete_token(id).await)?;
            say(is_json, json!({ "deleted": id.to_string() }), &format!("deleted the token {id}"))
        }
    }
}

fn create(config: &Config, user: &str, roles: &[String], expires: &str, is_json: bool) -> Result {
    let user = UserName::parse(user)?;
    let roles: Vec<RoleName> = roles.iter().map(|role| RoleName::parse(role)).collect::<client::Result<_>>()?;
    let expires_ms = expiry_of(expires)?;
    let token = new_token()?;
    let (id, hash, owner) = (token.id, token.hash(), user.clone());
    on(config, async |client| client.put_token(id, hash, owner, roles, expires_ms).await)?;
    let mut out = io::stdout();
    if is_json {
        let shown =
            json!({ "id": id.to_string(), "token": token.reveal(), "user": user.as_str(), "expires_ms": expires_ms });
        return Ok(writeln!(out, "{shown}")?);
    }
    writeln!(out, "{}", token.reveal())?;
    let until = expires_ms.map_or_else(String::new, |at| format!(" until {}", format_time(at as i64)));
    remark(&format!("token {id} logs in as {user}{until}; it is not shown again"));
    Ok(())
}

/// Makes a token. It is unknown to the broker until its hash is sent there.
pub(super) fn new_token() -> client::Result<TokenText> {
    let mut random = Zeroizing::new([0; TokenText::RANDOM_BYTES]);
    rand::fill(&mut *random).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(TokenText::of_random(&random))
}

/// Returns the time in ms since 1970 at which a token or an access key expires that is created now.
pub(super) fn expiry_of(text: &str) -> Result<Option<u64>> {
    if text == NEVER {
        return Ok(None);
    }
    let lifetime = parse_duration(text).filter(|lifetime| !lifetime.is_zero()).ok_or_else(|| {
        Failure::new(USAGE, format!("--expires {text}: not a duration; write 1h, 30d, ... or {NEVER}"))
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Some(u64::try_from(now.saturating_add(lifetime).as_millis()).unwrap_or(u64::MAX)))
}

fn list(tokens: &[TokenInfo], is_json: bool) -> Result {
    let mut out = io::stdout();
    let roles = |token: &TokenInfo| token.roles.iter().map(ToString::to_string).collect::<Vec<_>>();
    if is_json {
        let row = |token: &TokenInfo| {
            json!({
                "id": token.id.to_string(),
                "user": token.user.as_str(),
                "roles": roles(token),
                "created_ms": token.created_ms,
                "expires_ms": token.expires_ms,
            })
        };
        return Ok(writeln!(out, "{}", Value::Array(tokens.iter().map(row).collect()))?);
    }
    if tokens.is_empty() {
        let advice = "`thalweg token create USER` creates one";
        return Ok(writeln!(out, "{}", units::nothing("tokens", advice))?);
    }
    let mut table = units::table();
    table.set_header(["ID", "USER", "ROLES", "CREATED", "EXPIRES"]);
    for token in tokens {
        let expires = token.expires_ms.map_or_else(|| NEVER.to_owned(), |at| format_time(at as i64));
        let created = format_time(token.created_ms as i64);
        table.add_row([token.id.to_string(), token.user.to_string(), roles(token).join(", "), created, expires]);
    }
    Ok(writeln!(out, "{table}")?)
}
