//! `thalweg login` and `thalweg logout`: a login that the commands of a context use.

use std::io::{self, BufRead, IsTerminal, Write};

use client::security::TokenText;
use client::{Addresses, Client, ClientSettings, ErrorKind};
use serde_json::json;
use thalweg::config::contexts::{Chosen, Context, Contexts, LoginSecret, StoredLogin};
use thalweg::config::{Config, ContextUse};
use zeroize::Zeroizing;

use super::context::{chosen, no_context};
use super::time::format_time;
use super::token::{expiry_of, new_token};
use super::user::{pipe_password, say, type_password};
use crate::args::{Global, Login, Logout};
use crate::output::{FAILED, Failure, Result, USAGE, note};
use crate::{block_on, load};

pub fn log_in(global: &Global, args: &Login) -> Result {
    let (config, context) = config_of(global)?;
    let expires_ms = expiry_of(&args.expires)?.ok_or_else(|| {
        Failure::new(USAGE, "--expires never: the token of a login expires; write 12h, 30d, .., up to 90d")
    })?;
    let user = match args.user.as_deref().or_else(|| context.user()) {
        Some(user) => user.to_owned(),
        None => type_user()?,
    };
    let password = match args.password_stdin {
        true => pipe_password()?,
        false if io::stdin().is_terminal() => type_password(&user)?,
        false => {
            let message = format!("the password of user {user} is missing: pass --password-stdin to read it here");
            return Err(Failure::new(USAGE, message));
        }
    };
    let login = client::Login::new(&user, password.as_str())?;
    let stored = block_on(async {
        let client = connect(&config, login).await?;
        let stored = if args.store_password {
            store(&context, user.clone(), LoginSecret::Password(password)).map(|()| None)
        } else {
            store_token(&client, &config, &context, &user, expires_ms).await.map(|()| Some(expires_ms))
        };
        if stored.is_ok() {
            end_previous(&client, &context).await;
        }
        client.close().await;
        stored
    })?;
    let name = &context.name;
    let until = match stored {
        Some(expires_ms) => format!("until {}", format_time(expires_ms as i64)),
        None => format!("with the password in {}", Contexts::of_user()?.path(name).display()),
    };
    let json = json!({ "context": name.as_str(), "user": user, "expires_ms": stored });
    say(global.json, json, &format!("context {name} logs in as {user} {until}"))
}

pub fn log_out(global: &Global, args: &Logout) -> Result {
    let (config, context) = config_of(global)?;
    let name = context.name.clone();
    let Some(StoredLogin { user, secret }) = &context.login else {
        return Err(Failure::new(
            FAILED,
            format!("context {name} is not logged in: thalweg login stores no other login"),
        ));
    };
    if let LoginSecret::Token(token, _) = secret
        && let Err(error) = delete(&config, token)
    {
        if !args.force {
            let message = format!("the token is still valid at the broker: {error}; --force forgets it here anyway");
            return Err(Failure::new(error.code, message));
        }
        note(&format!("the token stays valid at the broker until it expires: {error}"));
    }
    let text = format!("user {user} is logged out of context {name}");
    let json = json!({ "context": name.as_str(), "user": user });
    Contexts::of_user()?.put(&context.with_login(None))?;
    say(global.json, json, &text)
}

/// Returns the configuration in the context of a login, and that context.
fn config_of(global: &Global) -> Result<(Config, Context)> {
    let Chosen { context, .. } = chosen(global)?.ok_or_else(no_context)?;
    let config = load(global, Vec::new())?;
    if let ContextUse::Unused { name, server } = config.context() {
        let message = format!(
            "context {name} is for the broker at {}, and {server} names another: remove it, or name another context",
            context.server()
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok((config, context))
}

async fn connect(config: &Config, login: client::Login) -> client::Result<Client> {
    let settings = ClientSettings { login: Some(login), ..config.client() };
    Client::connect_with(Addresses::parse(config.server_address())?, settings).await
}

/// Creates a token at the broker and stores it. A token that cannot be used or stored is deleted again.
async fn store_token(client: &Client, config: &Config, context: &Context, user: &str, expires_ms: u64) -> Result {
    let token = new_token()?;
    let created = client.put_own_token(token.id, token.hash(), expires_ms).await;
    created.map_err(|error| no_token(user, &error))?;
    let text = Zeroizing::new(token.reveal());
    let stored = match log_in_with(config, &text).await {
        Ok(()) => store(context, user.to_owned(), LoginSecret::Token(text, expires_ms)),
        Err(error) => {
            let message = format!("no client can log in with a token here: {error}; or pass --store-password");
            Err(Failure::new(FAILED, message))
        }
    };
    if stored.is_err() {
        client.delete_token(token.id).await?;
    }
    stored
}

/// Checks that clients can log in with a token: without TLS they do not send one to another machine.
async fn log_in_with(config: &Config, token: &str) -> client::Result<()> {
    connect(config, client::Login::token(token)?).await?.close().await;
    Ok(())
}

/// Returns the failure of a login whose password is right.
fn no_token(user: &str, error: &client::Error) -> Failure {
    let advice = match error.kind {
        ErrorKind::Invalid => String::new(),
        _ => format!(
            "; an administrator can create a token, for thalweg context add .. --token-file: thalweg token create \
             {user}; or store the password: thalweg login --store-password"
        ),
    };
    let code = if error.kind == ErrorKind::Invalid { USAGE } else { FAILED };
    Failure::new(code, format!("the password of {user} is right, but the broker created no token: {error}{advice}"))
}

fn store(context: &Context, user: String, secret: LoginSecret) -> Result {
    Ok(Contexts::of_user()?.put(&context.with_login(Some(StoredLogin { user, secret })))?)
}

/// Deletes the token of the previous login of a context, which has been replaced.
async fn end_previous(client: &Client, context: &Context) {
    let Some(StoredLogin { secret: LoginSecret::Token(token, _), .. }) = &context.login else { return };
    let Some(token) = TokenText::parse(token) else { return };
    match client.delete_token(token.id).await {
        Ok(()) => {}
        Err(error) if error.kind == ErrorKind::NotFound => {}
        Err(error) => note(&format!("the previous token {} of this context was not deleted: {error}", token.id)),
    }
}

/// Deletes a token at the broker, with a login of that token. One that is no longer valid needs no deletion.
fn delete(config: &Config, token: &str) -> Result {
    let Some(id) = TokenText::parse(token).map(|token| token.id) else { return Ok(()) };
    block_on(async {
        let client = match connect(config, client::Login::token(token)?).await {
            Ok(client) => client,
            Err(error) if error.kind == ErrorKind::Denied => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let deleted = client.delete_token(id).await;
        client.close().await;
        match deleted {
            Err(error) if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied) => Err(error.into()),
            _ => Ok(()),
        }
    })
}

fn type_user() -> Result<String> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "the user is missing: pass --user NAME"));
    }
    let mut out = io::stderr();
    write!(out, "user: ")?;
    out.flush()?;
    let mut user = String::new();
    io::stdin().lock().read_line(&mut user)?;
    Ok(user.trim().to_owned())
}
