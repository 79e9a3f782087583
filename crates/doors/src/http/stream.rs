//! Streams that flow until the client disconnects: server-sent events and WebSockets.

use std::convert::Infallible;
use std::future::pending;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use broker::{Answers, Door, FREE_BYTES, Held, Identity, Security, SourceStart, Subscription, Usage};
use bytes::Bytes;
use engine::{Delivery, Error, ErrorKind, Offset, PartitionId, RecordBatch, Records, TopicName};
use futures_util::{SinkExt, stream};
use net::Drain;
use net::crowd::Crowd;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::codec::{self, FrameIn, FrameOut, GapOut, RecordOut};
use super::errors::{Failure, Result, close_code_of};
use super::names::Names;
use super::page::{LARGE_BATCH_BYTES, RECORD_JSON_BYTES_MAX, is_too_large, json_bytes_max, size_of};
use super::{CLOSE_WAIT_MAX, Http, Open, Peer, map};

/// Time without an event after which the client receives a sign that the connection is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Number of bytes that are written before the client must read some of them.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum time that a stream waits for memory for its next chunk. Then its client receives an error and should
/// reconnect.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Number of checks, and their interval, within which a WebSocket message must arrive after its first bytes.
const MESSAGE_CHECKS_MAX: u32 = 4;
const MESSAGE_CHECK: Duration = Duration::from_secs(15);
/// Bytes of a control frame of a client in addition to its payload: its head and its mask.
const CONTROL_HEAD_BYTES: usize = 6;
/// Maximum size of the reason in the close frame of a WebSocket.
const CLOSE_REASON_BYTES_MAX: usize = 123;
/// Header that tells proxies not to buffer events.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Records and gaps of an open subscription, in sequence.
pub(super) struct Events {
    subscription: Subscription,
    /// Partitions that are read, as far as they are known, indexed by the number of their source.
    sources: Vec<Option<Source>>,
    /// Invariant: deliveries that were taken from the subscription stay here until they are written, even if a fetch is
    /// cancelled halfway.
    taken: Vec<Delivery>,
    /// Number of deliveries of `taken` that are written completely.
    written: usize,
    answers: Answers,
    address: IpAddr,
    /// Streams of the door.
    crowd: Arc<Crowd>,
    security: Arc<Security>,
    identity: Arc<Identity>,
    /// `true` if the client has exceeded a quota, so that the next events have to wait.
    is_in_debt: bool,
}

struct Source {
    /// Topic, which only subscribers of a pattern receive.
    topic: Option<TopicName>,
    partition: PartitionId,
    /// Next offset. A batch may begin before it: those records are not for this subscriber, or it has received them
    /// already.
    next: Offset,
    /// Remaining records of a batch that is longer than a chunk.
    rest: Option<engine::Result<Records>>,
}

