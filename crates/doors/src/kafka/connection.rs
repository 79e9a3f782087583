//! State of a connection, and the handling of its requests.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use broker::{Acting, Attempt, Broker, LoginSource, Unwelcome, Usage, WaitingPublish, Wakes};
use engine::security::TenantName;
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt};
use net::Outbox;
use net::service::{Handler, Held, Peer, Reply, Spent, Standing, once};
use net::tls::PeerIdentity;
use tokio::task::yield_now;

use super::caller::{Caller, Leaving, Mute, Muted, Refusal, millis};
use super::codec::{self, Answer, Body, Call, FETCH, KafkaProtocol, OneWay, PRODUCE};
use super::errors::Code;
use super::fetch::FetchBudget;
use super::map::{self, Attempts, BATCHES_PER_TURN, Tried};
use super::messages::{Request, Response};
use super::produce::{PartitionProduced, ProduceRequest, Produced};
use super::security::{self, Login};
use super::share::{self, SHARE_FETCH, ShareConnection, ShareSessions};
use super::tenants;
use crate::login;

/// Host name of a peer without an address, which is on this machine.
const LOCALHOST: &str = "localhost";
/// Keys of the APIs whose responses may be long: Metadata, OffsetFetch, ElectLeaders, and those that list or describe.
const LISTINGS: [i16; 19] = [3, 9, 15, 16, 29, 32, 35, 43, 46, 48, 50, 61, 65, 66, 69, 74, 75, 77, 90];
/// Maximum time for which a list waits until its address has read earlier responses.
const ROOM_WAIT: Duration = Duration::from_secs(20);

/// Handler that passes requests to the broker.
#[derive(Clone)]
pub(super) struct KafkaHandler {
    pub(super) broker: Arc<Broker>,
    /// Address that is advertised to clients; `None`: the address that they connected to.
    pub(super) advertised: Option<(String, u16)>,
    pub(super) budget: FetchBudget,
    pub(super) shares: Arc<ShareSessions>,
    /// `true` if clients have to log in.
    pub(super) is_login_required: bool,
}

/// State of one connection.
pub(super) struct Session {
    peer: Rc<Peer>,
    /// Address at which the client reaches this broker.
    advertised: (String, u16),
    /// State of the login.
    login: Rc<Login>,
    leaving: Rc<Leaving>,
    /// Share sessions. Dropping them releases the records that this connection acquired.
    shares: Rc<ShareConnection>,
    wakes: Wakes,
    /// `true` once the connection has to be closed: records were refused for which no acknowledgement was requested, as
    /// in Kafka, because only then does the client refresh its metadata; or a response found no memory.
    must_close: Rc<Cell<bool>>,
    mute: Rc<Mute>,
    /// Refusal of the connection, because too many began at its address or are open. The protocol has no error for it
    /// (KIP-612): the connection is closed.
    refused: Option<Unwelcome>,
}

type Later = futures_util::stream::Once<LocalBoxFuture<'static, Answer>>;

impl Handler<KafkaProtocol> for KafkaHandler {
    type Connection = Rc<Peer>;
    type Session = Session;
    type Later = Later;

    fn connect(&self, peer: &Rc<Peer>) -> Rc<Peer> {
        peer.is_known.set(!self.is_login_required);
        peer.clone()
    }

    fn open(&self, peer: &Rc<Rc<Peer>>, _outbox: &Arc<Outbox>) -> Session {
        let local = peer.local.map_or_else(|| (LOCALHOST.to_owned(), 0), |at| (written(at), at.port()));
        let advertised = self.advertised.clone().unwrap_or(local);
        let certificate = PeerIdentity::of_certificates(Some(&peer.certificates));
        let source = LoginSource { door: broker::Door::Kafka, address: peer.address.map(|at| at.ip()) };
        let certified = login::of_certificate(&self.broker, certificate.as_ref(), source);
        peer.is_known.set(peer.is_known.get() || certified.is_some());
        let login = Rc::new(Login::new(self.is_login_required, &host_of(peer), certified, peer.entry.clone()));
        let refused = self.broker.security.connected(broker::Door::Kafka, peer.address.map(|at| at.ip()));
        let refused = refused.or_else(|| login.count(&self.broker).err().map(Unwelcome::from));
        Session {
            peer: Rc::clone(peer),
            advertised,
            login,
            leaving: Rc::default(),
            shares: Rc::new(ShareConnection::new(self.shares.clone(), Arc::downgrade(&self.broker))),
            wakes: Wakes::default(),
            must_close: Rc::default(),
            mute: Rc::default(),
            refused,
        }
    }

