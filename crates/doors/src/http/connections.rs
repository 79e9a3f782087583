//! Open connections of clients at all doors over HTTP: a list, and closing one.

use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use broker::{Broker, ClientConnection, Door};
use engine::Error;
use net::http::Caller;
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Query};
use super::errors::Result;

pub(super) async fn list(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["door", "user", "after", "max"])?;
    let door = query.text("door").map(Door::of_key).transpose()?;
    let user = query.text("user");
    let is_wanted = |of: &ClientConnection| {
        door.is_none_or(|door| of.door == door) && user.is_none_or(|user| of.user.as_deref() == Some(user))
    };
    let after = query.get("after")?.unwrap_or(0);
    let (found, is_last) = http.broker.open_connections().list(after, query.list_count()?, is_wanted);
    let connections: Vec<Value> = found.iter().map(|of| shown(&http.broker, of)).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "connections": connections, "is_last": is_last })))
}

fn shown(broker: &Broker, of: &ClientConnection) -> Value {
    json!({
        "connection": of.id,
        "door": of.door.key(),
        "user": of.user.as_deref(),
        "address": of.address.map(|address| address.to_string()),
        "since_ms": broker.now_ms().saturating_sub(of.age_ms),
        "requests": of.requests,
    })
}

/// Parses the number of a connection.
pub(super) fn number_of(text: &str) -> Result<u64> {
    let number = text.parse();
    Ok(number.map_err(|error| Error::invalid(format!("'{text}' is not the number of a connection: {error}")))?)
}

pub(super) async fn describe(
    State(http): State<Arc<Http>>,
    Path(connection): Path<String>,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let found = http.broker.open_connections().get(number_of(&connection)?)?;
    Ok(codec::json(StatusCode::OK, &shown(&http.broker, &found)))
}

pub(super) async fn disconnect(
    State(http): State<Arc<Http>>,
    Extension(caller): Extension<Caller>,
    Path(connection): Path<String>,
    uri: Uri,
) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    let id = number_of(&connection)?;
    if caller.connection.entry().id == id {
        let message = format!("connection {id} is that of this request: close it at the client, or from another one");
        return Err(Error::invalid(message).into());
    }
    http.broker.disconnect(id)?;
    Ok(StatusCode::NO_CONTENT)
}
