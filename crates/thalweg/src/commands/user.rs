//! `thalweg user`: add, list and delete users. Passwords do not leave this process: the broker gets only the values
//! with which it can verify them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Read, Write};

use aws_lc_rs::rand;
use client::security::{Credential, Mechanism, TenantName, UserName};
use client::{Error, ErrorKind, UserInfo};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use serde_json::{Value, json};
use thalweg::config::Config;
use zeroize::{Zeroize, Zeroizing};

use super::{connect, units};
use crate::args::User;
use crate::block_on;
use crate::output::{FAILED, Failure, Result, USAGE};

const SALT_BYTES: usize = 16;
/// Room for a password, so that usual ones are not copied while they grow.
const PASSWORD_BYTES: usize = 1024;
/// Maximum length of a line with a password.
const PASSWORD_BYTES_MAX: u64 = 64 << 10;

pub fn run(config: &Config, command: User, is_json: bool) -> Result {
    match command {
        User::Add { user, mechanism, iterations } => {
            let name = UserName::parse(&user)?;
            let password = read_password(&user)?;
            let mechanisms = mechanism.map_or(Mechanism::ALL.to_vec(), |one| vec![one.get()]);
            let credential = |mechanism| Credential::of_password(mechanism, &password, salt()?, iterations);
            let credentials = mechanisms.into_iter().map(credential).collect::<client::Result<_>>()?;
            on(config, async |client| client.put_user(name, credentials).await)?;
            say(is_json, json!({ "user": user }), &format!("password set for user {user}"))
        }
        User::List => {
            let (users, tenants) = on(config, async |client| {
                let tenants = match client.list_tenants().await {
                    // A broker of an earlier version has none.
                    Err(error) if matches!(error.kind, ErrorKind::Malformed | ErrorKind::Unsupported) => Vec::new(),
                    tenants => tenants?,
                };
                Ok((client.list_users().await?, tenants.into_iter().collect()))
            })?;
            list(&users, &tenants, is_json)
        }
        User::Delete { user, mechanism } => {
            let name = UserName::parse(&user)?;
            let what = if mechanism.is_some() { "the password" } else { "the passwords, tokens and access keys" };
            let mechanisms = mechanism.map(|one| one.get()).into_iter().collect();
            on(config, async |client| client.delete_user(name, mechanisms).await)?;
            say(
                is_json,
                json!({ "deleted": user }),
                &format!("deleted {what} of user {user}; entries and roles of that name stay"),
            )
        }
    }
}

pub(super) fn on<T>(config: &Config, work: impl AsyncFnOnce(&client::Client) -> client::Result<T>) -> Result<T> {
    block_on(async {
        let client = connect(config).await?;
        let outcome = work(&client).await;
        client.close().await;
        Ok(outcome?)
    })
}

pub(super) fn say(is_json: bool, json: Value, text: &str) -> Result {
    let mut out = io::stdout();
    if is_json {
        writeln!(out, "{json}")?
    } else {
        writeln!(out, "{text}")?
    }
    Ok(())
}

fn salt() -> client::Result<Vec<u8>> {
    let mut salt = vec![0; SALT_BYTES];
    rand::fill(&mut salt).map_err(|error| {
        Error::new(client::ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(salt)
}

fn list(users: &[UserInfo], tenants: &BTreeMap<UserName, TenantName>, is_json: bool) -> Result {
    let mut out = io::stdout();
    let mechanisms = |user: &UserInfo| -> Vec<String> {
        user.mechanisms.iter().map(|(mechanism, _)| mechanism.name().to_owned()).collect()
    };
    let tenant = |user: &UserInfo| tenants.get(&user.name).map(TenantName::as_str);
    if is_json {
        let of = |user: &UserInfo| {
            json!({
                "user": user.name.as_str(),
                "mechanisms": mechanisms(user),
                "is_configured": user.is_configured,
                "is_super": user.is_super,
                "tenant": tenant(user),
            })
        };
        return Ok(writeln!(out, "{}", Value::Array(users.iter().map(of).collect()))?);
    }
    if users.is_empty() {
        return Ok(writeln!(out, "no users yet; `thalweg user add NAME` adds one")?);
    }
    let mut table = units::table();
    table.set_header(["USER", "MECHANISMS", "FROM", "MAY", "TENANT"]);
    for user in users {
        let from = if user.is_configured { "the configuration" } else { "thalweg user" };
        let may = if user.is_super { "everything" } else { "what acl allows" };
        let tenant = tenant(user).unwrap_or_default();
        table.add_row([user.name.as_str(), &mechanisms(user).join(" "), from, may, tenant]);
    }
    Ok(writeln!(out, "{table}")?)
}

/// Reads the first line of the standard input. On a terminal the input is not shown, so it is typed twice.
fn read_password(user: &str) -> Result<Zeroizing<String>> {
    if !io::stdin().is_terminal() {
        return pipe_password();
    }
    let password = type_password(user)?;
    if *type_hidden("again: ")? == *password {
        Ok(password)
    } else {
        Err(Failure::new(FAILED, format!("the two passwords differ: the password of {user} was not changed")))
    }
}

/// Reads the first line of the standard input, which is no terminal.
pub(super) fn pipe_password() -> Result<Zeroizing<String>> {
    let mut password = Zeroizing::new(String::with_capacity(PASSWORD_BYTES));
    let mut input = io::stdin().lock().take(PASSWORD_BYTES_MAX);
    input.read_line(&mut password)?;
    let length = password.trim_end_matches(['\n', '\r']).len();
    password.truncate(length);
    checked(password)
}

fn checked(password: Zeroizing<String>) -> Result<Zeroizing<String>> {
    if password.is_empty() {
        Err(Failure::new(USAGE, "the password is empty; it is the first line of the standard input"))
    } else {
        Ok(password)
    }
}

/// Asks for a password on the terminal. What is typed is not shown.
pub(super) fn type_password(user: &str) -> Result<Zeroizing<String>> {
    type_hidden(&format!("password of {user}: "))
}

fn type_hidden(prompt: &str) -> Result<Zeroizing<String>> {
    // Before this, the terminal echoes the characters that are typed.
    terminal::enable_raw_mode()?;
    let prompt = || write!(io::stderr(), "{prompt}").and_then(|()| io::stderr().flush());
    let typed = prompt().and_then(|()| type_line());
    terminal::disable_raw_mode()?;
    eprintln!();
    checked(typed?.ok_or_else(|| Failure::new(FAILED, "no password was entered"))?)
}

/// Reads a typed line up to its end. Returns `None` if the user cancelled.
fn type_line() -> io::Result<Option<Zeroizing<String>>> {
    let mut line = Zeroizing::new(String::with_capacity(PASSWORD_BYTES));
    loop {
        let Event::Key(key) = event::read()? else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match key.code {
            KeyCode::Enter => return Ok(Some(line)),
            KeyCode::Esc => return Ok(None),
            KeyCode::Char(typed) if key.modifiers.contains(KeyModifiers::CONTROL) => match typed {
                'c' | 'd' => return Ok(None),
                'j' | 'm' => return Ok(Some(line)),
                'u' => line.zeroize(),
                'h' => drop(line.pop()),
                _ => {}
            },
            KeyCode::Char(typed) => line.push(typed),
            KeyCode::Backspace => drop(line.pop()),
            _ => {}
        }
    }
}