/// Destination of events.
trait Output {
    fn record(&mut self, record: &RecordOut<'_>);
    fn gap(&mut self, gap: &GapOut<'_>);
    /// Returns the number of bytes written so far.
    fn len(&self) -> usize;
}

impl Events {
    pub fn new(subscription: Subscription, http: &Http, peer: &Peer) -> Self {
        let mut sources = Vec::with_capacity(subscription.starts.len());
        let names = Names::of(&peer.identity);
        for start in &subscription.starts {
            let topic = subscription.is_pattern().then(|| names.outer_topic(start.topic.clone()));
            sources.resize_with(start.source as usize, || None);
            sources.push(Some(Source { topic, partition: start.partition, next: start.start, rest: None }));
        }
        let answers = http.broker.answers().clone();
        let address = peer.address;
        Self {
            subscription,
            sources,
            taken: Vec::new(),
            written: 0,
            answers,
            address,
            crowd: http.crowd.clone(),
            security: http.broker.security.clone(),
            identity: peer.identity.clone(),
            is_in_debt: false,
        }
    }

    /// Returns the start of the subscription if it reads one partition.
    fn only_start(&self) -> Option<&SourceStart> {
        match &self.subscription.starts[..] {
            [start] if !self.subscription.is_pattern() => Some(start),
            _ => None,
        }
    }

    /// Ends the subscription. Queued deliveries are still returned, then this error.
    fn end(&self, error: Error) {
        self.subscription.handle().end(error);
    }

    fn has_taken(&self) -> bool {
        self.written < self.taken.len()
    }

    /// Waits until there is something to write. Returns an error when the subscription has ended.
    async fn fetch(&mut self) -> engine::Result<()> {
        if self.has_taken() {
            return Ok(());
        }
        if self.is_in_debt {
            let repaid = self.security.clone().repaid(self.identity.clone(), Usage::response(1));
            self.subscription.pause(repaid).await;
            self.is_in_debt = false;
        }
        self.subscription.next(&mut self.taken).await
    }

    /// Charges a written chunk to the quotas of the client.
    fn charge(&mut self, bytes: usize) {
        let delay = self.security.charge(Door::Http, &self.identity, None, Usage::response(bytes));
        self.is_in_debt |= !delay.is_zero();
    }

    /// Writes up to one chunk of the taken deliveries, and returns the memory that is reserved for it. The caller holds
    /// the memory until the client has read the chunk. Small chunks need no memory. One record may be for thousands of
    /// streams, so each waits for its turn.
    async fn chunk(&mut self, out: &mut impl Output) -> engine::Result<Option<Held>> {
        self.crowd.turn().await;
        let bytes = self.chunk_bytes_max();
        if bytes <= FREE_BYTES {
            self.write(out);
            self.charge(out.len());
            return Ok(None);
        }
        let mut held = match self.answers.try_take(Some(self.address), bytes) {
            Some(held) => held,
            None => {
                // A stream that waits holds no decompressed batch.
                self.sources.iter_mut().flatten().for_each(|source| source.rest = None);
                let bytes = self.chunk_bytes_max();
                self.answers.take(Some(self.address), bytes, ROOM_WAIT).await?
            }
        };
        self.open(&mut held).await;
        let answers = self.answers.clone();
        answers.work(bytes, || self.write(out)).await;
        self.charge(out.len());
        held.shrink(out.len());
        Ok(Some(held).filter(|_| out.len() > FREE_BYTES))
    }

    /// Returns the maximum number of bytes for the next chunk: batches that are decompressed, and JSON.
    fn chunk_bytes_max(&self) -> usize {
        let mut all = 0usize;
        let mut count = 0;
        let mut largest = 0;
        let mut expanded = 0;
        for (i, delivery) in self.taken[self.written..].iter().enumerate() {
            count += 1;
            if let Delivery::Batch { source, batch } = delivery {
                let size = size_of(batch);
                let is_open = self.sources.get(*source as usize).and_then(Option::as_ref).is_some_and(Source::is_open);
                if batch.expansion_bytes_max() > LARGE_BATCH_BYTES && i > 0 {
                    // The chunk ends before this batch.
                    break;
                }
                expanded = expanded.max(if is_open && i == 0 { 0 } else { batch.expansion_bytes_max() });
                all += size;
                count += batch.count() as usize;
                largest = largest.max(size);
            }
            if all >= CHUNK_BYTES {
                break;
            }
        }
        let last = json_bytes_max(largest, 1).min(RECORD_JSON_BYTES_MAX);
        // The base64 text of a value exists in addition to its JSON.
        expanded + 2 * largest.min(last) + json_bytes_max(all, count).min(CHUNK_BYTES + last)
    }

    /// Decompresses the next batch if it is large, for all streams that read it now.
    async fn open(&mut self, held: &mut Held) {
        let Some(Delivery::Batch { source, batch }) = self.taken.get(self.written).cloned() else {
            return;
        };
        let bytes = batch.expansion_bytes_max();
        if bytes <= LARGE_BATCH_BYTES || self.source(source).is_open() {
            return;
        }
        let plain = self.answers.expand(&batch, held.split(bytes)).await;
        let source = self.source(source);
        source.rest = Some(plain.map(|plain| batch.records_in(plain, source.next)));
    }

    fn source(&mut self, number: u32) -> &mut Source {
        let at = number as usize;
        if self.sources.len() <= at {
            self.sources.resize_with(at + 1, || None);
        }
        let subscription = &self.subscription;
        let identity = &self.identity;
        self.sources[at].get_or_insert_with(|| {
            let (topic, partition) = subscription.handle().source(number);
            let topic = subscription.is_pattern().then(|| Names::of(identity).outer_topic(topic));
            Source { topic, partition, next: 0, rest: None }
        })
    }

    /// Writes taken deliveries up to the size of a chunk, or up to a large batch that is not decompressed yet.
    fn write(&mut self, out: &mut impl Output) {
        while self.has_taken() && out.len() < CHUNK_BYTES {
            let delivery = self.taken[self.written].clone();
            let (Delivery::Batch { source, .. } | Delivery::Gap { source, .. }) = delivery;
            let source = self.source(source);
            if let Delivery::Batch { batch, .. } = &delivery
                && batch.expansion_bytes_max() > LARGE_BATCH_BYTES
                && !source.is_open()
            {
                return;
            }
            let is_whole = match delivery {
                Delivery::Gap { from, to, .. } => {
                    source.write_gap(from, to, None, out);
                    true
                }
                Delivery::Batch { batch, .. } => source.write_batch(&batch, out),
            };
            if is_whole {
                self.written += 1;
            }
        }
        if !self.has_taken() {
            // Written deliveries need not stay in memory until the next ones arrive.
            self.taken.clear();
            self.written = 0;
        }
    }
}

impl Source {
    /// Returns `true` if a batch of the source is decompressed and not completely written.
    fn is_open(&self) -> bool {
        self.rest.is_some()
    }

    fn write_gap(&mut self, from: Offset, to: Offset, why: Option<Error>, out: &mut impl Output) {
        let failure = why.map(Failure::from);
        let why = failure.as_ref().map(Failure::body);
        out.gap(&GapOut {
            topic: self.topic.as_ref().map(TopicName::as_str),
            partition: self.partition,
            from,
            to,
            why,
        });
        self.next = to;
    }

    /// Writes a batch up to the size of a chunk. Returns `true` if the batch is completely written. Records that this
    /// door cannot decode become a gap.
    fn write_batch(&mut self, batch: &RecordBatch, out: &mut impl Output) -> bool {
        let topic = self.topic.as_ref().map(TopicName::as_str);
        let records = self.rest.take().unwrap_or_else(|| batch.records_from(self.next));
        let error = match records {
            Err(error) => Some(error),
            Ok(mut records) => loop {
                if out.len() >= CHUNK_BYTES {
                    self.rest = Some(Ok(records));
                    return false;
                }
                match records.advance() {
                    None => break None,
                    Some(Err(undecoded)) => break Some(undecoded),
                    Some(Ok(view)) => {
                        self.next = view.offset + 1;
                        match is_too_large(&view) {
                            None => out.record(&RecordOut::new(topic, self.partition, &view)),
                            Some(error) => {
                                let failure = Failure::from(error);
                                let from = view.offset;
                                let to = self.next;
                                let why = Some(failure.body());
                                out.gap(&GapOut { topic, partition: self.partition, from, to, why });
                            }
                        }
                    }
                }
            },
        };
        if error.is_some() {
            self.write_gap(self.next.max(batch.base_offset()), batch.next_offset(), error, out);
        }
        self.next = batch.next_offset();
        true
    }
}

fn keep_alive() -> Interval {
    let mut interval = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the broker is shutting down; reconnect")
}

/// Server-sent events of one subscription.
struct EventStream {
    events: Events,
    drain: Drain,
    keep_alive: Interval,
    /// `true` if a client can resume after the id of an event. A pattern has no single log, and in a group the other
    /// members receive the remaining records.
    is_resumable: bool,
    has_begun: bool,
    is_draining: bool,
    is_over: bool,
    _open: Open,
}

struct EventText {
    text: Vec<u8>,
    is_resumable: bool,
}

impl Output for EventText {
    fn record(&mut self, record: &RecordOut<'_>) {
        self.begin("record", record.partition, Some(record.offset));
        codec::write_json(&mut self.text, record);
        self.text.extend_from_slice(b"\n\n");
    }

    fn gap(&mut self, gap: &GapOut<'_>) {
        self.begin("gap", gap.partition, gap.to.checked_sub(1));
        codec::write_json(&mut self.text, gap);
        self.text.extend_from_slice(b"\n\n");
    }

    fn len(&self) -> usize {
        self.text.len()
    }
}

impl EventText {
    fn begin(&mut self, name: &str, partition: PartitionId, last: Option<Offset>) {
        self.text.extend_from_slice(format!("event: {name}\n").as_bytes());
        if let (true, Some(last)) = (self.is_resumable, last) {
            self.text.extend_from_slice(format!("id: {partition}:{last}\n").as_bytes());
        }
        self.text.extend_from_slice(b"data: ");
    }
}

/// Returns the response that carries the events of a subscription.
pub(super) fn events(events: Events, is_resumable: bool, peer: Peer, open: Open) -> Response {
    let stream = EventStream {
        events,
        drain: peer.drain,
        keep_alive: keep_alive(),
        is_resumable,
        has_begun: false,
        is_draining: false,
        is_over: false,
        _open: open,
    };
    let chunks = stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((Ok::<_, Infallible>(chunk), stream))
    });
    let mut response = codec::bytes(StatusCode::OK, "text/event-stream", Body::from_stream(chunks));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        if !self.has_begun {
            self.has_begun = true;
            return Some(self.first());
        }
        loop {
            if self.events.has_taken() {
                let mut out = EventText { text: Vec::new(), is_resumable: self.is_resumable };
                let held = match self.events.chunk(&mut out).await {
                    Ok(held) => held,
                    Err(error) => {
                        self.is_over = true;
                        return Some(last(error));
                    }
                };
                if !out.text.is_empty() {
                    self.keep_alive.reset();
                    out.text.shrink_to_fit();
                    return Some(match held {
                        Some(held) => held.charge(out.text),
                        None => out.text.into(),
                    });
                }
                continue;
            }
            tokio::select! {
                biased;
                () = self.drain.begun(), if !self.is_draining => {
                    self.is_draining = true;
                    self.events.end(shutting_down());
                }
                fetched = self.events.fetch() => if let Err(error) = fetched {
                    self.is_over = true;
                    return Some(last(error));
                },
                _ = self.keep_alive.tick() => return Some(Bytes::from_static(b": keep-alive\n\n")),
            }
        }
    }

    /// Returns the first block, which immediately tells the client its position, so that it can resume there even if
    /// the connection breaks before the first record.
    fn first(&self) -> Bytes {
        match self.events.only_start() {
            Some(SourceStart { partition, start, .. }) if self.is_resumable => {
                format!("id: {partition}:{}\n\n", i128::from(*start) - 1).into()
            }
            _ => Bytes::from_static(b": subscribed\n\n"),
        }
    }
}

