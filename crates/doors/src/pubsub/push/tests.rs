//! Push delivery to endpoints that accept, refuse, redirect, stall, send invalid responses or do not exist.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use net::tls::Identity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;

use super::*;

/// Timeout that is only reached by a failure.
const PATIENCE: Duration = Duration::from_secs(60);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// In-memory queue. Nacked messages are redelivered.
#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Message>>,
    changed: Notify,
    is_gone: bool,
    is_denied: AtomicBool,
}

struct Handle {
    queue: Arc<Queue>,
    /// Id of each message that was settled, and `true` if it was acknowledged.
    settled: mpsc::UnboundedSender<(String, bool)>,
}

impl Source for Handle {
    type Receipt = Message;

    async fn receive(&self, max: usize) -> engine::Result<Vec<Received<Message>>> {
        if self.queue.is_gone {
            return Err(engine::Error::not_found("no such queue"));
        }
        loop {
            let changed = self.queue.changed.notified();
            let messages: Vec<Message> = {
                let mut waiting = self.queue.waiting.lock();
                let count = max.min(waiting.len());
                waiting.drain(..count).collect()
            };
            if !messages.is_empty() {
                let received = |message: Message| Received { receipt: message.clone(), message };
                return Ok(messages.into_iter().map(received).collect());
            }
            changed.await;
        }
    }

    async fn ack(&self, receipt: Message) -> engine::Result<()> {
        drop(self.settled.send((receipt.id, true)));
        Ok(())
    }

    async fn nack(&self, receipt: Message) -> engine::Result<()> {
        drop(self.settled.send((receipt.id.clone(), false)));
        self.queue.waiting.lock().push_back(receipt);
        self.queue.changed.notify_one();
        Ok(())
    }

    async fn may_push(&self) -> bool {
        !self.queue.is_denied.load(Ordering::Relaxed)
    }
}

fn message(id: usize) -> Message {
    Message {
        id: id.to_string(),
        published_ms: 0,
        data: Bytes::from(vec![b'x'; 100]),
        attributes: Vec::new(),
        ordering_key: String::new(),
        attempt: None,
    }
}

/// Subscription with a push endpoint.
struct Pushed {
    pusher: Arc<Pusher>,
    settled: mpsc::UnboundedReceiver<(String, bool)>,
    task: PushTask,
}

impl Pushed {
    fn begin(url: &str, messages: usize, allow: &str, roots: Option<RootCertStore>) -> Self {
        Self::begin_for(url, messages, allow, roots, Duration::from_secs(30))
    }

    fn begin_for(url: &str, messages: usize, allow: &str, roots: Option<RootCertStore>, deadline: Duration) -> Self {
        Self::begin_with(url, messages, allow, roots, deadline, false)
    }

    fn begin_with(
        url: &str,
        messages: usize,
        allow: &str,
        roots: Option<RootCertStore>,
        deadline: Duration,
        is_denied: bool,
    ) -> Self {
        let key = SigningKey::generate().expect("a key");
        let pusher = Pusher::new(allow.parse().expect("a list"), roots, Arc::default(), Clock::SYSTEM);
        pusher.set_key(SigningKey::from_pkcs8(&key, "thalweg").expect("a key"));
        let queue = Arc::new(Queue { is_denied: is_denied.into(), ..Queue::default() });
        queue.waiting.lock().extend((0..messages).map(message));
        let (sender, settled) = mpsc::unbounded_channel();
        let target = Target {
            subscription: "projects/p/subscriptions/s".into(),
            endpoint: url.parse().expect("a URL"),
            wrapper: Wrapper::Wrapped,
            oidc: Some(Oidc { service_account_email: "a@b".into(), audience: None }),
            deadline,
        };
        let task = pusher.start(target, Handle { queue, settled: sender });
        Self { pusher, settled, task }
    }

    async fn settled(&mut self) -> (String, bool) {
        soon(self.settled.recv()).await.expect("the task runs")
    }

