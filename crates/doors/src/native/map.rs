//! Maps each request to one call of the broker, and the result to its response.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker::{Attempt, Broker, FREE_BYTES, Fetched, Held, Identity, Permit, TopicStatus, Wakes};
use bytes::BytesMut;
use engine::security::{Operation, Resource, ResourceKind};
use engine::{Acks, Error, PartitionId, Pattern, RecordBatch, Result};
use futures_util::FutureExt;
use net::service::{self, Reply, once};
use wire::response::{Level, PartitionInfo, Published, Response, TopicInfo};
use wire::{CacheRequest, GroupRequest, QueueRequest, Request, Subscribe};

use super::codec::{self, Answer};
use super::connection::{Later, NativeHandler, Shared, Stream, no_subscription};
use super::room::Room;
use super::{access, backups, caches, connections, groups, mesh, nodes, queues, security};

/// Maximum number of fetches of one connection that wait for records at the same time.
const FETCHES_MAX: usize = 64;
/// Maximum number of heartbeats of one connection that wait for changes. Further heartbeats are answered immediately.
const HEARTBEATS_MAX: usize = 256;
/// Maximum number of receives of one connection that wait for messages at the same time.
const RECEIVES_MAX: usize = 256;
/// Maximum number of cache watches of one connection that wait for changes at the same time.
const WATCHES_MAX: usize = 256;
/// Maximum number of topics in one response to a list.
const LIST_COUNT_MAX: u32 = 1000;
/// Maximum number of reads of one fetch that waits for memory. Records may be appended while it waits, so that the next
/// read needs more memory.
const ROOM_TRIES_MAX: usize = 4;

impl NativeHandler {
    /// Carries out a message that has no answer. Returns the work that is left, during which the stream is not read.
    pub(super) fn accept(&self, stream: &mut Stream, message: Request) -> Option<service::Held> {
        if let Err(error) = self.check(stream, &message) {
            if let Request::Publish { topic, .. } = &message {
                publish_lost(&self.broker, topic, &error);
            }
            return None;
        }
        match message {
            Request::Publish { topic, partition, acks, batch } => {
                match publish(&self.broker, &mut stream.wakes, &topic, partition, acks, batch) {
                    // A publish without acknowledgement does not report whether it was committed.
                    Ok(Attempt::Done(_) | Attempt::Commits(_)) => {}
                    Ok(Attempt::Waits(waiting)) => {
                        let broker = self.broker.clone();
                        let wait = async move {
                            if let Err(error) = waiting.finish(&broker, &mut Wakes::default()).await {
                                publish_lost(&broker, &topic, &error);
                            }
                        };
                        return Some(Box::pin(wait));
                    }
                    Err(error) => publish_lost(&self.broker, &topic, &error),
                }
            }
            // The subscription may have just ended. A grant of credit has no response, so the error is not reported.
            Request::Credit { subscription, bytes } => {
                if let Some(handle) = stream.connection.shared.subscriptions.lock().get(&subscription) {
                    handle.add_credit(bytes);
                }
            }
            _ => {}
        }
        None
    }

