//! Users, roles, tokens and access control entries over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use broker::{Identity, UserSummary};
use engine::security::{
    Acl, AclFilter, Operation, Password, Pattern, PatternKind, Principal, Resource, ResourceKind, RoleName, TenantName,
    Token, TokenId, TokenText, UserName,
};
use engine::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Http;
use super::codec::{self, Query};
use super::errors::{Failure, Result};

/// Maximum number of entries that one request adds or deletes.
const ACLS_MAX: usize = 1000;
/// Host of an entry that applies to clients anywhere.
const ANY_HOST: &str = "*";
/// Lifetime of a token by default, as in `thalweg token create`.
const TOKEN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

fn names(roles: &[RoleName]) -> Vec<&str> {
    roles.iter().map(RoleName::as_str).collect()
}

pub(super) async fn list_users(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let after = query.text("after").unwrap_or_default();
    let (users, is_last) = http.broker.security.known_users(after, query.list_count()?, |_| true).await?;
    let shown = |user: &UserSummary| {
        json!({
            "user": user.name.as_str(),
            "mechanisms": user.known.mechanisms.iter().map(|mechanism| mechanism.name()).collect::<Vec<_>>(),
            "tokens": user.known.tokens,
            "access_keys": user.known.access_keys,
            "roles": names(&user.known.roles),
            "has_entries": user.known.has_entries,
            "tenant": user.known.tenant.as_ref().map(TenantName::as_str),
            "is_configured": user.is_configured,
            "is_super": user.is_super,
        })
    };
    let users: Vec<Value> = users.iter().map(shown).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "users": users, "is_last": is_last })))
}

/// Returns `true` if a request creates a user, and must not change one: `If-None-Match: *` (RFC 9110, 13.1.2).
fn is_creation(headers: &HeaderMap) -> Result<bool> {
    let mut conditions = headers.get_all(IF_NONE_MATCH).iter();
    match (headers.contains_key(IF_MATCH), conditions.next(), conditions.next()) {
        (false, None, _) => Ok(false),
        (false, Some(condition), None) if condition.as_bytes().trim_ascii() == b"*" => Ok(true),
        _ => Err(Error::invalid("a user has no versions: the only condition is if-none-match: *").into()),
    }
}

/// Password of a user.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserIn {
    password: String,
}

pub(super) async fn put_user(
    State(http): State<Arc<Http>>,
    Path(user): Path<String>,
    request: Request,
) -> Result<StatusCode> {
    Query::parse(request.uri(), &[])?;
    let is_creation = is_creation(request.headers())?;
    let UserIn { password } = codec::whole_json(&http.bodies, request).await?;
    let password = Password::from(password);
    if password.reveal().is_empty() {
        return Err(Error::invalid("password: it must not be empty").into());
    }
    let (security, user) = (&http.broker.security, UserName::parse(&user)?);
    if !is_creation {
        security.put_password(user, password).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    security.create_user(user, password).await.map_err(|error| match error.kind {
        ErrorKind::AlreadyExists => Failure::with_status(error, StatusCode::PRECONDITION_FAILED),
        _ => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn delete_user(
    State(http): State<Arc<Http>>,
    Path(user): Path<String>,
    uri: Uri,
) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.security.delete_user(UserName::parse(&user)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list_roles(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let after = query.text("after").unwrap_or_default();
    let (members, is_last) = http.broker.security.members_after(after, query.list_count()?).await?;
    let shown = |(user, roles): &(UserName, Vec<RoleName>)| json!({ "user": user.as_str(), "roles": names(roles) });
    let members: Vec<Value> = members.iter().map(shown).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "members": members, "is_last": is_last })))
}

pub(super) async fn add_role(
    State(http): State<Arc<Http>>,
    Path((user, role)): Path<(String, String)>,
    uri: Uri,
) -> Result<StatusCode> {
    set_member(&http, &uri, &user, &role, true).await
}

pub(super) async fn remove_role(
    State(http): State<Arc<Http>>,
    Path((user, role)): Path<(String, String)>,
    uri: Uri,
) -> Result<StatusCode> {
    set_member(&http, &uri, &user, &role, false).await
}

async fn set_member(http: &Http, uri: &Uri, user: &str, role: &str, is_present: bool) -> Result<StatusCode> {
    Query::parse(uri, &[])?;
    http.broker.security.set_member(UserName::parse(user)?, RoleName::parse(role)?, is_present).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list_tokens(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["user", "after", "max"])?;
    let after: Option<TokenId> = query.get("after")?;
    let user = query.text("user");
    let is_wanted = |_: &TokenId, token: &Token| user.is_none_or(|user| token.user.as_str() == user);
    let security = &http.broker.security;
    let (tokens, is_last) = security.tokens_after(&identity, after.as_ref(), query.list_count()?, is_wanted).await?;
    let shown = |(id, token): &(TokenId, Token)| {
        json!({
            "id": id.to_string(),
            "user": token.user.as_str(),
            "roles": names(&token.roles),
            "created_ms": token.created_ms,
            "expires_ms": token.expires_ms,
        })
    };
    let tokens: Vec<Value> = tokens.iter().map(shown).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "tokens": tokens, "is_last": is_last })))
}

