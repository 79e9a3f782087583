//! Authentication by SASL, and the administration of users' passwords.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use broker::{Broker, Hold, Identity, LoginSource, Sasl, SaslStep};
use bytes::Bytes;
use engine::security::{ANONYMOUS, Credential, Mechanism, Resource, UserName};
use engine::{Error, ErrorKind};
use net::OpenConnection;
use net::service::Standing;

use super::caller::Caller;
use super::errors::Code;
use super::messages::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
};
use super::messages::describe_user_scram_credentials::{
    CredentialInfo, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
};
use super::messages::sasl_authenticate::{SaslAuthenticateRequest, SaslAuthenticateResponse};
use super::messages::sasl_handshake::{SaslHandshakeRequest, SaslHandshakeResponse};
use super::outcome::{Failure, twice};
use crate::throttle;

/// APIs that are allowed before the login: SaslHandshake, ApiVersions, SaslAuthenticate.
pub(super) const BEFORE_LOGIN: [i16; 3] = [17, 18, 36];

/// Version of SaslHandshake that is accepted. After version 0, messages would come without the header of a request; no
/// client has needed that since 2017, but librdkafka 2.0 does not log in if version 0 is not listed as supported.
const HANDSHAKE_VERSION: i16 = 1;

/// State of the login of a connection.
pub(super) struct Login {
    /// `true` if a login by SASL is offered.
    is_required: bool,
    /// `true` if the client has logged in by its certificate alone.
    is_certified: Cell<bool>,
    step: RefCell<Step>,
    /// Anonymous until the login has succeeded.
    identity: RefCell<Arc<Identity>>,
    /// Count of the connection for the quotas of its client, once it may send requests.
    hold: RefCell<Option<Hold>>,
    entry: Arc<OpenConnection>,
}

#[derive(Default)]
enum Step {
    #[default]
    Begin,
    /// The mechanism is chosen.
    Logging(Sasl),
    /// A message is being checked.
    Busy,
    Done,
    /// The login was refused: no further request is answered.
    Failed,
}

impl Login {
    /// Creates the state of a connection from this host. A client with a certificate has logged in, and may log in by
    /// SASL as well.
    pub(super) fn new(is_required: bool, host: &str, certified: Option<Identity>, entry: Arc<OpenConnection>) -> Self {
        let is_certified = Cell::new(certified.is_some());
        let identity = RefCell::new(Arc::new(certified.unwrap_or_else(|| Identity::anonymous(host))));
        let (step, hold) = Default::default();
        Self { is_required, is_certified, step, identity, hold, entry }
    }

    /// Counts the connection for its client, unless that still has to log in.
    pub(super) fn count(&self, broker: &Broker) -> engine::Result<()> {
        let is_open = !self.is_required || self.is_certified.get();
        if is_open { self.count_for(broker, &self.identity()) } else { Ok(()) }
    }

    fn count_for(&self, broker: &Broker, identity: &Identity) -> engine::Result<()> {
        throttle::hold_connection(broker, broker::Door::Kafka, identity, &mut self.hold.borrow_mut(), &self.entry)
    }

    /// Returns the identity of the client; anonymous if the connection has not logged in.
    pub(super) fn identity(&self) -> Arc<Identity> {
        self.identity.borrow().clone()
    }

    /// Returns `true` if a request of the API with this key may be answered now. If not, the connection is closed.
    pub(super) fn lets_pass(&self, broker: &Broker, key: i16) -> bool {
        let passes = match &*self.step.borrow() {
            Step::Failed => false,
            // A login that has expired may be renewed.
            Step::Done => BEFORE_LOGIN.contains(&key) || broker.security.is_valid(&self.identity.borrow()),
            Step::Begin if self.is_certified.get() => broker.security.is_valid(&self.identity.borrow()),
            _ => !self.is_required || BEFORE_LOGIN.contains(&key),
        };
        if passes {
            return true;
        }
        let before = self.step.replace(Step::Failed);
        if matches!(before, Step::Begin | Step::Logging(_) | Step::Busy) && !self.is_certified.get() {
            let address = self.identity.borrow().host().parse().ok();
            broker.security.missing_login(LoginSource { door: broker::Door::Kafka, address });
        }
        false
    }

    /// Returns `true` if a login by SASL has succeeded.
    pub(super) fn is_done(&self) -> bool {
        matches!(*self.step.borrow(), Step::Done)
    }

    /// Returns the state of the connection: open, still to log in, or over because the login was refused.
    pub(super) fn standing(&self) -> Standing {
        match *self.step.borrow() {
            Step::Failed => Standing::Over,
            Step::Done => Standing::Open,
            Step::Begin if self.is_certified.get() => Standing::Open,
            _ if self.is_required => Standing::Opening,
            _ => Standing::Open,
        }
    }

