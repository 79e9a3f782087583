//! A service answers the same bytes in the same way, independent of the pieces in which they arrive.
//!
//! Input: four bytes with the sizes of the pieces in turn (0 is the whole rest), and the stream. It is sent to a server
//! over a pipe, once as a whole and once in pieces. The protocol gives a meaning to most bytes: a kind of request, a
//! tag, a length and that number of words.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use futures_util::future::LocalBoxFuture;
use futures_util::stream::Once;
use net::limits::{ConnectionLimits, Connections};
use net::service::{
    Body, Decoded, Fault, Handler, Held, Input, Order, Out, Peer, Protocol, Reply, Service, ServiceSettings, once,
};
use net::{Outbox, Server, Shutdown, Workers};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;

const HEAD_BYTES: usize = 3;
/// Size of the pipe: less than most streams, so that both ends wait for each other.
const PIPE_BYTES: usize = 64;
const MALFORMED: u8 = 0x80;

pub fn check(input: &[u8]) {
    let Some((cuts, stream)) = input.split_first_chunk::<4>() else {
        return;
    };
    let whole = response_bytes(stream, &[0]);
    let cut = response_bytes(stream, cuts);
    assert_eq!(cut, whole);
    assert_eq!(FIXTURE.telemetry.totals().panics, 0);
}

/// Server on a separate thread, for all inputs.
struct Fixture {
    server: Server,
    telemetry: Arc<net::telemetry::Telemetry>,
    runtime: Runtime,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let settings = ServiceSettings {
        frame_bytes_max: 192,
        body_bytes_max: 512,
        requests_per_connection_max: 3,
        outbox_bytes_max: 128,
        ..ServiceSettings::default()
    };
    let service = Service::new(Tagged, Scripted, settings);
    let telemetry = service.telemetry.clone();
    let workers = Arc::new(Workers::start(1).expect("a thread"));
    let connections = Connections::new(ConnectionLimits::default());
    let server = Server::start(service, &workers, connections, &Shutdown::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    Fixture { server, telemetry, runtime }
});

/// Returns all bytes that the server sends.
fn response_bytes(stream: &[u8], cuts: &[u8]) -> Vec<u8> {
    let (mine, theirs) = tokio::io::duplex(PIPE_BYTES);
    FIXTURE.server.serve_pipe(theirs);
    FIXTURE.runtime.block_on(async {
        let (mut reader, writer) = tokio::io::split(mine);
        let mut received = Vec::new();
        // A server that has sent its last answer need not read.
        let (_, read) = tokio::join!(send(writer, stream, cuts), reader.read_to_end(&mut received));
        read.expect("the end of the answers");
        received
    })
}

async fn send(mut writer: tokio::io::WriteHalf<DuplexStream>, stream: &[u8], cuts: &[u8]) -> io::Result<()> {
    let mut rest = stream;
    for cut in cuts.iter().cycle() {
        let piece = if *cut == 0 { rest.len() } else { usize::from(*cut).min(rest.len()) };
        writer.write_all(&rest[..piece]).await?;
        rest = &rest[piece..];
        if rest.is_empty() {
            break;
        }
        // Usually the server reads this piece before the next one arrives.
        tokio::task::yield_now().await;
    }
    writer.shutdown().await
}

#[derive(Clone)]
struct Tagged;

/// Ways to answer a request.
#[derive(Clone, Copy)]
enum Mode {
    Now,
    Later,
    Alone,
    Last,
}

impl Protocol for Tagged {
    type Codec = ();
    type Request<'a> = (Mode, &'a [u8]);
    type Message<'a> = &'a [u8];
    type Response = Vec<u8>;
    type Tag = u8;

    const ORDER: Order = Order::Request;

    fn codec(&self, _peer: &Rc<Peer>) {}

    fn decode<'a>(&self, _codec: &mut (), input: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        let Some(&[kind, tag, length]) = input.bytes().first_chunk::<HEAD_BYTES>() else {
            return Ok(Decoded::More(HEAD_BYTES));
        };
        if kind & MALFORMED != 0 {
            return Err(Fault::malformed("no such thing"));
        }
        let whole = HEAD_BYTES + usize::from(length);
        if input.len() < whole {
            return Ok(Decoded::More(whole));
        }
        let words = &input.take(whole)[HEAD_BYTES..];
        Ok(match kind % 8 {
            0 => Decoded::Request(tag, (Mode::Now, words)),
            1 => Decoded::Request(tag, (Mode::Later, words)),
            2 => Decoded::Request(tag, (Mode::Alone, words)),
            3 => Decoded::Request(tag, (Mode::Last, words)),
            4 => Decoded::Message(words),
            5 => Decoded::Open(tag, (Mode::Later, words), words.first().map(|length| u64::from(*length))),
            piece => Decoded::Piece { tag, bytes: words, is_last: piece == 7 },
        })
    }

    fn encode(&self, _codec: &mut (), tag: u8, response: Vec<u8>, out: &mut Out) {
        out.put(&[tag, response.len() as u8]);
        out.put(&response);
    }

    fn encode_fault(&self, _codec: &mut (), tag: Option<u8>, fault: &Fault, out: &mut Out) {
        out.put(&[tag.unwrap_or_default(), u8::MAX, fault.kind as u8]);
    }
}

#[derive(Clone)]
struct Scripted;

impl Handler<Tagged> for Scripted {
    type Connection = ();
    type Session = ();
    type Later = Once<LocalBoxFuture<'static, Vec<u8>>>;

    fn connect(&self, _peer: &Rc<Peer>) {}

    fn open(&self, _connection: &Rc<()>, _outbox: &Arc<Outbox>) {}

    fn call(&self, _session: &mut (), (mode, words): (Mode, &[u8])) -> Reply<Vec<u8>, Self::Later> {
        let answer = words.to_vec();
        let later = |answer: Vec<u8>| -> Self::Later {
            once(Box::pin(async {
                rest(&answer).await;
                answer
            }))
        };
        match mode {
            Mode::Now => Reply::Now(answer),
            Mode::Later => Reply::Later(later(answer)),
            Mode::Alone => Reply::Alone(later(answer)),
            Mode::Last => Reply::Last(answer),
        }
    }

    fn accept_one_way(&self, _session: &mut (), words: &[u8]) -> Option<Held> {
        let words = words.to_vec();
        (!words.is_empty()).then(|| Box::pin(async move { rest(&words).await }) as Held)
    }

    fn call_streamed(&self, _session: &mut (), _: (Mode, &[u8]), mut body: Body) -> Reply<Vec<u8>, Self::Later> {
        Reply::Later(once(Box::pin(async move {
            let mut bytes = 0u64;
            let mut sum = 0u8;
            while let Some(piece) = body.next().await {
                let Ok(piece) = piece else {
                    return b"cut".to_vec();
                };
                rest(&piece).await;
                bytes += piece.len() as u64;
                sum = piece.iter().fold(sum, |sum, byte| sum.rotate_left(1) ^ byte);
            }
            [&bytes.to_le_bytes()[..], &[sum]].concat()
        })))
    }
}

/// Yields as often as the first byte specifies.
async fn rest(words: &[u8]) {
    for _ in 0..words.first().map_or(0, |word| word % 4) {
        tokio::task::yield_now().await;
    }
}
