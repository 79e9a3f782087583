//! Stream of frames to the broker: requests are sent, answers and pushes are received.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::buf::Limit;
use bytes::{Bytes, BytesMut};
use engine::{Error, ErrorKind, Result};
use net::Outbox;
use net::outbox::Socket;
use net::read::{ReadError, Reassemble};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, oneshot};
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};
use wire::negotiate::{Features, VERSION};
use wire::{Assembler, Frame, HelloOk, Push, QueueResponse, Request, Response};

use crate::book::Book;

/// Bytes queued for the broker at which publishers pause.
const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Minimum time without an answer after which a node may be considered down.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Initial capacity for an encoded request; most requests are smaller.
const REQUEST_BYTES: usize = 128;

/// Waiter for an answer.
pub(crate) enum Waiter {
    One(oneshot::Sender<Result<Response>>),
    /// Publisher, which identifies its batches by their tags.
    Publisher(Arc<dyn OnAck>, BatchTag),
}

/// Identification of a publisher's batch: the partition, and the number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchTag {
    pub lane: u32,
    pub number: u64,
}

/// Receiver of batch outcomes. For each batch exactly one of the two methods is called, once.
pub(crate) trait OnAck: Send + Sync {
    /// Processes the broker's answer.
    fn answered(&self, batch: BatchTag, answer: Result<Response>);
    /// Processes the loss of the connection before the answer.
    fn lost(&self, batch: BatchTag, error: &Error);
}

pub(crate) struct Link {
    outbox: Arc<Outbox>,
    /// `true` if each write is a system call: then concurrent requests are written together.
    is_socket: bool,
    correlation: AtomicU32,
    state: Mutex<State>,
    /// `true` once the broker has answered that another one leads. Nothing new is sent then.
    is_over: AtomicBool,
    /// Address book that learns of that.
    book: OnceLock<Arc<Book>>,
    created: Instant,
    /// Time of the first request since anything was received, in ms after `created`; 0 if there is none.
    asked_ms: AtomicU64,
    /// Time of the first batch since then, likewise.
    batch_ms: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u32, Waiter, foldhash::fast::RandomState>,
    inboxes: HashMap<u32, Arc<Inbox>>,
    /// Error that closed the link.
    closed: Option<Error>,
}

/// Pushes that arrived for one subscription and are not read yet. The subscription's credit bounds them.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<Result<Push>>>,
    arrived: Notify,
}

impl Inbox {
    fn push(&self, push: Result<Push>) {
        self.queue.lock().push_back(push);
        self.arrived.notify_one();
    }

    pub(crate) async fn next(&self) -> Result<Push> {
        loop {
            if let Some(push) = self.queue.lock().pop_front() {
                return push;
            }
            self.arrived.notified().await;
        }
    }
}

impl Link {
    pub(crate) fn over_socket(socket: TcpStream) -> Arc<Self> {
        let (input, output) = socket.into_split();
        Self::over(input, Socket::Tcp(output), true)
    }

    pub(crate) fn over_unix(socket: UnixStream) -> Arc<Self> {
        let (input, output) = socket.into_split();
        Self::over(input, Socket::Unix(output), true)
    }