    /// Answers a request: the table of all requests of the protocol.
    pub(super) fn answer(&self, stream: &mut Stream, request: Request) -> Result<Reply<Answer, Later>> {
        let broker = &self.broker;
        Ok(match request {
            Request::Publish { topic, partition, acks, batch } => {
                match publish(broker, &mut stream.wakes, &topic, partition, acks, batch)? {
                    Attempt::Done(done) => now(published(done)),
                    Attempt::Waits(waiting) => {
                        let broker = broker.clone();
                        alone(async move { waiting.finish(&broker, &mut Wakes::default()).await.map(published) })
                    }
                    Attempt::Commits(committing) => {
                        let broker = broker.clone();
                        later(async move { committing.finish(&broker).await.map(published) })
                    }
                }
            }
            Request::Subscribe(request) => alone(self.subscribe(stream, request)?),
            Request::Unsubscribe { subscription } => {
                // The id of the subscription stays taken until the peer has received the end of the subscription.
                let handle = stream.connection.shared.subscriptions.lock().get(&subscription).cloned();
                let handle = handle.ok_or_else(|| no_subscription(subscription))?;
                handle.end(Error::not_found("the subscription was closed"));
                now(Response::Unsubscribed)
            }
            Request::Fetch { topic, partition, offset, bytes_max, wait_ms } => {
                let turn = WaitTurn::take(&stream.connection.shared, |shared| &shared.fetches, FETCHES_MAX);
                let turn = turn.ok_or_else(|| {
                    Error::busy(format!(
                        "pending fetch limit of a connection reached ({FETCHES_MAX}): wait for a response first, or \
                         use another connection"
                    ))
                })?;
                let room = stream.connection.room.clone();
                let reader = (broker.clone(), stream.connection.login.identity(), topic.clone());
                let fetch = fetch(broker.clone(), room, topic, partition, offset, bytes_max, wait_ms);
                later(async move {
                    let (broker, identity, topic) = reader;
                    let security = &broker.security;
                    let check = || ready(security.authorize(&identity, Operation::Read, &Resource::topic(&topic)));
                    turn.wait(async { security.while_permitted(check, fetch).await? }).await
                })
            }
            Request::TopicCreate { topic, settings } => {
                let broker = broker.clone();
                alone(async move {
                    let status = broker.create_topic(&topic, settings).await?;
                    Ok(Response::TopicCreated(topic_info(&status)))
                })
            }
            Request::TopicDelete { topic } => {
                let broker = broker.clone();
                alone(async move { broker.delete_topic(&topic).await.map(|()| Response::TopicDeleted) })
            }
            Request::TopicDescribe { topic } => {
                now(Response::TopicDescribed(topic_info(&broker.describe_topic(&topic)?)))
            }
            Request::TopicGrow { topic, partitions } => {
                let broker = broker.clone();
                alone(async move {
                    let status = broker.grow_topic(&topic, partitions).await?;
                    Ok(Response::TopicGrown(topic_info(&status)))
                })
            }
            Request::TopicAlter { topic, change } => {
                let broker = broker.clone();
                alone(async move {
                    let status = broker.alter_topic(&topic, change).await?;
                    Ok(Response::TopicAltered(topic_info(&status)))
                })
            }
            Request::RecordsDelete { topic, partition, before } => {
                let broker = broker.clone();
                alone(async move {
                    let start = broker.delete_records(&topic, partition, before).await?;
                    Ok(Response::RecordsDeleted { start })
                })
            }
            Request::TopicList { after, count_max } => {
                let identity = stream.connection.login.identity();
                list(broker.clone(), identity, after, count_max)
            }
            Request::Security(request) => {
                let broker = broker.clone();
                let identity = stream.connection.login.identity();
                alone(async move { security::answer(&broker, &identity, request).await })
            }
            Request::Cluster(request) => {
                let broker = broker.clone();
                alone(async move { nodes::answer(&broker, request).await })
            }
            Request::Mesh(request) => {
                let broker = broker.clone();
                alone(async move { mesh::answer(&broker, request).await })
            }
            Request::Connection(request) => {
                let broker = broker.clone();
                let own = stream.connection.peer.id;
                alone(async move { connections::answer(&broker, own, request) })
            }
            Request::Backup(request) => {
                let broker = broker.clone();
                let room = stream.connection.room.clone();
                let shared = stream.connection.shared.clone();
                let identity = stream.connection.login.identity();
                broker.security.authorize_copy(&identity, self.is_login_required)?;
                later(async move { backups::answer(&broker, &room, &shared, request).await })
            }
            Request::Group(mut request) => {
                let turn = self.heartbeat_turn(stream, &mut request);
                let broker = broker.clone();
                let peer = stream.connection.peer.to_string();
                let identity = stream.connection.login.identity();
                later(async move {
                    let answer = groups::answer(&broker, &identity, request, &peer);
                    match turn {
                        Some(turn) => turn.wait(answer).await,
                        None => answer.await,
                    }
                })
            }
            Request::Queue(request) => self.queue(stream, request)?,
            Request::Cache(request @ CacheRequest::Watch { .. }) => {
                let turn = WaitTurn::take(&stream.connection.shared, |shared| &shared.watches, WATCHES_MAX);
                let turn = turn.ok_or_else(|| {
                    Error::busy(format!(
                        "pending watch limit of a connection reached ({WATCHES_MAX}): wait for a response first, or \
                         use another connection"
                    ))
                })?;
                let again = Request::Cache(request.clone());
                let identity = stream.connection.login.identity();
                let watch = caches::watch(broker.clone(), request);
                let broker = broker.clone();
                later(async move {
                    let check = || ready(access::check(&broker, &identity, &again));
                    turn.wait(async { broker.security.while_permitted(check, watch).await? }).await
                })
            }
            Request::Cache(request) => {
                let room = &stream.connection.room;
                room.check(&request)?;
                let identity = stream.connection.login.current();
                let (response, commit) = caches::answer(broker, &identity, &mut stream.caches, request)?;
                let response = room.charge(response);
                if commit.is_done() {
                    return Ok(Reply::Now(response));
                }
                let is_late = broker.caches.are_late();
                let when_durable = async move { commit.wait().await.map(|()| response) };
                if is_late { alone(when_durable) } else { later(when_durable) }
            }
            Request::Stats => stats(broker.clone()),
            Request::Ping => now(Response::Pong),
            Request::InitProducer => later(init_producer(broker.clone())),
            Request::Hello { .. } | Request::Login { .. } => return Err(Error::malformed("hello was already sent")),
            Request::Credit { .. } => return Err(Error::malformed("a grant of credit has no answer")),
        })
    }

