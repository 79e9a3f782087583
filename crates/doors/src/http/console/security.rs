//! Pages about users, tokens, access control entries and the audit.

use broker::{ClientConnection, UserSummary};
use console::pages;
use console::pages::audit::{Audit, Record};
use console::pages::security::acls::{Acl, Words, list as acls_page, one as acl_page};
use console::pages::security::tokens::{Token, list as tokens_page, one as token_page};
use console::pages::security::users::{User, list as users_page, one as user_page};
use console::pages::security::{Listed, Rules};
use console::shell::Page;
use engine::security::{
    AclFilter, Operation, PatternKind, Principal, ResourceKind, RoleName, Token as KnownToken, TokenId, UserName,
};
use engine::{Error, ErrorKind, Offset};
use serde_json::Value;

use super::super::audit::{Found, Wanted, newest};
use super::super::codec::Query;
use super::super::errors::Result;
use super::super::security::{acl_before_page, acl_text, matching_of};
use super::{LIST_MAX, Visit};

fn rules(visit: &Visit) -> Rules {
    let is_authorizing = visit.http.broker.security.is_authorizing();
    Rules { is_login_required: visit.http.is_login_required, is_authorizing }
}

fn texts(roles: &[RoleName]) -> Vec<String> {
    roles.iter().map(|role| role.as_str().to_owned()).collect()
}

/// Returns a page of a list, whose next page begins after `key` of its last item.
fn listed<I, T>(
    query: &Query,
    (found, is_last): (Vec<I>, bool),
    key: impl Fn(&I) -> String,
    row: impl Fn(I) -> T,
) -> Listed<T> {
    Listed {
        next: found.last().filter(|_| !is_last).map(key),
        rows: found.into_iter().map(row).collect(),
        query: query.text("q").unwrap_or_default().to_owned(),
        after: query.text("after").unwrap_or_default().to_owned(),
    }
}

fn user_of(user: UserSummary) -> User {
    let UserSummary { name, known, is_configured, is_super } = user;
    User {
        may_log_in: name.check_not_reserved().is_ok(),
        has_credential: known.has_credential(),
        name: name.as_str().to_owned(),
        mechanisms: known.mechanisms.iter().map(|mechanism| mechanism.name().to_owned()).collect(),
        tokens: known.tokens,
        access_keys: known.access_keys,
        roles: texts(&known.roles),
        has_entries: known.has_entries,
        tenant: known.tenant.map(|tenant| tenant.as_str().to_owned()),
        is_super,
        is_configured,
    }
}

pub(super) async fn users(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let found = visit.http.broker.security.known_users(after, LIST_MAX, |name| name.contains(text)).await?;
    let list = listed(&query, found, |user| user.name.as_str().to_owned(), user_of);
    Ok(users_page(rules(&visit), &list))
}

pub(super) async fn user(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let broker = &visit.http.broker;
    let name = UserName::parse(visit.param(0))?;
    let user = broker.security.known_user(&name).await?;
    // The broker has nothing of a user whom a certificate or a token of an issuer names, until it has a role.
    let is_connected = || {
        let is_of_user = |of: &ClientConnection| of.user.as_deref() == Some(name.as_str());
        !broker.open_connections().list(0, 1, is_of_user).0.is_empty()
    };
    if !user.is_known() && !is_connected() {
        return Err(Error::not_found(format!("there is no user {name}, and none is connected")).into());
    }
    Ok(user_page(&user_of(user)))
}

fn token_of((id, token): (TokenId, KnownToken)) -> Token {
    Token {
        id: id.to_string(),
        user: token.user.as_str().to_owned(),
        roles: texts(&token.roles),
        created_ms: token.created_ms,
        expires_ms: token.expires_ms,
    }
}

pub(super) async fn tokens(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after: Option<TokenId> = query.get("after")?;
    let is_meant = |id: &TokenId, token: &KnownToken| {
        text.is_empty() || token.user.as_str().contains(text) || id.to_string().starts_with(text)
    };
    let security = &visit.http.broker.security;
    let found = security.tokens_after(visit.identity(), after.as_ref(), LIST_MAX, is_meant).await?;
    let list = listed(&query, found, |(id, _)| id.to_string(), token_of);
    Ok(tokens_page(rules(&visit), &list))
}