    pub(super) fn handshake(
        &self,
        broker: &Broker,
        version: i16,
        request: &SaslHandshakeRequest,
    ) -> SaslHandshakeResponse {
        let chosen = Sasl::begin(&request.mechanism);
        let expires = broker.security.expires_ms(&self.identity.borrow()).is_some();
        let mut step = self.step.borrow_mut();
        let code = match (&*step, chosen) {
            // A connection logs in once, or again before its login expires (KIP-368); without a required login, it
            // never does.
            _ if !self.is_required => Code::ILLEGAL_SASL_STATE,
            (Step::Begin, _) if version < HANDSHAKE_VERSION => Code::UNSUPPORTED_VERSION,
            (Step::Begin, None) => Code::UNSUPPORTED_SASL_MECHANISM,
            (Step::Done, Some(_)) if !expires => Code::ILLEGAL_SASL_STATE,
            (Step::Begin | Step::Done, Some(chosen)) => {
                *step = Step::Logging(chosen);
                Code::NONE
            }
            _ => Code::ILLEGAL_SASL_STATE,
        };
        if code != Code::NONE && self.is_required {
            *step = Step::Failed;
        }
        SaslHandshakeResponse { error_code: code.0, mechanisms: Sasl::MECHANISMS.map(str::to_owned).to_vec() }
    }

    /// Handles one message of the client. No other request of the connection may come in between. Returns `None` if the
    /// connection is closed without an answer, as Kafka does at its limits of connections (`ConnectionQuotas` in its
    /// `SocketServer`): clients connect again later, while a failed authentication is final for them.
    pub(super) async fn authenticate(
        &self,
        broker: &Broker,
        address: Option<IpAddr>,
        request: SaslAuthenticateRequest,
    ) -> Option<SaslAuthenticateResponse> {
        let step = self.step.replace(Step::Busy);
        let source = LoginSource { door: broker::Door::Kafka, address };
        let advanced = match step {
            Step::Logging(sasl) => sasl.advance(&broker.security, source, &request.auth_bytes).await,
            Step::Begin | Step::Busy | Step::Done | Step::Failed => {
                Err(Error::new(ErrorKind::Unsupported, "the handshake with the name of the mechanism is missing"))
            }
        };
        let (code, message, auth_bytes) = match advanced {
            Ok(SaslStep::Challenged(sasl, challenge)) => {
                self.step.replace(Step::Logging(sasl));
                (Code::NONE, None, challenge)
            }
            Ok(SaslStep::Done(identity, _)) if !self.stays(&identity) => {
                self.step.replace(Step::Failed);
                let text = "a connection cannot log in as another user".to_owned();
                (Code::SASL_AUTHENTICATION_FAILED, Some(text), Bytes::new())
            }
            Ok(SaslStep::Done(identity, answer)) => {
                if let Err(error) = self.count_for(broker, &identity) {
                    tracing::debug!(address = %source, %error, "closed a connection");
                    self.step.replace(Step::Failed);
                    return None;
                }
                tracing::debug!(user = %identity.user(), address = %source, "logged in");
                broker::act_as(identity.user());
                self.identity.replace(identity);
                self.is_certified.set(false);
                self.step.replace(Step::Done);
                (Code::NONE, None, answer)
            }
            Err(error) => {
                self.step.replace(Step::Failed);
                let code = match error.kind {
                    ErrorKind::Unsupported => Code::ILLEGAL_SASL_STATE,
                    _ => Code::SASL_AUTHENTICATION_FAILED,
                };
                (code, Some(error.message), Bytes::new())
            }
        };
        let expires_ms = broker.security.expires_ms(&self.identity.borrow()).filter(|_| self.is_done());
        let left_ms = expires_ms.map_or(0, |expires_ms| expires_ms.saturating_sub(broker.now_ms()));
        Some(SaslAuthenticateResponse {
            error_code: code.0,
            error_message: message,
            auth_bytes,
            session_lifetime_ms: i64::try_from(left_ms).unwrap_or(i64::MAX),
        })
    }

    /// Returns `true` unless the connection has logged in by SASL as another user.
    fn stays(&self, identity: &Identity) -> bool {
        let before = self.identity.borrow();
        let has_logged_in = before.user().as_str() != ANONYMOUS && !self.is_certified.get();
        !has_logged_in || before.user() == identity.user()
    }
}

