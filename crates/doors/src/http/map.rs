//! Maps requests to calls of the broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, Request, State};
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use broker::{Acting, Broker, FREE_BYTES, Fetched, Held, Holding, Identity, Origin, Permit, Subscribe, Wakes};
use engine::partitioner::for_key;
use engine::security::{Operation, Resource, ResourceKind};
use engine::{
    Acks, BatchBuilder, DraftBatch, Error, ErrorKind, Missing, Offset, PartitionId, Pattern, Record, RecordBatch,
    Start, TopicSettings,
};
use net::http::Charge;
use net::limits::Phase;

use super::codec::{
    self, AlterIn, BodyKind, DeletedOut, PublishedOut, Query, ResultOut, SettingsIn, Topic, TopicOut, TopicsOut,
};
use super::errors::{Failure, Result};
use super::names::Names;
use super::page::Page;
use super::stream::{self, Events, Session};
use super::trace::RequestTrace;
use super::{Http, OPENAPI, Peer, StreamKind, console};
use crate::strangers::Stranger;

/// Maximum time that a fetch waits for records.
const FETCH_WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum bytes of batches that one fetch reads. The first batch may be larger.
pub(super) const FETCH_BYTES_MAX: usize = 1 << 20;
/// Maximum time that a response waits for memory.
pub(super) const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of reads of a fetch that waits for memory. The log may have grown while it waited.
const ROOM_TRIES_MAX: usize = 4;
const FETCH_RECORDS_DEFAULT: usize = 100;
const FETCH_RECORDS_MAX: usize = 10_000;
/// Parameters of both kinds of streams.
const STREAM_PARAMETERS: [&str; 5] = ["partition", "start", "timestamp_ms", "group", "overflow"];
/// Header with which a browser resumes its events.
const LAST_EVENT_ID: &str = "last-event-id";

pub(super) async fn publish(State(http): State<Arc<Http>>, Topic(topic): Topic, request: Request) -> Result<Response> {
    let query = Query::parse(request.uri(), &["acks", "key", "partition"])?;
    let acks: Acks = query.get("acks")?.unwrap_or_default();
    let partition: Option<PartitionId> = query.get("partition")?;
    let kind = BodyKind::of_records(request.headers())?;
    let trace = RequestTrace::of(request.headers());
    let body = codec::read_body(request.into_body(), &http.bodies).await?;
    let decode = || codec::parse_records(kind, &body.bytes, query.text("key"));
    let mut records = http.broker.answers().work(body.bytes.len(), decode).await?;
    if let Some(trace) = trace {
        records.iter_mut().for_each(|record| trace.add_to(record));
    }
    let published = publish_records(&http.broker, &topic, partition, records).await;
    if acks != Acks::None {
        return Ok(codec::json(StatusCode::OK, &published?));
    }
    if let Err(failure) = published {
        http.broker.metrics().publish_lost.add(1);
        tracing::debug!(topic, error = %failure.error, "a publish without acknowledgement failed");
    }
    Ok(codec::bytes(StatusCode::ACCEPTED, "application/json", "{}"))
}

/// Publishes records, each to the given partition, otherwise to that of its key. Records without a key are published
/// together to the next partition in turn.
pub(super) async fn publish_records(
    broker: &Broker,
    topic: &str,
    partition: Option<PartitionId>,
    records: Vec<Record>,
) -> Result<PublishedOut> {
    let has_keys = records.iter().any(|record| record.key.is_some());
    let now_ms = broker.now_ms() as i64;
    let bytes =
        records.iter().map(|record| size_of::<Record>() + record.value.as_ref().map_or(0, |value| value.len())).sum();
    let batches = if partition.is_none() && has_keys {
        let partitions = broker.partitions_of(topic)?;
        let has_all_keys = records.iter().all(|record| record.key.is_some());
        let keyless = if has_all_keys { None } else { Some(broker.next_partition_of(topic)?) };
        let place = |record: &Record| record.key.as_ref().map(|key| for_key(key, partitions)).or(keyless);
        broker.answers().work(bytes, || batches(&records, now_ms, place)).await?
    } else {
        broker.answers().work(bytes, || batches(&records, now_ms, |_| partition)).await?
    };
    drop(records);
    let count = batches.len();
    let mut wakes = Wakes::default();
    let mut results = Vec::with_capacity(count);
    for (partition, batch) in batches {
        let records = batch.count();
        match broker.publish(topic, partition, Acks::Default, batch, &mut wakes).await {
            Ok(published) => results.push(ResultOut::new(published, records)),
            Err(error) if results.is_empty() => return Err(error.into()),
            Err(error) => {
                let count_done = results.len();
                return Err(Failure::half_done(
                    error.map_message(|why| format!("{count_done} of {count} batches were published, then: {why}")),
                ));
            }
        }
    }
    Ok(PublishedOut::new(results))
}