    async fn acked(&mut self) {
        while !self.settled().await.1 {}
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.pusher.stats.outcomes[outcome as usize].get()
    }
}

const LOOPBACK: &str = "127.0.0.0/8,::1";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

/// Action of an endpoint after it has read a request.
#[derive(Clone, Copy)]
enum Answer {
    /// Sends these bytes and keeps the connection open.
    Bytes(&'static [u8]),
    /// Sends these bytes and closes the connection.
    Last(&'static [u8]),
    /// Sends the first bytes once, then the second ones repeatedly.
    Endless(&'static [u8], &'static [u8]),
}

/// Endpoint that answers its first requests as listed, and all others with 200.
struct Server {
    address: SocketAddr,
    /// Request line of each request.
    seen: mpsc::UnboundedReceiver<String>,
}

impl Server {
    async fn start(answers: &[Answer]) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.expect("a port"), answers, None)
    }

    fn start_on(listener: TcpListener, answers: &[Answer], tls: Option<TlsAcceptor>) -> Self {
        let address = listener.local_addr().expect("an address");
        let answers = Arc::new(Mutex::new(answers.iter().copied().collect::<VecDeque<_>>()));
        let (sender, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let answers = answers.clone();
                let sender = sender.clone();
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, &answers, &sender).await,
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, &answers, &sender).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, seen }
    }

    fn url(&self) -> String {
        format!("http://{}/push", self.address)
    }

    async fn seen(&mut self) -> String {
        soon(self.seen.recv()).await.expect("a request")
    }
}

async fn serve(
    mut socket: impl AsyncReadExt + AsyncWriteExt + Unpin,
    answers: &Mutex<VecDeque<Answer>>,
    seen: &mpsc::UnboundedSender<String>,
) {
    while let Some(line) = read_request(&mut socket).await {
        drop(seen.send(line));
        let answer = answers.lock().pop_front().unwrap_or(Answer::Bytes(OK));
        let result = match answer {
            Answer::Bytes(bytes) => socket.write_all(bytes).await,
            Answer::Last(bytes) => {
                drop(socket.write_all(bytes).await);
                return;
            }
            Answer::Endless(first, again) => {
                let mut result = socket.write_all(first).await;
                while result.is_ok() {
                    result = socket.write_all(again).await;
                }
                result
            }
        };
        if result.is_err() {
            return;
        }
    }
}

