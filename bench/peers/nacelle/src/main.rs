//! Echo server for the reference frames by nacelle, with its default limits, timeouts and metrics.

mod args;
mod frames;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use nacelle::core::pipeline::local_handler_fn;
use nacelle::core::{NacelleError, NacelleRuntimeState};
use nacelle::runtime::{
    LocalTcpRuntimeConfig, ThreadPerCoreConfig, Worker, WorkerSet, run_local_tcp_thread_per_core,
    run_local_tcp_tls_thread_per_core,
};
use nacelle::rustls::NacelleTlsConfig;
use nacelle::tcp::{LocalTcpHandler, LocalTcpServer, NacelleTcpConfig, TcpRequestContext, TcpResponse};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeVal;
use socket2::{Domain, Socket, Type};

use crate::args::{Args, Tls};
use crate::frames::Frames;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests that one worker has answered. Only this worker writes it, so it needs no atomic addition, and it has a
/// separate cache line: counting must not cost the peer anything.
#[derive(Default)]
#[repr(align(128))]
struct Served(AtomicU64);

impl Served {
    fn add_one(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = args::parse();
    // Every thread inherits the mask, so that only the wait below takes these signals.
    let stop = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    stop.thread_block()?;

    let (reserved, addr) = reserve(args.port)?;
    let served: Arc<[Served]> = (0..args.threads).map(|_| Served::default()).collect();
    let tls = match &args.tls {
        None => None,
        Some(Tls::Files { cert, key }) => Some(NacelleTlsConfig::from_pem_files(cert, key)?),
        Some(Tls::SelfSigned) => Some(NacelleTlsConfig::self_signed(["localhost", "127.0.0.1"])?.tls_config),
    };
    let threads = args.threads;
    // The CPU time of the startup is excluded.
    let before = getrusage(UsageWho::RUSAGE_SELF)?;
    let counts = Arc::clone(&served);
    thread::spawn(move || {
        let outcome = run(&args, addr, tls, counts);
        eprintln!("nacelle-echo: the server ended by itself: {outcome:?}");
        process::exit(1);
    });

    stop.wait()?;
    drop(reserved);
    let requests: u64 = served.iter().map(|served| served.0.load(Ordering::Relaxed)).sum();
    let after = getrusage(UsageWho::RUSAGE_SELF)?;
    println!(
        "{{\"server\":\"nacelle\",\"threads\":{threads},\"requests\":{requests},\
         \"user_seconds\":{:.6},\"sys_seconds\":{:.6}}}",
        seconds(after.user_time() - before.user_time()),
        seconds(after.system_time() - before.system_time())
    );
    Ok(())
}

/// Serves until the process ends: one single-threaded runtime for each worker, each with a separate listener.
fn run(
    args: &Args,
    addr: SocketAddr,
    tls: Option<NacelleTlsConfig>,
    served: Arc<[Served]>,
) -> Result<(), NacelleError> {
    let config = LocalTcpRuntimeConfig::new(
        ThreadPerCoreConfig::new(WorkerSet::first(args.threads)?),
        addr,
        NacelleRuntimeState::default(),
    );
    let tcp = NacelleTcpConfig::default().with_response_write_policy(args.write);
    let body = Bytes::from(vec![b'a'; args.response_bytes]);
    // Nacelle creates the server of a worker after the worker has bound its listener.
    let missing = Arc::new(AtomicUsize::new(args.threads));
    let server = move |worker: Worker| {
        if missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            println!("listening {}", addr.port());
        }
        Ok(LocalTcpServer::new(Frames, echo(body.clone(), Arc::clone(&served), worker.index))
            .with_tcp_config(tcp.clone()))
    };
    match tls {
        None => run_local_tcp_thread_per_core(config, server),
        Some(tls) => run_local_tcp_tls_thread_per_core(config, tls, server),
    }
}

fn echo(body: Bytes, served: Arc<[Served]>, worker: usize) -> impl LocalTcpHandler<Frames> + 'static {
    local_handler_fn(move |request: TcpRequestContext<Frames>| {
        served[worker].add_one();
        request.respond(TcpResponse::bytes(body.clone()))
    })
}

/// Reserves a port, because nacelle refuses port 0 for several workers. A socket that is bound but does not listen
/// finds a free port and keeps it for them, without ever receiving a connection.
fn reserve(port: u16) -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    let addr = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("the socket has no IP address"))?;
    Ok((socket, addr))
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}
