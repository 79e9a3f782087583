//! Identities: on whose behalf a client acts, from where, and what it may do.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::security::{
    AccessKeyId, Operation, Principal, QuotaKind, Resource, ResourceKind, RoleName, Rules, Tables, TenantName, TokenId,
    UserName,
};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::session::SessionUse;
use crate::clock::Clock;
use crate::holdings::HoldingsMax;
use crate::quotas::{Bucket, Buckets};
use crate::tenant_quotas::TenantQuotas;

/// Client that may have logged in. A door makes one for each connection, or for each request if its protocol has no
/// connections.
#[derive(Debug)]
pub struct Identity {
    user: UserName,
    /// Roles that the client's credential carries, in addition to those of the user.
    roles: Box<[RoleName]>,
    /// Address of the client as text.
    host: Box<str>,
    proof: Proof,
    /// Session of a browser in which the client acts, and with which its login ends.
    session: Option<SessionUse>,
    /// Tenant in which the client acts, from its login to its end.
    tenant: Option<TenantName>,
    /// `true` if access control does not limit the client.
    is_administrator: bool,
    known: Mutex<Known>,
}

/// Certificate with which a client has proved its identity.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// Subject (RFC 2253).
    pub subject: String,
    /// Common name or, if it has none, the first alternative name.
    pub name: Option<String>,
    /// Time in ms since 1970 from which it is no longer valid.
    pub expires_ms: u64,
    /// The certificate in DER form, and those between it and its root.
    pub chain: Arc<[Box<[u8]>]>,
    /// Generation of the accepted certificates in which the chain was last found to be accepted; 0 if in none. All
    /// requests of a connection share it.
    pub accepted_in: Arc<AtomicU64>,
}

/// Returns `true` if a certificate would still be accepted in a handshake.
pub type CertificateCheck = dyn Fn(&ClientCertificate) -> bool + Send + Sync;

/// Check of the certificates of connected clients.
#[derive(Default)]
pub(super) struct Certificates {
    /// Check of one, once it is set.
    pub check: OnceLock<Box<CertificateCheck>>,
    /// Grows when other certificates are accepted than before.
    pub generation: AtomicU64,
}

impl Certificates {
    /// Returns `true` if a certificate is accepted. Its chain is verified once for each generation.
    fn accept(&self, certificate: &ClientCertificate) -> bool {
        let Some(check) = self.check.get() else { return true };
        // Above 0, which stands for none.
        let generation = self.generation.load(Ordering::Acquire) + 1;
        if certificate.accepted_in.load(Ordering::Acquire) == generation {
            return true;
        }
        let is_accepted = check(certificate);
        if is_accepted {
            certificate.accepted_in.store(generation, Ordering::Release);
        }
        is_accepted
    }
}

/// How a client logged in: what ends its login.
#[derive(Clone)]
pub(super) enum Proof {
    /// Nothing ends it: the client did not log in, or logs in with each request.
    Lasting,
    /// With the user's password, of which this is the stored key, until it is replaced or deleted.
    Password(Box<[u8]>),
    /// With a token, until it is deleted or expires.
    Token(TokenId),
    /// By the signature of a request, until its access key is deleted or expires.
    AccessKey(AccessKeyId),
    /// With a token of another issuer, until this time, in ms since 1970. It may name the tenant.
    Issued { expires_ms: u64, has_tenant: bool },
    /// With a certificate, until it expires or the check refuses it.
    Certificate(Arc<ClientCertificate>, Arc<Certificates>),
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lasting => f.write_str("Lasting"),
            Self::Password(_) => f.write_str("Password"),
            Self::Token(id) => write!(f, "Token({id})"),
            Self::AccessKey(id) => write!(f, "AccessKey({id})"),
            Self::Issued { expires_ms, .. } => write!(f, "Issued({expires_ms})"),
            Self::Certificate(certificate, _) => write!(f, "Certificate({})", certificate.subject),
        }
    }
}

/// Writes all that decisions depend on: the user, the roles of the credential, the host, and the tenant.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.user)?;
        self.roles.iter().try_for_each(|role| write!(f, ",{role}"))?;
        write!(f, " {}", self.host)?;
        self.tenant.iter().try_for_each(|tenant| write!(f, " {tenant}"))
    }
}