/// Returns one batch for each destination partition, with the records in their order. `None` is the partition that the
/// broker chooses in turn.
fn batches(
    records: &[Record],
    now_ms: i64,
    partition_of: impl Fn(&Record) -> Option<PartitionId>,
) -> engine::Result<Vec<(Option<PartitionId>, DraftBatch)>> {
    let mut builders: BTreeMap<Option<PartitionId>, BatchBuilder> = BTreeMap::new();
    for record in records {
        builders.entry(partition_of(record)).or_default().push_record(record, now_ms)?;
    }
    Ok(builders.into_iter().filter_map(|(to, mut builder)| Some((to, builder.finish()?))).collect())
}

/// Start of a fetch.
enum From {
    Earliest,
    Latest,
    Offset(Offset),
    Time(i64),
}

pub(super) async fn fetch(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    peer: Peer,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["partition", "offset", "timestamp_ms", "max_records", "wait_ms"])?;
    let partition: PartitionId = query.get("partition")?.unwrap_or_default();
    let from = match (query.text("offset"), query.get("timestamp_ms")?) {
        (Some(_), Some(_)) => return Err(Error::invalid("set offset or timestamp_ms, not both").into()),
        (None, Some(timestamp_ms)) => From::Time(timestamp_ms),
        (None | Some("earliest"), None) => From::Earliest,
        (Some("latest"), None) => From::Latest,
        (Some(offset), None) => From::Offset(codec::parse("offset", offset)?),
    };
    let records_max = match query.get("max_records")?.unwrap_or(FETCH_RECORDS_DEFAULT) {
        0 => return Err(Error::invalid("max_records: at least 1").into()),
        given => given.min(FETCH_RECORDS_MAX),
    };
    let wait = Duration::from_millis(query.get("wait_ms")?.unwrap_or_default()).min(FETCH_WAIT_MAX);

    let first = first_offset(&http.broker, &topic, partition, &from)?;
    let not_before = if let From::Time(timestamp_ms) = from { Some(timestamp_ms) } else { None };
    let answers = http.broker.answers();
    let address = Some(peer.address);
    let mut held: Option<Held> = None;
    let mut wait = wait;
    for _ in 0..ROOM_TRIES_MAX {
        let Fetched { batches, .. } = fetch_batches(&http.broker, &topic, partition, first, wait, peer.clone()).await?;
        let page = Page { partition, batches, from: first, not_before, records_max };
        let bytes = page.bytes_max();
        if bytes <= FREE_BYTES {
            return Ok(codec::charged("application/json", page.write(answers, None).await?, None));
        }
        let room = held.take().filter(|held| held.bytes() >= bytes).or_else(|| answers.try_take(address, bytes));
        if let Some(mut room) = room {
            let body = page.write(answers, Some(&mut room)).await?;
            room.shrink(body.len());
            return Ok(codec::charged("application/json", body, Some(room)));
        }
        let next_offset = page.batches.first().map_or(first, RecordBatch::next_offset);
        // A fetch that waits holds no batches, and reads them again.
        drop(page);
        let taken = answers.take(address, bytes, ROOM_WAIT).await;
        held = Some(taken.map_err(|error| match error.kind {
            ErrorKind::TooLarge => {
                error.map_message(|why| format!("{why}; the next batch has next_offset {next_offset}"))
            }
            _ => error,
        })?);
        wait = Duration::ZERO;
    }
    Err(answers.refuse().into())
}

fn first_offset(broker: &Broker, topic: &str, partition: PartitionId, from: &From) -> Result<Offset> {
    let extent = || -> Result<_> {
        // The fetch itself refuses a partition that does not exist.
        Ok(broker.describe_topic(topic)?.partitions.get(partition as usize).copied())
    };
    Ok(match from {
        From::Offset(offset) => *offset,
        From::Time(timestamp_ms) => broker.offset_for_time(topic, partition, *timestamp_ms)?,
        From::Earliest => extent()?.map_or(0, |extent| extent.start),
        From::Latest => extent()?.map_or(0, |extent| extent.end),
    })
}

