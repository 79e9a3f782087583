//! TCP proxy that records what passes, in the order of its arrival.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use wire::frame::BODY_BYTES_MAX;
use wire::{Assembler, Frame};

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Client,
    Broker,
}

/// Frames with the number of their connection and their sender.
pub type Recorded = Arc<Mutex<Vec<(usize, From, Frame)>>>;

/// Starts a proxy. Returns its address.
pub async fn start(broker: SocketAddr, recorded: Recorded) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        for number in 0.. {
            let (near, _) = listener.accept().await.expect("a connection");
            let far = TcpStream::connect(broker).await.expect("connected");
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            tokio::spawn(carry(near_read, far_write, From::Client, number, recorded.clone()));
            tokio::spawn(carry(far_read, near_write, From::Broker, number, recorded.clone()));
        }
    });
    address
}

async fn carry(mut read: OwnedReadHalf, mut write: OwnedWriteHalf, from: From, number: usize, recorded: Recorded) {
    let mut assembler = Assembler::new(BODY_BYTES_MAX);
    let mut bytes = BytesMut::new();
    while read.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        let passing = bytes.split();
        let mut frames = Vec::new();
        assembler.feed(&passing, &mut frames).expect("frames");
        // Before they are sent: an answer is never recorded before its request.
        recorded.lock().extend(frames.into_iter().map(|frame| (number, from, frame)));
        if write.write_all(&passing).await.is_err() {
            return;
        }
    }
}
