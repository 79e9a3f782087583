//! Definition of a protocol: bytes to requests, responses to bytes, and a handler between them.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::Stream;

use super::body::Body;
use super::input::Input;
use super::out::Out;
use super::peer::Peer;
use crate::Outbox;

/// Framing of the messages of one kind of peer. It holds no state of a connection, which is in [`Protocol::Codec`].
pub trait Protocol: Sized + 'static {
    /// State that one stream of frames keeps between frames.
    type Codec: 'static;
    /// Request, which may borrow from the bytes that were read.
    type Request<'a>;
    /// Message that the peer sends without expecting an answer; [`Never`] if every request has one.
    type Message<'a>;
    /// Response to a request.
    type Response: 'static;
    /// Part of a request that its response has to carry: a correlation id, or nothing if the order identifies it.
    type Tag: Copy + PartialEq + Unpin + 'static;

    /// Order in which responses are sent.
    const ORDER: Order;

    /// Creates the state of a new stream of frames from this peer.
    fn codec(&self, peer: &Rc<Peer>) -> Self::Codec;

    /// Decodes the first frame, or returns the number of bytes that it needs. An incomplete frame is not consumed.
    fn decode<'a>(&self, codec: &mut Self::Codec, input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault>;

    /// Encodes a response to the request with this tag.
    fn encode(&self, codec: &mut Self::Codec, tag: Self::Tag, response: Self::Response, out: &mut Out);

    /// Encodes a fault: of one request, or of the whole stream, which is closed afterwards.
    fn encode_fault(&self, codec: &mut Self::Codec, tag: Option<Self::Tag>, fault: &Fault, out: &mut Out);

    /// Returns the code that a QUIC connection is closed with.
    fn close_code(&self, kind: FaultKind) -> u32 {
        kind as u32
    }
}

/// Order in which responses are sent if requests take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of the requests. A body must be complete before any other frame.
    Request,
    /// In the order of completion; the tag identifies the request.
    Completion,
}

/// First element of the received bytes.
pub enum Decoded<'a, P: Protocol> {
    /// No complete frame: this many bytes must be present, in total, before the decoder is called again.
    More(usize),
    /// Complete request, which will be answered.
    Request(P::Tag, P::Request<'a>),
    /// Complete message, which will not be answered.
    Message(P::Message<'a>),
    /// Request whose body follows in pieces, with the length of the body if the peer has sent it.
    Open(P::Tag, P::Request<'a>, Option<u64>),
    /// Piece of the body of an open request.
    Piece {
        /// Tag of the request that the body belongs to.
        tag: P::Tag,
        /// Bytes of the piece; may be empty.
        bytes: &'a [u8],
        /// `true` if the body is complete with this piece.
        is_last: bool,
    },
}

/// Type without values: for the messages of a protocol without any, and the later answers of a handler without any.
#[derive(Clone, Copy, Debug)]
pub enum Never {}

/// Reason why a request is not served, or why a stream cannot continue.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Category of the fault.
    pub kind: FaultKind,
    /// Description for the peer and the log.
    pub message: Cow<'static, str>,
}

/// Category of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The bytes do not belong to this protocol.
    Malformed,
    /// The bytes use a version or an option that this side does not support.
    Unsupported,
    /// A frame or a body exceeds its limit.
    TooLarge,
    /// A limit of requests or of memory is reached; the peer should try again.
    Busy,
    /// The peer or the handler took too long.
    Timeout,
    /// The handler failed to answer.
    Internal,
    /// The server is shutting down.
    ShuttingDown,
}

