//! Users, roles and access control lists: storage, changes and checks.
//!
//! With a data directory, they are records of a dedicated topic, which is not in `Broker::topics`: no request can
//! name it, so no client can read it. Without one, they are lost when the broker stops, except for the users of the
//! configuration.

mod access_keys;
mod acls;
mod certificates;
mod copying;
mod expiry;
mod identity;
mod jwt;
mod lists;
mod passwords;
mod quotas;
mod sasl;
mod random;
mod seal;
mod session;
mod session_table;
mod sessions;
mod tenants;
mod tokens;
mod unwelcome;
mod users;

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engine::limits::{SECRET_BYTES_MAX, SECRETS_MAX};
use engine::security::{
    ClientFirst, Credential, Exchange, ITERATIONS_DEFAULT, Mechanism, Operation, Password, Resource, ResourceKind,
    RoleName, SECURITY_TOPIC, SecurityRecord, Tables, TenantName, UserName, Users, wrong_password,
};
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::acting::Acting;
use crate::commit::Commit;
use crate::core::Core;
use crate::holdings::Holdings;
use crate::logins::{LoginSource, Logins};
use crate::metrics::{Counter, Exposition};
use crate::permit::Permit;
use crate::quotas::Buckets;
use crate::restored::Restored;
use crate::state_log::{self, StateLog};
use crate::topic::Topic;
use crate::wakes::Wakes;

pub use access_keys::SigningKey;
use expiry::Expiries;
pub use identity::{CertificateCheck, ClientCertificate, Identity};
use identity::{Certificates, Permissions, Proof};
use jwt::Jwts;
pub use jwt::TOKEN_EXPIRED;
pub use lists::UserSummary;
pub use quotas::QuotaChange;
use random::random;
pub use sasl::{Sasl, SaslStep, unknown_mechanism};
use seal::Seal;
pub use session_table::SessionSecret;
use session_table::Sessions;
pub use unwelcome::Unwelcome;
use unwelcome::UnwelcomeCounts;

/// Users, roles, access control lists and secrets.
const SECURITY: StateLog<SecurityRecord> = StateLog::new();
const ADMIN_TOKEN_BYTES: usize = 32;
const ADMIN_MECHANISM: Mechanism = Mechanism::Sha256;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;
/// Maximum names that a record of the audit lists.
const LISTED_MAX: usize = 5;

/// Description of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserStatus {
    pub name: UserName,
    /// Mechanisms for which the user has a password, with the number of iterations.
    pub mechanisms: Vec<(Mechanism, u32)>,
    pub is_configured: bool,
    pub is_super: bool,
}

/// State of the search for subscriptions that are no longer permitted.
#[derive(Default)]
struct Search {
    is_running: bool,
    /// `true` if permissions have changed since the search began.
    is_wanted: bool,
}

impl Search {
    /// Returns `true` if a search is wanted, which begins now.
    fn begin(&mut self) -> bool {
        self.is_running = std::mem::take(&mut self.is_wanted);
        self.is_running
    }
}

/// Token with which programs of the broker's own user log in as administrators.
struct Administrator {
    token: String,
    /// Table with the administrator alone, whose password is the token.
    users: Users,
}

/// Users and access control lists of a broker.
pub struct Security {
    core: Arc<Core>,
    super_users: BTreeSet<UserName>,
    is_authorizing: bool,
    /// Users from the configuration. They are in the table, and records about them are ignored.
    configured: BTreeSet<UserName>,
    /// Users from the configuration alone.
    of_configuration: Users,
    permissions: Permissions,
    expiries: Arc<Expiries>,
    jwts: Option<Jwts>,
    seal: Seal,
    certificates: Arc<Certificates>,
    search: Mutex<Search>,
    /// Second since 1970 in which a refusal was last logged: at most one line a second is.
    refusal_logged_s: AtomicU64,
    /// Done once the tables have been read from the topic.
    restored: Restored,
    /// Topic of the users and access control lists, once it exists. Locked during each change.
    topic: Arc<tokio::sync::Mutex<Option<Arc<Topic>>>>,
    logins: Logins,
    sessions: Sessions,
    buckets: Buckets,
    holdings: Arc<Holdings>,
    /// Refusals of connections by the quotas of their addresses.
    unwelcome: UnwelcomeCounts,
    /// Once it exists.
    administrator: OnceLock<Administrator>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    authentications: Counter,
    authentication_errors: Counter,
    denied: Counter,
}

