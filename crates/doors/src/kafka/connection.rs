//! What is kept for a connection, and how each request of it is served.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use broker::{Attempt, Broker, Wakes};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use net::Outbox;
use net::service::{Handler, Held, Peer, Reply, Standing, once};

use super::codec::{self, Answer, Body, Call, FETCH, KafkaProtocol, PRODUCE};
use super::errors::Code;
use super::fetch::FetchBudget;
use super::map::{self, Attempts, Caller, Leaving, Refusal, Tried};
use super::messages::{Request, Response};
use super::produce::{PartitionProduced, ProduceRequest, Produced};
use super::security::Login;
use super::share::{self, SHARE_FETCH, ShareConnection, ShareSessions};

/// Where a peer without an address is: on this machine.
const LOCALHOST: &str = "localhost";

/// Hands requests to the broker.
#[derive(Clone)]
pub(super) struct KafkaHandler {
    pub(super) broker: Arc<Broker>,
    /// Where clients are told to connect, if not where they did.
    pub(super) advertised: Option<(String, u16)>,
    pub(super) budget: FetchBudget,
    pub(super) shares: Arc<ShareSessions>,
    /// Whether clients have to say who they are.
    pub(super) is_login_required: bool,
}

/// One connection.
pub(super) struct Session {
    peer: Rc<Peer>,
    /// Where its client finds this broker.
    advertised: (String, u16),
    /// Who it is.
    login: Rc<Login>,
    leaving: Rc<Leaving>,
    /// With it what its members of share groups have goes back.
    shares: Rc<ShareConnection>,
    wakes: Wakes,
    /// Records were refused of which nobody asked to hear. The connection ends, as it does in Kafka: only so does the
    /// client learn that it has to look anew where its topics are.
    has_lost: Rc<Cell<bool>>,
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
        let login = Rc::new(Login::new(self.is_login_required));
        Session {
            peer: Rc::clone(peer),
            advertised,
            login,
            leaving: Rc::default(),
            shares: Rc::new(ShareConnection::new(self.shares.clone(), Arc::downgrade(&self.broker))),
            wakes: Wakes::default(),
            has_lost: Rc::default(),
        }
    }

    /// What is done in a turn is done for this peer.
    fn turn(&self, session: &Session, begins: bool) {
        broker::set_peer(session.peer.address.filter(|_| begins).map(|at| at.ip()));
    }

    fn call(&self, session: &mut Session, call: Call) -> Reply<Answer, Later> {
        if !session.lets_pass(&self.broker, call.ticket.key) {
            return Reply::Now(Answer::Silence);
        }
        let caller = session.caller(call.client, call.ticket.version);
        match call.body {
            Body::Control(Request::SaslHandshake(request)) => {
                let answer = session.login.handshake(caller.version, &request);
                Reply::Now(Answer::Control(Response::SaslHandshake(answer)))
            }
            Body::Control(Request::SaslAuthenticate(request)) => {
                let (broker, login, peer) = (self.broker.clone(), session.login.clone(), session.peer.clone());
                Reply::Alone(once(
                    async move {
                        let address = peer.address.map(|at| at.ip());
                        let answer = login.authenticate(&broker, address, request).await;
                        peer.is_known.set(peer.is_known.get() || login.is_done());
                        Answer::Control(Response::SaslAuthenticate(answer))
                    }
                    .boxed_local(),
                ))
            }
            Body::Produce(request) => self.produce(session, &caller, request),
            // Until it is answered nothing more of the connection is read, so one answer is all that it holds.
            Body::Fetch(request) => {
                let (broker, budget, login) = (self.broker.clone(), self.budget.clone(), session.login.clone());
                // Nobody waits for it once the connection is closed.
                Reply::Blocked(once(
                    async move {
                        let fetched = map::fetch(&broker, &budget, &caller, &request).await;
                        // It may have waited, and whoever was let in is let go of meanwhile.
                        match login.lets_pass(&broker, FETCH) {
                            true => Answer::Fetched(fetched),
                            false => Answer::Silence,
                        }
                    }
                    .boxed_local(),
                ))
            }
            Body::Control(Request::ShareFetch(request)) => {
                let (broker, login) = (self.broker.clone(), session.login.clone());
                let fetching = share::fetch(broker.clone(), self.budget.clone(), caller, request);
                Reply::Blocked(once(
                    async move {
                        let fetched = fetching.await;
                        match login.lets_pass(&broker, SHARE_FETCH) {
                            true => Answer::Shared(fetched),
                            false => Answer::Silence,
                        }
                    }
                    .boxed_local(),
                ))
            }
            Body::NewerApiVersions => Reply::Now(Answer::Versions(codec::versions(Code::UNSUPPORTED_VERSION))),
            Body::Control(request) => {
                let broker = self.broker.clone();
                // What comes next may depend on it.
                Reply::Alone(once(
                    async move { Answer::Control(map::answer(&broker, &caller, request).await) }.boxed_local(),
                ))
            }
        }
    }

    fn tell(&self, session: &mut Session, request: ProduceRequest) -> Option<Held> {
        if !session.lets_pass(&self.broker, PRODUCE) {
            return None;
        }
        let caller = session.caller(String::new(), 0);
        let mut waiting = Vec::new();
        for Tried { topic, attempt, .. } in map::publish(&self.broker, &caller, &mut session.wakes, request) {
            match attempt {
                // Nobody is told whether it is committed.
                Ok(Attempt::Done(_) | Attempt::Commits(_)) => {}
                Ok(Attempt::Waits(batch)) => waiting.push((topic, batch)),
                Err(refusal) => {
                    map::publish_lost(&self.broker, &topic, &refusal.message);
                    session.has_lost.set(true);
                }
            }
        }
        if waiting.is_empty() {
            return None;
        }
        let (broker, has_lost) = (self.broker.clone(), session.has_lost.clone());
        Some(Box::pin(async move {
            for (topic, batch) in waiting {
                if let Err(error) = batch.finish(&broker, &mut Wakes::default()).await {
                    map::publish_lost(&broker, &topic, &error.message);
                    has_lost.set(true);
                }
            }
        }))
    }

    /// Lets the subscribers have what was published to them.
    fn settle(&self, session: &mut Session) {
        session.wakes.flush();
    }

    fn standing(&self, session: &Session) -> Standing {
        if session.has_lost.get() { Standing::Over } else { session.login.standing() }
    }

    /// The broker goes away: whoever waits for others, or for records, is answered.
    fn drain(&self, session: &mut Session) -> Option<Held> {
        session.leaving.begin();
        None
    }
}

