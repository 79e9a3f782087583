//! Peer of a connection, which may misbehave.

use std::io;
use std::pin::Pin;

use bytes::BytesMut;
use net::service::FaultKind;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::framed::{ServerFrame, call};
use super::within;

pub struct Peer {
    pub writer: Writer,
    pub reader: Reader,
    /// QUIC connection, with the endpoint that carries it.
    pub quic: Option<(quinn::Connection, quinn::Endpoint)>,
}

/// Direction to the server.
pub struct Writer(Pin<Box<dyn AsyncWrite + Send>>);

/// Direction from the server.
pub struct Reader {
    input: Pin<Box<dyn AsyncRead + Send>>,
    bytes: BytesMut,
}

impl Writer {
    pub async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        within("sending", self.try_send(bytes)).await.expect("sent");
    }

    /// Closes the direction to the server.
    pub async fn finish(&mut self) {
        within("closing one direction", self.0.shutdown()).await.expect("closed");
    }
}

impl Reader {
    /// Returns the next frame, or `None` at the end of the connection, however it ended.
    pub async fn next(&mut self) -> Option<ServerFrame> {
        let received = within("an answer", self.next_or_cut()).await;
        assert!(received.is_some() || self.bytes.is_empty(), "the end comes after a whole frame");
        received
    }

    /// Returns the next frame, or `None` at the end, where the last frame may be cut.
    pub async fn next_or_cut(&mut self) -> Option<ServerFrame> {
        loop {
            if let Some(received) = ServerFrame::take(&mut self.bytes) {
                return Some(received);
            }
            if self.input.read_buf(&mut self.bytes).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub async fn receive(&mut self) -> ServerFrame {
        self.next().await.expect("an answer and not the end")
    }

    /// Returns the next `count` frames.
    pub async fn receive_all(&mut self, count: usize) -> Vec<ServerFrame> {
        let mut received = Vec::with_capacity(count);
        for _ in 0..count {
            received.push(self.receive().await);
        }
        received
    }

    /// Asserts that the connection ends without another frame.
    pub async fn assert_end(&mut self) {
        let received = self.next().await;
        assert!(received.is_none(), "{received:?}");
    }

    /// Asserts that a fault about the whole stream arrives, and then the end.
    pub async fn assert_fault_and_end(&mut self, expected: FaultKind) {
        let received = self.next().await;
        assert!(received.as_ref().is_some_and(|received| received.is_fault(0, expected)), "{received:?}");
        self.assert_end().await;
    }
}

impl Peer {
    pub fn new(input: impl AsyncRead + Send + 'static, output: impl AsyncWrite + Send + 'static) -> Self {
        let reader = Reader { input: Box::pin(input), bytes: BytesMut::new() };
        Self { writer: Writer(Box::pin(output)), reader, quic: None }
    }

    /// Creates a peer of one stream for both directions, which end together.
    pub fn of(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (input, output) = tokio::io::split(stream);
        Self::new(input, output)
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.writer.send(bytes).await;
    }

    pub async fn send_all(&mut self, frames: &[Vec<u8>]) {
        self.writer.send(&frames.concat()).await;
    }

    pub async fn receive(&mut self) -> ServerFrame {
        self.reader.receive().await
    }

    pub async fn receive_all(&mut self, count: usize) -> Vec<ServerFrame> {
        self.reader.receive_all(count).await
    }

    /// Sends all bytes, and receives `count` frames concurrently.
    pub async fn exchange(&mut self, bytes: &[u8], count: usize) -> Vec<ServerFrame> {
        tokio::join!(self.writer.send(bytes), self.reader.receive_all(count)).1
    }

    /// Sends one request and returns its answer.
    pub async fn request(&mut self, id: u32, words: &str) -> Vec<u8> {
        self.send(&call(id, words)).await;
        match self.receive().await {
            ServerFrame::Answer(answered, words) if answered == id => words,
            other => panic!("no answer to {id} but {other:?}"),
        }
    }

    /// Returns `true` if a request is answered, and `false` if the connection is closed.
    pub async fn is_admitted(&mut self) -> bool {
        let sent = within("sending", self.writer.try_send(&call(0, "echo in"))).await;
        let received = self.reader.next().await;
        assert!(sent.is_ok() || received.is_none());
        received.is_some()
    }

    /// Sends one request, and asserts that it is answered with this fault.
    pub async fn assert_fault(&mut self, id: u32, words: &str, expected: FaultKind) {
        self.send(&call(id, words)).await;
        let received = self.receive().await;
        assert!(received.is_fault(id, expected), "{received:?}");
    }

    pub async fn assert_served(&mut self) {
        assert_eq!(self.request(4_000_000, "echo served").await, b"served");
    }
}
