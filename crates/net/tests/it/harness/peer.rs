//! The other end of a connection, which may behave badly.

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
    /// Over QUIC, with the endpoint that carries it.
    pub quic: Option<(quinn::Connection, quinn::Endpoint)>,
}

/// The direction to the server.
pub struct Mouth(Pin<Box<dyn AsyncWrite + Send>>);

/// The direction from it.
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

    /// Says that nothing more comes.
    pub async fn finish(&mut self) {
        within("closing one direction", self.0.shutdown()).await.expect("closed");
    }
}

impl Ear {
    /// What is said next, or `None` at the end, however it came.
    pub async fn next(&mut self) -> Option<Said> {
        let said = within("an answer", self.next_or_cut()).await;
        assert!(said.is_some() || self.bytes.is_empty(), "the end comes after a whole frame");
        said
    }

    /// The same, where the last frame may be cut.
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

    /// So many things, one after the other.
    pub async fn hear_all(&mut self, count: usize) -> Vec<Said> {
        let mut heard = Vec::with_capacity(count);
        for _ in 0..count {
            heard.push(self.hear().await);
        }
        heard
    }

    /// The end comes, and nothing before it.
    pub async fn hears_the_end(&mut self) {
        let said = self.next().await;
        assert!(said.is_none(), "{said:?}");
    }

    /// A fault about the whole stream, and then the end.
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

    /// Both directions in one, which end together.
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

    /// Sends all of it and hears so many things meanwhile.
    pub async fn exchange(&mut self, bytes: &[u8], count: usize) -> Vec<Said> {
        tokio::join!(self.mouth.send(bytes), self.ear.hear_all(count)).1
    }

    /// One request and its answer.
    pub async fn ask(&mut self, id: u32, words: &str) -> Vec<u8> {
        self.send(&call(id, words)).await;
        match self.hear().await {
            Said::Answer(of, words) if of == id => words,
            other => panic!("no answer to {id} but {other:?}"),
        }
    }

    /// Whether a request is answered, rather than the connection being closed.
    pub async fn is_let_in(&mut self) -> bool {
        let sent = within("sending", self.mouth.try_send(&call(0, "echo in"))).await;
        let heard = self.ear.next().await;
        assert!(sent.is_ok() || heard.is_none());
        heard.is_some()
    }

    /// One request that is answered with a fault.
    pub async fn ask_in_vain(&mut self, id: u32, words: &str, expected: FaultKind) {
        self.send(&call(id, words)).await;
        let said = self.hear().await;
        assert!(said.is_fault(id, expected), "{said:?}");
    }

    pub async fn is_served(&mut self) {
        assert_eq!(self.ask(4_000_000, "echo served").await, b"served");
    }
}
