//! Users and access control lists at work: kept, changed, and asked.
//!
//! With a data directory they are records of a topic of their own, which is none of [`Broker::topics`]: no request can
//! name it, so nobody reads it who should not. Without one they are gone with the broker, but for the users that the
//! configuration names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand;
use bytes::Bytes;
use engine::ids::{is_internal, may_hold_secrets};
use engine::limits::{SECRET_BYTES_MAX, SECRETS_MAX};
use engine::security::{
    Acl, AclFilter, Acls, ClientFirst, Credential, Exchange, ITERATIONS_DEFAULT, Mechanism, Operation, Resource,
    ResourceKind, SECURITY_TOPIC, Secrets, SecurityRecord, UserName, Users, wrong_password,
};
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use parking_lot::RwLock;
use tokio::sync::OnceCell;

use crate::broker::Broker;
use crate::internal;
use crate::logins::{LoginSource, Logins};
use crate::metrics::{Counter, Exposition};
use crate::publish::Wakes;
use crate::topics::{Lasts, Topic};

const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;

/// What a broker is set to here.
#[derive(Clone, Debug, Default)]
pub struct SecuritySettings {
    /// Users that are there from the start, and that requests do not change.
    pub users: Vec<ConfiguredUser>,
    /// They may do everything.
    pub super_users: Vec<UserName>,
    /// Whether anybody else may do only what access control lists allow.
    pub is_authorizing: bool,
}

/// A user of the configuration.
#[derive(Clone)]
pub struct ConfiguredUser {
    pub name: UserName,
    pub password: String,
}

impl fmt::Debug for ConfiguredUser {
    /// The password is for nobody's log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// A user as they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserStatus {
    pub name: UserName,
    /// What they have a password for, with its iterations.
    pub mechanisms: Vec<(Mechanism, u32)>,
    pub is_configured: bool,
    pub is_super: bool,
}

/// Users and access control lists of a broker.
pub(crate) struct Security {
    super_users: BTreeSet<UserName>,
    is_authorizing: bool,
    /// Users of the configuration. They are in the table, and no record counts for them.
    configured: BTreeSet<UserName>,
    tables: RwLock<Tables>,
    /// Set once the tables were read from the topic.
    is_open: OnceCell<()>,
    /// Held by whoever changes something; the topic, once there is one.
    topic: Arc<tokio::sync::Mutex<Option<Arc<Topic>>>>,
    logins: Logins,
    counts: Counts,
}

struct Tables {
    users: Users,
    acls: Acls,
    secrets: Secrets,
}

#[derive(Default)]
struct Counts {
    authentications: Counter,
    authentication_errors: Counter,
    denied: Counter,
}

impl Security {
    pub(crate) fn new(settings: &SecuritySettings, topic: Option<Arc<Topic>>) -> Result<Self> {
        let mut users = Users::new(random(32)?);
        for user in &settings.users {
            for mechanism in Mechanism::ALL {
                let credential =
                    Credential::of_password(mechanism, &user.password, random(SALT_BYTES)?, ITERATIONS_DEFAULT)?;
                users.put(user.name.clone(), credential);
            }
        }
        Ok(Self {
            super_users: settings.super_users.iter().cloned().collect(),
            is_authorizing: settings.is_authorizing,
            configured: settings.users.iter().map(|user| user.name.clone()).collect(),
            tables: RwLock::new(Tables { users, acls: Acls::default(), secrets: Secrets::new() }),
            is_open: OnceCell::new(),
            topic: Arc::new(tokio::sync::Mutex::new(topic)),
            logins: Logins::new(&random(32)?),
            counts: Counts::default(),
        })
    }

    /// Makes it so, unless it is about a user of the configuration.
    fn apply(&self, record: SecurityRecord) {
        if let SecurityRecord::Credential { user, .. } = &record
            && self.configured.contains(user)
        {
            return;
        }
        let Tables { users, acls, secrets } = &mut *self.tables.write();
        record.apply(users, acls, secrets);
    }