    /// Attributes the work of a turn to the client.
    fn turn(&self, session: &Session, begins: bool) {
        broker::act_for(begins.then(|| {
            let address = session.peer.address.map(|at| at.ip());
            Acting { door: broker::Door::Kafka, address, user: session.login.identity().user().clone() }
        }));
    }

    fn call(&self, session: &mut Session, mut call: Call) -> Reply<Answer, Later> {
        if !session.lets_pass(&self.broker, call.ticket.key) {
            return Reply::Now(Answer::Silence);
        }
        let caller = session.caller(call.client, call.ticket.version);
        let tenant = caller.identity.tenant().cloned();
        if let Some(tenant) = &tenant {
            tenants::enter(tenant, &mut call.body);
        }
        let reply = self.reply(session, caller, call.ticket.key, call.body);
        match tenant {
            Some(tenant) => within(tenant, reply),
            None => reply,
        }
    }

    fn accept_one_way(&self, session: &mut Session, message: OneWay) -> Option<Held> {
        if !session.lets_pass(&self.broker, PRODUCE) {
            return None;
        }
        let OneWay { client, mut request } = message;
        let caller = session.caller(client, 0);
        if let Some(tenant) = caller.identity.tenant() {
            tenants::enter_produce(tenant, &mut request);
        }
        caller.charge(&self.broker, Usage::request(request.bytes));
        let broker = self.broker.clone();
        let must_close = session.must_close.clone();
        if request.has_more_than(BATCHES_PER_TURN) {
            return Some(Box::pin(async move {
                let attempts = map::publish_in_turns(&broker, &caller, request).await;
                finish_one_way(&broker, waiting(&broker, attempts, &must_close), &must_close).await;
            }));
        }
        let attempts = map::publish(&broker, &caller, &mut session.wakes, request);
        let waiting = waiting(&broker, attempts, &must_close);
        if waiting.is_empty() {
            return None;
        }
        Some(Box::pin(async move { finish_one_way(&broker, waiting, &must_close).await }))
    }

    /// Wakes the subscribers of the published records.
    fn settle(&self, session: &mut Session) {
        session.wakes.flush();
    }

    fn wants_pause(&self, session: &Session) -> bool {
        session.mute.is_wanted()
    }

    /// Mutes the connection after a response with a throttle time.
    fn pause(&self, session: &mut Session, _spent: Spent) -> Option<Held> {
        if let Some(Unwelcome { closes_after, .. }) = session.refused {
            return Some(Box::pin(tokio::time::sleep(closes_after)));
        }
        let Muted { delay, client, usage } = session.mute.take()?;
        let identity = session.login.identity();
        let security = self.broker.security.clone();
        Some(Box::pin(security.repaid_within(identity, Some(client.into()), usage, delay)))
    }

    fn standing(&self, session: &Session) -> Standing {
        if session.refused.is_some() || session.must_close.get() { Standing::Over } else { session.login.standing() }
    }

    /// Starts the shutdown: requests that wait for other clients or for records are answered.
    fn drain(&self, session: &mut Session) -> Option<Held> {
        session.leaving.begin();
        None
    }
}

