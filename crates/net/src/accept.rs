//! Acceptors, which survive every error of the operating system.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 4096;
/// Silence after which keep-alive probes start on a connection, and the interval between them.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// Pause when the system has no descriptors or no memory left.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Listening TCP socket whose accept loop ends only with the process.
pub struct Acceptor {
    listener: TcpListener,
    reserve: Reserve,
}

/// Listening Unix socket, whose accept loop ends only with the process. The socket file is removed with the last
/// acceptor at it, unless the socket is one of [`Sockets`](crate::Sockets), which keep it.
pub struct UnixAcceptor {
    listener: UnixListener,
    file: Arc<SocketFile>,
    reserve: Reserve,
}

/// Bound Unix socket, which gives out acceptors.
pub(crate) struct BoundUnix {
    listener: std::os::unix::net::UnixListener,
    file: Arc<SocketFile>,
}

/// File of a Unix socket, which is removed on drop.
struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// Process at the other end of a Unix socket, as the system knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixPeer {
    /// Effective user id; `None` if the system does not know it.
    pub uid: Option<u32>,
}

impl UnixPeer {
    /// The broker's own user, as far as another node of the cluster vouches for it.
    pub(crate) const OWNER: Self = Self { uid: Some(Self::ROOT) };
    /// User id of root.
    const ROOT: u32 = 0;
    /// User id that Linux shows for users of another namespace: it stands for any of them.
    const UNMAPPED: u32 = 65_534;

    /// Returns `true` if the process belongs to the user of this process, or to root.
    pub fn is_owner(self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.uid.is_some_and(|uid| uid == Self::ROOT || uid == own && own != Self::UNMAPPED)
    }
}

/// Listening sockets of one service: a TCP socket, and perhaps a Unix socket.
pub struct Acceptors {
    tcp: Acceptor,
    unix: Option<UnixAcceptor>,
}

/// Connection that was accepted.
pub enum Accepted {
    /// Connection of a TCP socket, with the address of its peer.
    Tcp(TcpStream, SocketAddr),
    /// Connection of a Unix socket, with the process at its other end.
    Unix(UnixStream, UnixPeer),
}

impl From<Acceptor> for Acceptors {
    fn from(tcp: Acceptor) -> Self {
        Self { tcp, unix: None }
    }
}

impl Acceptors {
    /// Adds a Unix socket.
    pub fn with_unix(self, unix: UnixAcceptor) -> Self {
        Self { unix: Some(unix), ..self }
    }

    /// Returns the next connection of any of the sockets. Errors are handled as in [`Acceptor::accept`].
    pub async fn accept(&mut self) -> Accepted {
        let Self { tcp, unix } = self;
        let of_unix = async {
            match unix {
                Some(unix) => unix.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (stream, peer) = tcp.accept() => Accepted::Tcp(stream, peer),
            (stream, peer) = of_unix => Accepted::Unix(stream, peer),
        }
    }
}

/// Identity of a file independent of its name: the device and the inode number.
type FileId = (u64, u64);

/// Reserved descriptor, so that a connection can still be accepted and closed when none is left.
struct Reserve(Option<File>);

/// Counters of all listeners of the process.
#[derive(Default)]
#[non_exhaustive]
pub struct AcceptStats {
    /// Connections that the system has accepted.
    pub accepted: AtomicU64,
    /// Failed attempts to accept a connection.
    pub failed: AtomicU64,
    /// Connections that were closed immediately because no descriptor was left for them.
    pub shed: AtomicU64,
}

static STATS: AcceptStats =
    AcceptStats { accepted: AtomicU64::new(0), failed: AtomicU64::new(0), shed: AtomicU64::new(0) };

/// Returns the counters of all listeners.
pub fn stats() -> &'static AcceptStats {
    &STATS
}

impl Acceptor {
    /// Binds a TCP listener with `SO_REUSEADDR` and a backlog of 4096. An IPv6 wildcard address also accepts IPv4.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::over(bind_tcp(address)?)
    }

    /// Accepts at a socket that is bound.
    pub(crate) fn over(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)?, reserve: Reserve::open() })
    }

    /// Returns the bound address, with the actual port if port 0 was requested.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the next connection. Errors of the system are logged, counted and retried, never returned: if no
    /// descriptor is left, connections are closed rather than left to hang.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    STATS.accepted.fetch_add(1, Ordering::Relaxed);
                    // Keep-alive detects a peer that has vanished.
                    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
                    let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    if let Err(error) = set.and_then(|()| stream.set_nodelay(true)) {
                        tracing::debug!(%peer, %error, "connection closed while it was accepted");
                        continue;
                    }
                    return (stream, peer);
                }
                Err(error) => self.reserve.wait_out(error, self.listener.accept()).await,
            }
        }
    }
}