    /// Executes a queue request. Create, alter and delete finish before the next request begins; other requests run
    /// concurrently.
    fn queue(&self, stream: &Stream, request: QueueRequest) -> Result<Reply<Answer, Later>> {
        let broker = self.broker.clone();
        let shared = stream.connection.shared.clone();
        let room = stream.connection.room.clone();
        let identity = stream.connection.login.identity();
        let turn = match &request {
            QueueRequest::Receive(receive) if receive.wait_ms > 0 => {
                let turn = WaitTurn::take(&shared, |shared| &shared.receives, RECEIVES_MAX);
                Some(turn.ok_or_else(|| {
                    Error::busy(format!(
                        "pending receive limit of a connection reached ({RECEIVES_MAX}): wait for a response first, or \
                         use another connection"
                    ))
                })?)
            }
            _ => None,
        };
        let is_alone =
            matches!(request, QueueRequest::Create(_) | QueueRequest::Alter { .. } | QueueRequest::Delete { .. });
        let work = async move {
            access::check_queue(&broker, &identity, &request).await?;
            let answer = queues::answer(&broker, &identity, &shared.held, &room, request);
            match turn {
                Some(turn) => turn.wait(answer).await,
                None => answer.await,
            }
        };
        Ok(if is_alone { alone(work) } else { later(work) })
    }

    /// Reserves a wait for a heartbeat. If [`HEARTBEATS_MAX`] heartbeats of the connection already wait, clears its
    /// wait time.
    fn heartbeat_turn(&self, stream: &Stream, request: &mut GroupRequest) -> Option<WaitTurn> {
        let wait_ms = groups::wait_ms(request).filter(|wait_ms| **wait_ms > 0)?;
        let turn = WaitTurn::take(&stream.connection.shared, |shared| &shared.heartbeats, HEARTBEATS_MAX);
        if turn.is_none() {
            *wait_ms = 0;
        }
        turn
    }
}

pub(super) fn now(response: Response) -> Reply<Answer, Later> {
    Reply::Now(Answer::Response(response))
}

