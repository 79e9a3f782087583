//! Peer that sends hand-built frames, valid or not, over plain TCP.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use client::{Acks, Error, Overflow, Start};
use engine::{BatchBuilder, Missing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::frame::{BODY_BYTES_MAX, HEADER_BYTES};
use wire::negotiate::{Features, VERSION};
use wire::{Assembler, Frame, Push, Request, Response, Subscribe};

use super::reading::span;
use super::server::within;

/// Frame from the broker.
#[derive(Debug)]
pub enum Incoming {
    Answer(u32, Response),
    Push(Push),
    Closed,
}

pub struct Raw {
    pub socket: TcpStream,
    assembler: Assembler,
    frames: VecDeque<Frame>,
    /// Pushes that arrived during the wait for a response.
    pushes: VecDeque<Push>,
    correlation: u32,
}

impl Raw {
    /// Connects without sending anything.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = within("a connection", TcpStream::connect(address)).await.expect("connected");
        socket.set_nodelay(true).expect("a socket");
        Self {
            socket,
            assembler: Assembler::new(BODY_BYTES_MAX),
            frames: VecDeque::new(),
            pushes: VecDeque::new(),
            correlation: 0,
        }
    }

    /// Connects and sends a hello.
    pub async fn open(address: SocketAddr) -> Self {
        let mut raw = Self::connect(address).await;
        match raw.call(&hello()).await {
            Response::Hello(_) => raw,
            other => panic!("hello was answered with {other:?}"),
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        within("writing", self.socket.write_all(bytes)).await.expect("written");
    }

    /// Sends a request and returns its correlation id.
    pub async fn send(&mut self, request: &Request) -> u32 {
        self.correlation += 1;
        let bytes = encode(request, self.correlation);
        self.write(&bytes).await;
        self.correlation
    }

    /// Sends a request and waits for its response; pushes are kept for later.
    pub async fn call(&mut self, request: &Request) -> Response {
        let correlation = self.send(request).await;
        self.answer(correlation).await
    }

    pub async fn answer(&mut self, correlation: u32) -> Response {
        loop {
            match self.incoming().await {
                Incoming::Answer(id, response) if id == correlation => return response,
                Incoming::Push(push) => self.pushes.push_back(push),
                other => panic!("no answer to request {correlation} but {other:?}"),
            }
        }
    }

    /// Waits for the responses to all sent requests. None of them may be an error.
    pub async fn answer_all(&mut self) {
        loop {
            match self.incoming().await {
                Incoming::Answer(_, Response::Error(error)) => panic!("refused: {error}"),
                Incoming::Answer(id, _) if id == self.correlation => return,
                Incoming::Answer(..) => {}
                other => panic!("no answer but {other:?}"),
            }
        }
    }

    /// Returns the next push.
    pub async fn push(&mut self) -> Push {
        if let Some(push) = self.pushes.pop_front() {
            return push;
        }
        match self.incoming().await {
            Incoming::Push(push) => push,
            other => panic!("no push but {other:?}"),
        }
    }

    /// Returns the pushes up to this offset.
    pub async fn pushes_to(&mut self, end: u64) -> Vec<Push> {
        let mut pushes = Vec::new();
        loop {
            let push = self.push().await;
            let is_last = span(&push).1 >= end;
            pushes.push(push);
            if is_last {
                return pushes;
            }
        }
    }

    /// Returns the pushes that the broker has sent so far: those that are due on this connection precede the response
    /// to a ping.
    pub async fn pushes(&mut self) -> Vec<Push> {
        assert!(matches!(self.call(&Request::Ping).await, Response::Pong));
        self.pushes.drain(..).collect()
    }

    /// Reads to the end of the connection and returns the broker's final error.
    pub async fn last_words(&mut self) -> Option<Error> {
        let mut words = None;
        loop {
            match self.incoming().await {
                Incoming::Answer(0, Response::Error(error)) => words = Some(error),
                Incoming::Closed => return words,
                Incoming::Answer(..) | Incoming::Push(_) => {}
            }
        }
    }

    pub async fn incoming(&mut self) -> Incoming {
        let mut buf = BytesMut::with_capacity(64 << 10);
        while self.frames.is_empty() {
            buf.clear();
            // A reset is an end, too.
            let n = within("something to read", self.socket.read_buf(&mut buf)).await.unwrap_or(0);
            if n == 0 {
                return Incoming::Closed;
            }
            let mut frames = Vec::new();
            self.assembler.feed(&buf, &mut frames).expect("frames");
            self.frames.extend(frames);
        }
        let frame = self.frames.pop_front().expect("a frame");
        if Push::is_push(frame.kind) {
            return Incoming::Push(Push::decode(frame).expect("a push"));
        }
        Incoming::Answer(frame.correlation, Response::decode(frame).expect("an answer"))
    }

    /// Publishes a batch of these values and returns its base offset.
    pub async fn publish(&mut self, topic: &str, values: &[&[u8]]) -> u64 {
        match self.call(&publish(topic, Acks::Accepted, values)).await {
            Response::Published(published) => published.base_offset,
            other => panic!("a publish was answered with {other:?}"),
        }
    }

    pub async fn subscribe(&mut self, request: Subscribe) {
        match self.call(&Request::Subscribe(request)).await {
            Response::Subscribed { .. } => {}
            other => panic!("a subscribe was answered with {other:?}"),
        }
    }

    pub async fn grant(&mut self, subscription: u32, bytes: u64) {
        self.send(&Request::Credit { subscription, bytes }).await;
    }
}

pub fn hello() -> Request {
    Request::Hello { version: VERSION, required: Features(0), offered: Features(0), client: "raw".to_owned() }
}

/// Returns a live subscription with id 1 to all partitions of a topic, which it creates.
pub fn subscribe(topic: &str, overflow: Overflow, queue_batches: u32, credit: u64) -> Subscribe {
    Subscribe {
        subscription: 1,
        topic: topic.to_owned(),
        partition: None,
        start: Start::Live,
        overflow,
        queue_batches,
        group: String::new(),
        credit,
        missing: Missing::Create,
    }
}

pub fn publish(topic: &str, acks: Acks, values: &[&[u8]]) -> Request {
    Request::Publish { topic: topic.to_owned(), partition: Some(0), acks, batch: BytesMut::from(&batch(values)[..]) }
}

pub fn batch(values: &[&[u8]]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(1, None, Some(value), &[]).expect("a small record");
    }
    builder.finish().expect("records").into_bytes()
}

pub fn encode(request: &Request, correlation: u32) -> BytesMut {
    let mut buf = BytesMut::new();
    request.encode(correlation, &mut buf);
    buf
}

/// Returns a frame with any kind and body.
pub fn frame(kind: u8, correlation: u32, body: &[u8]) -> BytesMut {
    let mut buf = BytesMut::with_capacity(HEADER_BYTES + body.len());
    wire::frame::put_frame(&mut buf, kind, correlation, |b| b.put_slice(body));
    buf
}
