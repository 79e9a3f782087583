//! State of a connection, and the execution of its requests.

use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use broker::{
    Acting, Broker, Direct, Door, Holding, Identity, Origin, Security, Subscription, SubscriptionHandle, Unwelcome,
    Usage, Wakes,
};
use bytes::Bytes;
use engine::{Delivery, Error, ErrorKind, PartitionId, Result, SourceId, TopicName};
use futures_util::future::LocalBoxFuture;
use net::Outbox;
use net::service::{Handler, Held, Peer, Reply, Spent, Standing};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use wire::frame::BODY_BYTES_MAX;
use wire::negotiate::{self, VERSION};
use wire::response::{HelloOk, Push};
use wire::{Request, Response, Subscribe};

use super::codec::{self, Answer, DeliveryEncoder, NativeProtocol};
use super::errors::{self, Verdict};
use super::login::{self, Login};
use super::room::Room;
use super::{access, caches, cluster, map, queues, tenants};
use crate::throttle;

/// Maximum number of partitions in the response to a subscribe: at least all partitions of one topic.
const SOURCES_TOLD_MAX: usize = engine::limits::PARTITIONS_MAX as usize;
/// Maximum number of subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 16_384;

/// Handler that passes requests to the broker.
#[derive(Clone)]
pub(super) struct NativeHandler {
    pub(super) broker: Arc<Broker>,
    pub(super) is_login_required: bool,
}

/// State that all streams of a connection share. Dropping it ends its subscriptions and releases its leases.
pub(super) struct Connection {
    pub(super) broker: Arc<Broker>,
    pub(super) peer: Rc<Peer>,
    pub(super) login: Login,
    pub(super) room: Room,
    pub(super) shared: Arc<Shared>,
    /// Refusal of the connection, because too many began at its address.
    refused: Option<Unwelcome>,
}

/// State of a connection that its lanes use, too.
pub(super) struct Shared {
    pub(super) subscriptions: Mutex<HashMap<u32, SubscriptionHandle>>,
    /// Notified when a subscription has ended.
    pub(super) ended: Notify,
    pub(super) fetches: AtomicUsize,
    pub(super) heartbeats: AtomicUsize,
    pub(super) receives: AtomicUsize,
    pub(super) watches: AtomicUsize,
    /// Bytes of deliveries that were charged and will be written to the connection's outbox, or have been.
    delivered_bytes: AtomicU64,
    /// Backups that end with the connection.
    pub(super) backups: Mutex<Vec<u64>>,
    /// Leased messages that return to their queues when the connection ends.
    pub(super) held: Mutex<queues::Held>,
    /// `true` once the broker shuts down: from then on no request waits for changes.
    pub(super) is_leaving: watch::Sender<bool>,
}

/// A stream of frames in both directions: a whole TCP connection, or a QUIC stream.
pub(super) struct Stream {
    pub(super) connection: Rc<Connection>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) wakes: Wakes,
    pub(super) caches: caches::Recent,
    /// Bytes of deliveries that were charged before they were written.
    charged_bytes: u64,
}

pub(super) type Later = futures_util::stream::Once<LocalBoxFuture<'static, Answer>>;

impl Handler<NativeProtocol> for NativeHandler {
    type Connection = Connection;
    type Session = Stream;
    type Later = Later;

    fn connect(&self, peer: &Rc<Peer>) -> Connection {
        let shared = Shared {
            subscriptions: Mutex::default(),
            ended: Notify::new(),
            fetches: AtomicUsize::new(0),
            heartbeats: AtomicUsize::new(0),
            receives: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            delivered_bytes: AtomicU64::new(0),
            backups: Mutex::default(),
            held: Mutex::default(),
            is_leaving: watch::Sender::new(false),
        };
        let room = Room::of(&self.broker, peer);
        let login = Login::new(&self.broker, self.is_login_required, peer);
        let refused = self.broker.security.connected(Door::Native, peer.address.map(|at| at.ip()));
        Connection { broker: self.broker.clone(), peer: peer.clone(), login, room, shared: Arc::new(shared), refused }
    }

    fn open(&self, connection: &Rc<Connection>, outbox: &Arc<Outbox>) -> Stream {
        if let Some(Unwelcome { error, .. }) = &connection.refused {
            outbox.push([codec::last_words(error.clone())]);
            outbox.flush();
        }
        Stream {
            connection: connection.clone(),
            outbox: outbox.clone(),
            wakes: Wakes::default(),
            caches: caches::Recent::default(),
            charged_bytes: 0,
        }
    }

