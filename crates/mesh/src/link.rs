//! A link: the connection of two sites, its control frames, and the reasons for which it ends.

use std::collections::HashSet;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::mesh::{SiteName, SiteRole};
use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, ReadExactError, RecvStream, SendStream};
use tokio::sync::{mpsc, watch};

use crate::frame::{CONTROL_BYTES_MAX, Frame};

/// Time limit for each step of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum control frames that wait to be sent on a link. A link whose peer takes none of them ends.
const CONTROL_FRAMES_MAX: usize = 4096;
/// Priority of the control stream over those of topics, whose priority is 0.
const CONTROL_PRIORITY: i32 = 1;

/// Reason of a link whose control stream has ended without a link that replaces it.
pub(crate) const CONTROL_ENDED: &str = "the control stream ended";

/// Codes with which a site closes a connection, or stops a stream.
pub(crate) mod code {
    /// The site is stopping, or has left the mesh.
    pub const STOPPED: u32 = 0;
    /// The peer is refused, for the reason in the text.
    pub const REFUSED: u32 = 1;
    /// The two sites have another link.
    pub const DUPLICATE: u32 = 2;
    /// The peer has sent something that the protocol does not allow.
    pub const PROTOCOL: u32 = 3;
    /// The receiver of a stream does not take its topic.
    pub const NOT_TAKEN: u32 = 4;
}

/// Link to another site.
pub(crate) struct Link {
    /// Number that no other link of this run of this site has.
    pub number: u64,
    pub site: SiteName,
    pub role: SiteRole,
    /// Run of that site.
    pub instance: u64,
    /// `true` if this site has dialed.
    pub is_dialed: bool,
    pub connection: Connection,
    /// `true` once there is another link to the site, on which everything is sent.
    replaced: watch::Sender<bool>,
    /// Control frames that wait to be sent; `None` once the link is replaced.
    control: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// Sites to which that one relays.
    pub relays_to: Mutex<HashSet<SiteName>>,
}

/// Both directions of a link's control frames before it is established.
pub(crate) struct Control {
    pub send: SendStream,
    pub receive: RecvStream,
}

impl Control {
    pub async fn open(connection: &Connection) -> Result<Self> {
        let (send, receive) = connection.open_bi().await.map_err(closed)?;
        Ok(Self { send, receive })
    }

    pub async fn accept(connection: &Connection) -> Result<Self> {
        let (send, receive) = within(connection.accept_bi()).await?.map_err(closed)?;
        Ok(Self { send, receive })
    }

    pub async fn write(&mut self, frame: &Frame) -> Result<()> {
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        self.send.write_all(&bytes).await.map_err(|error| disconnected(&error))
    }

    /// Reads a frame of the handshake.
    pub async fn read(&mut self, connection: &Connection) -> Result<Frame> {
        let error = match within(read_frame(&mut self.receive)).await? {
            Ok(Some(frame)) => return Ok(frame),
            Ok(None) => Error::new(ErrorKind::Disconnected, CONTROL_ENDED),
            Err(error) if error.kind == ErrorKind::Disconnected => error,
            Err(error) => return Err(error),
        };
        // The reason is on the connection, and may arrive just after the end of its stream.
        Err(tokio::time::timeout(HANDSHAKE_TIMEOUT, connection.closed()).await.map_or(error, closed))
    }
}

impl Link {
    /// Returns a link, and the task that sends its control frames.
    pub fn new(
        number: u64,
        (site, role, instance): (SiteName, SiteRole, u64),
        is_dialed: bool,
        connection: Connection,
        send: SendStream,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (control, queue) = mpsc::channel(CONTROL_FRAMES_MAX);
        let (replaced, control, relays_to) = (watch::Sender::new(false), Mutex::new(Some(control)), Mutex::default());
        let link = Self { number, site, role, instance, is_dialed, connection, replaced, control, relays_to };
        (link, write_frames(send, queue))
    }

    /// Sends a control frame. If the peer takes none for long, the link ends. Returns `false` if the link is replaced:
    /// the frame has to be sent on the other one.
    pub fn send(&self, frame: &Frame) -> bool {
        let mut bytes = BytesMut::new();
        frame.put(&mut bytes);
        let control = self.control.lock();
        let Some(queue) = &*control else { return false };
        if let Err(mpsc::error::TrySendError::Full(_)) = queue.try_send(bytes.freeze()) {
            self.connection.close(code::PROTOCOL.into(), b"control frames are not read");
        }
        true
    }

    /// Notes that there is another link to the site. The control stream of this one ends after the frames that wait.
    pub fn replace(&self) {
        self.replaced.send_replace(true);
        *self.control.lock() = None;
    }

    pub fn is_replaced(&self) -> bool {
        *self.replaced.borrow()
    }

    /// Waits until there is another link to the site.
    pub async fn until_replaced(&self) {
        // The sender is in this value.
        self.replaced.subscribe().wait_for(|replaced| *replaced).await.map(drop).unwrap_or_default();
    }

    /// Returns the number of frames with bytes of streams that were sent and received so far.
    pub fn stream_frames(&self) -> u64 {
        let stats = self.connection.stats();
        stats.frame_tx.stream + stats.frame_rx.stream
    }

    pub fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// Returns `true` if this link and another one were dialed from both ends at the same time. Otherwise the later one
    /// shows that the peer has lost the other: it does not dial while it has a link.
    pub fn is_double(&self, other: &Self) -> bool {
        self.is_open() && self.instance == other.instance && self.is_dialed != other.is_dialed
    }
}

async fn write_frames(mut send: SendStream, mut queue: mpsc::Receiver<Bytes>) {
    if send.set_priority(CONTROL_PRIORITY).is_err() {
        return;
    }
    while let Some(frame) = queue.recv().await {
        if send.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Reads a control frame. Returns `None` at the end of the stream.
pub(crate) async fn read_frame(receive: &mut RecvStream) -> Result<Option<Frame>> {
    let mut length = [0; 4];
    match receive.read_exact(&mut length).await {
        Ok(()) => {}
        Err(ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(disconnected(&error)),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > CONTROL_BYTES_MAX {
        return Err(Error::malformed(format!("a control frame has {length} bytes, at most {CONTROL_BYTES_MAX}")));
    }
    let mut body = BytesMut::new();
    while body.len() < length {
        match receive.read_chunk(length - body.len(), true).await.map_err(|error| disconnected(&error))? {
            Some(chunk) => body.extend_from_slice(&chunk.bytes),
            None => return Err(Error::malformed("a control frame is cut short")),
        }
    }
    Frame::decode(body.freeze()).map(Some)
}

/// Waits for a step of a handshake.
pub(crate) async fn within<T>(step: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(HANDSHAKE_TIMEOUT, step).await.map_err(|_elapsed| {
        let seconds = HANDSHAKE_TIMEOUT.as_secs();
        let text = format!("it did not answer within {seconds} s: is the site running, and does UDP reach it?");
        Error::new(ErrorKind::Timeout, text)
    })
}

/// Returns why a connection ended, as its peer has explained it.
pub(crate) fn closed(error: ConnectionError) -> Error {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            let is_refusal = close.error_code == code::REFUSED.into();
            Error::new(if is_refusal { ErrorKind::Denied } else { ErrorKind::Disconnected }, reason)
        }
        ConnectionError::TimedOut => Error::new(ErrorKind::Timeout, "it does not answer"),
        other => Error::new(ErrorKind::Disconnected, other.to_string()),
    }
}

pub(crate) fn disconnected(error: &dyn std::error::Error) -> Error {
    Error::new(ErrorKind::Disconnected, error.to_string())
}