impl Fault {
    /// Creates a fault of this kind.
    pub fn new(kind: FaultKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates a fault of kind [`FaultKind::Malformed`].
    pub fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::Malformed, message)
    }

    /// Creates a fault of kind [`FaultKind::TooLarge`].
    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::TooLarge, message)
    }

    /// Creates a fault of kind [`FaultKind::Busy`].
    pub fn busy(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::Busy, message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Answer to a request. A handler has to return one, so no request can be forgotten; a one-way message has none, so it
/// cannot be answered.
pub enum Reply<R, L> {
    /// Response that is sent immediately.
    Now(R),
    /// Response or responses that follow later; the next requests are handled concurrently.
    Later(L),
    /// Like `Later`, but no further frame of this stream is handled until the last response, except for requests that
    /// may join it ([`Handler::may_join`]).
    Alone(L),
    /// Like `Alone`, for long waits: cancelled when the peer closes its side.
    Blocked(L),
    /// Response that is sent immediately as the last one: nothing more is read, and the stream is closed.
    Last(R),
    /// No response: the request cannot begin yet. No further frame is handled until the future completes; then the
    /// request is decoded and handled again. For protocols whose requests borrow their bytes, and not for requests
    /// with a body.
    Again(Held),
}

/// Progress of a stream from the handler's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The peer still has to identify itself: the timeout of the first frame continues to run.
    Opening,
    /// The stream serves requests.
    Open,
    /// The stream is not read any more. Outstanding requests are answered, and the stream is closed.
    Over,
}