/// New token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenIn {
    user: String,
    #[serde(default)]
    roles: Vec<String>,
    /// Time for which it is valid; 0 for a token that does not expire.
    lifetime_ms: Option<u64>,
}

pub(super) async fn create_token(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let TokenIn { user, roles, lifetime_ms } = codec::whole_json(&http.bodies, request).await?;
    let security = &http.broker.security;
    let user = UserName::parse(&user)?;
    let roles: Vec<RoleName> = roles.iter().map(|role| RoleName::parse(role)).collect::<engine::Result<_>>()?;
    let lifetime_ms = lifetime_ms.unwrap_or(TOKEN_LIFETIME.as_millis() as u64);
    let expires_ms = (lifetime_ms > 0).then(|| http.broker.now_ms().saturating_add(lifetime_ms));
    let mut random = [0; TokenText::RANDOM_BYTES];
    random.copy_from_slice(&security.random_bytes(TokenText::RANDOM_BYTES)?);
    let text = TokenText::of_random(&random);
    let token = Token { user: user.clone(), roles, created_ms: 0, expires_ms, hash: text.hash(), is_own: false };
    security.put_token(text.id, token).await?;
    let created =
        json!({ "id": text.id.to_string(), "token": text.reveal(), "user": user.as_str(), "expires_ms": expires_ms });
    Ok(codec::json(StatusCode::CREATED, &created))
}

pub(super) async fn delete_token(
    State(http): State<Arc<Http>>,
    Path(token): Path<String>,
    uri: Uri,
) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.security.delete_token(token.parse()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Access control entry in JSON.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct AclJson {
    /// `User:NAME`, `Role:NAME`, or `User:*` for everyone.
    principal: String,
    operation: String,
    kind: String,
    /// Name of the resource. The cluster has none.
    #[serde(default)]
    name: Option<String>,
    /// Interpretation of the name: `literal`, `prefix` or `glob`.
    #[serde(default)]
    matching: Option<String>,
    #[serde(default)]
    host: Option<String>,
    #[serde(default = "allows")]
    is_allowed: bool,
}

fn allows() -> bool {
    true
}

impl AclJson {
    fn of(acl: &Acl) -> Self {
        Self {
            principal: acl.principal.to_string(),
            operation: acl.operation.name().to_owned(),
            kind: acl.pattern.kind.name().to_owned(),
            name: Some(acl.pattern.name.clone()),
            matching: Some(acl.pattern.matching.name().to_owned()),
            host: Some(acl.host.clone()),
            is_allowed: acl.is_allowed,
        }
    }

    fn parse(self) -> engine::Result<Acl> {
        let kind: ResourceKind = self.kind.parse()?;
        let name = match self.name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None if kind == ResourceKind::Cluster => Resource::CLUSTER_NAME.to_owned(),
            None => return Err(Error::invalid("name: an entry names a resource; * stands for all of its kind")),
        };
        let acl = Acl {
            pattern: Pattern { kind, name, matching: matching_of(self.matching.as_deref())? },
            principal: Principal::parse(&self.principal)?,
            host: self.host.unwrap_or_else(|| ANY_HOST.to_owned()),
            operation: self.operation.parse::<Operation>()?,
            is_allowed: self.is_allowed,
        };
        acl.validate()?;
        Ok(acl)
    }
}