    fn check_changeable(&self, user: &UserName) -> Result<()> {
        if self.configured.contains(user) {
            return Err(Error::invalid(format!("user {user} is in the configuration: change it there (key users)")));
        }
        Ok(())
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

fn no_reader(topic: &str) -> Error {
    let message = format!(
        "'{topic}' is a topic of the broker itself and may hold secrets: to read it, use the Kafka door with \
         authorization = true and an access control entry for exactly this name"
    );
    Error::new(ErrorKind::Denied, message)
}

/// Bytes that nobody can foresee.
fn random(bytes: usize) -> Result<Vec<u8>> {
    let mut random = vec![0; bytes];
    rand::fill(&mut random).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(random)
}

impl Broker {
    /// Reads users and access control lists. Nobody is known and nothing is allowed before this.
    pub async fn open_security(&self) -> Result<()> {
        self.security().is_open.get_or_try_init(|| self.read_security()).await.map(|_| ())
    }

    async fn read_security(&self) -> Result<()> {
        let topic = self.security().topic.lock().await;
        let Some(topic) = &*topic else {
            return Ok(());
        };
        let each = |key: &[u8], value: Option<&[u8]>| {
            self.security().apply(SecurityRecord::decode(key, value)?);
            Ok(())
        };
        self.read_internal(topic, each).await
    }

    /// Lets a user in who has this password. A wrong one is counted, logged and answered after a pause.
    pub async fn authenticate(&self, user: UserName, password: String, source: LoginSource) -> Result<UserName> {
        self.open_security().await?;
        let security = self.security();
        let credential = security.tables.read().users.credential_of(&user);
        let mark = security.logins.mark(&user, &credential, &password);
        let outcome = match security.logins.is_right(&mark) {
            Some(true) => Ok(user.clone()),
            Some(false) => Err(wrong_password()),
            None => self.check_password(user.clone(), credential, password, source).await,
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
        password: String,
        source: LoginSource,
    ) -> Result<UserName> {
        let turn = self.security().logins.turn(source).await?;
        // The turn is that of the thread, also where nobody waits for it any more.
        let fits = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            credential.admit(user, &password)
        });
        let outcome = fits.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a password could not be hashed: {error}")))
        });
        outcome.map(|authenticated| authenticated.0)
    }

    /// Counts what a login came to, as a door found it. One that was refused is logged with its address, and the answer
    /// to it is to wait until this is over: longer each time for an address and for a name.
    pub async fn end_login<T>(&self, source: LoginSource, name: &str, outcome: Result<T>) -> Result<T> {
        let security = self.security();
        if let Err(error) = &outcome {
            security.logins.refused(source, name, error).await;
        }
        security.count(outcome)
    }

    /// The answer to the first message of SCRAM, and what waits for the second.
    pub async fn begin_scram(&self, mechanism: Mechanism, first: &[u8]) -> Result<(Exchange, Vec<u8>)> {
        self.open_security().await?;
        let nonce: String = random(NONCE_BYTES)?.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = ClientFirst::parse(first)?;
        Ok(self.security().tables.read().users.challenge(mechanism, first, &nonce))
    }

    /// Who it is, and the last answer, if the second message is right.
    pub async fn finish_scram(
        &self,
        exchange: Exchange,
        message: &[u8],
        source: LoginSource,
    ) -> Result<(UserName, Vec<u8>)> {
        let name = exchange.user().clone();
        self.end_login(source, name.as_str(), exchange.finish(message)).await
    }

    /// Whether there is a user of this name. One that was let in and is deleted is to be let in no more.
    pub fn has_user(&self, user: &UserName) -> bool {
        self.security().tables.read().users.get(user.as_str()).is_some()
    }

    /// Whether access control lists count.
    pub fn is_authorizing(&self) -> bool {
        self.security().is_authorizing
    }

    /// Whether a user may do this, from an address as text.
    pub fn authorize(&self, user: &UserName, host: &str, operation: Operation, resource: &Resource<'_>) -> Result<()> {
        let Resource { kind, name } = resource;
        let may = |acls: &Acls| acls.allow(user, host, operation, resource);
        self.decide(user, may, || format!("{} {} {name}", operation.name(), kind.name()))
    }

    /// Whether a user may do this to some resource of a kind.
    pub fn authorize_any(&self, user: &UserName, host: &str, operation: Operation, kind: ResourceKind) -> Result<()> {
        let may = |acls: &Acls| acls.allow_any(user, host, operation, kind);
        self.decide(user, may, || format!("{} any {}", operation.name(), kind.name()))
    }

    fn decide(&self, user: &UserName, may: impl Fn(&Acls) -> bool, what: impl Fn() -> String) -> Result<()> {
        let security = self.security();
        if !security.is_authorizing || security.super_users.contains(user) || may(&security.tables.read().acls) {
            return Ok(());
        }
        security.counts.denied.add(1);
        Err(Error::new(ErrorKind::Denied, format!("User:{user} may not {}; see thalweg acl", what())))
    }

    /// All users in the order of their names.
    pub async fn users(&self) -> Result<Vec<UserStatus>> {
        self.open_security().await?;
        let security = self.security();
        let tables = security.tables.read();
        let status = |(name, credentials): (&UserName, &BTreeMap<Mechanism, Credential>)| UserStatus {
            name: name.clone(),
            mechanisms: credentials.iter().map(|(mechanism, kept)| (*mechanism, kept.iterations())).collect(),
            is_configured: security.configured.contains(name),
            is_super: security.super_users.contains(name),
        };
        Ok(tables.users.iter().map(status).collect())
    }

    /// Gives users these credentials in the place of those that they have for the same mechanisms. All of it or
    /// nothing, and it lasts when this is over.
    pub async fn put_credentials(self: &Arc<Self>, credentials: Vec<(UserName, Credential)>) -> Result<()> {
        self.change_security(|tables, security| {
            for (user, _) in &credentials {
                security.check_changeable(user)?;
                tables.users.check_room(user)?;
            }
            let record = |(user, credential): (UserName, Credential)| SecurityRecord::Credential {
                user,
                mechanism: credential.mechanism(),
                credential: Some(credential),
            };
            Ok((credentials.into_iter().map(record).collect(), ()))
        })
        .await
    }

    /// Takes credentials from users; one without any is gone. Whoever is connected is let go of when
    /// they ask for something the next time: see [`Broker::has_user`].
    pub async fn delete_credentials(self: &Arc<Self>, credentials: Vec<(UserName, Mechanism)>) -> Result<()> {
        self.change_security(|tables, security| {
            for (user, mechanism) in &credentials {
                security.check_changeable(user)?;
                if tables.users.get(user.as_str()).is_none_or(|user| !user.contains_key(mechanism)) {
                    return Err(Error::not_found(format!("user {user} has no password for {}", mechanism.name())));
                }
            }
            let gone = |(user, mechanism)| SecurityRecord::Credential { user, mechanism, credential: None };
            Ok((credentials.into_iter().map(gone).collect(), ()))
        })
        .await
    }

    /// The access control entries that a filter means.
    pub async fn acls(&self, filter: &AclFilter) -> Result<Vec<Acl>> {
        self.open_security().await?;
        Ok(self.security().tables.read().acls.found(filter))
    }

    /// Adds access control entries. Those that are there already make no difference.
    pub async fn create_acls(self: &Arc<Self>, acls: Vec<Acl>) -> Result<()> {
        self.change_security(|tables, _| {
            acls.iter().try_for_each(Acl::validate)?;
            let fresh: BTreeSet<Acl> = acls.into_iter().filter(|acl| !tables.acls.contains(acl)).collect();
            tables.acls.check_room(fresh.len())?;
            Ok((fresh.into_iter().map(|acl| SecurityRecord::Acl { acl, is_there: true }).collect(), ()))
        })
        .await
    }

    /// Removes access control entries. Returns those that each filter meant.
    pub async fn delete_acls(self: &Arc<Self>, filters: Vec<AclFilter>) -> Result<Vec<Vec<Acl>>> {
        self.change_security(|tables, _| {
            let found: Vec<Vec<Acl>> = filters.iter().map(|filter| tables.acls.found(filter)).collect();
            let gone: BTreeSet<Acl> = found.iter().flatten().cloned().collect();
            Ok((gone.into_iter().map(|acl| SecurityRecord::Acl { acl, is_there: false }).collect(), found))
        })
        .await
    }

    /// A secret of the broker itself, which no request reads.
    pub async fn secret(&self, name: &str) -> Result<Option<Bytes>> {
        self.open_security().await?;
        Ok(self.security().tables.read().secrets.get(name).map(|secret| Bytes::copy_from_slice(secret)))
    }

    /// Keeps a secret of the broker itself: in the data directory where there is one, and in no topic that is read.
    pub async fn put_secret(self: &Arc<Self>, name: &str, secret: &[u8]) -> Result<()> {
        if secret.len() > SECRET_BYTES_MAX {
            return Err(Error::too_large(format!("a secret has at most {SECRET_BYTES_MAX} bytes")));
        }
        self.change_security(|tables, _| {
            if tables.secrets.len() >= SECRETS_MAX && !tables.secrets.contains_key(name) {
                return Err(Error::busy(format!("this broker keeps {SECRETS_MAX} secrets of its own")));
            }
            Ok((vec![SecurityRecord::Secret { name: name.to_owned(), value: Some(secret.to_vec()) }], ()))
        })
        .await
    }

    /// Refuses to read a topic that may hold secrets of the broker where no access control list grants it. The caller
    /// has checked the reader against those where they count.
    pub(crate) fn check_read(&self, topic: &str) -> Result<()> {
        match !self.is_authorizing() && may_hold_secrets(topic) {
            true => Err(no_reader(topic)),
            false => Ok(()),
        }
    }

    /// Checks a reader without a name, to whom no entry grants anything.
    pub(crate) fn check_nameless_read(&self, topic: &str) -> Result<()> {
        match self.is_authorizing() && is_internal(topic) {
            true => Err(no_reader(topic)),
            false => self.check_read(topic),
        }
    }

    /// Decides on records by what is there, writes them, and makes it so. It goes on to its end also where nobody waits
    /// for it: what is in the topic is in the tables.
    async fn change_security<T: Send + 'static>(
        self: &Arc<Self>,
        decide: impl FnOnce(&Tables, &Security) -> Result<(Vec<SecurityRecord>, T)>,
    ) -> Result<T> {
        self.open_security().await?;
        let mut topic = self.security().topic.clone().lock_owned().await;
        let (records, answer) = decide(&self.security().tables.read(), self.security())?;
        let broker = self.clone();
        let work = tokio::spawn(async move {
            broker.write_security(&mut topic, &records).await?;
            records.into_iter().for_each(|record| broker.security().apply(record));
            Ok(answer)
        });
        work.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, format!("a change of users or access control failed: {error}")))
        })
    }

    /// Returns when the records are on the disk, where there is one.
    async fn write_security(&self, topic: &mut Option<Arc<Topic>>, records: &[SecurityRecord]) -> Result<()> {
        let Some(store) = self.store() else {
            return Ok(());
        };
        let topic = match topic {
            Some(topic) => topic,
            None => {
                let settings = TopicSettings { partitions: 1, ..internal::settings(Storage::Disk) };
                // No record of it lasts before it does: nobody has to wait.
                let (said, _) = Lasts::when_committed();
                let made = store.create_topic(TopicName::parse(SECURITY_TOPIC)?, settings, said)?;
                topic.insert(Topic::stored(store.directory(), made))
            }
        };
        if records.is_empty() {
            return Ok(());
        }
        let records = records.iter().map(|record| (record.key(), record.value()));
        self.append_internal(topic, 0, records, &mut Wakes::default())?.lasts().await.map(drop)
    }

    pub(crate) fn expose_security(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let (security, counts) = (self.security(), &self.security().counts);
        let (users, acls) = {
            let tables = security.tables.read();
            (tables.users.iter().count() as u64, tables.acls.len() as u64)
        };
        out.gauge("thalweg_users", "Users with a password", users)?;
        out.gauge("thalweg_acls", "Access control entries", acls)?;
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
        security.logins.expose(out)
    }
}