pub(super) async fn token(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let id: TokenId = visit.param(0).parse()?;
    let token = visit.http.broker.security.token(visit.identity(), &id).await?;
    Ok(token_page(&token_of((id, token))))
}

fn acl_of(acl: engine::security::Acl) -> Acl {
    Acl {
        principal: acl.principal.to_string(),
        is_allowed: acl.is_allowed,
        operation: acl.operation.name().to_owned(),
        kind: acl.pattern.kind.name().to_owned(),
        matching: acl.pattern.matching.name().to_owned(),
        name: acl.pattern.name,
        host: acl.host,
    }
}

pub(super) async fn acls(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = acl_before_page(&query)?;
    let is_meant = |acl: &engine::security::Acl| text.is_empty() || acl.to_string().contains(text);
    let security = &visit.http.broker.security;
    let found = security.acls_after(&AclFilter::default(), after.as_ref(), LIST_MAX, is_meant).await?;
    let list = listed(&query, found, acl_text, acl_of);
    let words = Words {
        operations: Operation::ALL.iter().map(|operation| operation.name()).collect(),
        kinds: ResourceKind::ALL.iter().map(|kind| kind.name()).collect(),
        matchings: PatternKind::ALL.iter().map(|kind| kind.name()).collect(),
    };
    Ok(acls_page(rules(&visit), &words, &list))
}

pub(super) async fn acl(visit: Visit) -> Result<Page> {
    let query = visit.query(&["principal", "operation", "kind", "name", "matching", "host", "is_allowed"])?;
    let matching = matching_of(query.text("matching"))?;
    let filter = AclFilter {
        principal: query.text("principal").map(Principal::parse).transpose()?,
        operation: query.get("operation")?,
        kind: query.get("kind")?,
        name: query.text("name").map(str::to_owned),
        host: query.text("host").map(str::to_owned),
        is_allowed: query.get("is_allowed")?,
        ..AclFilter::default()
    };
    let found = visit.http.broker.security.acls(&filter).await?;
    let found = found.into_iter().find(|acl| acl.pattern.matching == matching).map(acl_of);
    Ok(acl_page(found.as_ref()))
}

pub(super) async fn audit(visit: Visit) -> Result<Page> {
    let query = visit.query(&["user", "q", "before"])?;
    let given = |name| query.text(name).filter(|text| !text.is_empty());
    let before: Option<Offset> = query.get("before")?;
    let wanted = Wanted { user: given("user"), text: given("q"), before, ..Wanted::default() };
    let found = match newest(&visit.http.broker, visit.peer.address, &wanted, LIST_MAX).await {
        Ok(found) => found,
        Err(failure) if failure.error.kind == ErrorKind::NotFound => {
            return Ok(pages::audit::page(&Err(failure.error.message)));
        }
        Err(failure) => return Err(failure),
    };
    let Found { records, next } = found;
    Ok(pages::audit::page(&Ok(Audit {
        records: records.iter().map(|(_, record)| record_of(record)).collect(),
        user: wanted.user.unwrap_or_default().to_owned(),
        text: wanted.text.unwrap_or_default().to_owned(),
        is_first: before.is_none(),
        next,
    })))
}

fn record_of(record: &Value) -> Record {
    let text = |field: &str| record[field].as_str().unwrap_or("–").to_owned();
    let number = |field: &str| record[field].as_u64().unwrap_or_default();
    Record {
        time_ms: record["time_ms"].as_i64().unwrap_or_default(),
        outcome: text("outcome"),
        user: text("user"),
        address: text("address"),
        door: text("door"),
        action: text("action"),
        name: text("name"),
        error: record["error"].as_str().map(str::to_owned),
        lost: number("lost_before"),
        unrecorded: number("refusals_before"),
    }
}