impl KafkaHandler {
    /// Answers a request that has the broker's names.
    fn reply(&self, session: &mut Session, caller: Caller, key: i16, body: Body) -> Reply<Answer, Later> {
        match body {
            Body::Control(Request::SaslHandshake(request)) => {
                let answer = session.login.handshake(&self.broker, caller.version, &request);
                Reply::Now(Answer::Control(Response::SaslHandshake(answer)))
            }
            Body::Control(Request::SaslAuthenticate(request)) => {
                let broker = self.broker.clone();
                let login = session.login.clone();
                let peer = session.peer.clone();
                Reply::Alone(once(
                    async move {
                        let address = peer.address.map(|at| at.ip());
                        let answer = login.authenticate(&broker, address, request).await;
                        peer.is_known.set(peer.is_known.get() || login.is_done());
                        answer.map_or(Answer::Silence, |answer| Answer::Control(Response::SaslAuthenticate(answer)))
                    }
                    .boxed_local(),
                ))
            }
            Body::Produce(request) => self.produce(session, caller, request),
            // The connection is not read until the fetch is answered, so it holds at most one such response.
            Body::Fetch(request) => {
                let broker = self.broker.clone();
                let budget = self.budget.clone();
                let login = session.login.clone();
                // It is dropped when the connection closes.
                Reply::Blocked(once(
                    async move {
                        let fetched = map::fetch(&broker, &budget, &caller, &request).await;
                        // The fetch may have waited, and the user may have been deleted in the meantime.
                        if login.lets_pass(&broker, FETCH) { Answer::Fetched(fetched) } else { Answer::Silence }
                    }
                    .boxed_local(),
                ))
            }
            Body::Control(Request::ShareFetch(request)) => {
                let broker = self.broker.clone();
                let login = session.login.clone();
                let caller = Rc::new(caller);
                let fetching = share::fetch(broker.clone(), self.budget.clone(), caller.clone(), request);
                Reply::Blocked(once(
                    async move {
                        let mut fetched = fetching.await;
                        fetched.throttle(&broker, &caller);
                        if login.lets_pass(&broker, SHARE_FETCH) { Answer::Shared(fetched) } else { Answer::Silence }
                    }
                    .boxed_local(),
                ))
            }
            Body::NewerApiVersions => Reply::Now(Answer::Versions(codec::versions(Code::UNSUPPORTED_VERSION))),
            Body::Control(request) => {
                let broker = self.broker.clone();
                // Later requests may depend on it.
                let is_login = security::BEFORE_LOGIN.contains(&key) && !session.login.is_done();
                let usage = Usage { requests: u64::from(!is_login), ..Usage::default() };
                let throttle = caller.charge(&broker, usage);
                let address = session.peer.address.map(|at| at.ip());
                let must_close = session.must_close.clone();
                Reply::Alone(once(
                    async move {
                        let is_admitted = !LISTINGS.contains(&key)
                            || broker.answers().wait_for_turn(address, ROOM_WAIT).await.is_ok();
                        if !is_admitted {
                            // Most responses have no place for an error.
                            tracing::warn!(
                                client = caller.client,
                                key,
                                "closed a connection: no memory for a response"
                            );
                            must_close.set(true);
                            return Answer::Silence;
                        }
                        let mut response = map::answer(&broker, &caller, request).await;
                        response.set_throttle_time(millis(throttle).max(caller.wait_ms.get()));
                        Answer::Control(response)
                    }
                    .boxed_local(),
                ))
            }
        }
    }
}

impl Session {
    fn lets_pass(&self, broker: &Broker, key: i16) -> bool {
        let passes = self.login.lets_pass(broker, key);
        if !passes {
            tracing::info!(peer = %self.peer, key, "closed a connection without a login, or whose user was deleted");
        }
        passes
    }

    fn caller(&self, client: String, version: i16) -> Caller {
        let identity = self.login.identity();
        let leaving = self.leaving.clone();
        let shares = self.shares.clone();
        let mute = self.mute.clone();
        let wait_ms = Cell::new(0);
        Caller { client, identity, advertised: self.advertised.clone(), version, leaving, shares, mute, wait_ms }
    }
}

impl KafkaHandler {
    /// Appends the batches in the order of the request. If one has to wait for room, the connection is not read until
    /// it is appended. Batches that are still being written to disk are answered later. Many batches are appended in
    /// turns with the requests of other connections.
    fn produce(&self, session: &mut Session, caller: Caller, request: ProduceRequest) -> Reply<Answer, Later> {
        if request.acks.is_none() {
            return Reply::Now(Answer::Produced(map::refuse_all(request, Code::INVALID_REQUIRED_ACKS)));
        }
        let throttle_ms = millis(caller.charge(&self.broker, Usage::request(request.bytes)));
        if request.has_more_than(BATCHES_PER_TURN) {
            let broker = self.broker.clone();
            let published = async move {
                let attempts = map::publish_in_turns(&broker, &caller, request).await;
                finish(broker, attempts, throttle_ms).await
            };
            return Reply::Alone(once(published.boxed_local()));
        }
        let attempts = map::publish(&self.broker, &caller, &mut session.wakes, request);
        let is_waiting = attempts.iter().any(|tried| matches!(tried.attempt, Ok(Attempt::Waits(_))));
        let mut answer = finish(self.broker.clone(), attempts, throttle_ms).boxed_local();
        // If there is nothing to wait for, the first poll completes it.
        match (&mut answer).now_or_never() {
            Some(answer) => Reply::Now(answer),
            None if is_waiting => Reply::Alone(once(answer)),
            None => Reply::Later(once(answer)),
        }
    }
}

