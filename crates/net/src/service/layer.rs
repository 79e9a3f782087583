//! Handlers that wrap other handlers, composed statically: no boxes, no lists, no dynamic calls.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::Map;

use super::body::Body;
use super::peer::Peer;
use super::protocol::{Handler, Held, Protocol, Reply, Standing};
use crate::Outbox;

/// Wrapper around a handler.
pub trait Layer<H> {
    /// Handler that results from wrapping.
    type Handler;

    /// Wraps the handler `inner`, which the result calls.
    fn wrap(self, inner: H) -> Self::Handler;
}

/// Handler that is one function of the request, for services whose connections have no state.
pub struct FnHandler<P, F> {
    answer: F,
    /// Marker of the protocol, which follows from the service that uses the handler.
    _protocol: PhantomData<fn(P)>,
}

/// Creates a handler from a function that answers each request immediately.
pub fn from_fn<P, F>(answer: F) -> FnHandler<P, F>
where
    P: Protocol,
    F: Fn(P::Request<'_>) -> P::Response,
{
    FnHandler { answer, _protocol: PhantomData }
}

impl<P, F: Clone> Clone for FnHandler<P, F> {
    fn clone(&self) -> Self {
        Self { answer: self.answer.clone(), _protocol: PhantomData }
    }
}

impl<P, F> Handler<P> for FnHandler<P, F>
where
    P: Protocol,
    F: for<'a> Fn(P::Request<'a>) -> P::Response + 'static,
{
    type Connection = ();
    type Session = ();
    type Later = super::NoLater<P::Response>;

    fn connect(&self, _peer: &Rc<Peer>) {}

    fn open(&self, _connection: &Rc<()>, _outbox: &Arc<Outbox>) {}

    fn call(&self, _session: &mut (), request: P::Request<'_>) -> Reply<P::Response, Self::Later> {
        Reply::Now((self.answer)(request))
    }

    fn accept_one_way(&self, _session: &mut (), _message: P::Message<'_>) -> Option<Held> {
        None
    }
}

/// Layer that applies a function to every response.
#[derive(Clone)]
pub struct MapResponse<F>(pub F);

impl<H, F> Layer<H> for MapResponse<F> {
    type Handler = MappedResponse<H, F>;

    fn wrap(self, inner: H) -> Self::Handler {
        MappedResponse { inner, map: self.0 }
    }
}

/// Handler whose responses pass through a function; see [`MapResponse`].
#[derive(Clone)]
pub struct MappedResponse<H, F> {
    inner: H,
    map: F,
}

impl<P, H, F> Handler<P> for MappedResponse<H, F>
where
    P: Protocol,
    H: Handler<P>,
    F: Fn(P::Response) -> P::Response + Clone + 'static,
{
    type Connection = H::Connection;
    type Session = H::Session;
    type Later = Map<H::Later, F>;

    fn connect(&self, peer: &Rc<Peer>) -> Self::Connection {
        self.inner.connect(peer)
    }

    fn open(&self, connection: &Rc<Self::Connection>, outbox: &Arc<Outbox>) -> Self::Session {
        self.inner.open(connection, outbox)
    }

    fn call(&self, session: &mut Self::Session, request: P::Request<'_>) -> Reply<P::Response, Self::Later> {
        self.map_reply(self.inner.call(session, request))
    }

    fn accept_one_way(&self, session: &mut Self::Session, message: P::Message<'_>) -> Option<Held> {
        self.inner.accept_one_way(session, message)
    }

    fn call_streamed(
        &self,
        session: &mut Self::Session,
        request: P::Request<'_>,
        body: Body,
    ) -> Reply<P::Response, Self::Later> {
        self.map_reply(self.inner.call_streamed(session, request, body))
    }

    fn is_joinable(&self, session: &Self::Session) -> bool {
        self.inner.is_joinable(session)
    }

    fn may_join(&self, session: &Self::Session, request: &P::Request<'_>) -> bool {
        self.inner.may_join(session, request)
    }

    fn settle(&self, session: &mut Self::Session) {
        self.inner.settle(session);
    }

    fn standing(&self, session: &Self::Session) -> Standing {
        self.inner.standing(session)
    }

    fn drain(&self, session: &mut Self::Session) -> Option<Held> {
        self.inner.drain(session)
    }
}

impl<H, F> MappedResponse<H, F> {
    fn map_reply<R, L>(&self, reply: Reply<R, L>) -> Reply<R, Map<L, F>>
    where
        F: Fn(R) -> R + Clone,
        L: futures_util::Stream<Item = R>,
    {
        match reply {
            Reply::Now(response) => Reply::Now((self.map)(response)),
            Reply::Last(response) => Reply::Last((self.map)(response)),
            Reply::Later(later) => Reply::Later(later.map(self.map.clone())),
            Reply::Alone(later) => Reply::Alone(later.map(self.map.clone())),
            Reply::Blocked(later) => Reply::Blocked(later.map(self.map.clone())),
            Reply::Again(held) => Reply::Again(held),
        }
    }
}

/// Layer that checks every request before the handler does. If the function returns a response, it is sent and the
/// handler does not receive the request.
#[derive(Clone)]
pub struct Guard<F>(pub F);

impl<H, F> Layer<H> for Guard<F> {
    type Handler = Guarded<H, F>;

    fn wrap(self, inner: H) -> Self::Handler {
        Guarded { inner, refuse: self.0 }
    }
}

/// Handler whose requests pass through a check; see [`Guard`].
#[derive(Clone)]
pub struct Guarded<H, F> {
    inner: H,
    refuse: F,
}

impl<P, H, F> Handler<P> for Guarded<H, F>
where
    P: Protocol,
    H: Handler<P>,
    F: for<'a> Fn(&P::Request<'a>) -> Option<P::Response> + 'static,
{
    type Connection = H::Connection;
    type Session = H::Session;
    type Later = H::Later;

    fn connect(&self, peer: &Rc<Peer>) -> Self::Connection {
        self.inner.connect(peer)
    }

    fn open(&self, connection: &Rc<Self::Connection>, outbox: &Arc<Outbox>) -> Self::Session {
        self.inner.open(connection, outbox)
    }

    fn call(&self, session: &mut Self::Session, request: P::Request<'_>) -> Reply<P::Response, Self::Later> {
        match (self.refuse)(&request) {
            Some(response) => Reply::Now(response),
            None => self.inner.call(session, request),
        }
    }

    fn accept_one_way(&self, session: &mut Self::Session, message: P::Message<'_>) -> Option<Held> {
        self.inner.accept_one_way(session, message)
    }

    fn call_streamed(
        &self,
        session: &mut Self::Session,
        request: P::Request<'_>,
        body: Body,
    ) -> Reply<P::Response, Self::Later> {
        match (self.refuse)(&request) {
            Some(response) => Reply::Now(response),
            None => self.inner.call_streamed(session, request, body),
        }
    }

    fn is_joinable(&self, session: &Self::Session) -> bool {
        self.inner.is_joinable(session)
    }

    fn may_join(&self, session: &Self::Session, request: &P::Request<'_>) -> bool {
        self.inner.may_join(session, request)
    }

    fn settle(&self, session: &mut Self::Session) {
        self.inner.settle(session);
    }

    fn standing(&self, session: &Self::Session) -> Standing {
        self.inner.standing(session)
    }

    fn drain(&self, session: &mut Self::Session) -> Option<Held> {
        self.inner.drain(session)
    }
}