/// Part of the tables that an identity has read; outdated once they have another generation.
#[derive(Debug, Default)]
struct Known {
    generation: u64,
    /// `true` if the login is still valid.
    is_valid: bool,
    principals: Vec<Principal>,
    /// Rules by the kind of resource: `None` if not read yet, `Some(None)` if they are many.
    rules: [Option<Option<Rules>>; ResourceKind::ALL.len()],
    /// Buckets of the effective quotas, if they are known.
    meters: Option<Meters>,
}

/// Buckets of all quotas that are effective for a client.
#[derive(Debug)]
struct Meters {
    /// Client id with which they were found.
    client: Option<Box<str>>,
    buckets: Vec<(QuotaKind, Arc<Bucket>)>,
}

impl Identity {
    /// Creates the identity of a client that proved its name to a door, with roles that its credential carries. It has
    /// no tenant, and may do nothing if its user has one: see [`Security::identity_of`](super::Security::identity_of).
    pub fn new(user: UserName, roles: impl Into<Box<[RoleName]>>, host: &str) -> Self {
        Self {
            user,
            roles: roles.into(),
            host: host.into(),
            proof: Proof::Lasting,
            session: None,
            tenant: None,
            is_administrator: false,
            known: Mutex::default(),
        }
    }

    /// Returns the identity of a client that logged in with this proof. It may do nothing once that is no longer valid.
    pub(super) fn proved_by(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// Returns the identity of a client that acts in a session of a browser. It may do nothing once that has ended.
    pub(super) fn in_session(self, session: SessionUse) -> Self {
        Self { session: Some(session), ..self }
    }

    pub(super) fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Returns the identity of a client that acts in a tenant. It may do nothing once its user has another one.
    pub(super) fn within(self, tenant: Option<TenantName>) -> Self {
        Self { tenant, ..self }
    }

    /// Creates the identity of a program of the broker's own user.
    pub(super) fn administrator(host: &str) -> Self {
        Self { is_administrator: true, ..Self::new(UserName::administrator(), [], host) }
    }

    /// Creates the identity of a client that has not logged in.
    pub fn anonymous(host: &str) -> Self {
        Self::new(UserName::anonymous(), [], host)
    }

    /// Returns text that is equal for two clients only if the same is decided for them, also after a login has ended.
    pub fn decided_by(&self) -> String {
        let mut hasher = DefaultHasher::new();
        match &self.proof {
            Proof::Password(stored_key) => stored_key.hash(&mut hasher),
            Proof::Certificate(certificate, _) => certificate.chain.hash(&mut hasher),
            Proof::Lasting | Proof::Token(_) | Proof::AccessKey(_) | Proof::Issued { .. } => {}
        }
        self.session.as_ref().map(|used| used.session().ends_ms()).hash(&mut hasher);
        format!("{self} {:?} {:x}", self.proof, hasher.finish())
    }

    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// Returns the tenant in which the client acts: it may use only resources whose names are the tenant's.
    pub fn tenant(&self) -> Option<&TenantName> {
        self.tenant.as_ref()
    }

    /// Returns `true` if no change of credentials or tenants ends the login.
    pub(super) fn is_lasting(&self) -> bool {
        matches!(self.proof, Proof::Lasting) && self.user.check_not_reserved().is_err()
    }

    /// Returns until when the credential is valid, in ms since 1970; `None` if it has no such time.
    pub(super) fn expires_ms(&self, tables: &Tables) -> Option<u64> {
        let of_credential = match &self.proof {
            Proof::Token(id) => tables.tokens.get(id)?.expires_ms,
            Proof::AccessKey(id) => tables.access_keys.get(id.as_str())?.expires_ms,
            Proof::Issued { expires_ms, .. } => Some(*expires_ms),
            Proof::Certificate(certificate, _) => Some(certificate.expires_ms),
            Proof::Lasting | Proof::Password(_) => None,
        };
        let of_session = self.session.as_ref().map(|used| used.session().ends_ms());
        of_credential.into_iter().chain(of_session).min()
    }

    /// Returns `true` if the client has proved that it knows the password of its user.
    pub(super) fn has_password(&self) -> bool {
        matches!(self.proof, Proof::Password(_))
    }

    /// Returns the token with which the client logged in.
    pub(super) fn token(&self) -> Option<TokenId> {
        match &self.proof {
            Proof::Token(id) => Some(*id),
            _ => None,
        }
    }

    pub(super) fn is_administrator(&self) -> bool {
        self.is_administrator
    }

    /// Returns `true` if the client acts in a session of a browser.
    pub fn is_in_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the roles that the client's credential carries, in addition to those of the user.
    pub fn roles(&self) -> &[RoleName] {
        &self.roles
    }

    /// Returns the address of the client as text.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns `true` unless the client has a certificate that is no longer accepted.
    fn is_accepted(&self) -> bool {
        match &self.proof {
            Proof::Certificate(certificate, certificates) => certificates.accept(certificate),
            _ => true,
        }
    }

    /// Returns `true` if the login is valid at this time, in ms since 1970, apart from [`Identity::is_accepted`].
    fn is_valid(&self, tables: &Tables, now_ms: u64) -> bool {
        let is_in_session = self.session.as_ref().is_none_or(|used| used.session().is_valid(now_ms));
        is_in_session && self.is_proved(tables, now_ms) && self.is_in_its_tenant(tables)
    }

    /// Returns `true` if the client acts in the tenant that its user has now. That of a token from another issuer may
    /// be one of a user who has none here.
    fn is_in_its_tenant(&self, tables: &Tables) -> bool {
        match tables.tenants.of_user(self.user.as_str()) {
            None => self.tenant.is_none() || matches!(self.proof, Proof::Issued { has_tenant: true, .. }),
            assigned => assigned == self.tenant.as_ref(),
        }
    }

    fn is_proved(&self, tables: &Tables, now_ms: u64) -> bool {
        match &self.proof {
            Proof::Lasting => true,
            Proof::Password(stored_key) => {
                let passwords = tables.users.get(self.user.as_str()).into_iter().flat_map(BTreeMap::values);
                passwords.into_iter().any(|password| password.stored_key() == &**stored_key)
            }
            Proof::Token(id) => tables.tokens.get(id).is_some_and(|token| tables.accept(token, now_ms)),
            Proof::AccessKey(id) => tables.access_keys.get(id.as_str()).is_some_and(|key| !key.is_expired(now_ms)),
            Proof::Issued { expires_ms, .. } => *expires_ms > now_ms,
            Proof::Certificate(certificate, _) => certificate.expires_ms > now_ms,
        }
    }

    fn principals(&self, tables: &Tables) -> Vec<Principal> {
        let roles = self.roles.iter().chain(tables.members.roles_of(&self.user)).cloned().map(Principal::Role);
        [Principal::User(self.user.clone()), Principal::Everyone].into_iter().chain(roles).collect()
    }
}

/// Tables that change, with a number that changes with them.
pub(super) struct Permissions {
    tables: RwLock<Tables>,
    /// Above 0. It changes while the tables are locked, so that an identity never keeps what it read before.
    generation: AtomicU64,
    /// Notifies requests that wait of each new generation.
    changes: watch::Sender<()>,
    /// `true` if there are quotas.
    has_quotas: AtomicBool,
    /// The quotas of tenants, as the core knows them.
    tenant_quotas: Arc<TenantQuotas>,
    clock: Clock,
}

impl Permissions {
    pub(super) fn new(tables: Tables, tenant_quotas: Arc<TenantQuotas>, clock: Clock) -> Self {
        let has_quotas = AtomicBool::new(!tables.quotas.is_empty());
        let changes = watch::Sender::new(());
        let tables = RwLock::new(tables);
        Self { tables, generation: AtomicU64::new(1), changes, has_quotas, tenant_quotas, clock }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns a receiver of a notice at each change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Makes all decisions again at their next use, and those of requests that wait now.
    pub(super) fn outdate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.changes.send_replace(());
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        let mut tables = self.tables.write();
        let outcome = change(&mut tables);
        self.has_quotas.store(!tables.quotas.is_empty(), Ordering::Relaxed);
        self.tenant_quotas.set(&tables.quotas);
        self.outdate();
        outcome
    }

