//! Service on all workers, and the distribution of connections to them.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::OptionFuture;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_local};

use super::connection::Connection;
use super::protocol::{Fault, FaultKind, Handler, Protocol};
use super::transport::{Duplex, Plain, QuicStream, Stream, Transport as ByteStream};
use super::{Live, Peer, Phase, Service, Transport};
use crate::forward::{Forward, Forwarded, Pipe, Sniff, Sniffed, TLS_HANDSHAKE};
use crate::gate::expect_open;
use crate::limits::{self, ConnectionLimits, ConnectionPermit, Connections, OpenConnection};
use crate::listen::{Address, Kind, Listener, Plaintext, TlsOffer};
use crate::outbox::Socket;
use crate::quic::{self, Windows};
use crate::shutdown::Stages;
use crate::tls::log_refused;
use crate::workers::{Place, Places};
use crate::{Drain, Outbox, Shutdown, Sockets, UnixPeer, Workers};

/// Part of the maximum number of connections from which on a QUIC peer has to prove its address first.
const VALIDATE_FROM_PART: usize = 8;

/// Service that runs on every worker until its drain begins. Cloning it is cheap.
#[derive(Clone)]
pub struct Server {
    workers: Arc<Workers>,
    /// Queue to each worker. Its entries hold the permit of their connection.
    arrivals: Vec<mpsc::UnboundedSender<Arrival>>,
    connections: Arc<Connections>,
    shutdown: Shutdown,
}

/// Connection or endpoint to be served on a worker.
enum Arrival {
    Connection(Arrived, Hold),
    Endpoint(quinn::Endpoint, Box<QuicOffer>, Drain),
}

enum Arrived {
    Tcp(std::net::TcpStream, SocketAddr, Option<TlsOffer>),
    Unix(std::os::unix::net::UnixStream, UnixPeer),
    Pipe(Box<dyn Pipe>),
    Forwarded(Box<(Forwarded, TlsOffer)>),
}

/// QUIC settings of an endpoint.
struct QuicOffer {
    config: quinn::ServerConfig,
    windows: Windows,
    connections: Arc<Connections>,
    places: Places,
}

/// Resources that a connection holds while it is open.
struct Hold {
    permit: ConnectionPermit,
    _place: Place,
    _drain: Drain,
}

impl Hold {
    fn entry(&self) -> Arc<OpenConnection> {
        self.permit.entry().clone()
    }
}

impl Server {
    /// Starts the service on every worker.
    pub fn start<P, H>(
        service: Service<P, H>,
        workers: &Arc<Workers>,
        connections: Arc<Connections>,
        shutdown: &Shutdown,
    ) -> Self
    where
        P: Protocol + Clone + Send + Sync,
        H: Handler<P> + Clone + Send + Sync,
    {
        let service = Arc::new(service);
        let arrivals = (0..workers.len()).map(|worker| {
            let (arrivals, queue) = mpsc::unbounded_channel();
            let service = service.clone();
            let stages = shutdown.stages();
            workers.run(worker, move |worker| {
                let live = Rc::new(service.live(worker));
                spawn_local(Live::watch(Rc::downgrade(&live), stages.clone()));
                spawn_local(live.serve_all(queue, stages));
            });
            arrivals
        });
        Self { arrivals: arrivals.collect(), workers: workers.clone(), connections, shutdown: shutdown.clone() }
    }

    /// Starts the service with defaults: a worker for each core, the default connection limits, and its own shutdown
    /// ([`Server::shutdown`]). Fails if the threads cannot be started.
    pub fn on_every_core<P, H>(service: Service<P, H>) -> io::Result<Self>
    where
        P: Protocol + Clone + Send + Sync,
        H: Handler<P> + Clone + Send + Sync,
    {
        let workers = Arc::new(Workers::start(std::thread::available_parallelism()?.get())?);
        Ok(Self::start(service, &workers, Connections::new(ConnectionLimits::default()), &Shutdown::default()))
    }

