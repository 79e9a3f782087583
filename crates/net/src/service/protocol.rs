//! What a protocol is: bytes into requests, responses into bytes, and a handler between them.

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

/// How one kind of peer frames what it says. It holds no state of a connection: that is its [`Protocol::Codec`].
pub trait Protocol: Sized + 'static {
    /// What one stream of frames needs to remember between two of them.
    type Codec: 'static;
    /// A request, which may borrow from the bytes that were read.
    type Request<'a>;
    /// What a peer says without waiting for an answer; [`Never`] where every request has one.
    type Message<'a>;
    type Response: 'static;
    /// What a response has to carry of its request: a correlation id, or nothing where order tells.
    type Tag: Copy + PartialEq + Unpin + 'static;

    const ORDER: Order;

    fn codec(&self, peer: &Rc<Peer>) -> Self::Codec;

    /// Takes the first frame, or says how much of it is missing. It takes nothing from a frame that is not whole.
    fn decode<'a>(&self, codec: &mut Self::Codec, input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault>;

    fn encode(&self, codec: &mut Self::Codec, tag: Self::Tag, response: Self::Response, out: &mut Out);

    /// Says what went wrong: with one request, or with the whole stream, which is then closed.
    fn encode_fault(&self, codec: &mut Self::Codec, tag: Option<Self::Tag>, fault: &Fault, out: &mut Out);

    /// The code that a QUIC connection is closed with.
    fn close_code(&self, kind: FaultKind) -> u32 {
        kind as u32
    }
}

/// In which order responses go out when requests take their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the requests came in. A body comes whole before anything else.
    Request,
    /// As they are done; the tag tells which is which.
    Completion,
}

/// What stands first in the bytes that are there.
pub enum Decoded<'a, P: Protocol> {
    /// No whole frame: so many bytes, all in all, have to be there before it is worth looking again.
    More(usize),
    Request(P::Tag, P::Request<'a>),
    Message(P::Message<'a>),
    /// A request whose body follows piece by piece, so many bytes if the peer said it.
    Open(P::Tag, P::Request<'a>, Option<u64>),
    /// A piece of the body of an open request.
    Piece {
        tag: P::Tag,
        bytes: &'a [u8],
        is_last: bool,
    },
}

/// What has no values: the messages of a protocol without any, the later answers of a handler that needs none.
#[derive(Clone, Copy, Debug)]
pub enum Never {}

/// A request that is not served, or a stream that cannot go on.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The bytes are not of this protocol.
    Malformed,
    /// They are of a version, or use an option, that this end does not know.
    Unsupported,
    /// A frame or a body is over its limit.
    TooLarge,
    /// A limit of requests or of memory is reached; to be tried again.
    Busy,
    /// The peer or the handler took too long.
    Timeout,
    /// The handler failed to answer.
    Internal,
    /// This end is going away.
    ShuttingDown,
}

impl Fault {
    pub fn new(kind: FaultKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::Malformed, message)
    }

    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::TooLarge, message)
    }

    pub fn busy(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultKind::Busy, message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How a request is answered. A handler has to return one, so no request can be forgotten; a one-way message
/// has none, so it cannot be answered.
pub enum Reply<R, L> {
    Now(R),
    /// Answered later, by one response or several; the next requests are handled meanwhile.
    Later(L),
    /// The same, and nothing more of this stream is handled before it is over.
    Alone(L),
    /// The same, for what may wait long: given up when the peer closes its end, as nobody is left then who waits.
    Blocked(L),
    /// Answered now; nothing more is read and the stream is closed.
    Last(R),
}

/// How far a stream is, as its handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its peer has still to say who it is: the time for its first frame runs on.
    Opening,
    Open,
    /// Nothing more is read. What was asked is answered, and the stream is closed.
    Over,
}

/// What is done with requests. Each shard has a clone of its own, so it may keep `Rc` and `Cell` in what it makes.
///
/// A request is answered now or later, and a message never: whatever else is written does not compile.
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
/// fn tell(&self, _: &mut (), _: P::Message<'_>) -> Option<Held> {
///     None
/// }
/// # }
/// ```
///
/// A request that is forgotten:
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
/// # fn tell(&self, _: &mut (), _: P::Message<'_>) -> Option<Held> { None }
/// # }
/// ```
///
/// A message that is answered:
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
/// fn tell(&self, _: &mut (), _: P::Message<'_>) -> Reply<P::Response, Self::Later> {
///     Reply::Later(futures_util::stream::pending())
/// }
/// # }
/// ```
pub trait Handler<P: Protocol>: 'static {
    /// What the streams of one connection share: many over QUIC, otherwise one. Dropped when it is gone.
    type Connection: 'static;
    /// What one stream of frames has to itself.
    type Session: 'static;
    /// Later answers: a stream of responses, of one as a rule ([`once`](super::once)).
    type Later: Stream<Item = P::Response> + 'static;

    fn connect(&self, peer: &Rc<Peer>) -> Self::Connection;

    /// A stream begins. What others have to tell the peer goes through `outbox`, from any thread.
    fn open(&self, connection: &Rc<Self::Connection>, outbox: &Arc<Outbox>) -> Self::Session;

    fn call(&self, session: &mut Self::Session, request: P::Request<'_>) -> Reply<P::Response, Self::Later>;

    /// A message that waits for no answer. Nothing more of this stream is handled before what is returned is over.
    fn tell(&self, session: &mut Self::Session, message: P::Message<'_>) -> Option<Held>;

    /// A request whose body is still coming. Where bodies are always whole there is nothing to write here.
    fn call_streamed(
        &self,
        session: &mut Self::Session,
        request: P::Request<'_>,
        body: Body,
    ) -> Reply<P::Response, Self::Later> {
        drop(body);
        self.call(session, request)
    }

    /// All that came with one read is handled: what was saved up for this moment is done now.
    fn settle(&self, session: &mut Self::Session) {
        let _ = session;
    }

    /// A turn of the stream begins, or ends: all that is done for it on this thread is done between the two, later
    /// answers included.
    fn turn(&self, session: &Self::Session, begins: bool) {
        let _ = (session, begins);
    }

    /// How far the stream is. Asked after each frame, and after each later answer.
    fn standing(&self, session: &Self::Session) -> Standing {
        let _ = session;
        Standing::Open
    }

    /// The server goes away: what the stream has to do first, beside answering what it was asked.
    fn drain(&self, session: &mut Self::Session) -> Option<Held> {
        let _ = session;
        None
    }
}

/// What holds a stream up until it is over. Boxed, because it is rare.
pub type Held = std::pin::Pin<Box<dyn Future<Output = ()>>>;
