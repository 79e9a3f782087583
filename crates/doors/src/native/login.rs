//! Logins over the native protocol.

use std::cell::{Ref, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use broker::{Broker, Door, Hold, Identity, LoginSource, Sasl, SaslStep, unknown_mechanism};
use engine::{Error, ErrorKind, Result};
use net::service::{Peer, Transport};
use net::tls::PeerIdentity;
use net::{OpenConnection, UnixPeer};
use wire::Response;

use crate::{login, throttle};

/// Mechanism of programs of the broker's own user: see [`Sasl::begin_administrator`].
const TOKEN: &str = "TOKEN";

fn source_of(peer: &Peer) -> LoginSource {
    LoginSource { door: Door::Native, address: address_of(peer) }
}

/// Returns the address of a peer; that of this machine for one of a Unix socket, so that the limits for an address
/// apply to it. A pipe has none.
pub(super) fn address_of(peer: &Peer) -> Option<IpAddr> {
    let of_unix = (peer.transport == Transport::Unix).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    peer.address.map(|at| at.ip()).or(of_unix)
}

/// State of the login of a connection.
pub(super) struct Login {
    is_required: bool,
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
    Out,
    /// The mechanism waits for another message.
    Waiting(String, Sasl),
    In,
}

impl Login {
    /// Creates the state of a connection. A client with a certificate has logged in, and so has a process of the
    /// broker's own user over a Unix socket.
    pub(super) fn new(broker: &Broker, is_required: bool, peer: &Peer) -> Self {
        let source = source_of(peer);
        let certificate = PeerIdentity::of_certificates(Some(&peer.certificates));
        let certified = login::of_certificate(broker, certificate.as_ref(), source);
        let is_owner = peer.process.is_some_and(UnixPeer::is_owner);
        let known = certified.or_else(|| is_owner.then(|| broker.security.log_in_owner(source)));
        let step = if known.is_some() { Step::In } else { Step::Out };
        let identity = known.unwrap_or_else(|| Identity::anonymous(&source.host()));
        Self {
            is_required,
            step: RefCell::new(step),
            identity: RefCell::new(Arc::new(identity)),
            hold: RefCell::default(),
            entry: peer.entry.clone(),
        }
    }

    /// Counts the connection for its client, unless it is counted. It is not counted before its first request, which
    /// may be a login as the administrator.
    pub(super) fn count(&self, broker: &Broker) -> Result<()> {
        if self.hold.borrow().is_some() { Ok(()) } else { self.count_for(broker, &self.identity()) }
    }

    fn count_for(&self, broker: &Broker, identity: &Identity) -> Result<()> {
        throttle::hold_connection(broker, Door::Native, identity, &mut self.hold.borrow_mut(), &self.entry)
    }

    pub(super) fn identity(&self) -> Arc<Identity> {
        self.identity.borrow().clone()
    }

    /// Returns the identity for the time of a request that does not wait.
    pub(super) fn current(&self) -> Ref<'_, Identity> {
        Ref::map(self.identity.borrow(), |identity| &**identity)
    }

    /// Returns `true` while the connection still has to log in.
    pub(super) fn is_missing(&self) -> bool {
        self.is_required && !matches!(*self.step.borrow(), Step::In)
    }

    /// Checks that the connection may send requests. One whose credential has ended in the meantime may not.
    pub(super) fn check(&self, broker: &Broker) -> Result<()> {
        match &*self.step.borrow() {
            Step::In => broker.security.check_valid(&self.identity.borrow()),
            _ if self.is_required => {
                let address = self.identity.borrow().host().parse().ok();
                broker.security.missing_login(LoginSource { door: Door::Native, address });
                Err(Error::new(
                    ErrorKind::Denied,
                    "this broker requires a login: set user and password_file, token_file, or over TLS client_cert; \
                     thalweg login stores one for the command line",
                ))
            }
            _ => Ok(()),
        }
    }

    /// A login that begins ends the one before, even if it fails.
    fn log_out(&self) {
        self.step.replace(Step::Out);
        let anonymous = Identity::anonymous(self.identity.borrow().host());
        self.identity.replace(Arc::new(anonymous));
    }

    /// Handles one message of a login. No other request of the connection comes in between.
    pub(super) async fn advance(
        &self,
        broker: &Broker,
        peer: &Peer,
        mechanism: String,
        message: &[u8],
    ) -> Result<Response> {
        let source = source_of(peer);
        if !matches!(&*self.step.borrow(), Step::Waiting(begun, _) if *begun == mechanism) {
            self.log_out();
        }
        let sasl = match self.step.take() {
            Step::Waiting(_, sasl) => sasl,
            _ if mechanism == TOKEN => Sasl::begin_administrator(),
            _ => Sasl::begin(&mechanism).ok_or_else(|| unknown_mechanism(&mechanism))?,
        };
        let (is_done, message) = match sasl.advance(&broker.security, source, message).await? {
            SaslStep::Challenged(sasl, challenge) => {
                self.step.replace(Step::Waiting(mechanism, sasl));
                (false, challenge)
            }
            SaslStep::Done(identity, answer) => {
                self.count_for(broker, &identity)?;
                tracing::debug!(user = %identity.user(), address = %source, "logged in");
                broker::act_as(identity.user());
                self.identity.replace(identity);
                self.step.replace(Step::In);
                peer.owes_login.set(false);
                (true, answer)
            }
        };
        Ok(Response::Login { is_done, message: message.into() })
    }
}