/// Waits for records as long as the client requests, but not beyond the beginning of the drain.
async fn fetch_batches(
    broker: &Broker,
    topic: &str,
    partition: PartitionId,
    offset: Offset,
    wait: Duration,
    mut peer: Peer,
) -> engine::Result<Fetched> {
    tokio::select! {
        fetched = broker.fetch(topic, partition, offset, FETCH_BYTES_MAX, wait) => fetched,
        () = peer.drain.begun() => broker.fetch(topic, partition, offset, FETCH_BYTES_MAX, Duration::ZERO).await,
    }
}

pub(super) async fn events(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    peer: Peer,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    let mut request = subscribe(&http.broker, &uri, &topic, &peer)?;
    let is_resumable = matches!(request.pattern, Pattern::Topic(_)) && request.group.is_none();
    if let (true, Some(last)) = (is_resumable, headers.get(LAST_EVENT_ID)) {
        let text = last.to_str().map_err(|error| Error::invalid(format!("{LAST_EVENT_ID}: {error}")))?;
        request.start = resume(text)?;
    }
    let events = Events::new(http.broker.subscribe(request).await?, &http, &peer);
    Ok(stream::events(events, is_resumable, peer, http.open(StreamKind::Events)))
}

pub(super) async fn web_socket(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    peer: Peer,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let request = subscribe(&http.broker, &uri, &topic, &peer)?;
    let upgrade = upgrade.map_err(|rejection| {
        let error = Error::invalid(format!("this path is a WebSocket: {}", rejection.body_text()));
        Failure::with_status(error, rejection.status())
    })?;
    let events = Events::new(http.broker.subscribe(request).await?, &http, &peer);
    let open = http.open(StreamKind::WebSocket);
    let frame_bytes_max = http.bodies.bytes_max;
    let session = Session { http, topic: topic.into(), events, peer, _open: open };
    let upgrade = upgrade.max_message_size(frame_bytes_max).max_frame_size(frame_bytes_max);
    let user = session.peer.identity.user().clone();
    let client = Acting { door: broker::Door::Http, address: Some(session.peer.address), user };
    let entry = session.peer.connection.entry().clone();
    Ok(upgrade.on_upgrade(move |socket| async move {
        let task = tokio::spawn(broker::for_client(client, session.run(socket)));
        let stop = task.abort_handle();
        entry.stop_by(Phase::Upgraded, move || stop.abort());
        drop(entry);
        if let Err(error) = task.await {
            tracing::debug!(%error, "a WebSocket was cut off");
        }
    }))
}

fn subscribe(broker: &Arc<Broker>, uri: &Uri, topic: &str, peer: &Peer) -> Result<Subscribe> {
    let query = Query::parse(uri, &STREAM_PARAMETERS)?;
    let start = match (query.text("start"), query.get("timestamp_ms")?) {
        (Some(_), Some(_)) => return Err(Error::invalid("set start or timestamp_ms, not both").into()),
        (None, Some(timestamp_ms)) => Start::Time(timestamp_ms),
        (None | Some("live"), None) => Start::Live,
        (Some("earliest"), None) => Start::Earliest,
        (Some(offset), None) => Start::Offset(codec::parse("start", offset)?),
    };
    Ok(Subscribe {
        pattern: Pattern::parse(topic)?,
        partition: query.get("partition")?,
        start,
        overflow: query.get("overflow")?.unwrap_or_default(),
        queue_batches: None,
        group: query.text("group").filter(|group| !group.is_empty()).map(str::to_owned),
        // Credit is unlimited: the socket applies backpressure, and after it the queue of the subscription.
        credit: u64::MAX,
        missing: Missing::Refuse,
        is_channel: false,
        permit: permit(broker, &peer.identity),
        origin: Origin { connection: peer.id, ..Origin::default() },
        hold: Some(broker.security.hold(broker::Door::Http, &peer.identity, Holding::Subscription)?),
        direct: None,
    })
}

/// Returns the permit of a client's subscription.
fn permit(broker: &Broker, identity: &Arc<Identity>) -> Permit {
    broker.security.permit(identity.clone(), |security, identity, topic, _| {
        security.allows(identity, Operation::Read, &Resource::topic(topic.as_str()))
    })
}