    /// Returns the shutdown, which ends the service.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Serves the connections of a listener, in a task of the current runtime, until the drain begins. Returns the
    /// bound address.
    pub fn listen(&self, listener: Listener) -> io::Result<Address> {
        let address = listener.address()?;
        let server = self.clone();
        match listener.0 {
            Kind::Tcp { mut acceptor, tls } => drop(tokio::spawn(async move {
                let mut drain = server.shutdown.drain();
                while let Some((socket, peer)) = drain.or_begun(acceptor.accept()).await {
                    server.take_tcp(socket, peer, tls.clone());
                }
            })),
            Kind::Unix(mut acceptor) => drop(tokio::spawn(async move {
                let mut drain = server.shutdown.drain();
                while let Some((socket, peer)) = drain.or_begun(acceptor.accept()).await {
                    server.take_unix(socket, peer);
                }
            })),
            Kind::Quic { endpoints, config, windows } => {
                for (i, endpoint) in endpoints.into_iter().enumerate() {
                    let worker = i % self.workers.len();
                    let connections = self.connections.clone();
                    let places = self.workers.places(worker);
                    let offer = QuicOffer { config: config.clone(), windows, connections, places };
                    self.send(worker, Arrival::Endpoint(endpoint, Box::new(offer), self.shutdown.drain()));
                }
            }
        }
        Ok(address)
    }

    /// Serves at the TCP socket, with TLS and for peers that `plaintext` allows also without, and at the Unix socket if
    /// there is one. Returns the function that serves forwarded connections in the same way.
    pub fn serve_at(&self, sockets: &Sockets, tls: Arc<ServerConfig>, plaintext: Plaintext) -> io::Result<Forward> {
        self.listen(sockets.tcp()?.with_tls(tls.clone(), plaintext))?;
        if let Some(unix) = sockets.unix()? {
            self.listen(unix)?;
        }
        let server = self.clone();
        Ok(Arc::new(move |forwarded| server.serve_forwarded(forwarded, tls.clone(), plaintext)))
    }

    /// Serves a forwarded connection as a listener with TLS would. It is dropped if a limit of connections is reached
    /// for its address.
    pub fn serve_forwarded(&self, forwarded: Forwarded, tls: Arc<ServerConfig>, plaintext: Plaintext) {
        let limited = (!forwarded.owner).then_some(forwarded.peer);
        if let Some((hold, worker)) = self.admit(limited) {
            let offer = TlsOffer { acceptor: tls.into(), plaintext };
            self.send(worker, Arrival::Connection(Arrived::Forwarded(Box::new((forwarded, offer))), hold));
        }
    }

    /// Serves one byte stream in memory. It is dropped if the connection limit is reached.
    pub fn serve_pipe(&self, pipe: impl Pipe + 'static) {
        if let Some((hold, worker)) = self.admit(None) {
            self.send(worker, Arrival::Connection(Arrived::Pipe(Box::new(pipe)), hold));
        }
    }

    fn take_tcp(&self, socket: TcpStream, peer: SocketAddr, tls: Option<TlsOffer>) {
        let Some((hold, worker)) = self.admit(Some(peer)) else {
            return;
        };
        match socket.into_std() {
            Ok(socket) => self.send(worker, Arrival::Connection(Arrived::Tcp(socket, peer, tls), hold)),
            Err(error) => tracing::debug!(%peer, %error, "connection lost while it was placed"),
        }
    }

    fn take_unix(&self, socket: UnixStream, peer: UnixPeer) {
        let Some((hold, worker)) = self.admit(None) else {
            return;
        };
        match socket.into_std() {
            Ok(socket) => self.send(worker, Arrival::Connection(Arrived::Unix(socket, peer), hold)),
            Err(error) => tracing::debug!(%error, "connection lost while it was placed"),
        }
    }

    fn admit(&self, peer: Option<SocketAddr>) -> Option<(Hold, usize)> {
        match self.connections.admit_from(peer.map(|peer| peer.ip()), peer) {
            Ok(permit) => {
                let place = self.workers.place();
                let worker = place.worker;
                Some((Hold { permit, _place: place, _drain: self.shutdown.drain() }, worker))
            }
            Err(refused) => {
                tracing::warn!(?peer, %refused, "refused a connection");
                None
            }
        }
    }

