//! One connection, from its hello to its end, over a plain socket, TLS, a pipe or QUIC.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use broker::{Direct, Origin, Subscription, SubscriptionHandle, Wakes};
use bytes::Bytes;
use engine::{Delivery, Error, ErrorKind, PartitionId, Result, SourceId, TopicName};
use futures_util::future::{Either, select};
use net::outbox::StreamWriter;
use net::{Drain, Outbox};
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use wire::frame::{BODY_BYTES_BEFORE_HELLO_MAX, BODY_BYTES_MAX};
use wire::negotiate::{self, VERSION};
use wire::response::{HelloOk, Push};
use wire::{Assembler, Frame, Request, Response, Subscribe};

use net::read::{Input, ReadError};

use super::codec::{self, DeliveryEncoder, read_frames};
use super::errors::{self, Verdict};
use super::{Native, map};

/// Bytes that wait for one connection before its subscriptions pause.
const OUTBOX_BYTES_MAX: usize = 1 << 20;
/// Bytes of answers after which the peer has to have read some before it is answered further.
const ANSWERED_BYTES_MAX: usize = 256 << 10;
/// Fetches of one connection that wait for records at once.
const FETCHES_MAX: usize = 64;
/// Partitions that the answer to a subscribe names: at least those of one topic.
const SOURCES_TOLD_MAX: usize = engine::limits::PARTITIONS_MAX as usize;
/// Subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 16_384;
/// How long a peer that is refused or has closed its side may take to read its last answers.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What all streams of a connection share.
pub(super) struct Connection {
    native: Arc<Native>,
    id: u64,
    thread: Option<usize>,
    said_hello: AtomicBool,
    subscriptions: Mutex<HashMap<u32, SubscriptionHandle>>,
    /// A subscription has ended.
    ended: Notify,
    fetches: AtomicUsize,
    quic: Option<quinn::Connection>,
}

/// One stream of frames in both directions: a whole TCP connection, or a QUIC stream.
struct Stream {
    connection: Arc<Connection>,
    outbox: Arc<Outbox>,
    wakes: Wakes,
    /// Bytes of answers since there last was room in the outbox.
    answered_bytes: usize,
}

/// Why a stream of frames ends.
enum End {
    /// The peer is done or gone.
    Peer,
    /// The peer is told why, then the stream is closed.
    Error(Error),
}

impl Connection {
    pub(super) fn new(native: Arc<Native>, thread: Option<usize>, quic: Option<quinn::Connection>) -> Arc<Self> {
        let id = native.next_connection_id();
        Arc::new(Self {
            native,
            id,
            thread,
            said_hello: AtomicBool::new(false),
            subscriptions: Mutex::default(),
            ended: Notify::new(),
            fetches: AtomicUsize::new(0),
            quic,
        })
    }

    /// Serves a plain socket.
    pub(super) async fn serve_socket(self: Arc<Self>, socket: TcpStream, drain: Drain) {
        let socket = Arc::new(socket);
        let outbox = Arc::new(Outbox::to_socket(socket.clone(), OUTBOX_BYTES_MAX));
        let writer = outbox.clone();
        self.serve(Input::Socket(&socket), outbox, async move { writer.run_socket().await }, drain).await;
    }

    /// Serves any other byte stream.
    pub(super) async fn serve_stream(
        self: Arc<Self>,
        mut input: impl AsyncRead + Send + Unpin,
        output: impl tokio::io::AsyncWrite + Send + Unpin,
        drain: Drain,
    ) {
        let outbox = Arc::new(Outbox::to_writer(OUTBOX_BYTES_MAX));
        let writer = outbox.clone();
        let mut output = StreamWriter(output);
        self.serve(Input::Stream(&mut input), outbox, async move { writer.run_writer(&mut output).await }, drain).await;
    }