/// Returns the start for a client that has received `<partition>:<offset>`, or several of these separated by commas.
fn resume(last_event_id: &str) -> Result<Start> {
    let seen = |text: &str| {
        let (partition, offset) = text.trim().split_once(':')?;
        let next: i64 = offset.parse::<i64>().ok()?.checked_add(1)?;
        Some((partition.parse().ok()?, Offset::try_from(next).ok()?))
    };
    let offsets: Option<Vec<(PartitionId, Offset)>> = last_event_id.split(',').map(seen).collect();
    offsets
        .map(Start::Offsets)
        .ok_or_else(|| Error::invalid(format!("{LAST_EVENT_ID}: '{last_event_id}' is not <partition>:<offset>")).into())
}

pub(super) async fn list_topics(
    State(http): State<Arc<Http>>,
    Extension(identity): Extension<Arc<Identity>>,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    let query = Query::parse(&uri, &["after", "max"])?;
    let count_max = query.list_count()?;
    let after = names.beginning(query.text("after").unwrap_or_default());
    let broker = http.broker.clone();
    let is_shown = move |topic: &str| broker.is_shown(&identity, ResourceKind::Topic, topic);
    let (topics, is_last) = http.broker.page_of_topics(&after, count_max, is_shown).await?;
    let topics = TopicsOut { topics: topics.iter().map(|topic| TopicOut::new(topic, &names)).collect(), is_last };
    Ok(codec::json(StatusCode::OK, &topics))
}

pub(super) async fn create_topic(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let (head, body) = request.into_parts();
    let body = codec::read_body(body, &http.bodies).await?;
    let given: SettingsIn = if body.bytes.is_empty() {
        SettingsIn::default()
    } else {
        codec::expect_json(&head.headers)?;
        codec::parse_json(&body.bytes)?
    };
    let existed = http.broker.describe_topic(&topic).is_ok();
    let status = http.broker.create_topic(&topic, given.over(TopicSettings::of_broker())?).await?;
    let code = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok(codec::json(code, &TopicOut::new(&status, &names)))
}

/// Changes settings before partitions: they can be refused for more reasons, and can be changed back.
pub(super) async fn alter_topic(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    names: Names,
    request: Request,
) -> Result<Response> {
    Query::parse(request.uri(), &[])?;
    let (head, body) = request.into_parts();
    let body = codec::read_body(body, &http.bodies).await?;
    codec::expect_json(&head.headers)?;
    let wanted: AlterIn = codec::parse_json(&body.bytes)?;
    let change = wanted.settings()?;
    if wanted.partitions.is_none() && change.is_empty() {
        return Err(
            Error::invalid("name at least one setting to change: partitions, retention_ms, compact, ...").into()
        );
    }
    let mut status = http.broker.describe_topic(&topic)?;
    if !change.is_empty() {
        status = http.broker.alter_topic(&topic, change).await?;
    }
    if let Some(partitions) = wanted.partitions {
        status = http.broker.grow_topic(&topic, partitions).await?;
    }
    Ok(codec::json(StatusCode::OK, &TopicOut::new(&status, &names)))
}

pub(super) async fn describe_topic(
    State(http): State<Arc<Http>>,
    Topic(topic): Topic,
    names: Names,
    uri: Uri,
) -> Result<Response> {
    Query::parse(&uri, &[])?;
    let status = http.broker.describe_topic(&topic)?;
    Ok(codec::json(StatusCode::OK, &TopicOut::new(&status, &names)))
}

pub(super) async fn delete_records(State(http): State<Arc<Http>>, Topic(topic): Topic, uri: Uri) -> Result<Response> {
    let query = Query::parse(&uri, &["partition", "before"])?;
    let partition: PartitionId = query.get("partition")?.unwrap_or_default();
    let before = match query.text("before") {
        None => return Err(Error::invalid("before: an offset, or `end` for all records").into()),
        Some("end") => Offset::MAX,
        Some(offset) => codec::parse("before", offset)?,
    };
    let start_offset = http.broker.delete_records(&topic, partition, before).await?;
    Ok(codec::json(StatusCode::OK, &DeletedOut { partition, start_offset }))
}