    fn send(&self, worker: usize, arrival: Arrival) {
        if self.arrivals[worker].send(arrival).is_err() {
            tracing::debug!(worker, "the service has stopped");
        }
    }
}

/// Runs the task of a connection. Cutting the connection off drops the task, with all that it holds.
fn run(entry: &OpenConnection, task: impl Future<Output = ()> + 'static) {
    let task = spawn_local(task).abort_handle();
    entry.stop_by(limits::Phase::Opening, move || task.abort());
}

impl<P: Protocol, H: Handler<P>> Live<P, H> {
    /// Follows the stages of the shutdown for as long as the service has tasks.
    async fn watch(live: Weak<Self>, mut stages: Stages) {
        let enter = |phase| {
            if let Some(live) = live.upgrade() {
                live.phase.set(phase);
                live.worker.wake_all();
            }
        };
        stages.begun().await;
        enter(Phase::Draining);
        stages.aborted().await;
        enter(Phase::Aborting);
    }

    /// Serves all arrivals until the shutdown begins.
    async fn serve_all(self: Rc<Self>, mut arrivals: mpsc::UnboundedReceiver<Arrival>, mut stages: Stages) {
        loop {
            tokio::select! {
                biased;
                () = stages.begun() => break,
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.clone().serve(arrival),
                    None => return,
                },
            }
        }
        // Those that arrived before are told.
        arrivals.close();
        while let Some(arrival) = arrivals.recv().await {
            self.clone().serve(arrival);
        }
    }

    fn serve(self: Rc<Self>, arrival: Arrival) {
        let (what, hold) = match arrival {
            Arrival::Connection(what, hold) => (what, hold),
            Arrival::Endpoint(endpoint, offer, drain) => {
                return drop(spawn_local(self.serve_endpoint(endpoint, offer, drain)));
            }
        };
        let entry = hold.entry();
        match what {
            Arrived::Tcp(socket, address, tls) => run(&entry, self.serve_tcp(socket, address, tls, hold)),
            Arrived::Unix(socket, peer) => run(&entry, self.serve_unix(socket, peer, hold)),
            Arrived::Pipe(pipe) => {
                let peer = self.peer(Transport::Pipe, None, &hold);
                run(&entry, async move { self.serve_stream(pipe, peer, hold).await.unwrap_or_default() });
            }
            Arrived::Forwarded(forwarded) => {
                let (forwarded, offer) = *forwarded;
                run(&entry, self.serve_forwarded(forwarded, offer, hold));
            }
        }
    }

    fn peer(&self, transport: Transport, local: Option<SocketAddr>, hold: &Hold) -> Peer {
        let entry = hold.entry();
        let address = entry.address.filter(|_| transport != Transport::Unix);
        Peer {
            id: entry.id,
            entry,
            transport,
            address,
            local,
            worker: self.worker.index(),
            certificates: Vec::new(),
            process: None,
            quic: None,
            is_known: Cell::new(false),
            owes_login: Cell::new(false),
        }
    }

    async fn serve_tcp(
        self: Rc<Self>,
        socket: std::net::TcpStream,
        address: SocketAddr,
        tls: Option<TlsOffer>,
        hold: Hold,
    ) {
        let mut socket = match TcpStream::from_std(socket) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(peer = %address, %error, "cannot place a connection");
                return;
            }
        };
        let Some(offer) = tls else {
            return self.serve_socket(socket, hold).await.unwrap_or_default();
        };
        match self.begins_with_tls(&mut socket, address, &offer).await {
            // Boxed, so that a connection without TLS does not pay for the state of TLS.
            Some(true) => {
                let local = socket.local_addr().ok();
                Box::pin(self.serve_tls(socket, address, local, offer, hold)).await
            }
            Some(false) => self.serve_socket(socket, hold).await.unwrap_or_default(),
            None => {}
        }
    }

    async fn serve_forwarded(self: Rc<Self>, forwarded: Forwarded, offer: TlsOffer, hold: Hold) {
        let Forwarded { stream, peer: address, local, owner } = forwarded;
        let mut stream = Sniffed::from(stream);
        if owner {
            let peer = Peer { process: Some(UnixPeer::OWNER), ..self.peer(Transport::Unix, None, &hold) };
            return self.serve_stream(stream, peer, hold).await.unwrap_or_default();
        }
        match self.begins_with_tls(&mut stream, address, &offer).await {
            Some(true) => Box::pin(self.serve_tls(stream, address, local, offer, hold)).await,
            Some(false) => {
                let peer = self.peer(Transport::Tcp, local, &hold);
                self.serve_stream(stream, peer, hold).await.unwrap_or_default();
            }
            None => {}
        }
    }

    /// Returns `true` if a peer begins with TLS, and `false` if it does without and may. Returns `None` if it is not to
    /// be served.
    async fn begins_with_tls(&self, stream: &mut impl Sniff, address: SocketAddr, offer: &TlsOffer) -> Option<bool> {
        if offer.plaintext == Plaintext::Refused {
            return Some(true);
        }
        let timeouts = &self.settings.timeouts;
        let wait = if self.settings.waits_for_first_byte { timeouts.first_frame } else { timeouts.handshake };
        let first = self.within(wait, stream.first()).await?.ok()??;
        if first == TLS_HANDSHAKE || offer.plaintext.is_allowed(address.ip()) {
            return Some(first == TLS_HANDSHAKE);
        }
        tracing::warn!(peer = %address, "refused a connection without TLS from another machine");
        None
    }

    fn serve_socket(self: Rc<Self>, socket: TcpStream, hold: Hold) -> impl Future<Output = Option<()>> {
        let peer = self.peer(Transport::Tcp, socket.local_addr().ok(), &hold);
        let (reader, writer) = socket.into_split();
        let outbox = Outbox::to_socket(Socket::Tcp(writer), self.settings.outbox_bytes_max).counted_in(&self.outboxes);
        self.serve_one(Plain(reader), outbox, peer, hold)
    }

    async fn serve_unix(self: Rc<Self>, socket: std::os::unix::net::UnixStream, process: UnixPeer, hold: Hold) {
        let peer = Peer { process: Some(process), ..self.peer(Transport::Unix, None, &hold) };
        match UnixStream::from_std(socket) {
            Ok(socket) => {
                let (reader, writer) = socket.into_split();
                let outbox =
                    Outbox::to_socket(Socket::Unix(writer), self.settings.outbox_bytes_max).counted_in(&self.outboxes);
                self.serve_one(Plain(reader), outbox, peer, hold).await;
            }
            Err(error) => tracing::warn!(%error, "cannot place a connection"),
        }
    }

    async fn serve_tls(
        self: Rc<Self>,
        socket: impl AsyncRead + AsyncWrite + Unpin,
        address: SocketAddr,
        local: Option<SocketAddr>,
        offer: TlsOffer,
        hold: Hold,
    ) {
        let handshake = self.within(self.settings.timeouts.handshake, offer.acceptor.accept(socket)).await;
        let stream = match handshake {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::debug!(peer = %address, %error, "TLS handshake failed");
                log_refused(address, &error);
                return;
            }
            None => {
                tracing::debug!(peer = %address, "TLS handshake not finished in time");
                return;
            }
        };
        let mut peer = self.peer(Transport::Tls, local, &hold);
        peer.certificates =
            stream.get_ref().1.peer_certificates().map(<[CertificateDer<'_>]>::to_vec).unwrap_or_default();
        self.serve_stream(stream, peer, hold).await;
    }

    fn serve_stream(self: Rc<Self>, stream: impl Duplex, peer: Peer, hold: Hold) -> impl Future<Output = Option<()>> {
        let outbox = Outbox::to_writer(self.settings.outbox_bytes_max).counted_in(&self.outboxes);
        self.serve_one(Stream::new(stream), outbox, peer, hold)
    }

    /// Serves a connection that is one stream of frames.
    fn serve_one<T: ByteStream>(
        self: Rc<Self>,
        transport: T,
        outbox: Outbox,
        peer: Peer,
        hold: Hold,
    ) -> impl Future<Output = Option<()>> + use<P, H, T> {
        let open = Open::new(self.clone(), hold);
        let peer = Rc::new(peer);
        let guarded = self.unless_it_panics(|| {
            let connection = Rc::new(self.handler.connect(&peer));
            let stream = Connection::new(self.clone(), &peer, &connection, transport, Arc::new(outbox));
            Guarded { stream, _connection: connection, _open: open }
        });
        OptionFuture::from(guarded)
    }

    /// Creates the state of a connection or a stream. If the handler panics, returns `None` and has no other effect.
    fn unless_it_panics<T>(&self, begin: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(begin))
            .inspect_err(|_| {
                tracing::error!("a handler panicked; its connection is closed");
                self.cells.panics.add(1);
            })
            .ok()
    }

    /// Returns the result of `work`, or `None` if it takes too long or the shutdown begins.
    async fn within<T>(&self, duration: Duration, work: impl Future<Output = T>) -> Option<T> {
        if self.phase.get() != Phase::Serving {
            return None;
        }
        self.until_phase_changes(duration, work).await
    }

    async fn serve_endpoint(self: Rc<Self>, endpoint: quinn::Endpoint, offer: Box<QuicOffer>, mut drain: Drain) {
        while let Some(Some(incoming)) = drain.or_begun(endpoint.accept()).await {
            let peer = incoming.remote_address();
            let connections = &offer.connections;
            if !incoming.remote_address_validated() && connections.open() > connections.max() / VALIDATE_FROM_PART {
                // A peer with a forged address does not receive this, and does not connect again.
                if let Err(error) = incoming.retry() {
                    tracing::debug!(%peer, %error, "cannot request a validation of the address");
                }
                continue;
            }
            match connections.admit_from(Some(peer.ip()), Some(peer)) {
                Ok(permit) => {
                    let mut config = offer.config.clone();
                    config.transport_config(quic::transport(offer.windows, peer));
                    let hold = Hold { permit, _place: offer.places.place(), _drain: drain.clone() };
                    run(&hold.entry(), self.clone().serve_quic(incoming, config, hold));
                }
                Err(refused) => {
                    tracing::warn!(%peer, %refused, "refused a connection");
                    incoming.refuse();
                }
            }
        }
        // Connected peers receive the close; new ones are refused instead of left waiting.
        let refuse = async {
            while let Some(incoming) = endpoint.accept().await {
                incoming.refuse();
            }
        };
        tokio::select! {
            () = endpoint.wait_idle() => {}
            () = refuse => {}
            () = drain.aborted() => {}
        }
    }

    async fn serve_quic(self: Rc<Self>, incoming: quinn::Incoming, config: quinn::ServerConfig, hold: Hold) {
        let address = incoming.remote_address();
        let handshake = async { incoming.accept_with(Arc::new(config))?.await };
        let quic = match self.within(self.settings.timeouts.handshake, handshake).await {
            Some(Ok(quic)) => quic,
            Some(Err(error)) => {
                tracing::debug!(peer = %address, %error, "QUIC handshake failed");
                log_refused(address, &error);
                return;
            }
            None => {
                tracing::debug!(peer = %address, "QUIC handshake not finished in time");
                return;
            }
        };
        let mut peer = self.peer(Transport::Quic, None, &hold);
        let code = self.protocol.close_code(FaultKind::ShuttingDown);
        let cut = quic.clone();
        let why = b"an administrator has closed the connection";
        peer.entry.stop_by(limits::Phase::Serving, move || cut.close(code.into(), why));
        let identity =
            quic.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        peer.certificates = identity.map(|certificates| *certificates).unwrap_or_default();
        peer.quic = Some(quic.clone());
        let open = Rc::new(Open::new(self.clone(), hold));
        let peer = Rc::new(peer);
        let fault = match self.unless_it_panics(|| Rc::new(self.handler.connect(&peer))) {
            Some(connection) => self.serve_streams(&quic, &peer, &connection, &open).await,
            None => Fault::new(FaultKind::Internal, "the connection cannot be served"),
        };
        let code = self.protocol.close_code(fault.kind);
        quic.close(code.into(), fault.message.as_bytes());
    }

    /// Serves the streams of a QUIC connection until it ends. Returns the reason.
    async fn serve_streams(
        self: &Rc<Self>,
        quic: &quinn::Connection,
        peer: &Rc<Peer>,
        connection: &Rc<H::Connection>,
        open: &Rc<Open<P, H>>,
    ) -> Fault {
        let mut streams = JoinSet::new();
        let timeouts = &self.settings.timeouts;
        let mut patience = timeouts.first_frame;
        loop {
            let is_serving = self.phase.get() == Phase::Serving;
            let is_over = !is_serving && streams.is_empty() || expect_open(self.gate.as_ref()).is_err();
            if is_over {
                return Fault::new(FaultKind::ShuttingDown, "the server is shutting down");
            }
            let is_quiet = streams.is_empty();
            let wait = async {
                tokio::select! {
                    stream = quic.accept_bi(), if is_serving => Some(stream),
                    // A panic in a stream was counted there.
                    _ = streams.join_next(), if !is_quiet => None,
                }
            };
            // While a connection has streams, their timeouts apply.
            let wait_max = if is_quiet { patience } else { Duration::MAX };
            let waited = self.until_phase_changes(wait_max, wait).await;
            match waited {
                Some(Some(Ok((send, receive)))) => {
                    let io = QuicStream::new(send, receive);
                    let outbox = Outbox::to_writer(self.settings.outbox_bytes_max).counted_in(&self.outboxes);
                    let stream = self.unless_it_panics(|| {
                        Connection::new(self.clone(), peer, connection, Stream::new(io), Arc::new(outbox))
                    });
                    if let Some(stream) = stream {
                        streams.spawn_local(Guarded { stream, _connection: connection.clone(), _open: open.clone() });
                    }
                    patience = timeouts.idle.unwrap_or(Duration::MAX);
                }
                Some(Some(Err(error))) => {
                    tracing::debug!(%error, "connection closed");
                    return Fault::new(FaultKind::Internal, "the connection was closed");
                }
                Some(None) => {}
                None if self.phase.get() == Phase::Serving && streams.is_empty() => {
                    return Fault::new(FaultKind::Timeout, "no request arrived in time");
                }
                None => {}
            }
        }
    }

    /// Returns the result of `work`, or `None` if it takes too long or the shutdown reaches another stage.
    async fn until_phase_changes<T>(&self, duration: Duration, work: impl Future<Output = T>) -> Option<T> {
        let phase = self.phase.get();
        let mut work = std::pin::pin!(work);
        let work = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Pending if self.phase.get() != phase => Poll::Ready(None),
            polled => polled.map(Some),
        });
        self.worker.within(duration, work).await.flatten()
    }
}