    /// Attributes the work of this turn to the client.
    fn turn(&self, stream: &Stream, begins: bool) {
        broker::act_for(begins.then(|| {
            let address = login::address_of(&stream.connection.peer);
            Acting { door: Door::Native, address, user: stream.connection.login.current().user().clone() }
        }));
    }

    fn call(&self, stream: &mut Stream, request: Result<Request>) -> Reply<Answer, Later> {
        if !stream.connection.peer.is_known.get() {
            let hello = request.and_then(|request| self.hello(stream, request));
            return hello.unwrap_or_else(|error| Reply::Last(Answer::LastWords(error)));
        }
        let admitted = request.and_then(|mut request| {
            let tenant = tenants::enter(&stream.connection.login.current(), &mut request);
            let reply = self.admit(stream, request)?;
            Ok(match tenant {
                Some(tenant) => tenants::leave(tenant, reply),
                None => reply,
            })
        });
        admitted.unwrap_or_else(|error| match errors::of_request(&error) {
            Verdict::Answer => Reply::Now(Answer::Response(Response::Error(error))),
            Verdict::Close => Reply::Last(Answer::LastWords(error)),
        })
    }

    fn accept_one_way(&self, stream: &mut Stream, mut message: Request) -> Option<Held> {
        tenants::enter(&stream.connection.login.current(), &mut message);
        self.accept(stream, message)
    }

    fn wants_pause(&self, stream: &Stream) -> bool {
        let login = &stream.connection.login;
        self.broker.security.has_quotas() && !login.is_missing() && throttle::is_wanted(&self.broker, &login.identity())
    }

    /// Stops reading a stream whose client exceeds a quota. Deliveries are charged and delayed on their lanes.
    fn pause(&self, stream: &mut Stream, spent: Spent) -> Option<Held> {
        let Connection { refused, login, shared, .. } = &*stream.connection;
        if let Some(Unwelcome { closes_after, .. }) = refused {
            return Some(Box::pin(tokio::time::sleep(*closes_after)));
        }
        if !self.broker.security.has_quotas() || login.is_missing() {
            return None;
        }
        stream.charged_bytes += shared.delivered_bytes.swap(0, Ordering::Relaxed);
        let charged_bytes = stream.charged_bytes.min(spent.bytes_written);
        stream.charged_bytes -= charged_bytes;
        let spent = Spent { bytes_written: spent.bytes_written - charged_bytes, ..spent };
        throttle::pause(&self.broker, Door::Native, &login.identity(), throttle::usage(spent))
    }

    fn standing(&self, stream: &Stream) -> Standing {
        if stream.connection.refused.is_some() {
            return Standing::Over;
        }
        if stream.connection.login.is_missing() { Standing::Opening } else { Standing::Open }
    }

    /// Wakes the subscribers of the records that were published in this turn.
    fn settle(&self, stream: &mut Stream) {
        stream.wakes.flush();
    }

    /// Announces the shutdown and ends the subscriptions. Queued deliveries are still sent.
    fn drain(&self, stream: &mut Stream) -> Option<Held> {
        stream.outbox.push([codec::go_away()]);
        stream.outbox.flush();
        let shared = stream.connection.shared.clone();
        shared.is_leaving.send_replace(true);
        Some(Box::pin(async move { shared.end_subscriptions().await }))
    }
}

impl NativeHandler {
    /// Answers a request that the client may send.
    fn admit(&self, stream: &mut Stream, request: Request) -> Result<Reply<Answer, Later>> {
        if let Request::Login { mechanism, message } = request {
            let connection = stream.connection.clone();
            return Ok(map::alone(async move {
                let Connection { broker, peer, login, .. } = &*connection;
                login.advance(broker, peer, mechanism, &message).await
            }));
        }
        self.check(stream, &request)?;
        stream.connection.room.check_listing(&request)?;
        self.answer(stream, request)
    }

    pub(super) fn check(&self, stream: &Stream, request: &Request) -> Result<()> {
        let login = &stream.connection.login;
        login.check(&self.broker)?;
        login.count(&self.broker)?;
        access::check(&self.broker, &login.current(), request)
    }