/// Implementation of a service. Each worker has its own clone, so its connections and sessions may contain `Rc` and
/// `Cell`.
///
/// A request is answered now or later, and a message never: other code does not compile.
///
/// ```
/// # use std::{rc::Rc, sync::Arc};
/// # use net::{Outbox, service::{Handler, Held, NoLater, Peer, Protocol, Reply}};
/// # struct Mine;
/// # impl<P: Protocol> Handler<P> for Mine {
/// #     type Connection = ();
/// #     type Session = ();
/// #     type Later = NoLater<P::Response>;
/// #     fn connect(&self, _: &Rc<Peer>) {}
/// #     fn open(&self, _: &Rc<()>, _: &Arc<Outbox>) {}
/// fn call(&self, _: &mut (), _: P::Request<'_>) -> Reply<P::Response, Self::Later> {
///     Reply::Later(futures_util::stream::pending())
/// }
/// fn accept_one_way(&self, _: &mut (), _: P::Message<'_>) -> Option<Held> {
///     None
/// }
/// # }
/// ```
///
/// A handler that forgets a request:
///
/// ```compile_fail,E0308
/// # use std::{rc::Rc, sync::Arc};
/// # use net::{Outbox, service::{Handler, Held, NoLater, Peer, Protocol, Reply}};
/// # struct Mine;
/// # impl<P: Protocol> Handler<P> for Mine {
/// #     type Connection = ();
/// #     type Session = ();
/// #     type Later = NoLater<P::Response>;
/// #     fn connect(&self, _: &Rc<Peer>) {}
/// #     fn open(&self, _: &Rc<()>, _: &Arc<Outbox>) {}
/// fn call(&self, _: &mut (), _: P::Request<'_>) -> Reply<P::Response, Self::Later> {
///     println!("noted");
/// }
/// # fn accept_one_way(&self, _: &mut (), _: P::Message<'_>) -> Option<Held> { None }
/// # }
/// ```
///
/// A handler that answers a message:
///
/// ```compile_fail,E0053
/// # use std::{rc::Rc, sync::Arc};
/// # use net::{Outbox, service::{Handler, Held, NoLater, Peer, Protocol, Reply}};
/// # struct Mine;
/// # impl<P: Protocol> Handler<P> for Mine {
/// #     type Connection = ();
/// #     type Session = ();
/// #     type Later = NoLater<P::Response>;
/// #     fn connect(&self, _: &Rc<Peer>) {}
/// #     fn open(&self, _: &Rc<()>, _: &Arc<Outbox>) {}
/// # fn call(&self, _: &mut (), _: P::Request<'_>) -> Reply<P::Response, Self::Later> {
/// #     Reply::Later(futures_util::stream::pending())
/// # }
/// fn accept_one_way(&self, _: &mut (), _: P::Message<'_>) -> Reply<P::Response, Self::Later> {
///     Reply::Later(futures_util::stream::pending())
/// }
/// # }
/// ```
pub trait Handler<P: Protocol>: 'static {
    /// State that the streams of one connection share: QUIC has many streams, other transports one. Dropped when the
    /// connection ends.
    type Connection: 'static;
    /// State of one stream of frames.
    type Session: 'static;
    /// Later answers: a stream of responses, usually of a single one ([`once`](super::once)).
    type Later: Stream<Item = P::Response> + 'static;

    /// Creates the state of a new connection.
    fn connect(&self, peer: &Rc<Peer>) -> Self::Connection;

    /// Creates the state of a new stream. Any thread may send pushes to the peer through `outbox`.
    fn open(&self, connection: &Rc<Self::Connection>, outbox: &Arc<Outbox>) -> Self::Session;

    /// Handles a request whose body, if any, is complete.
    fn call(&self, session: &mut Self::Session, request: P::Request<'_>) -> Reply<P::Response, Self::Later>;

    /// Handles a message that expects no answer. No further frame of this stream is handled until the returned future
    /// completes.
    fn accept_one_way(&self, session: &mut Self::Session, message: P::Message<'_>) -> Option<Held>;

    /// Handles a request whose body is still arriving. The default drops the body and calls [`Handler::call`], for
    /// protocols whose bodies are always complete.
    fn call_streamed(
        &self,
        session: &mut Self::Session,
        request: P::Request<'_>,
        body: Body,
    ) -> Reply<P::Response, Self::Later> {
        drop(body);
        self.call(session, request)
    }

    /// Called after all frames of one read are handled, or one of them had a fault, for work that was batched until
    /// this moment.
    fn settle(&self, session: &mut Self::Session) {
        let _ = session;
    }

    /// Returns `true` while requests of the same read may join the last request, which runs alone.
    fn is_joinable(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }

    /// Returns `true` if a request is handled although an earlier one runs alone. Called while
    /// [`Handler::is_joinable`]; other requests wait, and are decoded again. The reply is [`Reply::Now`] or
    /// [`Reply::Alone`]. For protocols whose requests borrow their bytes.
    fn may_join(&self, session: &Self::Session, request: &P::Request<'_>) -> bool {
        let _ = (session, request);
        false
    }

    /// Called when a turn of the stream begins and when it ends: all work for the stream on this thread, including
    /// later answers, happens between the two calls.
    fn turn(&self, session: &Self::Session, begins: bool) {
        let _ = (session, begins);
    }

    /// Returns the progress of the stream. Called after each frame, and after each later answer.
    fn standing(&self, session: &Self::Session) -> Standing {
        let _ = session;
        Standing::Open
    }

    /// Returns `true` if no further frame is handled before [`Handler::pause`] was called. Called before each frame.
    fn wants_pause(&self, session: &Self::Session) -> bool {
        let _ = session;
        false
    }

    /// Called when the stream begins, and in each turn in which the peer has sent or received something or a pause is
    /// wanted: before the answers are written, and after it. If it returns a future, nothing more is read until that
    /// completes: back-pressure on a peer that sends too much. Answers are still written, and the shutdown does not
    /// wait for it.
    fn pause(&self, session: &mut Self::Session, spent: Spent) -> Option<Held> {
        let _ = (session, spent);
        None
    }

    /// Called when the shutdown begins. Returns work that the stream has to finish first, in addition to answering its
    /// requests.
    fn drain(&self, session: &mut Self::Session) -> Option<Held> {
        let _ = session;
        None
    }
}

/// Use of a stream since the last call of [`Handler::pause`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Requests and messages that were handled.
    pub requests: u64,
    /// Bytes that the peer has sent.
    pub bytes_read: u64,
    /// Bytes that were written to the peer, also by other threads.
    pub bytes_written: u64,
}

/// Future that blocks a stream until it completes. Boxed, because it is rare.
pub type Held = std::pin::Pin<Box<dyn Future<Output = ()>>>;