/// Open connection, which is counted.
struct Open<P: Protocol, H: Handler<P>> {
    live: Rc<Live<P, H>>,
    _hold: Hold,
}

impl<P: Protocol, H: Handler<P>> Open<P, H> {
    fn new(live: Rc<Live<P, H>>, hold: Hold) -> Self {
        live.cells.connections_opened.add(1);
        Self { live, _hold: hold }
    }
}

impl<P: Protocol, H: Handler<P>> Drop for Open<P, H> {
    fn drop(&mut self) {
        self.live.cells.connections_closed.add(1);
    }
}

/// Stream whose handler may panic: a panic ends only the stream.
struct Guarded<P: Protocol, H: Handler<P>, T, O> {
    stream: Connection<P, H, T>,
    /// State of the connection, which lives as long as any of its streams.
    _connection: Rc<H::Connection>,
    _open: O,
}

impl<P: Protocol, H: Handler<P>, T, O> Unpin for Guarded<P, H, T, O> {}

impl<P: Protocol, H: Handler<P>, T: ByteStream, O> Future for Guarded<P, H, T, O> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let stream = &mut self.stream;
        catch_unwind(AssertUnwindSafe(|| Pin::new(stream).poll(cx))).unwrap_or_else(|_| {
            tracing::error!("a handler panicked; its connection is closed");
            self.stream.count_panic();
            Poll::Ready(())
        })
    }
}