impl Security {
    pub(crate) fn new(core: Arc<Core>, topic: Option<Arc<Topic>>) -> Result<Self> {
        topic.iter().try_for_each(|topic| core.hide(topic.clone()))?;
        let settings = &core.settings().security;
        let mut users = Users::new(random(32)?);
        for user in &settings.users {
            for mechanism in Mechanism::ALL {
                let credential = Credential::of_password(
                    mechanism,
                    user.password.reveal(),
                    random(SALT_BYTES)?,
                    ITERATIONS_DEFAULT,
                )?;
                users.put(user.name.clone(), credential);
            }
        }
        Ok(Self {
            super_users: settings.super_users.iter().cloned().collect(),
            is_authorizing: settings.is_authorizing,
            configured: settings.users.iter().map(|user| user.name.clone()).collect(),
            permissions: Permissions::new(
                Tables::new(users.clone()),
                core.tenant_quotas().clone(),
                core.settings().clock,
            ),
            expiries: Arc::default(),
            seal: Seal::default(),
            jwts: settings.issuer.clone().map(Jwts::new),
            certificates: Arc::default(),
            search: Mutex::default(),
            refusal_logged_s: AtomicU64::new(0),
            of_configuration: users,
            restored: Restored::default(),
            topic: Arc::new(tokio::sync::Mutex::new(topic)),
            logins: Logins::new(&random(32)?),
            sessions: Sessions::default(),
            buckets: Buckets::new(),
            holdings: Arc::default(),
            unwelcome: UnwelcomeCounts::default(),
            administrator: OnceLock::new(),
            counts: Counts::default(),
            core,
        })
    }

    /// Applies records to the tables, except those about users from the configuration.
    fn apply(&self, tables: &mut Tables, records: impl IntoIterator<Item = SecurityRecord>) {
        for record in records {
            match &record {
                SecurityRecord::Credential { user, .. } if self.configured.contains(user) => {}
                _ => tables.apply(record),
            }
        }
    }

    fn count<T>(&self, outcome: Result<T>) -> Result<T> {
        let count = match &outcome {
            Ok(_) => &self.counts.authentications,
            Err(_) => &self.counts.authentication_errors,
        };
        count.add(1);
        outcome
    }
}

/// Returns the first of these names, and the number of all others.
fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let others = names.len().saturating_sub(LISTED_MAX);
    let mut list = names.take(LISTED_MAX).collect::<Vec<_>>().join(", ");
    if others > 0 {
        list.push_str(&format!(", and {others} others"));
    }
    list
}

