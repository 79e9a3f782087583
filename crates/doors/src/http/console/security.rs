//! Pages about users, tokens, access control entries and the audit.

use broker::UserStatus;
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
use super::super::security::matching_of;
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
    items: impl Iterator<Item = I>,
    key: impl Fn(&I) -> String,
    row: impl Fn(I) -> T,
) -> Listed<T> {
    let mut found: Vec<I> = items.take(LIST_MAX + 1).collect();
    let is_last = found.len() <= LIST_MAX;
    found.truncate(LIST_MAX);
    Listed {
        next: found.last().filter(|_| !is_last).map(key),
        rows: found.into_iter().map(row).collect(),
        query: query.text("q").unwrap_or_default().to_owned(),
        after: query.text("after").unwrap_or_default().to_owned(),
    }
}

fn user_of(user: UserStatus, members: &[(UserName, Vec<RoleName>)]) -> User {
    User {
        roles: members.iter().find(|(name, _)| *name == user.name).map_or_else(Vec::new, |(_, roles)| texts(roles)),
        name: user.name.as_str().to_owned(),
        mechanisms: user.mechanisms.iter().map(|(mechanism, _)| mechanism.name().to_owned()).collect(),
        is_super: user.is_super,
        is_configured: user.is_configured,
    }
}

pub(super) async fn users(visit: Visit) -> Result<Page> {
    let query = visit.query(&["q", "after"])?;
    let text = query.text("q").unwrap_or_default();
    let after = query.text("after").unwrap_or_default();
    let security = &visit.http.broker.security;
    let (users, members) = (security.users().await?, security.members().await?);
    let wanted = users.into_iter().filter(|user| user.name.as_str() > after && user.name.as_str().contains(text));
    let list = listed(&query, wanted, |user| user.name.as_str().to_owned(), |user| user_of(user, &members));
    Ok(users_page(rules(&visit), &list))
}

pub(super) async fn user(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let security = &visit.http.broker.security;
    let (users, members) = (security.users().await?, security.members().await?);
    let name = UserName::parse(visit.param(0))?;
    let found = users.into_iter().find(|user| user.name == name);
    let found = found.ok_or_else(|| Error::not_found(format!("there is no user {name}")))?;
    Ok(user_page(&user_of(found, &members)))
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
    let tokens = visit.http.broker.security.tokens(visit.identity()).await?;
    let is_meant = |(id, token): &(TokenId, KnownToken)| {
        let is_found = text.is_empty() || token.user.as_str().contains(text) || id.to_string().starts_with(text);
        is_found && after.is_none_or(|after| *id > after)
    };
    let list = listed(&query, tokens.into_iter().filter(is_meant), |(id, _)| id.to_string(), token_of);
    Ok(tokens_page(rules(&visit), &list))
}

pub(super) async fn token(visit: Visit) -> Result<Page> {
    visit.query(&[])?;
    let id: TokenId = visit.param(0).parse()?;
    let tokens = visit.http.broker.security.tokens(visit.identity()).await?;
    let found = tokens.into_iter().find(|(of, _)| *of == id);
    Ok(token_page(&token_of(found.ok_or_else(|| Error::not_found(format!("there is no token with the id {id}")))?)))
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
    // The number of entries before the page.
    let after: usize = query.get("after")?.unwrap_or_default();
    let acls = visit.http.broker.security.acls(&AclFilter::default()).await?;
    let is_meant = |acl: &engine::security::Acl| text.is_empty() || acl.to_string().contains(text);
    let wanted = acls.into_iter().filter(is_meant).enumerate().skip(after);
    let list = listed(&query, wanted, |(at, _)| (at + 1).to_string(), |(_, acl)| acl_of(acl));
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