    /// Serves the streams of a QUIC connection, so many at a time.
    pub(super) async fn serve_quic(self: Arc<Self>, mut drain: Drain) {
        let Some(quic) = self.quic.clone() else {
            return;
        };
        let deadline = tokio::time::sleep(self.native.hello_timeout);
        tokio::pin!(deadline);
        loop {
            let said_hello = self.said_hello.load(Ordering::Relaxed);
            tokio::select! {
                stream = quic.accept_bi() => match stream {
                    Ok((send, receive)) => {
                        tokio::spawn(self.clone().serve_quic_stream(send, receive, drain.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(connection = self.id, %error, "connection closed");
                        break;
                    }
                },
                () = &mut deadline, if !said_hello => {
                    // It may have been said while this waited.
                    if self.said_hello.load(Ordering::Relaxed) {
                        continue;
                    }
                    quic.close(ErrorKind::Timeout.code().into(), b"no hello in time");
                    break;
                }
                () = drain.begun() => {
                    self.wait_for_subscriptions().await;
                    quic.close(ErrorKind::ShuttingDown.code().into(), b"the broker is shutting down");
                    break;
                }
            }
        }
        self.close();
    }

    async fn serve_quic_stream(
        self: Arc<Self>,
        mut send: quinn::SendStream,
        mut receive: quinn::RecvStream,
        drain: Drain,
    ) {
        let outbox = Arc::new(Outbox::to_writer(OUTBOX_BYTES_MAX));
        let writer = outbox.clone();
        let stream = Stream { connection: self, outbox, wakes: Wakes::default(), answered_bytes: 0 };
        stream.run(Input::Stream(&mut receive), async { writer.run_writer(&mut send).await }, drain).await;
        // A finish only fails where the stream is closed already.
        send.finish().unwrap_or_default();
    }

    async fn serve(
        self: Arc<Self>,
        input: Input<'_>,
        outbox: Arc<Outbox>,
        writer: impl Future<Output = std::io::Result<()>>,
        drain: Drain,
    ) {
        let stream = Stream { connection: self.clone(), outbox, wakes: Wakes::default(), answered_bytes: 0 };
        stream.run(input, writer, drain).await;
        self.close();
    }

    /// Ends what the connection had open.
    fn close(&self) {
        let error = Error::new(ErrorKind::Disconnected, "the connection is closed");
        for (_, handle) in self.subscriptions.lock().drain() {
            handle.end(error.clone());
        }
    }

    /// Ends the subscriptions once each has what it was queued, and waits for that.
    async fn wait_for_subscriptions(&self) {
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

impl Stream {
    /// Reads and answers until either side ends, while the writer does its part.
    async fn run(mut self, mut input: Input<'_>, writer: impl Future<Output = std::io::Result<()>>, mut drain: Drain) {
        let outbox = self.outbox.clone();
        let connection = self.connection.clone();
        let reader = async {
            let end = self.read_until(&mut input, &mut drain).await;
            if let End::Error(error) = end {
                tracing::debug!(connection = connection.id, %error, "closing the connection");
                outbox.push([codec::encode(&Response::Error(error), 0)]);
                outbox.flush();
            }
            // A peer that only has nothing more to ask still reads its answers.
            if !outbox.is_empty() && Box::pin(tokio::time::timeout(LAST_WORDS, outbox.drained())).await.is_err() {
                tracing::debug!(connection = connection.id, "the peer did not read its last answers");
            }
        };
        tokio::pin!(reader, writer);
        if let Either::Right((Err(error), _)) = select(reader, writer).await {
            tracing::debug!(connection = connection.id, %error, "cannot write to the connection");
        }
        outbox.close();
    }

    async fn read_until(&mut self, input: &mut Input<'_>, drain: &mut Drain) -> End {
        let mut assembler = Assembler::new(BODY_BYTES_BEFORE_HELLO_MAX);
        if !self.connection.said_hello.load(Ordering::Relaxed) {
            let timeout = self.connection.native.hello_timeout;
            // Boxed here and below where something is rare: an idle connection is only as small as the
            // largest state it could be in.
            let hello = tokio::time::timeout(timeout, self.read_hello(input, &mut assembler));
            match Box::pin(drain.or_begun(hello)).await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(end))) => return end,
                None => return End::Error(codec::shutting_down()),
                Some(Err(elapsed)) => {
                    return End::Error(Error::new(ErrorKind::Timeout, format!("no hello in time ({elapsed})")));
                }
            }
        }
        assembler.set_body_bytes_max(BODY_BYTES_MAX);
        let mut frames = Vec::new();
        loop {
            tokio::select! {
                biased;
                read = read_frames(input, &mut assembler, &mut frames) => match self.took(read) {
                    Ok(()) => {}
                    Err(end) => {
                        self.handle_all(&mut frames).await.unwrap_or_default();
                        return end;
                    }
                },
                () = drain.begun() => return Box::pin(self.go_away()).await,
            }
            if let Err(error) = self.handle_all(&mut frames).await {
                return End::Error(error);
            }
        }
    }

    async fn read_hello(&mut self, input: &mut Input<'_>, assembler: &mut Assembler) -> Result<(), End> {
        let mut frames = Vec::new();
        while frames.is_empty() {
            let read = read_frames(input, assembler, &mut frames).await;
            self.took(read)?;
        }
        let mut frames = frames.into_iter();
        if let Some(frame) = frames.next() {
            self.hello(frame).map_err(End::Error)?;
        }
        let mut rest = frames.collect();
        self.handle_all(&mut rest).await.map_err(End::Error)
    }

    fn took(&self, read: Result<bool, ReadError<Error>>) -> Result<(), End> {
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(End::Peer),
            Err(ReadError::Io(error)) => {
                tracing::debug!(connection = self.connection.id, %error, "connection lost");
                Err(End::Peer)
            }
            Err(ReadError::Refused(error)) => Err(End::Error(error)),
        }
    }

