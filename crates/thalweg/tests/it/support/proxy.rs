//! TCP proxy that simulates failures: it cuts its connections on request, or after a number of bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    broker: SocketAddr,
    cut: Notify,
    is_down: AtomicBool,
    connections: AtomicUsize,
    /// Bytes from the broker after which a connection is cut, one limit for each connection; later ones are not
    /// limited.
    limits: Vec<usize>,
}

impl Proxy {
    pub async fn start(broker: SocketAddr, limits: Vec<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            broker,
            cut: Notify::new(),
            is_down: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            limits,
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, task }
    }

    /// Cuts every open connection.
    pub fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Cuts every connection and accepts none until [`Proxy::go_up`].
    pub fn go_down(&self) {
        self.shared.is_down.store(true, Ordering::Relaxed);
        self.cut();
    }

    pub fn go_up(&self) {
        self.shared.is_down.store(false, Ordering::Relaxed);
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub fn url(&self) -> String {
        format!("tcp://{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (near, _) = listener.accept().await.expect("a connection");
        if shared.is_down.load(Ordering::Relaxed) {
            continue;
        }
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        tokio::spawn(async move {
            let limit = shared.limits.get(number).copied().unwrap_or(usize::MAX);
            let cut = shared.cut.notified();
            tokio::select! {
                () = cut => {}
                () = carry(near, shared.broker, limit) => {}
            }
        });
    }
}

/// Forwards bytes both ways until either side ends or `limit` bytes have come from the broker.
async fn carry(near: TcpStream, broker: SocketAddr, limit: usize) {
    let Ok(far) = TcpStream::connect(broker).await else {
        return;
    };
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let up = async { tokio::io::copy(&mut near_read, &mut far_write).await.map(drop) };
    let down = async {
        let mut left = limit;
        let mut buf = vec![0; 4096];
        while left > 0 {
            let room = buf.len().min(left);
            let n = far_read.read(&mut buf[..room]).await?;
            if n == 0 {
                break;
            }
            near_write.write_all(&buf[..n]).await?;
            left -= n;
        }
        Ok::<(), std::io::Error>(())
    };
    // In both cases the connection has ended.
    tokio::select! {
        done = up => done.unwrap_or_default(),
        done = down => done.unwrap_or_default(),
    }
}
