//! `thalweg key`: create, list and delete access keys, with which SQS clients sign requests.

use std::io::{self, Write};

use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use client::security::{AccessKeyId, AccessSecret, Account, UserName};
use client::{AccessKeyInfo, Error, ErrorKind};
use serde_json::{Value, json};
use thalweg::config::Config;

use super::time::format_time;
use super::token::{NEVER, expiry_of};
use super::units;
use super::user::{on, say};
use crate::args::Key;
use crate::output::{Failure, Result, USAGE, remark};

/// Beginning of the names of created keys. Names and secrets have the lengths of Amazon's, 20 and 40 characters.
const PREFIX: &str = "AKTW";
const ID_CHARS: usize = 16;
const SECRET_BYTES: usize = 30;
/// Characters of names, whose number divides 256.
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

pub fn run(config: &Config, command: Key, is_json: bool) -> Result {
    match command {
        Key::Create { user, account, expires, id, secret_file } => {
            let user = UserName::parse(&user)?;
            let account: Option<Account> = account.as_deref().map(str::parse).transpose()?;
            let (id, secret) = match (id, secret_file) {
                (Some(id), Some(path)) => (id.parse()?, read_secret(&path)?),
                _ => new_key()?,
            };
            let expires_ms = expiry_of(&expires)?;
            let (name, sent, owner, home) = (id.clone(), secret.clone(), user.clone(), account.clone());
            on(config, async |client| client.put_access_key(name, sent, owner, home, expires_ms).await)?;
            show(&id, &secret, &user, account.as_ref(), expires_ms, is_json)
        }
        Key::List => {
            let keys = on(config, async |client| client.list_access_keys().await)?;
            list(&keys, is_json)
        }
        Key::Delete { id } => {
            let id: AccessKeyId = id.parse()?;
            on(config, async |client| client.delete_access_key(id.clone()).await)?;
            say(is_json, json!({ "deleted": id.as_str() }), &format!("deleted the access key {id}"))
        }
    }
}

/// Writes a new key as the variables in which Amazon's clients look for it.
fn show(
    id: &AccessKeyId,
    secret: &AccessSecret,
    user: &UserName,
    account: Option<&Account>,
    expires_ms: Option<u64>,
    is_json: bool,
) -> Result {
    let mut out = io::stdout();
    if is_json {
        let shown = json!({
            "id": id.as_str(),
            "secret": secret.reveal(),
            "user": user.as_str(),
            "account": account.map(Account::as_str),
            "expires_ms": expires_ms,
        });
        return Ok(writeln!(out, "{shown}")?);
    }
    writeln!(out, "AWS_ACCESS_KEY_ID={id}\nAWS_SECRET_ACCESS_KEY={}", secret.reveal())?;
    let until = expires_ms.map_or_else(String::new, |at| format!(" until {}", format_time(at as i64)));
    remark(&format!("requests signed with {id} are those of user {user}{until}; the secret is not shown again"));
    Ok(())
}

fn new_key() -> client::Result<(AccessKeyId, AccessSecret)> {
    let mut random = [0; ID_CHARS + SECRET_BYTES];
    rand::fill(&mut random).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
    })?;
    let (name, secret) = random.split_at(ID_CHARS);
    let name: String = name.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
    Ok((format!("{PREFIX}{name}").parse()?, AccessSecret::parse(&BASE64.encode(secret))?))
}

fn read_secret(path: &str) -> Result<AccessSecret> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::new(USAGE, format!("--secret-file {path}: {error}")))?;
    Ok(AccessSecret::parse(text.trim_end())?)
}

fn list(keys: &[AccessKeyInfo], is_json: bool) -> Result {
    let mut out = io::stdout();
    if is_json {
        let row = |key: &AccessKeyInfo| {
            json!({
                "id": key.id.as_str(),
                "user": key.user.as_str(),
                "account": key.account.as_ref().map(Account::as_str),
                "created_ms": key.created_ms,
                "expires_ms": key.expires_ms,
            })
        };
        return Ok(writeln!(out, "{}", Value::Array(keys.iter().map(row).collect()))?);
    }
    if keys.is_empty() {
        return Ok(writeln!(out, "no access keys yet; `thalweg key create USER` creates one")?);
    }
    let mut table = units::table();
    table.set_header(["ACCESS KEY", "USER", "ACCOUNT", "CREATED", "EXPIRES"]);
    for key in keys {
        let account = key.account.as_ref().map_or("default", Account::as_str).to_owned();
        let expires = key.expires_ms.map_or_else(|| NEVER.to_owned(), |at| format_time(at as i64));
        table.add_row([key.id.to_string(), key.user.to_string(), account, format_time(key.created_ms as i64), expires]);
    }
    Ok(writeln!(out, "{table}")?)
}