pub(super) async fn describe_user_scram_credentials(
    broker: &Broker,
    caller: &Caller,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let refused = |Code(error_code), error_message| DescribeUserScramCredentialsResponse {
        error_code,
        error_message,
        ..Default::default()
    };
    if let Err(code) = caller.may_use(broker, 50, &Resource::CLUSTER) {
        return refused(code, None);
    }
    let users = match broker.security.users().await {
        Ok(users) => users,
        Err(error) => return refused(Code::UNKNOWN_SERVER_ERROR, Some(error.message)),
    };
    let describe = |name: &str| {
        let found = users.binary_search_by(|user| user.name.as_str().cmp(name)).ok().map(|at| &users[at]);
        let infos = found.map(|user| {
            user.mechanisms.iter().map(|(mechanism, iterations)| CredentialInfo {
                mechanism: *mechanism as i8,
                iterations: *iterations as i32,
            })
        });
        let Some(infos) = infos else {
            let message = format!("there is no user '{name}'");
            return DescribeUserScramCredentialsResult {
                user: name.to_owned(),
                error_code: Code::RESOURCE_NOT_FOUND.0,
                error_message: Some(message),
                ..Default::default()
            };
        };
        DescribeUserScramCredentialsResult {
            user: name.to_owned(),
            error_code: Code::NONE.0,
            error_message: None,
            credential_infos: infos.collect(),
        }
    };
    let results = match request.users {
        Some(named) if !named.is_empty() => {
            let named: BTreeSet<&str> = named.iter().map(|user| user.name.as_str()).collect();
            named.into_iter().map(describe).collect()
        }
        _ => users.iter().map(|user| describe(user.name.as_str())).collect(),
    };
    DescribeUserScramCredentialsResponse { error_message: None, results, ..Default::default() }
}

/// Outcome of a change, or the reason for its failure.
type Outcome<T = ()> = std::result::Result<T, Failure>;

/// Change of a user's credentials.
enum Change {
    Put(Credential),
    Delete(Mechanism),
}

pub(super) async fn alter_user_scram_credentials(
    broker: &Arc<Broker>,
    caller: &Caller,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    let allowed = caller.may_use(broker, 51, &Resource::CLUSTER);
    let AlterUserScramCredentialsRequest { deletions, upsertions } = request;
    let mut changes: Vec<(String, i8, Outcome<Change>)> = Vec::new();
    for deletion in deletions {
        let change = mechanism_of(deletion.mechanism).map(Change::Delete);
        changes.push((deletion.name, deletion.mechanism, change));
    }
    for upsertion in upsertions {
        let change = credential_of(&upsertion);
        changes.push((upsertion.name, upsertion.mechanism, change.map(Change::Put)));
    }
    let mut results: Vec<AlterUserScramCredentialsResult> = Vec::new();
    // Index of each user's result.
    let mut places: HashMap<String, usize> = HashMap::new();
    let twice = twice(changes.iter().map(|(user, mechanism, _)| (user.as_str(), *mechanism)));
    let is_twice: Vec<bool> =
        changes.iter().map(|(user, mechanism, _)| twice.contains(&(user.as_str(), *mechanism))).collect();
    for ((user, _, change), is_twice) in changes.into_iter().zip(is_twice) {
        let outcome = match (allowed, change) {
            (Err(code), _) => Err((code, String::new())),
            _ if is_twice => Err((Code::DUPLICATE_RESOURCE, "a request changes a user at most once".into())),
            (Ok(()), Err(wrong)) => Err(wrong),
            (Ok(()), Ok(change)) => carry_out(broker, &user, change).await,
        };
        let (code, message) = match outcome {
            Ok(()) => (Code::NONE, None),
            Err((code, message)) => (code, Some(message)),
        };
        // Kafka returns one result per user, with the first error.
        match places.get(&user).map(|at| &mut results[*at]) {
            Some(result) if result.error_code == Code::NONE.0 => {
                result.error_code = code.0;
                result.error_message = message;
            }
            Some(_) => {}
            None => {
                places.insert(user.clone(), results.len());
                results.push(AlterUserScramCredentialsResult { user, error_code: code.0, error_message: message });
            }
        }
    }
    AlterUserScramCredentialsResponse { results, ..Default::default() }
}

async fn carry_out(broker: &Arc<Broker>, user: &str, change: Change) -> Outcome {
    let work = async {
        let user = UserName::parse(user)?;
        match change {
            Change::Put(credential) => broker.security.put_credentials(vec![(user, credential)]).await,
            Change::Delete(mechanism) => broker.security.delete_credentials(vec![(user, mechanism)]).await,
        }
    };
    work.await.map_err(|error: Error| {
        let code = match error.kind {
            ErrorKind::NotFound => Code::RESOURCE_NOT_FOUND,
            ErrorKind::Invalid => Code::UNACCEPTABLE_CREDENTIAL,
            _ => Code::UNKNOWN_SERVER_ERROR,
        };
        (code, error.message)
    })
}

fn mechanism_of(code: i8) -> Outcome<Mechanism> {
    let known = u8::try_from(code).ok().and_then(Mechanism::from_code);
    known.ok_or_else(|| (Code::UNSUPPORTED_SASL_MECHANISM, format!("{code} is not a SCRAM mechanism")))
}

fn credential_of(wanted: &ScramCredentialUpsertion) -> Outcome<Credential> {
    let mechanism = mechanism_of(wanted.mechanism)?;
    let iterations = u32::try_from(wanted.iterations).unwrap_or(0);
    Credential::of_salted(mechanism, &wanted.salted_password, wanted.salt.to_vec(), iterations)
        .map_err(|error| (Code::UNACCEPTABLE_CREDENTIAL, error.message))
}
