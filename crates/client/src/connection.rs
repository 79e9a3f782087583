//! Connection to the broker: one stream over TCP, many over QUIC.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::Result;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wire::frame::BODY_BYTES_MAX;
use wire::{Assembler, Frame, HelloOk, Push};

use crate::address::Address;
use crate::link::{Incoming, Link, disconnected};

pub(crate) struct Connection {
    /// Stream that sent the hello; over TCP the only one.
    pub control: Arc<Link>,
    pub hello: HelloOk,
    /// Address that was dialed.
    pub address: Address,
    /// `true` if nobody on the way can read what is sent.
    pub is_private: bool,
    /// Streams for publishing.
    pub publish: Vec<Arc<Link>>,
    subscription_ids: AtomicU32,
    quic: Option<Quic>,
}

struct Quic {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    /// Subscriptions whose stream has not arrived yet.
    expected: Arc<Mutex<HashMap<u32, oneshot::Sender<EventStream>>>>,
}

/// Stream of one subscription over QUIC, which its subscription reads by itself.
pub(crate) struct EventStream {
    receive: quinn::RecvStream,
    assembler: Assembler,
    frames: Vec<Frame>,
}

/// Source of a subscription's deliveries.
pub(crate) enum Events {
    Shared(Arc<crate::link::Inbox>),
    Expected(oneshot::Receiver<EventStream>),
    Own(Box<EventStream>),
}

/// Properties that all connections of a pool share.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Number of streams for requests, in addition to that of the hello. A TCP connection always is one stream.
    pub streams: usize,
    /// Maximum bytes in flight to this client on the connection, and in `stream_receive` on each of its streams.
    pub connection_receive: u64,
    pub stream_receive: u64,
}

impl Connection {
    /// Creates a connection that is one stream.
    pub(crate) fn over_link(link: Arc<Link>, hello: HelloOk, is_private: bool, address: &Address) -> Self {
        Self {
            publish: vec![link.clone()],
            control: link,
            hello,
            address: address.clone(),
            is_private,
            subscription_ids: AtomicU32::new(1),
            quic: None,
        }
    }

    /// Creates a connection over QUIC, and starts the task that receives the streams of its subscriptions.
    pub(crate) fn over_quic(
        control: Arc<Link>,
        publish: Vec<Arc<Link>>,
        hello: HelloOk,
        endpoint: quinn::Endpoint,
        connection: quinn::Connection,
        address: &Address,
    ) -> Self {
        let expected = Arc::default();
        tokio::spawn(route_streams(connection.clone(), Arc::clone(&expected)));
        Self {
            control,
            hello,
            address: address.clone(),
            is_private: true,
            publish,
            subscription_ids: AtomicU32::new(1),
            quic: Some(Quic { endpoint, connection, expected }),
        }
    }

    /// Returns `true` if any of its streams is closed: they end together, and a remaining one is of no use alone.
    pub(crate) fn is_closed(&self) -> bool {
        self.control.is_closed() || self.publish.iter().any(|link| link.is_closed())
    }

    /// Closes the connection and waits until the close was sent to the broker.
    pub(crate) async fn close(&self) {
        self.control.close();
        if let Some(quic) = &self.quic {
            quic.connection.close(0u32.into(), b"done");
            quic.endpoint.wait_idle().await;
        }
    }

    pub(crate) fn next_subscription(&self) -> u32 {
        self.subscription_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Prepares to receive the events of a subscription. Must be called before the subscription is requested.
    pub(crate) fn expect_events(&self, subscription: u32) -> Result<Events> {
        match &self.quic {
            None => Ok(Events::Shared(self.control.open_inbox(subscription)?)),
            Some(quic) => {
                let (sender, receiver) = oneshot::channel();
                quic.expected.lock().insert(subscription, sender);
                Ok(Events::Expected(receiver))
            }
        }
    }

    pub(crate) fn forget_events(&self, subscription: u32) {
        match &self.quic {
            None => self.control.close_inbox(subscription),
            Some(quic) => drop(quic.expected.lock().remove(&subscription)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.control.close();
        for link in &self.publish {
            link.close();
        }
        if let Some(quic) = &self.quic {
            quic.connection.close(0u32.into(), b"done");
        }
    }
}

impl Events {
    pub(crate) async fn next(&mut self) -> Result<Push> {
        loop {
            match self {
                Self::Shared(inbox) => return inbox.next().await,
                Self::Own(stream) => return stream.next().await,
                Self::Expected(stream) => {
                    let stream = stream.await.map_err(|e| disconnected(&format!("the connection was closed: {e}")))?;
                    *self = Self::Own(Box::new(stream));
                }
            }
        }
    }
}

impl EventStream {
    async fn next(&mut self) -> Result<Push> {
        // Frames are kept newest first, so that the next one is at the end.
        while self.frames.is_empty() {
            self.read().await?;
        }
        let frame = self.frames.pop().ok_or_else(|| disconnected("the stream ended"))?;
        Push::decode(frame)
    }

    async fn read(&mut self) -> Result<()> {
        let mut incoming = Incoming { assembler: &mut self.assembler, frames: &mut self.frames };
        let read = net::read::read(&mut self.receive, &mut incoming).await;
        self.frames.reverse();
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(disconnected("the broker closed the stream")),
            Err(net::read::ReadError::Io(error)) => Err(disconnected(&format!("the connection broke: {error}"))),
            Err(net::read::ReadError::Refused(error)) => Err(error),
        }
    }
}

/// Routes each stream that the broker opens to the subscription that its first frame names.
async fn route_streams(
    connection: quinn::Connection,
    expected: Arc<Mutex<HashMap<u32, oneshot::Sender<EventStream>>>>,
) {
    while let Ok(receive) = connection.accept_uni().await {
        let expected = expected.clone();
        tokio::spawn(async move {
            let mut stream = EventStream { receive, assembler: Assembler::new(BODY_BYTES_MAX), frames: Vec::new() };
            while stream.frames.is_empty() {
                if stream.read().await.is_err() {
                    return;
                }
            }
            let id = stream.frames.last().and_then(|frame| frame.body.first_chunk().copied().map(u32::from_be_bytes));
            if let Some(sender) = id.and_then(|id| expected.lock().remove(&id)) {
                // A subscription that was dropped in the meantime drops its stream too.
                drop(sender.send(stream));
            }
        });
    }
    expected.lock().clear();
}