/// Binds a TCP socket as [`Acceptor::bind`] does.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl BoundUnix {
    /// Binds a Unix socket with the permissions `mode`. A stale socket file, which no process listens on, is replaced.
    pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        // Nobody can connect before the socket listens, when it has its permissions.
        let listening = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .and_then(|()| socket.listen(BACKLOG))
            .and_then(|()| file_at(path));
        let id = listening.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(Self { listener: socket.into(), file: Arc::new(SocketFile { path: path.to_owned(), id }) })
    }

    /// Returns an acceptor at this socket. Connections that it does not accept wait for the next one.
    pub(crate) fn acceptor(&self) -> io::Result<UnixAcceptor> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        Ok(UnixAcceptor { listener, file: self.file.clone(), reserve: Reserve::open() })
    }
}

impl UnixAcceptor {
    /// Binds a Unix socket with the permissions `mode`. A stale socket file, which no process listens on, is replaced.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        BoundUnix::bind(path, mode)?.acceptor()
    }

    /// Returns the path of the socket file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Returns the next connection, with the process at its other end. Errors are handled as in [`Acceptor::accept`].
    pub async fn accept(&mut self) -> (UnixStream, UnixPeer) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    STATS.accepted.fetch_add(1, Ordering::Relaxed);
                    let uid = stream.peer_cred().map(|credentials| credentials.uid());
                    let uid = uid.inspect_err(|error| tracing::debug!(%error, "the system does not know a peer"));
                    return (stream, UnixPeer { uid: uid.ok() });
                }
                Err(error) => self.reserve.wait_out(error, self.listener.accept()).await,
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced the file with its own.
        let removed = match file_at(&self.path) {
            Ok(id) if id != self.id => return,
            Ok(_) => std::fs::remove_file(&self.path),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::debug!(path = %self.path.display(), %error, "cannot remove a socket");
        }
    }
}

fn file_at(path: &Path) -> io::Result<FileId> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes a stale socket file. Fails if a process listens on it or if the file is not a socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    // Non-blocking: a listener that is too busy to accept could block this forever.
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process is listening there")),
    }
}

impl Reserve {
    fn open() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Waits until another attempt is worthwhile. If no descriptor is left, the connection at the head of the queue,
    /// `next`, is closed. If the queue is empty, a later connection is not closed: descriptors may be free by then.
    async fn wait_out<T>(&mut self, error: io::Error, next: impl Future<Output = io::Result<T>>) {
        STATS.failed.fetch_add(1, Ordering::Relaxed);
        match error.kind() {
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {
                tracing::debug!(%error, "connection closed before it was accepted");
            }
            _ => {
                tracing::warn!(%error, "cannot accept connections; raise `ulimit -n` if descriptors ran out");
                if self.0.take().is_some() {
                    tokio::select! {
                        biased;
                        Ok(accepted) = next => {
                            drop(accepted);
                            STATS.shed.fetch_add(1, Ordering::Relaxed);
                        }
                        () = std::future::ready(()) => {}
                    }
                    *self = Self::open();
                }
                tokio::time::sleep(BACK_OFF).await;
                if self.0.is_none() {
                    *self = Self::open();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_process_is_its_user_or_root() {
        let own = rustix::process::geteuid().as_raw();
        let is_owner = |uid| UnixPeer { uid }.is_owner();
        assert!(is_owner(Some(own)) && is_owner(Some(0)));
        assert!(!is_owner(Some(own + 1)) && !is_owner(Some(UnixPeer::UNMAPPED)) && !is_owner(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_comes_after_descriptors_ran_out_is_not_closed() {
        let mut reserve = Reserve::open();
        let full = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        let waiting = reserve.wait_out(full, std::future::pending::<io::Result<()>>());
        tokio::time::timeout(10 * BACK_OFF, waiting).await.expect("it waits for no connection");
        assert!(reserve.0.is_some());
    }
}