    #[inline]
    pub(super) fn has_quotas(&self) -> bool {
        self.has_quotas.load(Ordering::Relaxed)
    }

    /// Calls a function with the buckets of all quotas that are effective for a client.
    pub(super) fn each_bucket(
        &self,
        buckets: &Buckets,
        identity: &Identity,
        client: Option<&str>,
        mut each: impl FnMut(QuotaKind, &Bucket),
    ) {
        let mut known = identity.known.lock();
        self.renew(identity, &mut known);
        let meters = match &mut known.meters {
            Some(meters) if meters.client.as_deref() == client => meters,
            meters => meters.insert(self.meters(buckets, identity, client)),
        };
        meters.buckets.iter().for_each(|(kind, bucket)| each(*kind, bucket));
    }

    /// Finds the quotas of a client. Those of the administrator's programs are not limited, so that a wrong quota can
    /// be changed.
    fn meters(&self, buckets: &Buckets, identity: &Identity, client: Option<&str>) -> Meters {
        let mut found = Vec::new();
        if !identity.is_administrator {
            let tables = self.read();
            let address: Option<IpAddr> = identity.host.parse().ok();
            for kind in QuotaKind::CHARGED {
                let roles = identity.roles.iter().chain(tables.members.roles_of(&identity.user));
                let of_client = tables.quotas.of_client(&identity.user, roles, client, kind);
                let of_tenant = identity.tenant.as_ref().and_then(|tenant| tables.quotas.of_tenant(tenant, kind));
                let of_address = address.and_then(|address| tables.quotas.of_address(address, kind));
                let all = of_client.into_iter().chain(of_tenant).chain(of_address);
                found.extend(all.map(|(key, rate)| (kind, buckets.get(key, rate))));
            }
        }
        Meters { client: client.map(Box::from), buckets: found }
    }