    pub(crate) fn over_stream(
        mut input: impl AsyncRead + Send + Unpin + 'static,
        mut output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Arc<Self> {
        let outbox = Arc::new(Outbox::to_writer(OUTBOX_BYTES_MAX));
        let link = Self::new(outbox.clone(), false);
        let writer = outbox;
        let reader = link.clone();
        tokio::spawn(async move {
            reader.run(&mut input, writer.run_writer(&mut output)).await;
        });
        link
    }

    pub(crate) fn over_quic(send: quinn::SendStream, receive: quinn::RecvStream) -> Arc<Self> {
        Self::over(receive, Socket::Quic(send), false)
    }

    fn over(mut input: impl AsyncRead + Send + Unpin + 'static, output: Socket, is_socket: bool) -> Arc<Self> {
        let outbox = Arc::new(Outbox::to_socket(output, OUTBOX_BYTES_MAX));
        let link = Self::new(outbox.clone(), is_socket);
        let writer = outbox;
        let reader = link.clone();
        tokio::spawn(async move {
            reader.run(&mut input, writer.run_socket()).await;
        });
        link
    }

    fn new(outbox: Arc<Outbox>, is_socket: bool) -> Arc<Self> {
        Arc::new(Self {
            outbox,
            is_socket,
            correlation: AtomicU32::new(1),
            state: Mutex::default(),
            is_over: AtomicBool::new(false),
            book: OnceLock::new(),
            created: Instant::now(),
            asked_ms: AtomicU64::new(0),
            batch_ms: AtomicU64::new(0),
        })
    }

    /// Sets the address book that learns when another broker leads.
    pub(crate) fn know(&self, book: &Arc<Book>) {
        self.book.get_or_init(|| book.clone());
    }

    pub(crate) async fn hello(&self, name: &str, timeout: Duration) -> Result<HelloOk> {
        let hello = Request::Hello {
            version: VERSION,
            required: Features::default(),
            offered: Features::KNOWN,
            client: name.to_owned(),
        };
        match self.request(&hello, timeout).await? {
            Response::Hello(hello) => Ok(hello),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and waits for its answer. An error answer is returned as an error.
    pub(crate) async fn request(&self, request: &Request, timeout: Duration) -> Result<Response> {
        let correlation = self.next_correlation();
        let mut buf = BytesMut::with_capacity(REQUEST_BYTES);
        request.encode(correlation, &mut buf);
        // The broker would close the stream because of it, and fail the requests of others on it.
        let bytes = buf.len() - HEADER_BYTES;
        if bytes > BODY_BYTES_MAX {
            return Err(Error::too_large(format!("a request has at most {BODY_BYTES_MAX} bytes, not {bytes}")));
        }
        let answer = self.call(correlation, [buf.freeze()])?;
        match tokio::time::timeout(timeout, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(self.closed_error())),
            Err(_) => {
                self.state.lock().waiting.remove(&correlation);
                self.close_if_silent(timeout.max(SILENCE_MIN));
                Err(Error::new(ErrorKind::Timeout, format!("no answer within {} ms", timeout.as_millis())))
            }
        }
    }

    pub(crate) fn next_correlation(&self) -> u32 {
        self.correlation.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request that is already encoded.
    pub(crate) fn call(
        &self,
        correlation: u32,
        chunks: impl IntoIterator<Item = Bytes>,
    ) -> Result<oneshot::Receiver<Result<Response>>> {
        let (sender, receiver) = oneshot::channel();
        self.call_with(correlation, chunks, Waiter::One(sender))?;
        Ok(receiver)
    }

    pub(crate) fn call_with(
        &self,
        correlation: u32,
        chunks: impl IntoIterator<Item = Bytes>,
        waiter: Waiter,
    ) -> Result<()> {
        let is_batch = matches!(waiter, Waiter::Publisher(..));
        let is_beside_others = {
            let mut state = self.state.lock();
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            // A publisher's batch is large enough for its own write.
            state.waiting.insert(correlation, waiter);
            !is_batch && self.is_socket && state.waiting.len() > 1
        };
        self.note_asked(&self.asked_ms);
        if is_batch {
            self.note_asked(&self.batch_ms);
        }
        let sent = self.queue(chunks);
        if is_beside_others {
            self.outbox.flush_together();
        } else {
            self.outbox.flush();
        }
        if sent.is_err() && self.state.lock().waiting.remove(&correlation).is_none() {
            // The link has closed in the meantime and has answered all waiters.
            return Ok(());
        }
        sent
    }

    /// Sends a request that has no answer.
    pub(crate) fn send_one_way(&self, chunks: impl IntoIterator<Item = Bytes>) -> Result<()> {
        self.queue(chunks)?;
        self.outbox.flush();
        Ok(())
    }

    fn queue(&self, chunks: impl IntoIterator<Item = Bytes>) -> Result<()> {
        if self.outbox.push(chunks) { Ok(()) } else { Err(self.closed_error()) }
    }

    /// Returns `true` if few enough bytes are queued for the broker.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    /// Waits until the queue for the broker has room.
    pub(crate) async fn room(&self) {
        self.outbox.room().await;
    }

    /// Waits until all bytes were passed to the network.
    pub(crate) async fn drained(&self) {
        self.outbox.drained().await;
    }

    /// Returns `true` if nothing more can be sent, or if another broker leads. A failed write sets this before the
    /// reader detects it.
    pub(crate) fn is_closed(&self) -> bool {
        self.outbox.is_closed() || self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.outbox.close();
    }

    /// Closes a link to a cluster if nothing was received for this long while an answer is due: the machine of the node
    /// may be down, which TCP notices only after many minutes, and another node may lead.
    pub(crate) fn close_if_silent(&self, patience: Duration) {
        if self.is_since(&self.asked_ms, patience) && self.book.get().is_some_and(|book| book.is_of_cluster()) {
            tracing::debug!("closing a connection to a node that does not answer");
            self.outbox.close();
        }
    }

    /// Returns `true` if nothing was received for this long since a request was sent.
    pub(crate) fn owes_answers_for(&self, silence: Duration) -> bool {
        self.is_since(&self.asked_ms, silence)
    }

    /// Returns `true` if nothing was received for this long since a batch was sent.
    pub(crate) fn owes_batches_for(&self, silence: Duration) -> bool {
        self.is_since(&self.batch_ms, silence)
    }

    fn note_asked(&self, at_ms: &AtomicU64) {
        if at_ms.load(Ordering::Relaxed) == 0 {
            at_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    fn is_since(&self, at_ms: &AtomicU64, duration: Duration) -> bool {
        let at_ms = at_ms.load(Ordering::Relaxed);
        at_ms > 0 && self.now_ms().saturating_sub(at_ms) >= duration.as_millis() as u64
    }

    /// Returns the age of the link in ms, at least 1.
    fn now_ms(&self) -> u64 {
        self.created.elapsed().as_millis() as u64 + 1
    }

    /// Opens the inbox for the deliveries of a subscription that shares this stream.
    pub(crate) fn open_inbox(&self, subscription: u32) -> Result<Arc<Inbox>> {
        let inbox = Arc::new(Inbox::default());
        let mut state = self.state.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.inboxes.insert(subscription, inbox.clone());
        Ok(inbox)
    }

    pub(crate) fn close_inbox(&self, subscription: u32) {
        self.state.lock().inboxes.remove(&subscription);
    }

    async fn run(&self, input: &mut (impl AsyncRead + Unpin), writer: impl Future<Output = io::Result<()>>) {
        let error = tokio::select! {
            // Answers are far more frequent than a full socket becoming writable again.
            biased;
            error = self.read(input) => error,
            written = writer => match written {
                Ok(()) => disconnected("the connection was closed"),
                Err(error) => disconnected(&format!("cannot write to the broker: {error}")),
            },
        };
        self.outbox.close();
        let state = {
            let mut state = self.state.lock();
            let closed = state.closed.get_or_insert(error).clone();
            std::mem::replace(&mut *state, State { closed: Some(closed), ..State::default() })
        };
        let error = state.closed.unwrap_or_else(|| disconnected("the connection was closed"));
        for waiter in state.waiting.into_values() {
            match waiter {
                Waiter::Publisher(publisher, batch) => publisher.lost(batch, &error),
                waiter => waiter.answer(Err(unanswered(&error))),
            }
        }
        for inbox in state.inboxes.into_values() {
            inbox.push(Err(error.clone()));
        }
    }

    async fn read(&self, input: &mut (impl AsyncRead + Unpin)) -> Error {
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let mut frames = Vec::new();
        loop {
            let mut incoming = Incoming { assembler: &mut assembler, frames: &mut frames };
            match net::read::read(input, &mut incoming).await {
                Ok(true) => {}
                Ok(false) => return disconnected("the broker closed the connection"),
                Err(ReadError::Io(error)) => return disconnected(&format!("the connection broke: {error}")),
                Err(ReadError::Refused(error)) => return error,
            }
            self.asked_ms.store(0, Ordering::Relaxed);
            self.batch_ms.store(0, Ordering::Relaxed);
            for frame in frames.drain(..) {
                if let Err(error) = self.take(frame) {
                    return error;
                }
            }
        }
    }

    fn take(&self, frame: Frame) -> Result<()> {
        if Push::is_push(frame.kind) {
            return self.take_push(Push::decode(frame)?);
        }
        let correlation = frame.correlation;
        let response = Response::decode(frame)?;
        if let (0, Response::Error(error)) = (correlation, &response) {
            // Final error that the broker sends before it closes the connection.
            self.check_leader(error);
            return Err(error.clone());
        }
        match &response {
            Response::Error(error) => self.check_leader(error),
            Response::Queue(QueueResponse::Sent(sent)) => {
                sent.iter().filter_map(|sent| sent.as_ref().err()).for_each(|error| self.check_leader(error));
            }
            _ => {}
        }
        let waiter = self.state.lock().waiting.remove(&correlation);
        if let Some(waiter) = waiter {
            waiter.answer(match response {
                Response::Error(error) => Err(error),
                response => Ok(response),
            });
        }
        Ok(())
    }

    /// Ends the use of the link if another broker leads. Requests in flight still receive their answers.
    fn check_leader(&self, error: &Error) {
        if error.kind == ErrorKind::NotLeader {
            if let Some(book) = self.book.get() {
                book.not_leader(error);
            }
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn take_push(&self, push: Push) -> Result<()> {
        let subscription = match &push {
            Push::Deliver { subscription, .. } | Push::Gap { subscription, .. } | Push::Ended { subscription, .. } => {
                *subscription
            }
            // The broker finishes its work and closes; the close is what matters.
            Push::GoAway { .. } => return Ok(()),
        };
        // The subscription may have been closed a moment ago.
        if let Some(inbox) = self.state.lock().inboxes.get(&subscription) {
            inbox.push(Ok(push));
        }
        Ok(())
    }

    fn closed_error(&self) -> Error {
        self.state.lock().closed.clone().unwrap_or_else(|| disconnected("the connection was closed"))
    }
}

impl Waiter {
    fn answer(self, answer: Result<Response>) {
        match self {
            // A waiter that has given up does not need the answer any more.
            Self::One(sender) => drop(sender.send(answer)),
            Self::Publisher(publisher, batch) => publisher.answered(batch, answer),
        }
    }
}

/// Frames that arrive on a stream.
pub(crate) struct Incoming<'a> {
    pub assembler: &'a mut Assembler,
    pub frames: &'a mut Vec<Frame>,
}

impl Reassemble for Incoming<'_> {
    type Error = Error;

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.assembler.feed(bytes, self.frames)
    }

    fn rest(&mut self) -> Option<Limit<&mut BytesMut>> {
        self.assembler.large_rest()
    }

    fn rest_filled(&mut self) {
        self.assembler.close_frame(self.frames);
    }
}

/// Returns the error of a request that was sent before the connection ended. It may have been carried out, which not
/// every reason of an end says.
fn unanswered(error: &Error) -> Error {
    match error.kind {
        ErrorKind::ShuttingDown | ErrorKind::NotLeader => disconnected(&error.message),
        _ => error.clone(),
    }
}

pub(crate) fn disconnected(message: &str) -> Error {
    Error::new(ErrorKind::Disconnected, message)
}

pub(crate) fn unexpected(response: &Response) -> Error {
    Error::malformed(format!("the broker sent an unexpected response: {response:?}"))
}