    fn hello(&self, stream: &Stream, request: Request) -> Result<Reply<Answer, Later>> {
        let Request::Hello { version, required, offered, client } = request else {
            return Err(Error::malformed("the first request of a connection must be hello"));
        };
        let features = negotiate::agree(version, required, offered)?;
        let peer = &stream.connection.peer;
        tracing::debug!(connection = peer.id, client, "hello");
        peer.is_known.set(true);
        peer.owes_login.set(stream.connection.login.is_missing());
        Ok(map::now(Response::Hello(HelloOk {
            version: VERSION,
            features,
            body_bytes_max: BODY_BYTES_MAX as u32,
            publishes_in_flight_max: self.broker.settings().pub_queue_depth as u32,
            instance: self.broker.instance(),
            server: concat!("thalweg/", env!("CARGO_PKG_VERSION")).to_owned(),
            cluster: self.broker.leadership().map(cluster::describe),
        })))
    }

    /// Opens a subscription and starts the task on its lane that delivers the records.
    pub(super) fn subscribe(
        &self,
        stream: &Stream,
        request: Subscribe,
    ) -> Result<impl Future<Output = Result<Response>> + use<>> {
        let peer = &stream.connection.peer;
        let shared = stream.connection.shared.clone();
        let id = request.subscription;
        {
            let subscriptions = shared.subscriptions.lock();
            if subscriptions.contains_key(&id) {
                return Err(Error::invalid(format!("subscription {id} is open already")));
            }
            if subscriptions.len() >= SUBSCRIPTIONS_MAX {
                return Err(Error::busy(format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")));
            }
        }
        let mut request = map::subscribe(request)?;
        request.origin = Origin { connection: peer.id, thread: Some(peer.worker), ..Origin::default() };
        let identity = stream.connection.login.identity();
        request.hold = Some(self.broker.security.hold(Door::Native, &identity, Holding::Subscription)?);
        let reader = Arc::downgrade(&self.broker);
        request.permit = self.broker.security.permit(identity.clone(), move |_, identity, topic, _| {
            reader.upgrade().is_some_and(|broker| access::may_read(&broker, identity, topic))
        });
        let names_topics = matches!(request.pattern, engine::Pattern::Wildcard(_));
        let tenant = stream.connection.login.current().tenant().cloned();
        let encoder = move || DeliveryEncoder::new(id, names_topics, tenant.clone());
        let broker = self.broker.clone();
        let outbox = stream.outbox.clone();
        let quic = peer.quic.clone();
        let meter =
            Meter { security: self.broker.security.clone(), identity, outbox: quic.is_none().then(|| shared.clone()) };
        if quic.is_none() && outbox.is_direct() {
            let outbox = outbox.clone();
            let encoder = Mutex::new(encoder());
            request.direct = Some(Box::new(DirectOutbox { outbox, encoder, meter: meter.clone() }));
        }
        Ok(async move {
            let to_quic = match quic {
                Some(quic) => Some(quic.open_uni().await.map_err(|error| {
                    Error::new(ErrorKind::Disconnected, format!("cannot open a stream for the subscription: {error}"))
                })?),
                None => None,
            };
            let subscription = broker.subscribe(request).await?;
            // A pattern may match more partitions than fit into a response; each of its deliveries names its partition.
            let sources = subscription.starts.iter().take(SOURCES_TOLD_MAX).map(codec::source_info).collect();
            shared.subscriptions.lock().insert(id, subscription.handle());
            let lane = subscription.lane;
            let encoder = encoder();
            let draining = shared.clone();
            let drain = async move {
                match to_quic {
                    Some(send) => drain_to_stream(subscription, encoder, send, id, &meter).await,
                    None => drain_to_outbox(subscription, encoder, &outbox, id, &meter).await,
                }
                draining.forget(id);
            };
            if let Err(error) = broker.run_on_lane(lane, drain).await {
                shared.forget(id);
                return Err(error);
            }
            Ok(Response::Subscribed { subscription: id, sources })
        })
    }
}

impl Shared {
    /// Ends all subscriptions after their queued deliveries, and waits until they have ended.
    async fn end_subscriptions(&self) {
        for handle in self.subscriptions.lock().values() {
            handle.end(codec::shutting_down());
        }
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.subscriptions.lock().is_empty() {
                return;
            }
            ended.await;
        }
    }

    fn forget(&self, subscription: u32) {
        self.subscriptions.lock().remove(&subscription);
        self.ended.notify_waiters();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::Disconnected, "the connection is closed");
        for (_, handle) in self.shared.subscriptions.lock().drain() {
            handle.end(error.clone());
        }
        self.shared.held.lock().release(&self.broker);
        self.shared.backups.lock().drain(..).for_each(|number| self.broker.end_backup(number));
    }
}