/// Returns the broker's part of the nonce of an exchange.
fn nonce() -> Result<String> {
    Ok(random(NONCE_BYTES)?.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Security {
    /// Reads users and access control lists. Before this, no stored user is known and nothing is allowed by a list.
    pub async fn open(&self) -> Result<()> {
        self.restored.ensure(|| self.read()).await
    }

    /// Forgets users, access control lists and secrets, as a restart does: the next call that changes or lists them, or
    /// logs a user in, reads them again. Until then, connected clients keep their permissions.
    pub(crate) async fn forget(&self) {
        self.restored.forgetting().await.begin();
    }

    async fn read(&self) -> Result<()> {
        let topic = self.topic.lock().await;
        let Some(topic) = &*topic else {
            return Ok(());
        };
        let mut tables = Tables::new(self.of_configuration.clone());
        let each = |record, _| {
            self.apply(&mut tables, [record]);
            Ok(())
        };
        SECURITY.fold_topic(&self.core, topic, each).await?;
        let access_keys = tables.access_keys.len();
        match self.seal.open(&self.core) {
            Ok(false) if access_keys > 0 => {
                tracing::error!(
                    access_keys,
                    "the file seal.key is missing: no access key is valid until it is restored"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(access_keys, %error, "no access key is valid until seal.key is restored"),
        }
        self.permissions.change(|current| *current = tables);
        Ok(())
    }

    /// Logs a user in with a password, or with a token that is sent in its place. A wrong password is counted, logged
    /// and answered after a pause.
    pub async fn log_in(self: &Arc<Self>, user: UserName, password: Password, source: LoginSource) -> Result<Identity> {
        self.open().await?;
        if let Some(outcome) = self.check_token(password.reveal(), Some(&user), source) {
            return self.end_login(source, user.as_str(), outcome).await;
        }
        let credential = self.permissions.read().users.credential_of(&user);
        self.authenticate(&user, credential.clone(), password, source).await?;
        Ok(self.identity_with_password(user, &source.host(), &credential))
    }

    /// Returns the identity of a client that proved its name to a door, with roles that its credential carries. It acts
    /// in the tenant of its user.
    pub fn identity_of(&self, user: UserName, roles: impl Into<Box<[RoleName]>>, host: &str) -> Identity {
        let tenant = self.permissions.read().tenants.of_user(user.as_str()).cloned();
        Identity::new(user, roles, host).within(tenant)
    }

    /// Returns the identity of a client that logged in with a user's password. It may do nothing once that is replaced
    /// or deleted.
    fn identity_with_password(&self, user: UserName, host: &str, credential: &Credential) -> Identity {
        self.identity_of(user, [], host).proved_by(Proof::Password(credential.stored_key().into()))
    }

    async fn authenticate(
        &self,
        user: &UserName,
        credential: Credential,
        password: Password,
        source: LoginSource,
    ) -> Result<()> {
        let security = self;
        let mark = security.logins.mark(user, &credential, password.reveal());
        let outcome = match security.logins.is_right(&mark) {
            Some(true) => Ok(()),
            Some(false) => Err(wrong_password()),
            None => self.check_password(user.clone(), credential, password, source).await.map(drop),
        };
        match &outcome {
            Ok(_) => security.logins.remember(mark, true),
            Err(error) if error.kind == ErrorKind::Denied => security.logins.remember(mark, false),
            Err(_) => {}
        }
        self.end_login(source, user.as_str(), outcome).await
    }

    async fn check_password(
        &self,
        user: UserName,
        credential: Credential,
        password: Password,
        source: LoginSource,
    ) -> Result<UserName> {
        let turn = self.logins.turn(source).await?;
        // The turn belongs to the hashing thread, even if the login no longer waits.
        let fits = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            credential.admit(user, password.reveal())
        });
        let outcome = fits.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a password could not be hashed: {error}")))
        });
        outcome.map(|authenticated| authenticated.0)
    }

    /// Returns the administrator's token, which is random and new with each start of the broker.
    pub fn admin_token(&self) -> Result<&str> {
        if let Some(administrator) = self.administrator.get() {
            return Ok(&administrator.token);
        }
        let token: String = random(ADMIN_TOKEN_BYTES)?.iter().map(|byte| format!("{byte:02x}")).collect();
        let credential = Credential::of_password(ADMIN_MECHANISM, &token, random(SALT_BYTES)?, ITERATIONS_DEFAULT)?;
        let mut users = Users::new(random(32)?);
        users.put(UserName::administrator(), credential);
        Ok(&self.administrator.get_or_init(|| Administrator { token, users }).token)
    }

    /// Returns the identity of a process of the broker's own user, whom the system has named to a door. It is an
    /// administrator.
    pub fn log_in_owner(&self, source: LoginSource) -> Identity {
        self.record_login(source, UserName::administrator().as_str(), None);
        self.counts.authentications.add(1);
        Identity::administrator(&source.host())
    }

    /// Returns the exchange and the response to the first message of a login with the administrator's token. Fails as a
    /// whole if the broker has no token, which is no attack.
    fn begin_administrator(&self, first: &[u8]) -> Result<Result<(Exchange, Vec<u8>)>> {
        let Some(Administrator { users, .. }) = self.administrator.get() else {
            return Err(Error::new(ErrorKind::Denied, "this broker has no administrator's token"));
        };
        let nonce = nonce()?;
        Ok(ClientFirst::parse(first).map(|first| users.challenge(ADMIN_MECHANISM, first, &nonce)))
    }

    /// Counts the outcome of a login at a door. A refused login is logged with its address, and this call delays its
    /// response: longer each time for an address and for a name.
    pub async fn end_login<T>(&self, source: LoginSource, name: &str, outcome: Result<T>) -> Result<T> {
        let security = self;
        match &outcome {
            Ok(_) => security.record_login(source, name, None),
            Err(error) => {
                let (is_logged, pause) = security.logins.refuse(source, name, error);
                if is_logged {
                    security.record_login(source, name, Some(error));
                }
                tokio::time::sleep(pause).await;
            }
        }
        security.count(outcome)
    }

    /// Counts and logs a request that a door refuses because its client has not logged in.
    pub fn missing_login(&self, source: LoginSource) {
        self.logins.miss(source);
    }

    /// Records a login, unless the same client has logged in lately at a door where each request is a login.
    pub fn record_login(&self, source: LoginSource, name: &str, error: Option<&Error>) {
        if !self.core.audit().is_on() || error.is_none() && !self.logins.is_news(source, name) {
            return;
        }
        let user = UserName::parse(name).unwrap_or_else(|_invalid| UserName::anonymous());
        self.core.record_login(Acting { door: source.door, address: source.address, user }, error);
    }

    /// Returns the exchange and the response to the first message of SCRAM.
    pub async fn begin_scram(&self, mechanism: Mechanism, first: &[u8]) -> Result<(Exchange, Vec<u8>)> {
        self.open().await?;
        let nonce = nonce()?;
        let first = ClientFirst::parse(first)?;
        Ok(self.permissions.read().users.challenge(mechanism, first, &nonce))
    }

    /// Returns the user and the last response if the second message of SCRAM is correct.
    pub async fn finish_scram(
        &self,
        exchange: Exchange,
        message: &[u8],
        source: LoginSource,
    ) -> Result<(UserName, Vec<u8>)> {
        let name = exchange.user().clone();
        self.end_login(source, name.as_str(), exchange.finish(message)).await
    }

    /// Returns `true` if the user exists. A door must disconnect an authenticated user that no longer exists.
    pub fn has_user(&self, user: &UserName) -> bool {
        self.permissions.read().users.get(user.as_str()).is_some()
    }

    /// Returns `true` unless the credential with which the client logged in was deleted or has expired. Such a client
    /// may do nothing, and a door disconnects it at its next request.
    pub fn is_valid(&self, identity: &Identity) -> bool {
        self.permissions.is_valid(identity)
    }

    /// Fails unless [`is_valid`](Self::is_valid).
    pub fn check_valid(&self, identity: &Identity) -> Result<()> {
        if self.is_valid(identity) {
            return Ok(());
        }
        let ended = "the credential of this connection was deleted, was revoked or has expired: log in again";
        Err(Error::new(ErrorKind::Denied, ended))
    }

    /// Does work on behalf of a client that may wait, as long as it is permitted. `check` is called when the work
    /// begins to wait, and then at each change of permissions; its error ends the work.
    pub async fn while_permitted<T, E, F: Future<Output = Result<(), E>>>(
        &self,
        check: impl Fn() -> F,
        work: impl Future<Output = T>,
    ) -> Result<T, E> {
        let mut work = pin!(work);
        // Most work does not wait, and needs no notices.
        if let Some(done) = work.as_mut().now_or_never() {
            return Ok(done);
        }
        let mut changes = self.permissions.changes();
        loop {
            check().await?;
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                done = &mut work => return Ok(done),
            }
        }
    }

    /// Returns a number that changes with the permissions of any client. A decision stays valid until it does.
    pub fn generation(&self) -> u64 {
        self.permissions.generation()
    }

    /// Waits until [`Security::generation`] is no longer this number.
    pub async fn changed_since(&self, generation: u64) {
        let mut changes = self.permissions.changes();
        while self.generation() == generation && changes.changed().await.is_ok() {}
    }

    /// Checks that a client may perform an operation on a resource.
    pub fn authorize(&self, identity: &Identity, operation: Operation, resource: &Resource<'_>) -> Result<()> {
        if self.allows(identity, operation, resource) {
            return Ok(());
        }
        let outside = identity.tenant().filter(|tenant| !resource.is_within(tenant));
        if resource.kind == ResourceKind::Cluster {
            return Err(self.denied(identity, format_args!("{} the cluster", operation.name()), outside));
        }
        let name = String::from_utf8_lossy(resource.name);
        Err(self.denied(identity, format_args!("{} {} {name}", operation.name(), resource.kind.name()), outside))
    }

    /// Returns `true` if a client may perform an operation on a resource. A refusal is not counted. For a client of a
    /// tenant, nothing else than this allows anything on a resource of another: neither an entry, a role or being a
    /// super user, nor that access control is off.
    pub fn allows(&self, identity: &Identity, operation: Operation, resource: &Resource<'_>) -> bool {
        identity.tenant().is_none_or(|tenant| resource.is_within(tenant))
            && (self.is_authorizing && self.permissions.allow(identity, operation, resource)
                || self.has_all_permissions(identity))
    }

    /// Returns `true` if entries or roles allow a client to perform an operation on a resource: not being a super user,
    /// nor that access control is off.
    pub fn allows_by_entry(&self, identity: &Identity, operation: Operation, resource: &Resource<'_>) -> bool {
        identity.tenant().is_none_or(|tenant| resource.is_within(tenant))
            && self.is_authorizing
            && self.permissions.allow(identity, operation, resource)
    }

    /// Checks that a client may perform an operation on any resource of a kind.
    pub fn authorize_any(&self, identity: &Identity, operation: Operation, kind: ResourceKind) -> Result<()> {
        if self.has_all_permissions(identity) || self.permissions.allow_any(identity, operation, kind) {
            return Ok(());
        }
        Err(self.denied(identity, format_args!("{} any {}", operation.name(), kind.name()), None))
    }

    /// Returns the permit of a client's subscription. `may_read` decides about each name; its last argument is `true`
    /// for a channel.
    pub fn permit(
        self: &Arc<Self>,
        identity: Arc<Identity>,
        may_read: impl Fn(&Self, &Identity, &TopicName, bool) -> bool + Send + Sync + 'static,
    ) -> Permit {
        if self.is_unlimited(&identity) && identity.is_lasting() {
            return Permit::ALL;
        }
        let security = Arc::downgrade(self);
        Permit::new(move |name, is_channel| {
            let may =
                |security: Arc<Self>| security.is_valid(&identity) && may_read(&security, &identity, name, is_channel);
            security.upgrade().is_some_and(may)
        })
    }

    /// Returns `true` if access control entries are effective.
    pub fn is_authorizing(&self) -> bool {
        self.is_authorizing
    }

    /// Returns `true` if neither access control nor a tenant limits the client.
    pub fn is_unlimited(&self, identity: &Identity) -> bool {
        identity.tenant().is_none() && self.has_all_permissions(identity)
    }

    /// Returns `true` if access control does not limit the client. Its tenant may.
    fn has_all_permissions(&self, identity: &Identity) -> bool {
        let has_all = !self.is_authorizing || identity.is_administrator() || self.super_users.contains(identity.user());
        has_all && self.is_valid(identity)
    }

    /// Returns `true` if no refusal was logged in this second.
    fn may_log_refusal(&self) -> bool {
        let now_s = self.core.now_ms() / 1000;
        self.refusal_logged_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    /// Counts and records a refusal, and returns its error. `outside` is the tenant of the client if that refuses it.
    fn denied(&self, identity: &Identity, what: fmt::Arguments<'_>, outside: Option<&TenantName>) -> Error {
        self.counts.denied.add(1);
        let user = identity.user();
        let message = match outside {
            None => format!("User:{user} may not {what}; see thalweg acl"),
            Some(tenant) => format!(
                "User:{user} may not {what}: clients of the tenant {tenant} use names that begin with {}, and nothing \
                 of the whole broker; see thalweg tenant",
                tenant.prefix()
            ),
        };
        if self.may_log_refusal() {
            tracing::info!(host = identity.host(), "denied a request: {message}");
        }
        let error = Error::new(ErrorKind::Denied, message);
        self.core.record_refusal(identity.user(), &what.to_string(), &error);
        error
    }

    /// Returns a secret of the broker itself, which no request can read.
    pub async fn secret(&self, name: &str) -> Result<Option<Bytes>> {
        self.open().await?;
        Ok(self.permissions.read().secrets.get(name).map(|secret| Bytes::copy_from_slice(secret)))
    }

    /// Stores a secret of the broker itself: in the data directory if there is one, and in no topic that clients can
    /// read.
    pub async fn put_secret(self: &Arc<Self>, name: &str, secret: &[u8]) -> Result<()> {
        if secret.len() > SECRET_BYTES_MAX {
            return Err(Error::too_large(format!(
                "a secret has at most {SECRET_BYTES_MAX} bytes, not {}",
                secret.len()
            )));
        }
        self.change(|tables, _| {
            if tables.secrets.len() >= SECRETS_MAX && !tables.secrets.contains_key(name) {
                return Err(Error::busy(format!("internal secret limit reached ({SECRETS_MAX}): replace one instead")));
            }
            Ok((vec![SecurityRecord::Secret { name: name.to_owned(), value: Some(secret.to_vec()) }], ()))
        })
        .await
    }

    /// Derives records from the current state, writes them and applies them. The change completes even if the caller no
    /// longer waits, so that the tables match the topic.
    async fn change<T: Send + 'static>(
        self: &Arc<Self>,
        decide: impl FnOnce(&Tables, &Security) -> Result<(Vec<SecurityRecord>, T)>,
    ) -> Result<T> {
        self.open().await?;
        let mut topic = self.topic.clone().lock_owned().await;
        let (records, answer) = decide(&self.permissions.read(), self)?;
        let security = self.clone();
        let work = tokio::spawn(async move {
            security.write(&mut topic, &records).await?;
            security.permissions.change(|tables| security.apply(tables, records));
            security.end_refused();
            Ok(answer)
        });
        work.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a change of users or access control failed: {error}")))
        })
    }

    /// Ends the subscriptions that are no longer permitted. There may be many, so nothing waits for the end of the
    /// search, and one runs at a time.
    fn end_refused(self: &Arc<Self>) {
        {
            let mut search = self.search.lock();
            search.is_wanted = true;
            if std::mem::replace(&mut search.is_running, true) {
                return;
            }
        }
        let security = self.clone();
        let work = move || {
            while security.search.lock().begin() {
                security.core.end_refused_subscriptions();
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(work)),
            Err(_outside) => work(),
        }
    }

    /// Writes records and waits until they are on disk, if the broker has a data directory.
    async fn write(&self, topic: &mut Option<Arc<Topic>>, records: &[SecurityRecord]) -> Result<()> {
        let Some(store) = self.core.store() else {
            return Ok(());
        };
        let topic = match topic {
            Some(topic) => topic,
            None => {
                let settings = TopicSettings { partitions: 1, ..state_log::settings(Storage::Disk) };
                // The topic's records are never durable before the topic is, so there is nothing to wait for.
                self.core.check_leads()?;
                let (entry, _) = Commit::of_entry();
                let made = store.create_topic(TopicName::parse(SECURITY_TOPIC)?, settings, entry)?;
                let made = Topic::stored(self.core.ids(), made, self.core.epoch());
                self.core.hide(made.clone())?;
                topic.insert(made)
            }
        };
        if records.is_empty() {
            return Ok(());
        }
        let records = records.iter().map(|record| (record.key(), record.value()));
        self.core.append_records(topic, 0, records, &mut Wakes::default())?.commit.wait().await
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let security = self;
        let counts = &self.counts;
        let [users, tokens, own_tokens, access_keys, acls, members, tenants, quotas] = {
            let tables = security.permissions.read();
            let Tables { users, tokens, access_keys, acls, members, tenants, quotas, secrets: _ } = &*tables;
            let own_tokens = tokens.iter().filter(|(_, token)| token.is_own).count();
            let users = users.iter().count();
            let of_users = [acls.len(), members.len(), tenants.len(), quotas.len()];
            let [acls, members, tenants, quotas] = of_users;
            [users, tokens.len(), own_tokens, access_keys.len(), acls, members, tenants, quotas]
        };
        out.gauge("thalweg_users", "Users with a password", users as u64)?;
        out.gauge("thalweg_tokens", "Tokens, including those that have expired", tokens as u64)?;
        out.gauge("thalweg_own_tokens", "Tokens that users have created for themselves", own_tokens as u64)?;
        out.gauge("thalweg_access_keys", "Access keys, including those that have expired", access_keys as u64)?;
        out.gauge(
            "thalweg_login_expiries",
            "Times at which credentials of clients that have logged in expire",
            self.expiries.len() as u64,
        )?;
        out.gauge("thalweg_acls", "Access control entries", acls as u64)?;
        out.gauge("thalweg_role_members", "Members of all roles", members as u64)?;
        out.gauge("thalweg_tenant_users", "Users with a tenant", tenants as u64)?;
        out.gauge("thalweg_quotas", "Quotas of users, roles, tenants, client ids and addresses", quotas as u64)?;
        self.buckets.expose(out)?;
        self.holdings.expose(out)?;
        self.unwelcome.expose(out)?;
        out.gauge(
            "thalweg_authorization",
            "1 if access control entries are effective",
            security.is_authorizing.into(),
        )?;
        out.counter("thalweg_authentications", "Successful logins", counts.authentications.get())?;
        out.counter(
            "thalweg_authentication_errors",
            "Logins with a wrong user or password",
            counts.authentication_errors.get(),
        )?;
        out.counter("thalweg_denied", "Requests denied by access control", counts.denied.get())?;
        security.logins.expose(out)?;
        security.sessions.expose(security.core.now_ms(), out)
    }
}
