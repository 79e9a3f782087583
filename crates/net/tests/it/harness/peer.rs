//! Peer of a connection, which may misbehave.

use std::io;
use std::pin::Pin;

use bytes::BytesMut;
use net::service::FaultKind;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::framed::{Said, call};
use super::within;

pub struct Peer {
    pub mouth: Mouth,
    pub ear: Ear,
    /// QUIC connection, with the endpoint that carries it.
    pub quic: Option<(quinn::Connection, quinn::Endpoint)>,
}

/// Direction to the server.
pub struct Mouth(Pin<Box<dyn AsyncWrite + Send>>);

/// Direction from the server.
pub struct Ear {
    input: Pin<Box<dyn AsyncRead + Send>>,
    bytes: BytesMut,
}

impl Mouth {
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

impl Ear {
    /// Returns the next frame, or `None` at the end of the connection, however it ended.
    pub async fn next(&mut self) -> Option<Said> {
        let said = within("an answer", self.next_or_cut()).await;
        assert!(said.is_some() || self.bytes.is_empty(), "the end comes after a whole frame");
        said
    }

    /// Returns the next frame, or `None` at the end, where the last frame may be cut.
    pub async fn next_or_cut(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = Said::take(&mut self.bytes) {
                return Some(said);
            }
            if self.input.read_buf(&mut self.bytes).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub async fn hear(&mut self) -> Said {
        self.next().await.expect("an answer and not the end")
    }

    /// Returns the next `count` frames.
    pub async fn hear_all(&mut self, count: usize) -> Vec<Said> {
        let mut heard = Vec::with_capacity(count);
        for _ in 0..count {
            heard.push(self.hear().await);
        }
        heard
    }

    /// Asserts that the connection ends without another frame.
    pub async fn hears_the_end(&mut self) {
        let said = self.next().await;
        assert!(said.is_none(), "{said:?}");
    }

    /// Asserts that a fault about the whole stream arrives, and then the end.
    pub async fn is_told_and_closed(&mut self, expected: FaultKind) {
        let said = self.next().await;
        assert!(said.as_ref().is_some_and(|said| said.is_fault(0, expected)), "{said:?}");
        self.hears_the_end().await;
    }
}

impl Peer {
    pub fn new(input: impl AsyncRead + Send + 'static, output: impl AsyncWrite + Send + 'static) -> Self {
        let ear = Ear { input: Box::pin(input), bytes: BytesMut::new() };
        Self { mouth: Mouth(Box::pin(output)), ear, quic: None }
    }

    /// Creates a peer of one stream for both directions, which end together.
    pub fn of(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (input, output) = tokio::io::split(stream);
        Self::new(input, output)
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.mouth.send(bytes).await;
    }

    pub async fn send_all(&mut self, frames: &[Vec<u8>]) {
        self.mouth.send(&frames.concat()).await;
    }

    pub async fn hear(&mut self) -> Said {
        self.ear.hear().await
    }

    pub async fn hear_all(&mut self, count: usize) -> Vec<Said> {
        self.ear.hear_all(count).await
    }

    /// Sends all bytes, and receives `count` frames concurrently.
    pub async fn exchange(&mut self, bytes: &[u8], count: usize) -> Vec<Said> {
        tokio::join!(self.mouth.send(bytes), self.ear.hear_all(count)).1
    }

    /// Sends one request and returns its answer.
    pub async fn ask(&mut self, id: u32, words: &str) -> Vec<u8> {
        self.send(&call(id, words)).await;
        match self.hear().await {
            Said::Answer(of, words) if of == id => words,
            other => panic!("no answer to {id} but {other:?}"),
        }
    }

    /// Returns `true` if a request is answered, and `false` if the connection is closed.
    pub async fn is_let_in(&mut self) -> bool {
        let sent = within("sending", self.mouth.try_send(&call(0, "echo in"))).await;
        let heard = self.ear.next().await;
        assert!(sent.is_ok() || heard.is_none());
        heard.is_some()
    }

    /// Sends one request, which is answered with a fault.
    pub async fn ask_in_vain(&mut self, id: u32, words: &str, expected: FaultKind) {
        self.send(&call(id, words)).await;
        let said = self.hear().await;
        assert!(said.is_fault(id, expected), "{said:?}");
    }

    pub async fn is_served(&mut self) {
        assert_eq!(self.ask(4_000_000, "echo served").await, b"served");
    }
}