    /// Returns the quotas of what a client holds at one time. Programs of the administrator have none.
    pub(super) fn holdings_max(&self, identity: &Identity, kind: QuotaKind) -> HoldingsMax {
        if identity.is_administrator || !self.has_quotas() {
            return HoldingsMax::default();
        }
        let tables = self.read();
        let roles = identity.roles.iter().chain(tables.members.roles_of(&identity.user));
        let of_user = tables.quotas.of_client(&identity.user, roles, None, kind);
        let of_tenant = identity.tenant.as_ref().and_then(|tenant| tables.quotas.of_tenant(tenant, kind));
        HoldingsMax { of_user: of_user.map(|(_, max)| max), of_tenant: of_tenant.map(|(_, max)| max) }
    }

    /// Returns `true` if a client may perform an operation on a resource.
    pub(super) fn allow(&self, identity: &Identity, operation: Operation, resource: &Resource<'_>) -> bool {
        let mut known = identity.known.lock();
        self.renew(identity, &mut known);
        if !known.is_valid {
            return false;
        }
        let Known { principals, rules, .. } = &mut *known;
        let of_kind = &mut rules[resource.kind as usize - 1];
        let of_kind =
            of_kind.get_or_insert_with(|| self.read().acls.rules(&*principals, &identity.host, resource.kind));
        match of_kind {
            Some(rules) => rules.allow(operation, resource),
            None => self.read().acls.allow(&*principals, &identity.host, operation, resource),
        }
    }

    /// Returns `true` if there may be a resource of a kind on which a client may perform an operation.
    pub(super) fn allow_any(&self, identity: &Identity, operation: Operation, kind: ResourceKind) -> bool {
        let mut known = identity.known.lock();
        self.renew(identity, &mut known);
        known.is_valid && self.read().acls.allow_any(&known.principals, &identity.host, operation, kind)
    }

    /// Returns `true` unless the credential with which the client logged in was deleted or has expired.
    pub(super) fn is_valid(&self, identity: &Identity) -> bool {
        if identity.is_lasting() {
            return true;
        }
        let mut known = identity.known.lock();
        self.renew(identity, &mut known);
        known.is_valid
    }