pub(super) async fn delete_topic(State(http): State<Arc<Http>>, Topic(topic): Topic, uri: Uri) -> Result<StatusCode> {
    Query::parse(&uri, &[])?;
    http.broker.delete_topic(&topic).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn openapi(uri: Uri) -> Result<Response> {
    Query::parse(&uri, &[])?;
    Ok(codec::bytes(StatusCode::OK, "application/json", OPENAPI))
}

pub(super) async fn metrics(State(http): State<Arc<Http>>, peer: Peer) -> Result<Response> {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let page = http.metrics.read(&http.broker, peer.address).await?;
    let mut response = codec::bytes(StatusCode::OK, content_type, page.text.clone());
    response.extensions_mut().insert(Charge::new(page));
    Ok(response)
}

/// Liveness probe: the process responds.
pub(super) async fn healthy() -> Response {
    plain("ok\n".into())
}

/// Readiness probe: the process accepts new requests.
pub(super) async fn ready(State(http): State<Arc<Http>>, peer: Peer) -> Result<Response> {
    super::expect_open(&peer.connection)?;
    // A load balancer stops sending to a broker that accepts no records.
    if let Some(store) = http.broker.store()
        && let Some(why) = store.broken().or_else(|| store.full())
    {
        return Err(Failure::with_status(why, StatusCode::SERVICE_UNAVAILABLE));
    }
    http.broker.check_leads()?;
    Ok(plain(match http.broker.leadership() {
        None => "ready\n".into(),
        Some(leadership) => format!("ready\nnode {} leads in term {}\n", leadership.node, leadership.term),
    }))
}

pub(super) async fn help(State(http): State<Arc<Http>>, peer: Peer, headers: HeaderMap) -> Response {
    if http.has_console && console::accepts(&headers, "text/html") {
        return console::redirect();
    }
    let scheme = if peer.is_secure { "https" } else { "http" };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost:7401");
    plain(format!(
        "Thalweg {}: publish, read and subscribe over HTTP.\n\n\
         curl -H 'content-type: text/plain' -d 'hello' '{scheme}://{host}/v1/topics/greetings/records'\n\
         curl '{scheme}://{host}/v1/topics/greetings/records?offset=earliest'\n\
         curl -N '{scheme}://{host}/v1/topics/greetings/events?start=earliest'\n\n\
         All paths: /v1/openapi.json. In a browser: /console. Operation: /healthz, /readyz, /metrics.\n",
        env!("CARGO_PKG_VERSION")
    ))
}

fn plain(text: String) -> Response {
    codec::bytes(StatusCode::OK, "text/plain; charset=utf-8", text)
}

/// Returns the response to a request for another door that speaks HTTP.
fn stranger(http: &Http, head: &Parts, kind: ErrorKind, status: StatusCode) -> Option<Response> {
    let stranger = Stranger::find_request(http.broker.doors(), broker::Door::Http, head)?;
    Some(match stranger.answer_to_sqs() {
        Some(body) => codec::bytes(status, "application/x-amz-json-1.0", body),
        None => Failure::with_status(Error::new(kind, stranger.words), status).into_response(),
    })
}

pub(super) async fn no_such_path(State(http): State<Arc<Http>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    if let Some(answer) = stranger(&http, &head, ErrorKind::NotFound, StatusCode::NOT_FOUND) {
        return answer;
    }
    let message = format!("there is no path {}; GET /v1/openapi.json lists them", head.uri.path());
    Failure::from(Error::not_found(message)).into_response()
}

pub(super) async fn no_such_method(State(http): State<Arc<Http>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let method = &head.method;
    let uri = &head.uri;
    let status = StatusCode::METHOD_NOT_ALLOWED;
    if let Some(answer) = stranger(&http, &head, ErrorKind::Unsupported, status) {
        return answer;
    }
    let message = format!("{} does not support {method}; the header Allow lists the supported methods", uri.path());
    Failure::with_status(Error::new(ErrorKind::Unsupported, message), status).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_resumes_after_its_last_event() {
        let resumed = |text: &str| resume(text).ok();
        assert_eq!(resumed("0:41"), Some(Start::Offsets(vec![(0, 42)])));
        assert_eq!(resumed("0:-1"), Some(Start::Offsets(vec![(0, 0)])));
        assert_eq!(resumed("0:41, 3:7"), Some(Start::Offsets(vec![(0, 42), (3, 8)])));
        for bad in ["", "41", "0:", ":1", "0:-2", "x:1", "0:41,", "0:9223372036854775807"] {
            assert_eq!(resumed(bad), None, "{bad}");
        }
    }
}