    /// The broker goes away: what is queued still goes out.
    async fn go_away(&mut self) -> End {
        self.outbox.push([codec::go_away()]);
        self.outbox.flush();
        self.connection.wait_for_subscriptions().await;
        self.outbox.drained().await;
        End::Peer
    }

    fn hello(&mut self, frame: Frame) -> Result<()> {
        let correlation = frame.correlation;
        let Request::Hello { version, required, offered, client } = Request::decode(frame)? else {
            return Err(Error::malformed("the first request of a connection is hello"));
        };
        let features = negotiate::agree(version, required, offered)?;
        tracing::debug!(connection = self.connection.id, client, "hello");
        self.connection.said_hello.store(true, Ordering::Relaxed);
        let broker = &self.connection.native.broker;
        self.answer(
            correlation,
            &Response::Hello(HelloOk {
                version: VERSION,
                features,
                body_bytes_max: BODY_BYTES_MAX as u32,
                publishes_in_flight_max: broker.settings().pub_queue_depth as u32,
                instance: broker.instance(),
                server: concat!("thalweg/", env!("CARGO_PKG_VERSION")).to_owned(),
            }),
        );
        self.outbox.flush();
        Ok(())
    }

    /// Handles what one read brought, then lets the subscribers and the peer have what came of it.
    async fn handle_all(&mut self, frames: &mut Vec<Frame>) -> Result<()> {
        for frame in frames.drain(..) {
            let correlation = frame.correlation;
            if let Err(error) = self.handle(frame).await {
                match errors::of_request(&error) {
                    Verdict::Answer => self.answer(correlation, &Response::Error(error)),
                    Verdict::Close => return Err(error),
                }
            }
            if self.answered_bytes >= ANSWERED_BYTES_MAX {
                Box::pin(self.settle()).await;
            }
        }
        self.settle().await;
        Ok(())
    }

    /// Lets the subscribers and the peer have what there is. A peer that asks and never reads gets no more
    /// answers than the outbox has room for.
    async fn settle(&mut self) {
        self.wakes.flush();
        self.outbox.flush();
        self.outbox.room().await;
        self.answered_bytes = 0;
    }