/// Returns the request line of a request whose body has arrived completely.
async fn read_request(socket: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
            if body.len() >= length {
                assert!(head.contains("authorization: bearer ey"), "{head}");
                return Some(head.lines().next()?.to_owned());
            }
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

#[tokio::test]
async fn the_five_statuses_acknowledge_and_all_others_give_the_message_back() {
    let cases: [(&'static [u8], bool); 10] = [
        (b"HTTP/1.1 102 Processing\r\n\r\n", true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", true),
        (b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", true),
        (b"HTTP/1.1 204 No Content\r\n\r\n", true),
        (b"HTTP/1.1 203 X\r\ncontent-length: 0\r\n\r\n", false),
        (b"HTTP/1.1 206 X\r\ncontent-length: 0\r\n\r\n", false),
        (b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n", false),
        (b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n", false),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", false),
    ];
    for (answer, is_acked) in cases {
        let server = Server::start(&[Answer::Bytes(answer)]).await;
        let mut pushed = Pushed::begin(&server.url(), 1, LOOPBACK, None);
        assert_eq!(pushed.settled().await, ("0".to_owned(), is_acked), "{}", String::from_utf8_lossy(answer));
        if !is_acked {
            assert_eq!(pushed.count(Outcome::Refused), 1);
            pushed.acked().await;
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let mut elsewhere = Server::start(&[]).await;
    let location = format!("HTTP/1.1 307 X\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let mut server = Server::start(&[Answer::Bytes(location.leak().as_bytes())]).await;
    let mut pushed = Pushed::begin(&server.url(), 1, LOOPBACK, None);
    assert!(!pushed.settled().await.1);
    pushed.acked().await;
    assert_eq!(server.seen().await, "post /push http/1.1");
    server.seen().await;
    assert!(elsewhere.seen.try_recv().is_err(), "nobody asked the other");
}

#[tokio::test]
async fn answers_that_are_none_give_the_message_back_and_it_is_pushed_again() {
    let headers: &'static [u8] = "HTTP/1.1 200 OK\r\n".to_owned().leak().as_bytes();
    let cases = [
        Answer::Last(b""),
        Answer::Last(b"HTTP/1.1 20"),
        Answer::Bytes(b"\x00\x01garbage\r\n\r\n"),
        Answer::Bytes(b"SSH-2.0-OpenSSH\r\n"),
        Answer::Endless(headers, b"a: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n"),
        Answer::Endless(b"", b"HTTP/1.1 100 Continue\r\n\r\nX"),
    ];
    for (i, answer) in cases.into_iter().enumerate() {
        let server = Server::start(&[answer]).await;
        let mut pushed = Pushed::begin(&server.url(), 1, LOOPBACK, None);
        assert!(!pushed.settled().await.1, "case {i}");
        assert_eq!(pushed.count(Outcome::Failed), 1, "case {i}");
        pushed.acked().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_says_nothing_fails_at_the_deadline() {
    let server = Server::start(&[Answer::Bytes(b"HTTP/1.1 200 OK\r\n")]).await;
    let deadline = Duration::from_millis(300);
    let mut pushed = Pushed::begin_for(&server.url(), 1, LOOPBACK, None, deadline);
    assert!(!pushed.settled().await.1);
    assert_eq!(pushed.count(Outcome::TimedOut), 1);
    pushed.acked().await;
}

#[tokio::test]
async fn the_status_counts_also_where_the_rest_of_the_answer_never_ends_or_is_cut() {
    let chunked: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let cases = [
        Answer::Endless(chunked, b"4\r\nlong\r\n"),
        Answer::Bytes(chunked),
        Answer::Last(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ncut"),
    ];
    for answer in cases {
        let server = Server::start(&[answer]).await;
        let mut pushed = Pushed::begin(&server.url(), 2, LOOPBACK, None);
        assert!(pushed.settled().await.1 && pushed.settled().await.1);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_pushed_to_once_it_is_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let mut pushed = Pushed::begin(&format!("http://{address}/"), 5, LOOPBACK, None);
    for _ in 0..3 {
        assert!(!pushed.settled().await.1);
    }
    assert!(pushed.pusher.stats.pauses.get() > 0);
    let listener = TcpListener::bind(address).await.expect("the same port");
    let _server = Server::start_on(listener, &[], None);
    for _ in 0..5 {
        pushed.acked().await;
    }
}

#[tokio::test]
async fn an_address_that_the_operator_does_not_allow_is_never_connected_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // The last one is allowed by its name, but resolves to this machine.
    let cases =
        [("127.0.0.1", ""), ("127.0.0.1", "10.0.0.0/8"), ("127.0.0.1", "*.example.com"), ("localhost", "localhost")];
    for (host, allow) in cases {
        let mut pushed = Pushed::begin(&format!("http://{host}:{port}/"), 1, allow, None);
        assert!(!pushed.settled().await.1);
        assert!(pushed.count(Outcome::Denied) > 0, "{host} {allow}");
    }
    // The next connection is the first one that arrives.
    let own = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    let (_, peer) = soon(listener.accept()).await.expect("accepted");
    assert_eq!(Some(peer), own.local_addr().ok());
}

#[tokio::test]
async fn over_tls_the_certificate_has_to_hold() {
    let identity = Identity::self_signed(vec!["localhost".into()]).expect("a certificate");
    let tls = TlsAcceptor::from(identity.server_config(&[b"http/1.1"]).expect("settings"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = Server::start_on(listener, &[], Some(tls));
    let mut roots = RootCertStore::empty();
    roots.add(identity.chain[0].clone()).expect("a certificate");
    let url = format!("https://localhost:{}/", server.address.port());
    let mut pushed = Pushed::begin(&url, 2, LOOPBACK, Some(roots.clone()));
    assert!(pushed.settled().await.1 && pushed.settled().await.1);
    // Another name, and another root.
    let other = url.replace("localhost", "127.0.0.1");
    let unknown = Identity::self_signed(vec!["localhost".into()]).expect("a certificate");
    let mut others = RootCertStore::empty();
    others.add(unknown.chain[0].clone()).expect("a certificate");
    for (url, roots) in [(other, roots), (url, others)] {
        let mut pushed = Pushed::begin(&url, 1, LOOPBACK, Some(roots));
        assert!(!pushed.settled().await.1);
        assert!(pushed.count(Outcome::Failed) > 0);
    }
}

#[tokio::test]
async fn requests_at_once_begin_few_and_connections_are_used_again() {
    // Each request is answered only when the gate is opened for it.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let gates = gate.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let arrived = arrived.clone();
            let gate = gates.clone();
            tokio::spawn(async move {
                while read_request(&mut socket).await.is_some() {
                    let _ = arrived.send(());
                    let Ok(permit) = gate.acquire().await else {
                        return;
                    };
                    permit.forget();
                    drop(socket.write_all(OK).await);
                }
            });
        }
    });
    let mut pushed = Pushed::begin(&format!("http://{address}/"), 40, LOOPBACK, None);
    for round in [3, 6, 12] {
        for _ in 0..round {
            soon(arrivals.recv()).await.expect("a request");
        }
        assert_eq!(pushed.pusher.stats.in_flight.load(Ordering::Relaxed), round);
        assert!(arrivals.try_recv().is_err(), "no more than the window of {round}");
        for _ in 0..round {
            gate.add_permits(1);
            assert!(pushed.settled().await.1);
            // The window has grown by one and the answered request is replaced: two arrive for each response.
            assert!(arrivals.len() <= 2 * round);
        }
    }
    gate.add_permits(100);
    for _ in 0..40 - 21 {
        assert!(pushed.settled().await.1);
    }
    let opened = pushed.pusher.http.opened.get();
    assert!(opened < 40, "{opened} connections for 40 pushes");
}

#[tokio::test]
async fn the_task_of_a_queue_that_is_gone_ends() {
    let pusher = Pusher::new(Allow::default(), None, Arc::default(), Clock::SYSTEM);
    let target = Target {
        subscription: "projects/p/subscriptions/s".into(),
        endpoint: "http://127.0.0.1/".parse().expect("a URL"),
        wrapper: Wrapper::Wrapped,
        oidc: None,
        deadline: PATIENCE,
    };
    let (settled, _) = mpsc::unbounded_channel();
    let queue = Arc::new(Queue { is_gone: true, ..Queue::default() });
    let mut task = pusher.start(target, Handle { queue, settled });
    soon(&mut task.0).await.expect("ended");
    assert_eq!(pusher.stats.subscriptions.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_task_that_is_dropped_stops() {
    let mut server = Server::start(&[Answer::Bytes(b"HTTP/1.1 200 OK\r\n")]).await;
    let Pushed { pusher, task, .. } = Pushed::begin(&server.url(), 1, LOOPBACK, None);
    server.seen().await;
    drop(task);
    soon(async {
        while pusher.stats.subscriptions.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(pusher.stats.in_flight.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nothing_is_pushed_that_its_owner_may_not_read() {
    let mut server = Server::start(&[]).await;
    let mut pushed = Pushed::begin_with(&server.url(), 3, LOOPBACK, None, Duration::from_secs(30), true);
    for _ in 0..3 {
        assert!(!pushed.settled().await.1, "it returns to its queue");
    }
    assert!(pushed.count(Outcome::Denied) >= 2 && pushed.count(Outcome::Acked) == 0);
    assert_eq!((pushed.pusher.http.opened.get(), server.seen.try_recv().ok()), (0, None));
}