impl Session {
    fn lets_pass(&self, broker: &Broker, key: i16) -> bool {
        let passes = self.login.lets_pass(broker, key);
        if !passes {
            tracing::info!(peer = %self.peer, key, "closed a connection whose user is not logged in, or gone");
        }
        passes
    }

    fn caller(&self, client: String, version: i16) -> Caller {
        let (user, host) = (self.login.user(), host_of(&self.peer));
        let (leaving, shares) = (self.leaving.clone(), self.shares.clone());
        Caller { client, user, host, advertised: self.advertised.clone(), version, leaving, shares }
    }
}

impl KafkaHandler {
    /// Batches are in their partitions when this is over, in the order in which they came, unless one has to wait for
    /// room: then nothing more is read before it is there. Those on their way to the disk are answered later.
    fn produce(&self, session: &mut Session, caller: &Caller, request: ProduceRequest) -> Reply<Answer, Later> {
        if request.acks.is_none() {
            return Reply::Now(Answer::Produced(map::refuse_all(request, Code::INVALID_REQUIRED_ACKS)));
        }
        let attempts = map::publish(&self.broker, caller, &mut session.wakes, request);
        let is_waiting = attempts.iter().any(|tried| matches!(tried.attempt, Ok(Attempt::Waits(_))));
        let mut answer = finish(self.broker.clone(), attempts).boxed_local();
        // Where nothing has to be waited for it is over at its first look.
        match (&mut answer).now_or_never() {
            Some(answer) => Reply::Now(answer),
            None if is_waiting => Reply::Alone(once(answer)),
            None => Reply::Later(once(answer)),
        }
    }
}

/// Where a connection comes from, as access control has it.
fn host_of(peer: &Peer) -> String {
    peer.address.map_or_else(|| LOCALHOST.into(), written)
}

/// An address as clients and access control have it: one of IPv4 is that also where it came in through IPv6.
fn written(address: SocketAddr) -> String {
    address.ip().to_canonical().to_string()
}

/// Waits for what became of every batch.
async fn finish(broker: Arc<Broker>, attempts: Attempts) -> Answer {
    let mut topics: Vec<(Arc<str>, Vec<PartitionProduced>)> = Vec::new();
    for Tried { topic, partition, attempt, sent } in attempts {
        let published = match attempt {
            Ok(Attempt::Done(published)) => Ok(published),
            Ok(Attempt::Waits(waiting)) => match waiting.finish(&broker, &mut Wakes::default()).await {
                Ok(published) => Ok(published),
                Err(error) => Err(Refusal::after_wait(error, &topic, sent).await),
            },
            Ok(Attempt::Commits(committing)) => committing.finish(&broker).await.map_err(Refusal::of_batch),
            Err(refusal) => Err(refusal),
        };
        let produced = map::produced(partition, published);
        match topics.last_mut() {
            Some((last, partitions)) if *last == topic => partitions.push(produced),
            _ => topics.push((topic, vec![produced])),
        }
    }
    Answer::Produced(Produced { topics })
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
