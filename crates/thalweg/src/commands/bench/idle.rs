//! `thalweg bench idle`: the memory of a broker and of idle connections, and the time to its first publish.

use std::io::Write;
use std::time::{Duration, Instant};

use client::{Address, Client, ClientSettings, Record};
use serde_json::json;
use tokio::net::TcpStream;

use crate::args::BenchIdle;
use crate::block_on;
use crate::commands::spawned::Spawned;
use crate::output::Result;

/// Number of starts, of which the median is reported.
const STARTS: usize = 7;

pub fn run(args: &BenchIdle, is_json: bool) -> Result {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let begin = Instant::now();
        let server = Spawned::start(&[])?;
        let ready = server.ready_after;
        first_publish(&server)?;
        starts.push((begin.elapsed(), ready));
    }
    starts.sort();
    let (first_publish, ready) = starts[STARTS / 2];
    let connections = args.connections.to_string();
    let server = Spawned::start(&["--set".into(), format!("connections_max={}", args.connections + 10)])?;
    let (alone, with_connections) = hold_connections(&server, args.connections)?;
    let each = with_connections.saturating_sub(alone) / args.connections.max(1) as u64;
    let millis = |d: Duration| d.as_secs_f64() * 1e3;
    let mut out = std::io::stdout();
    if is_json {
        let report = json!({
            "ready_ms": millis(ready),
            "first_publish_ms": millis(first_publish),
            "idle_bytes": alone,
            "connections": args.connections,
            "bytes_per_connection": each,
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "start to ready {:.1} ms, to the first publish accepted {:.1} ms (median of {STARTS})",
            millis(ready),
            millis(first_publish)
        )?;
        writeln!(out, "idle memory {:.1} MiB", alone as f64 / f64::from(1 << 20))?;
        writeln!(out, "{connections} idle TCP connections: {each} bytes each")?;
    }
    Ok(())
}

fn first_publish(server: &Spawned) -> Result {
    block_on(async {
        let address = Address::parse(&format!("tcp://{}", server.native))?;
        let client = Client::connect_with(address, ClientSettings::default()).await?;
        client.publish("first", Record::new("x")).await?;
        Ok(())
    })
}

/// Returns the resident memory of the broker alone, and with `count` connections that sent only a hello.
fn hold_connections(server: &Spawned, count: usize) -> Result<(u64, u64)> {
    use wire_hello::hello;
    raise_file_limit();
    block_on(async {
        let mut held = Vec::with_capacity(count);
        // The first connection also allocates the memory that all connections share.
        held.push(hello(TcpStream::connect(&server.native).await?).await?);
        let alone = server.resident_bytes().unwrap_or_default();
        for _ in 0..count {
            held.push(hello(TcpStream::connect(&server.native).await?).await?);
        }
        let with_connections = server.resident_bytes().unwrap_or_default();
        Ok((alone, with_connections))
    })
}

/// Raises the limit of open files to the maximum that this user may have.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the limit stays too small, the run fails with a clear error.
    setrlimit(Resource::Nofile, limit).unwrap_or_default();
}

mod wire_hello {
    //! Connections that send a hello by hand: a client would hold buffers that do not belong to the broker.

    use std::io;

    use bytes::BytesMut;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use wire::negotiate::{Features, VERSION};

    pub async fn hello(mut socket: TcpStream) -> io::Result<TcpStream> {
        let mut buf = BytesMut::new();
        let hello = wire::Request::Hello {
            version: VERSION,
            required: Features::default(),
            offered: Features::default(),
            client: "idle".to_owned(),
        };
        hello.encode(1, &mut buf);
        socket.write_all(&buf).await?;
        buf.clear();
        socket.read_buf(&mut buf).await?;
        Ok(socket)
    }
}