/// Returns the reply with the names of a tenant's client.
fn within(tenant: TenantName, reply: Reply<Answer, Later>) -> Reply<Answer, Later> {
    let later = |later: Later, tenant: TenantName| -> Later {
        let answers = later.into_future().map(move |(answer, _)| {
            let mut answer = answer.unwrap_or(Answer::Silence);
            tenants::leave(&tenant, &mut answer);
            answer
        });
        once(answers.boxed_local())
    };
    match reply {
        Reply::Now(mut answer) => {
            tenants::leave(&tenant, &mut answer);
            Reply::Now(answer)
        }
        Reply::Last(mut answer) => {
            tenants::leave(&tenant, &mut answer);
            Reply::Last(answer)
        }
        Reply::Later(answers) => Reply::Later(later(answers, tenant)),
        Reply::Alone(answers) => Reply::Alone(later(answers, tenant)),
        Reply::Blocked(answers) => Reply::Blocked(later(answers, tenant)),
        Reply::Again(held) => Reply::Again(held),
    }
}

/// Returns the host of a connection as used by access control.
fn host_of(peer: &Peer) -> String {
    peer.address.map_or_else(|| LOCALHOST.into(), written)
}

/// Formats an address as used by clients and access control; an IPv4 address that is mapped into IPv6 is written as
/// IPv4.
fn written(address: SocketAddr) -> String {
    address.ip().to_canonical().to_string()
}

/// Returns the batches that wait for room. No client receives a response about them, or about those that failed.
fn waiting(broker: &Broker, attempts: Attempts, must_close: &Cell<bool>) -> Vec<(Arc<str>, Box<WaitingPublish>)> {
    let mut waiting = Vec::new();
    for Tried { topic, attempt, .. } in attempts {
        match attempt {
            // Whether or not it is committed.
            Ok(Attempt::Done(_) | Attempt::Commits(_)) => {}
            Ok(Attempt::Waits(batch)) => waiting.push((topic, batch)),
            Err(refusal) => {
                map::publish_lost(broker, &topic, &refusal.message);
                must_close.set(true);
            }
        }
    }
    waiting
}

/// Appends the batches that wait for room, for which no acknowledgement was requested.
async fn finish_one_way(broker: &Broker, waiting: Vec<(Arc<str>, Box<WaitingPublish>)>, must_close: &Cell<bool>) {
    for (topic, batch) in waiting {
        if let Err(error) = batch.finish(broker, &mut Wakes::default()).await {
            map::publish_lost(broker, &topic, &error.message);
            must_close.set(true);
        }
    }
}

/// Waits for the outcomes of all batches.
async fn finish(broker: Arc<Broker>, attempts: Attempts, throttle_ms: i32) -> Answer {
    let mut topics: Vec<(Arc<str>, Vec<PartitionProduced>)> = Vec::new();
    let mut throttle_ms = throttle_ms;
    for (done, Tried { topic, partition, attempt, sent }) in attempts.into_iter().enumerate() {
        if done > 0 && done.is_multiple_of(BATCHES_PER_TURN) {
            yield_now().await;
        }
        let published = match attempt {
            Ok(Attempt::Done(published)) => Ok(published),
            Ok(Attempt::Waits(waiting)) => match waiting.finish(&broker, &mut Wakes::default()).await {
                Ok(published) => Ok(published),
                Err(error) => Err(Refusal::after_wait(error, &topic, sent).await),
            },
            Ok(Attempt::Commits(committing)) => committing.finish(&broker).await.map_err(Refusal::of_batch),
            Err(refusal) => Err(refusal),
        };
        throttle_ms = throttle_ms.max(published.as_ref().err().map_or(0, |refusal| refusal.throttle_ms));
        let produced = map::produced(partition, published);
        match topics.last_mut() {
            Some((last, partitions)) if *last == topic => partitions.push(produced),
            _ => topics.push((topic, vec![produced])),
        }
    }
    Answer::Produced(Produced { topics, throttle_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv4_is_one_however_it_came() {
        for (at, expected) in
            [("[::ffff:10.0.0.1]:9092", "10.0.0.1"), ("10.0.0.1:1", "10.0.0.1"), ("[::1]:9092", "::1")]
        {
            assert_eq!(written(at.parse().expect("an address")), expected);
        }
    }
}