/// Returns the event with the reason for the end of the stream.
fn last(error: Error) -> Bytes {
    let mut text = b"event: end\ndata: ".to_vec();
    codec::write_json(&mut text, &Failure::from(error).body());
    text.extend_from_slice(b"\n\n");
    text.into()
}

/// A WebSocket, which sends the records of one subscription and receives publishes.
pub(super) struct Session {
    pub http: Arc<Http>,
    pub topic: Arc<str>,
    pub events: Events,
    pub peer: Peer,
    pub _open: Open,
}

/// A publish in progress, which returns the frame for the client.
type Publishing = Pin<Box<dyn Future<Output = Message> + Send>>;

struct Frames {
    frames: Vec<Message>,
    bytes: usize,
}

impl Output for Frames {
    fn record(&mut self, record: &RecordOut<'_>) {
        self.push(text(record));
    }

    fn gap(&mut self, gap: &GapOut<'_>) {
        self.push(text(&FrameOut::Gap(gap)));
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl Frames {
    fn push(&mut self, frame: Message) {
        if let Message::Text(text) = &frame {
            self.bytes += text.len();
        }
        self.frames.push(frame);
    }
}

fn text(value: &impl serde::Serialize) -> Message {
    let text = Utf8Bytes::try_from(Bytes::from(codec::to_json(value)));
    Message::Text(text.expect("invariant: JSON is UTF-8"))
}

/// Reason for the end of a session.
enum End {
    /// The client has disconnected or closed the session.
    Client,
    Error(Error),
}

impl From<axum::Error> for End {
    fn from(error: axum::Error) -> Self {
        tracing::debug!(%error, "a WebSocket connection was lost");
        Self::Client
    }
}

impl Session {
    /// Serves the session until either side ends it.
    pub async fn run(mut self, mut socket: WebSocket) {
        let mut drain = self.peer.drain.clone();
        // A client that does not read may delay its session, but not the shutdown.
        let overdue = async {
            drain.begun().await;
            tokio::select! {
                () = tokio::time::sleep(CLOSE_WAIT_MAX) => {}
                () = drain.aborted() => {}
            }
        };
        let session = async {
            let goodbye = match self.serve(&mut socket).await {
                Ok(never) => match never {},
                Err(End::Client) => None,
                Err(End::Error(error)) => Some(error),
            };
            close(&mut socket, goodbye).await
        };
        tokio::select! {
            closed = session => if closed.is_err() {
                tracing::debug!("a WebSocket was not closed cleanly");
            },
            () = overdue => tracing::debug!("the client of a WebSocket did not read the close frame in time"),
        }
    }

    async fn serve(&mut self, socket: &mut WebSocket) -> Result<Infallible, End> {
        let mut keep_alive = keep_alive();
        let mut publishing: Option<Publishing> = None;
        let mut is_draining = false;
        let connection = self.peer.connection.clone();
        let unfinished = connection.limit_unfinished(&self.http.bodies.all);
        let mut checks = interval_at(Instant::now() + MESSAGE_CHECK, MESSAGE_CHECK);
        // While a client does not read, its messages are not read either, and there are no checks.
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checked = 0;
        loop {
            while self.events.has_taken() {
                let mut out = Frames { frames: Vec::new(), bytes: 0 };
                let _held = self.events.chunk(&mut out).await.map_err(End::Error)?;
                for frame in out.frames {
                    socket.feed(frame).await?;
                }
                socket.flush().await?;
                keep_alive.reset();
            }
            tokio::select! {
                fetched = self.events.fetch() => fetched.map_err(End::Error)?,
                // Publishes run one after the other, so that the responses are in the order of the publishes.
                frame = socket.recv(), if publishing.is_none() => match frame {
                    None | Some(Ok(Message::Close(_))) => return Err(End::Client),
                    Some(frame) => {
                        let frame = frame?;
                        // Control frames may arrive between the frames of a message.
                        if let Message::Ping(payload) | Message::Pong(payload) = &frame {
                            unfinished.subtract(CONTROL_HEAD_BYTES + payload.len());
                            continue;
                        }
                        match self.take_frame(frame) {
                            // Its bytes are released once it is published.
                            Ok(begun) => publishing = begun,
                            Err(failure) => {
                                unfinished.finish();
                                checked = 0;
                                socket.send(text(&failure.body())).await?;
                            }
                        }
                    }
                },
                answer = finish(&mut publishing) => {
                    publishing = None;
                    unfinished.finish();
                    checked = 0;
                    socket.send(answer).await?;
                }
                _ = checks.tick() => {
                    let is_unfinished = unfinished.bytes() > 0 && publishing.is_none();
                    checked = if is_unfinished { checked + 1 } else { 0 };
                    if checked > MESSAGE_CHECKS_MAX {
                        let seconds = (MESSAGE_CHECK * MESSAGE_CHECKS_MAX).as_secs();
                        let message = format!("a message did not arrive within {seconds} s: send it again");
                        return Err(End::Error(Error::new(ErrorKind::Timeout, message)));
                    }
                }
                _ = keep_alive.tick() => socket.send(Message::Ping(Bytes::new())).await?,
                () = self.peer.drain.begun(), if !is_draining => {
                    is_draining = true;
                    self.events.end(shutting_down());
                }
            }
        }
    }

    /// Starts the publish of a frame, if it contains one.
    fn take_frame(&self, frame: Message) -> Result<Option<Publishing>> {
        let frame: FrameIn = match &frame {
            Message::Text(text) => {
                let usage = Usage::request(text.len());
                self.http.broker.security.admit(Door::Http, &self.peer.identity, usage, false)?;
                codec::parse_json(text.as_bytes())?
            }
            Message::Binary(_) => {
                let message = "binary frames are not supported; send text frames";
                return Err(Error::new(ErrorKind::Unsupported, message).into());
            }
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
        };
        let record = frame.publish.decode()?;
        let http = self.http.clone();
        let topic = self.topic.clone();
        let identity = self.peer.identity.clone();
        Ok(Some(Box::pin(async move {
            let published = match http.broker.authorize_publish(&identity, &topic) {
                Ok(()) => map::publish_records(&http.broker, &topic, None, vec![record]).await,
                Err(error) => Err(error.into()),
            };
            match published {
                Ok(published) => text(&FrameOut::Published(published)),
                Err(failure) => text(&failure.body()),
            }
        })))
    }
}

async fn finish(publishing: &mut Option<Publishing>) -> Message {
    match publishing {
        Some(publishing) => publishing.await,
        None => pending().await,
    }
}

/// Closes the socket, with the reason if the broker ends the session, and briefly waits for the close frame of the
/// client.
async fn close(socket: &mut WebSocket, error: Option<Error>) -> Result<(), axum::Error> {
    let goodbye = async {
        if let Some(error) = error {
            let mut reason = error.message.clone();
            while reason.len() > CLOSE_REASON_BYTES_MAX {
                reason.pop();
            }
            let close = CloseFrame { code: close_code_of(error.kind), reason: reason.into() };
            if error.kind != ErrorKind::ShuttingDown {
                socket.send(text(&Failure::from(error).body())).await?;
            }
            socket.send(Message::Close(Some(close))).await?;
        }
        while let Some(frame) = socket.recv().await {
            frame?;
        }
        Ok(())
    };
    match tokio::time::timeout(CLOSE_WAIT_MAX, goodbye).await {
        Ok(said) => said,
        Err(elapsed) => Err(axum::Error::new(elapsed)),
    }
}