/// Parses the interpretation of a name; a literal one by default.
pub(super) fn matching_of(text: Option<&str>) -> engine::Result<PatternKind> {
    let Some(text) = text else {
        return Ok(PatternKind::Literal);
    };
    let found = PatternKind::ALL.into_iter().find(|kind| kind.name() == text);
    let known = || PatternKind::ALL.map(PatternKind::name).join(", ");
    found.ok_or_else(|| Error::invalid(format!("matching: '{text}' is none; it is one of {}", known())))
}

/// Entries to add or to delete.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AclsIn {
    acls: Vec<AclJson>,
}

impl AclsIn {
    fn parse(self) -> Result<Vec<Acl>> {
        match self.acls.len() {
            0 => Err(Error::invalid("acls: at least one entry").into()),
            more if more > ACLS_MAX => {
                Err(Error::invalid(format!("acls: {more} entries, more than {ACLS_MAX}: send several requests")).into())
            }
            _ => Ok(self.acls.into_iter().map(AclJson::parse).collect::<engine::Result<_>>()?),
        }
    }
}

/// Returns the text of an entry, after which the next page of a list begins.
pub(super) fn acl_text(acl: &Acl) -> String {
    String::from_utf8(codec::to_json(&AclJson::of(acl))).expect("invariant: JSON is UTF-8")
}

/// Returns the last entry of the page before, which is given as in that page.
pub(super) fn acl_before_page(query: &Query) -> Result<Option<Acl>> {
    let Some(text) = query.text("after") else {
        return Ok(None);
    };
    let last: AclJson = serde_json::from_str(text)
        .map_err(|error| Error::invalid(format!("after: it is not the last entry of a page, as JSON: {error}")))?;
    Ok(Some(last.parse()?))
}

pub(super) async fn list_acls(State(http): State<Arc<Http>>, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["principal", "kind", "name", "after", "max"])?;
    let filter = AclFilter {
        principal: query.text("principal").map(Principal::parse).transpose()?,
        kind: query.get("kind")?,
        name: query.text("name").map(str::to_owned),
        ..AclFilter::default()
    };
    let after = acl_before_page(&query)?;
    let security = &http.broker.security;
    let (acls, is_last) = security.acls_after(&filter, after.as_ref(), query.list_count()?, |_| true).await?;
    let acls: Vec<AclJson> = acls.iter().map(AclJson::of).collect();
    Ok(codec::json(StatusCode::OK, &json!({ "acls": acls, "is_last": is_last })))
}

pub(super) async fn create_acls(State(http): State<Arc<Http>>, request: Request) -> Result<StatusCode> {
    Query::parse(request.uri(), &[])?;
    let wanted: AclsIn = codec::whole_json(&http.bodies, request).await?;
    http.broker.security.create_acls(wanted.parse()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes exactly the entries of the body.
pub(super) async fn delete_acls(State(http): State<Arc<Http>>, request: Request) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let wanted: AclsIn = codec::whole_json(&http.bodies, request).await?;
    let exactly = |acl: Acl| AclFilter {
        principal: Some(acl.principal),
        host: Some(acl.host),
        operation: Some(acl.operation),
        is_allowed: Some(acl.is_allowed),
        ..AclFilter::of_pattern(acl.pattern)
    };
    let filters = wanted.parse()?.into_iter().map(exactly).collect();
    let deleted = http.broker.security.delete_acls(filters, |_| true).await?;
    let deleted: usize = deleted.iter().map(Vec::len).sum();
    Ok(codec::json(StatusCode::OK, &json!({ "deleted": deleted })))
}