    fn renew(&self, identity: &Identity, known: &mut Known) {
        let generation = self.generation();
        if known.generation != generation {
            // This may verify a chain of certificates, so the tables are not locked.
            let is_accepted = identity.is_accepted();
            let tables = self.read();
            let principals = identity.principals(&tables);
            let is_valid = is_accepted && identity.is_valid(&tables, self.clock.now_ms());
            *known = Known { generation, is_valid, principals, ..Known::default() };
        }
    }
}

const _: () = {
    let mut at = 0;
    while at < ResourceKind::ALL.len() {
        assert!(
            ResourceKind::ALL[at] as usize == at + 1,
            "rules are in the order of the kinds, whose codes begin at 1"
        );
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use engine::security::{Acl, Credential, Mechanism, Pattern, PatternKind, SecurityRecord, Users};

    #[test]
    fn logins_that_end_separately_differ_in_what_they_are_decided_by() {
        let user = UserName::parse("ann").expect("a name");
        let proved = |proof| Identity::new(user.clone(), [], "here").proved_by(proof).decided_by();
        let proofs = || {
            vec![
                Proof::Lasting,
                Proof::Password([1].into()),
                Proof::Password([2].into()),
                Proof::Issued { expires_ms: 1, has_tenant: false },
                Proof::Issued { expires_ms: 2, has_tenant: false },
            ]
        };
        let all: BTreeSet<String> = proofs().into_iter().chain(proofs()).map(proved).collect();
        assert_eq!(all.len(), proofs().len());
    }

    fn acl(name: &str, is_allowed: bool) -> Acl {
        Acl {
            pattern: Pattern { kind: ResourceKind::Topic, name: name.into(), matching: PatternKind::Literal },
            principal: Principal::parse("Role:sales").expect("a principal"),
            host: "*".into(),
            operation: Operation::Read,
            is_allowed,
        }
    }

    #[test]
    fn an_identity_follows_every_change_of_its_permissions() {
        let permissions = Permissions::new(Tables::new(Users::new(vec![1])), Arc::default(), Clock::SYSTEM);
        let ann = UserName::parse("ann").expect("a name");
        let sales = RoleName::parse("sales").expect("a name");
        let identity = Identity::new(ann.clone(), [], "10.0.0.1");
        let may = || permissions.allow(&identity, Operation::Read, &Resource::topic("t"));
        assert!(!may());
        permissions.change(|tables| tables.acls.insert(acl("t", true)));
        assert!(!may(), "she is not a member");
        permissions.change(|tables| tables.members.insert(ann.clone(), sales.clone()));
        assert!(may());
        assert!(permissions.allow_any(&identity, Operation::Read, ResourceKind::Topic));
        permissions.change(|tables| tables.acls.insert(acl("*", false)));
        assert!(!may());
        permissions.change(|tables| tables.acls.remove(&acl("*", false)));
        assert!(may());
        permissions.change(|tables| tables.members.remove(&ann, &sales));
        assert!(!may());
        let with_token = Identity::new(ann, [sales], "10.0.0.1");
        assert!(permissions.allow(&with_token, Operation::Read, &Resource::topic("t")));
    }

    #[test]
    fn a_deleted_user_may_nothing() {
        let permissions = Permissions::new(Tables::new(Users::new(vec![1])), Arc::default(), Clock::SYSTEM);
        let ann = UserName::parse("ann").expect("a name");
        let credential = Credential::of_password(Mechanism::Sha256, "secret", vec![1; 16], 4096).expect("a credential");
        permissions.change(|tables| tables.users.put(ann.clone(), credential.clone()));
        permissions.change(|tables| tables.acls.insert(Acl { principal: Principal::Everyone, ..acl("t", true) }));
        let proof = Proof::Password(credential.stored_key().into());
        let with_password = Identity::new(ann.clone(), [], "h").proved_by(proof);
        let without = Identity::new(ann.clone(), [], "h");
        let may = |identity| permissions.allow(identity, Operation::Read, &Resource::topic("t"));
        assert!(may(&with_password) && may(&without));
        let other = Credential::of_password(Mechanism::Sha256, "other", vec![1; 16], 4096).expect("a credential");
        permissions.change(|tables| tables.users.put(ann.clone(), other));
        assert!(!may(&with_password) && may(&without), "the password was replaced");
        permissions.change(|tables| tables.users.put(ann.clone(), credential.clone()));
        assert!(may(&with_password));
        permissions.change(|tables| {
            tables.apply(SecurityRecord::Credential { user: ann, mechanism: Mechanism::Sha256, credential: None });
        });
        assert!(!may(&with_password) && may(&without));
        assert!(!permissions.allow_any(&with_password, Operation::Read, ResourceKind::Topic));
        assert!(!permissions.is_valid(&with_password) && permissions.is_valid(&without));
    }

    #[test]
    fn an_identity_with_many_patterns_reads_the_tables() {
        let permissions = Permissions::new(Tables::new(Users::new(vec![1])), Arc::default(), Clock::SYSTEM);
        let names: Vec<String> = (0..100).map(|i| format!("t{i}")).collect();
        permissions.change(|tables| names.iter().for_each(|name| tables.acls.insert(acl(name, true))));
        let identity = Identity::new(UserName::anonymous(), [RoleName::parse("sales").expect("a name")], "h");
        let may = |topic: &str| permissions.allow(&identity, Operation::Describe, &Resource::topic(topic));
        assert!(names.iter().all(|name| may(name)) && !may("t100"));
    }
}