    async fn handle(&mut self, frame: Frame) -> Result<()> {
        let correlation = frame.correlation;
        let broker = &self.connection.native.broker;
        let response = match Request::decode(frame)? {
            Request::Publish { topic, partition, acks, batch } => {
                match map::publish(broker, &mut self.wakes, &topic, partition, batch).await {
                    Ok(response) if map::wants_answer(acks) => response,
                    Ok(_) => return Ok(()),
                    Err(error) if map::wants_answer(acks) => return Err(error),
                    Err(error) => {
                        map::publish_lost(broker, &topic, &error);
                        return Ok(());
                    }
                }
            }
            Request::Subscribe(request) => Box::pin(self.subscribe(request)).await?,
            Request::Unsubscribe { subscription } => {
                // Its id is taken until the peer has been told the end.
                let handle = self.connection.subscriptions.lock().get(&subscription).cloned();
                let handle = handle.ok_or_else(|| no_subscription(subscription))?;
                handle.end(Error::not_found("the subscription was closed"));
                Response::Unsubscribed
            }
            Request::Credit { subscription, bytes } => {
                // The subscription may have just ended; a grant is not answered.
                if let Some(handle) = self.connection.subscriptions.lock().get(&subscription) {
                    handle.add_credit(bytes);
                }
                return Ok(());
            }
            Request::Fetch { topic, partition, offset, bytes_max, wait_ms } => {
                let fetch = map::fetch(broker.clone(), topic, partition, offset, bytes_max, wait_ms);
                return self.answer_later(correlation, fetch);
            }
            Request::TopicCreate { topic, settings } => {
                Response::TopicCreated(map::topic_info(&broker.create_topic(&topic, settings)?))
            }
            Request::TopicDelete { topic } => {
                broker.delete_topic(&topic)?;
                Response::TopicDeleted
            }
            Request::TopicDescribe { topic } => {
                Response::TopicDescribed(map::topic_info(&broker.describe_topic(&topic)?))
            }
            Request::TopicList { after, count_max } => map::list(broker, &after, count_max),
            Request::Stats => Response::Stats(broker.stats()?),
            Request::Ping => Response::Pong,
            Request::Hello { .. } => return Err(Error::malformed("hello was said already")),
        };
        self.answer(correlation, &response);
        Ok(())
    }

    fn answer(&mut self, correlation: u32, response: &Response) {
        let bytes = codec::encode(response, correlation);
        self.answered_bytes += bytes.len();
        self.outbox.push([bytes]);
    }