fn later<T: Into<Answer> + 'static>(work: impl Future<Output = Result<T>> + 'static) -> Reply<Answer, Later> {
    Reply::Later(once(work.map(Answer::from).boxed_local()))
}

/// Returns a reply that must finish before the next request of the stream, which may depend on it.
pub(super) fn alone<T: Into<Answer> + 'static>(
    work: impl Future<Output = Result<T>> + 'static,
) -> Reply<Answer, Later> {
    Reply::Alone(once(work.map(Answer::from).boxed_local()))
}

/// Permit of one request to wait, counted against the limit of its connection for this kind of request.
struct WaitTurn {
    shared: Arc<Shared>,
    waiting: fn(&Shared) -> &AtomicUsize,
}

impl WaitTurn {
    fn take(shared: &Arc<Shared>, waiting: fn(&Shared) -> &AtomicUsize, max: usize) -> Option<Self> {
        let turn = Self { shared: shared.clone(), waiting };
        (waiting(shared).fetch_add(1, Ordering::Relaxed) < max).then_some(turn)
    }

    /// Waits for `news`. Fails with `ShuttingDown` as soon as the broker shuts down.
    async fn wait<T>(self, news: impl Future<Output = Result<T>>) -> Result<T> {
        let mut is_leaving = self.shared.is_leaving.subscribe();
        tokio::select! {
            biased;
            news = news => news,
            _ = is_leaving.wait_for(|is_leaving| *is_leaving) => Err(codec::shutting_down()),
        }
    }
}

