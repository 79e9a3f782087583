//! Pages about the connections of clients.

use std::collections::HashMap;

use broker::ClientConnection;
use console::pages::clients::{Clients, Row};
use console::pages::{client, clients};
use console::shell::Page;
use engine::ErrorKind;

use super::super::connections::number_of;
use super::super::errors::Result;
use super::{LIST_MAX, Visit, history};

pub(super) async fn list(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.get("after")?.unwrap_or(0);
    let is_wanted = |of: &ClientConnection| {
        let address = || of.address.is_some_and(|address| address.to_string().contains(text));
        text.is_empty()
            || of.door.key() == text
            || of.user.as_deref().is_some_and(|user| user.contains(text))
            || address()
    };
    let (found, is_last) = visit.http.broker.open_connections().list(after, LIST_MAX, is_wanted);
    let rows = rows(&visit, &found);
    let clients = Clients { rows, query: text.to_owned(), after, is_last };
    history::read(&visit.http, |history| clients::page(history, &clients)).await
}

pub(super) async fn one(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let id = number_of(visit.param(0))?;
    let found = match visit.http.broker.open_connections().get(id) {
        Ok(found) => Some(found),
        Err(error) if error.kind == ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let rows = rows(&visit, found.as_slice());
    Ok(client::page(visit.param(0), rows.first(), visit.peer.connection.entry().id == id))
}

fn rows(visit: &Visit, found: &[ClientConnection]) -> Vec<Row> {
    let counts: HashMap<String, u64> = found.iter().map(|of| (of.id.to_string(), of.requests)).collect();
    let rates = visit.before.lock().advance(counts);
    let row = |of: &ClientConnection| Row {
        id: of.id,
        door: of.door.key(),
        user: of.user.as_deref().map(str::to_owned),
        address: of.address.map(|address| address.to_string()),
        age_ms: of.age_ms,
        requests: of.requests,
        rate: rates.get(&of.id.to_string()).copied(),
    };
    found.iter().map(row).collect()
}