    /// Answers when the work is done, while the next requests are handled.
    fn answer_later(
        &self,
        correlation: u32,
        work: impl Future<Output = Result<Response>> + Send + 'static,
    ) -> Result<()> {
        let connection = self.connection.clone();
        if connection.fetches.fetch_add(1, Ordering::Relaxed) >= FETCHES_MAX {
            connection.fetches.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::busy(format!("{FETCHES_MAX} fetches of this connection are waiting already")));
        }
        let outbox = self.outbox.clone();
        tokio::spawn(async move {
            let response = work.await.unwrap_or_else(Response::Error);
            // The records are shared until here; what is encoded is this connection's own.
            outbox.room().await;
            outbox.push([codec::encode(&response, correlation)]);
            outbox.flush();
            connection.fetches.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }

    async fn subscribe(&mut self, request: Subscribe) -> Result<Response> {
        let id = request.subscription;
        {
            let subscriptions = self.connection.subscriptions.lock();
            if subscriptions.contains_key(&id) {
                return Err(Error::invalid(format!("subscription {id} is open already")));
            }
            if subscriptions.len() >= SUBSCRIPTIONS_MAX {
                return Err(Error::busy(format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")));
            }
        }
        let mut request = map::subscribe(request)?;
        request.origin = Origin { connection: self.connection.id, thread: self.connection.thread };
        let broker = &self.connection.native.broker;
        let names_topics = matches!(request.pattern, engine::Pattern::Wildcard(_));
        let encoder = || DeliveryEncoder::new(id, names_topics);
        let to_quic = match &self.connection.quic {
            Some(quic) => Some(quic.open_uni().await.map_err(|error| {
                Error::new(ErrorKind::Disconnected, format!("cannot open a stream for the subscription: {error}"))
            })?),
            None => {
                if self.outbox.is_direct() {
                    let outbox = self.outbox.clone();
                    request.direct = Some(Box::new(DirectOutbox { outbox, encoder: Mutex::new(encoder()) }));
                }
                None
            }
        };
        let subscription = broker.subscribe(request)?;
        // A pattern may mean more partitions than fit into an answer; each delivery names its own.
        let sources = subscription.starts.iter().take(SOURCES_TOLD_MAX).map(codec::source_info).collect();
        self.connection.subscriptions.lock().insert(id, subscription.handle());
        let lane = subscription.lane;
        let connection = self.connection.clone();
        let outbox = self.outbox.clone();
        let encoder = encoder();
        let drain = async move {
            match to_quic {
                Some(send) => drain_to_stream(subscription, encoder, send, id).await,
                None => drain_to_outbox(subscription, encoder, &outbox, id).await,
            }
            connection.forget(id);
        };
        if let Err(error) = broker.run_on_lane(lane, drain).await {
            self.connection.forget(id);
            return Err(error);
        }
        Ok(Response::Subscribed { subscription: id, sources })
    }
}

/// Delivers on the publisher's thread.
struct DirectOutbox {
    outbox: Arc<Outbox>,
    encoder: Mutex<DeliveryEncoder>,
}

impl Direct for DirectOutbox {
    fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    fn deliver(&self, deliveries: &mut Vec<Delivery>, source: &dyn Fn(SourceId) -> (TopicName, PartitionId)) {
        let mut chunks = Vec::with_capacity(2 * deliveries.len());
        self.encoder.lock().encode(deliveries, source, &mut chunks);
        self.outbox.push(chunks);
    }

    fn flush(&self) {
        self.outbox.flush();
    }
}

/// A subscription's work on its lane, where all subscriptions share the connection.
async fn drain_to_outbox(mut subscription: Subscription, mut encoder: DeliveryEncoder, outbox: &Outbox, id: u32) {
    let handle = subscription.handle();
    let (mut deliveries, mut chunks) = (Vec::new(), Vec::new());
    loop {
        outbox.room().await;
        match subscription.next(&mut deliveries).await {
            Ok(()) => {
                encoder.encode(&mut deliveries, &|source| handle.source(source), &mut chunks);
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

/// The same with a stream of its own.
async fn drain_to_stream(
    mut subscription: Subscription,
    mut encoder: DeliveryEncoder,
    mut send: quinn::SendStream,
    id: u32,
) {
    let handle = subscription.handle();
    let (mut deliveries, mut chunks): (Vec<Delivery>, Vec<Bytes>) = (Vec::new(), Vec::new());
    loop {
        let is_over = match subscription.next(&mut deliveries).await {
            Ok(()) => {
                encoder.encode(&mut deliveries, &|source| handle.source(source), &mut chunks);
                false
            }
            Err(error) => {
                chunks.push(codec::encode_push(&Push::Ended { subscription: id, error }));
                true
            }
        };
        if let Err(error) = send.write_all_chunks(&mut chunks).await {
            tracing::debug!(subscription = id, %error, "the subscription's stream is gone");
            return;
        }
        chunks.clear();
        if is_over {
            send.finish().unwrap_or_default();
            // The peer has it all, or is gone.
            send.stopped().await.map(drop).unwrap_or_default();
            return;
        }
    }
}

fn no_subscription(id: u32) -> Error {
    Error::not_found(format!("this connection has no subscription {id}"))
}