impl Drop for WaitTurn {
    fn drop(&mut self) {
        (self.waiting)(&self.shared).fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn publish(
    broker: &Broker,
    wakes: &mut Wakes,
    topic: &str,
    partition: Option<PartitionId>,
    acks: Acks,
    batch: BytesMut,
) -> Result<Attempt> {
    let batch = codec::parse_batch(batch).inspect_err(|_| broker.metrics().publish_errors.add(1))?;
    broker.try_publish(topic, partition, acks, batch, wakes)
}

pub(super) fn published(published: broker::Published) -> Response {
    Response::Published(Published {
        partition: published.partition,
        base_offset: published.base_offset,
        level: if published.is_committed { Level::Committed } else { Level::Accepted },
        receivers: published.receivers,
        partitions: published.partitions,
    })
}

/// Counts a failed publish whose client wants no acknowledgement.
pub(super) fn publish_lost(broker: &Broker, topic: &str, error: &Error) {
    broker.metrics().publish_lost.add(1);
    tracing::debug!(topic, %error, "a publish without acknowledgement failed");
}

/// Converts a subscribe request. The connection adds the origin, the count and the direct outbox.
pub(super) fn subscribe(request: Subscribe) -> Result<broker::Subscribe> {
    Ok(broker::Subscribe {
        pattern: Pattern::parse(&request.topic)?,
        partition: request.partition,
        start: request.start,
        overflow: request.overflow,
        queue_batches: (request.queue_batches > 0).then_some(request.queue_batches as usize),
        group: (!request.group.is_empty()).then_some(request.group),
        credit: request.credit,
        missing: request.missing,
        is_channel: false,
        permit: Permit::ALL,
        origin: broker::Origin::default(),
        hold: None,
        direct: None,
    })
}

pub(super) async fn fetch(
    broker: Arc<Broker>,
    room: Room,
    topic: String,
    partition: PartitionId,
    offset: u64,
    bytes_max: u32,
    wait_ms: u32,
) -> Result<Answer> {
    let mut held = None;
    let mut wait = Duration::from_millis(wait_ms.into());
    for _ in 0..ROOM_TRIES_MAX {
        // Batches in memory cost nothing; those in a file are held from the read on.
        let mut turn = None;
        let mut fetched = match broker.fetch_from_memory(&topic, partition, offset, bytes_max as usize)? {
            Some(fetched) => fetched,
            None => {
                turn = room.read_turn().await;
                broker.fetch(&topic, partition, offset, bytes_max as usize, Duration::ZERO).await?
            }
        };
        if fetched.batches.is_empty() && !wait.is_zero() {
            turn = None;
            fetched = broker.fetch(&topic, partition, offset, bytes_max as usize, wait).await?;
        }
        let bytes = fetched.batches.iter().map(RecordBatch::len).sum();
        let response =
            |fetched: Fetched| Response::Fetched { start: fetched.start, end: fetched.end, batches: fetched.batches };
        if bytes <= FREE_BYTES {
            return Ok(Answer::Response(response(fetched)));
        }
        let memory = held.take().filter(|held: &Held| held.bytes() >= bytes).or_else(|| room.try_take(bytes));
        if let Some(mut memory) = memory {
            memory.shrink(bytes);
            return Ok(Answer::Charged(response(fetched), memory));
        }
        // A fetch that waits holds no batches. It reads them again when it has memory for them.
        drop((fetched, turn));
        held = room.take(bytes).await?;
        wait = Duration::ZERO;
    }
    Err(room.refuse())
}

pub(super) async fn init_producer(broker: Arc<Broker>) -> Result<Response> {
    broker.init_producer().await.map(|(id, epoch)| Response::Producer { id, epoch })
}

fn list(broker: Arc<Broker>, identity: Arc<Identity>, after: String, count_max: u32) -> Reply<Answer, Later> {
    alone(async move {
        let count_max = count_max.clamp(1, LIST_COUNT_MAX) as usize;
        let shown = broker.clone();
        let is_shown = move |topic: &str| shown.is_shown(&identity, ResourceKind::Topic, topic);
        let (topics, is_last) = broker.page_of_topics(&after, count_max, is_shown).await?;
        Ok(Response::Topics { topics: topics.iter().map(topic_info).collect(), is_last })
    })
}

fn stats(broker: Arc<Broker>) -> Reply<Answer, Later> {
    alone(async move { broker.stats_aside().await.map(Response::Stats) })
}

pub(super) fn topic_info(status: &TopicStatus) -> TopicInfo {
    let partition = |extent: &broker::PartitionStatus| PartitionInfo {
        start: extent.start,
        end: extent.end,
        bytes: extent.bytes,
        subscribers: extent.subscribers as u32,
    };
    TopicInfo {
        topic: status.name.to_string(),
        settings: status.settings,
        owner: status.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        partitions: status.partitions.iter().map(partition).collect(),
    }
}

#[cfg(test)]
mod tests {
    use broker::Settings;
    use engine::TopicSettings;
    use futures_util::StreamExt;
    use tokio::runtime::Handle;

    use super::*;

    /// Returns the response, which is not there when the reply is first polled.
    async fn response(reply: Reply<Answer, Later>) -> Response {
        let Reply::Alone(mut reply) = reply else {
            panic!("the response has no order, or the thread of the connection does the work");
        };
        assert!(reply.next().now_or_never().is_none(), "the thread of the connection does the work");
        match reply.next().await {
            Some(Answer::Response(response)) => response,
            _ => panic!("no response"),
        }
    }

    #[tokio::test]
    async fn other_connections_are_served_while_topics_and_metrics_are_collected() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("starts");
        for topic in ["a", "b"] {
            let settings = TopicSettings { partitions: 512, ..TopicSettings::default() };
            broker.create_topic(topic, settings).await.expect("created");
        }
        let identity = Arc::new(Identity::anonymous("127.0.0.1"));
        let Response::Topics { topics, is_last } = response(list(broker.clone(), identity, "a".to_owned(), 10)).await
        else {
            panic!("no topics");
        };
        assert_eq!((topics.len(), topics[0].partitions.len(), is_last), (1, 512, true));
        let Response::Stats(text) = response(stats(broker)).await else {
            panic!("no metrics");
        };
        assert!(text.contains("thalweg_topics 2\n"), "{text}");
    }
}