/// Charges the deliveries of a subscription to the quotas of its client.
#[derive(Clone)]
struct Meter {
    security: Arc<Security>,
    identity: Arc<Identity>,
    /// Connection with whose outbox the deliveries are written, if they have no stream of their own.
    outbox: Option<Arc<Shared>>,
}

impl Meter {
    /// Charges deliveries, which delays the next ones.
    fn charge(&self, chunks: &[Bytes]) {
        if !self.security.has_quotas() {
            return;
        }
        let bytes = chunks.iter().map(Bytes::len).sum();
        if let Some(shared) = &self.outbox {
            shared.delivered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        self.security.charge(Door::Native, &self.identity, None, Usage::response(bytes));
    }

    fn is_in_debt(&self) -> bool {
        !self.security.debt(&self.identity, None, Usage::response(1)).is_zero()
    }

    /// Delays deliveries that were taken from a subscription until the client is no longer in debt.
    async fn repaid(&self, subscription: &Subscription) {
        if self.is_in_debt() {
            subscription.pause(self.security.clone().repaid(self.identity.clone(), Usage::response(1))).await;
        }
    }
}

/// Outbox of a connection to which the publisher's thread delivers directly.
struct DirectOutbox {
    outbox: Arc<Outbox>,
    encoder: Mutex<DeliveryEncoder>,
    meter: Meter,
}

impl Direct for DirectOutbox {
    fn has_room(&self) -> bool {
        self.outbox.has_room() && !self.meter.is_in_debt()
    }

    fn deliver(&self, deliveries: &mut Vec<Delivery>, source: &dyn Fn(SourceId) -> (TopicName, PartitionId)) {
        let mut chunks = Vec::with_capacity(2 * deliveries.len());
        self.encoder.lock().encode(deliveries, source, &mut chunks);
        self.meter.charge(&chunks);
        self.outbox.push(chunks);
    }

    fn flush(&self) {
        self.outbox.flush();
    }
}

/// Delivers a subscription to the outbox that all subscriptions of the connection share. Runs on the lane of the
/// subscription.
async fn drain_to_outbox(
    mut subscription: Subscription,
    mut encoder: DeliveryEncoder,
    outbox: &Outbox,
    id: u32,
    meter: &Meter,
) {
    let handle = subscription.handle();
    let mut deliveries = Vec::new();
    let mut chunks = Vec::new();
    loop {
        outbox.room().await;
        match subscription.next(&mut deliveries).await {
            Ok(()) => {
                meter.repaid(&subscription).await;
                encoder.encode(&mut deliveries, &|source| handle.source(source), &mut chunks);
                meter.charge(&chunks);
                if !outbox.push(chunks.drain(..)) {
                    return;
                }
            }
            Err(error) => {
                outbox.push([codec::encode_push(&Push::Ended { subscription: id, error })]);
                outbox.flush();
                return;
            }
        }
        outbox.flush();
    }
}

/// Delivers a subscription to a dedicated QUIC stream. Runs on the lane of the subscription.
async fn drain_to_stream(
    mut subscription: Subscription,
    mut encoder: DeliveryEncoder,
    mut send: quinn::SendStream,
    id: u32,
    meter: &Meter,
) {
    let handle = subscription.handle();
    let mut deliveries: Vec<Delivery> = Vec::new();
    let mut chunks: Vec<Bytes> = Vec::new();
    loop {
        let is_over = match subscription.next(&mut deliveries).await {
            Ok(()) => {
                meter.repaid(&subscription).await;
                encoder.encode(&mut deliveries, &|source| handle.source(source), &mut chunks);
                meter.charge(&chunks);
                false
            }
            Err(error) => {
                chunks.push(codec::encode_push(&Push::Ended { subscription: id, error }));
                true
            }
        };
        if let Err(error) = send.write_all_chunks(&mut chunks).await {
            tracing::debug!(subscription = id, %error, "the stream of the subscription is closed");
            return;
        }
        chunks.clear();
        if is_over {
            send.finish().unwrap_or_default();
            // Returns when the peer has received everything or has disconnected.
            send.stopped().await.map(drop).unwrap_or_default();
            return;
        }
    }
}

pub(super) fn no_subscription(id: u32) -> Error {
    Error::not_found(format!("this connection has no subscription {id}"))
}
