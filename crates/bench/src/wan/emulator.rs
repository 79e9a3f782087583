//! Emulator: the namespaces and TUN devices of all sites, and the thread that carries packets between them.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tappers::{DeviceState, Interface, Tun};

use super::network::{Counts, Link, Network, destination};
use super::{Lateness, Outcome, Space};
use crate::latency::Latencies;

/// Name of the TUN device in each namespace.
const DEVICE: &str = "wan0";
/// Network of the addresses of all sites.
const NETWORK: [u8; 3] = [10, 99, 0];
/// Maximum sites, each of which has an address in the network.
const SITES_MAX: usize = 250;
/// Packets that a device keeps until the emulator reads them.
const DEVICE_QUEUE: &str = "10000";
/// Packets that are read from one device before others have their turn.
const READS_AT_ONCE: usize = 64;
const PACKET_BYTES_MAX: usize = 65_536;
/// Priority of the thread among those in real time.
const PRIORITY: &str = "20";
/// Time after which the thread notices that it is to stop.
const STOP_EVERY: Duration = Duration::from_millis(50);

/// Running emulator. Dropping it stops the thread, and removes the devices and the namespaces.
pub struct Wan {
    // Dropped in this order: the thread holds the devices.
    thread: Carrier,
    spaces: Vec<Space>,
    shared: Arc<Shared>,
    is_realtime: bool,
}

/// Thread that carries the packets. Dropping it ends it.
struct Carrier(Option<JoinHandle<()>>, Arc<Shared>);

struct Shared {
    network: Mutex<Network>,
    lateness: Mutex<Latencies>,
    is_ended: AtomicBool,
}

impl Wan {
    /// Starts an emulator whose links are equal. The seed decides which packets are lost.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names what is missing: root, `ip` or `/dev/net/tun`.
    pub fn start(sites: usize, link: &Link, seed: u64) -> Outcome<Self> {
        Self::build(sites, link, seed).map_err(|why| {
            format!("no wide-area network can be emulated: {why}; it needs Linux, root, iproute2 and /dev/net/tun")
        })
    }

    fn build(sites: usize, link: &Link, seed: u64) -> Outcome<Self> {
        if sites > SITES_MAX {
            return Err(format!("{sites} sites are too many: choose at most {SITES_MAX}"));
        }
        Space::remove_abandoned();
        let mut spaces = Vec::new();
        let mut devices = Vec::new();
        for site in 0..sites {
            let space = Space::create(site)?;
            devices.push(device(&space, site)?);
            spaces.push(space);
        }
        let shared = Arc::new(Shared {
            network: Mutex::new(Network::new(sites, link, seed)),
            lateness: Mutex::new(Latencies::default()),
            is_ended: AtomicBool::new(false),
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("wan".to_owned()).spawn(move || {
            // The receiver waits for it.
            sender.send(be_realtime()).unwrap_or_default();
            if let Err(error) = of_thread.carry(&devices) {
                eprintln!("the emulated network has failed: {error}");
            }
        });
        let thread = thread.map_err(|error| format!("no thread can be started: {error}"))?;
        let is_realtime = receiver.recv().unwrap_or_default();
        Ok(Self { thread: Carrier(Some(thread), shared.clone()), spaces, shared, is_realtime })
    }

    pub fn address(&self, site: usize) -> Ipv4Addr {
        address(site)
    }

    /// Returns the namespace of a site.
    pub fn space(&self, site: usize) -> &Space {
        &self.spaces[site]
    }

    /// Returns `true` while packets are carried.
    pub fn is_running(&self) -> bool {
        self.thread.0.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns `true` if the emulator runs before all other threads of the machine that are not in real time.
    pub fn is_realtime(&self) -> bool {
        self.is_realtime
    }

    /// Changes the link from one site to another one, and only this direction.
    pub fn change(&self, from: usize, to: usize, change: impl FnOnce(&mut Link)) {
        change(lock(&self.shared.network).link_mut(from, to));
    }

    /// Cuts or heals one direction between two sites.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        self.change(from, to, |link| link.is_cut = is_cut);
    }

    pub fn counts(&self, from: usize, to: usize) -> Counts {
        lock(&self.shared.network).counts(from, to)
    }

    /// Returns the lateness since the last call, and begins again.
    pub fn take_lateness(&self) -> Lateness {
        let taken = std::mem::take(&mut *lock(&self.shared.lateness));
        taken.percentiles().map_or_else(Lateness::default, |of| Lateness {
            packets: of.count,
            p50_us: of.p50,
            p99_us: of.p99,
            max_us: of.max,
        })
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.1.is_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.0.take() {
            // A panic has been printed.
            thread.join().unwrap_or_default();
        }
    }
}

impl Shared {
    /// Carries packets until the end.
    fn carry(&self, devices: &[Tun]) -> io::Result<()> {
        let begin = Instant::now();
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let mut polled: Vec<_> = devices.iter().map(|device| PollFd::from_borrowed_fd(device.as_fd(), READ)).collect();
        while !self.is_ended.load(Ordering::Relaxed) {
            let mut network = lock(&self.network);
            let mut has_more = false;
            for (from, device) in devices.iter().enumerate() {
                let mut reads = 0;
                while reads < READS_AT_ONCE {
                    match device.recv(&mut buffer) {
                        Ok(bytes) => offer(&mut network, begin.elapsed(), from, &buffer[..bytes]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                    reads += 1;
                }
                has_more |= reads == READS_AT_ONCE;
            }
            let mut lateness = lock(&self.lateness);
            while let Some(arrival) = network.arrive(begin.elapsed()) {
                // A device whose queue is full drops the packet, as a network card does.
                devices[arrival.to].send(&arrival.packet).unwrap_or_default();
                lateness.record(begin.elapsed().saturating_sub(arrival.due));
            }
            drop(lateness);
            let next = network.next_due();
            drop(network);
            if has_more {
                continue;
            }
            let wait = next.map_or(STOP_EVERY, |due| due.saturating_sub(begin.elapsed()).min(STOP_EVERY));
            let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
            match poll(&mut polled, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

const READ: PollFlags = PollFlags::IN;

/// Puts a packet on the link to its destination, if that is a site.
fn offer(network: &mut Network, now: Duration, from: usize, packet: &[u8]) {
    let to = destination(packet).and_then(site_of).filter(|to| *to < network.sites());
    if let Some(to) = to {
        network.send(now, from, to, packet);
    }
}

fn address(site: usize) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, site as u8 + 1)
}

fn site_of(address: Ipv4Addr) -> Option<usize> {
    let [network @ .., last] = address.octets();
    (network == NETWORK).then(|| usize::from(last).checked_sub(1))?
}

/// Creates the device of a site, with its address.
fn device(space: &Space, site: usize) -> Outcome<Tun> {
    let created = space.within(|| {
        let mut device = Tun::new_named(Interface::new(DEVICE)?)?;
        device.set_nonblocking(true)?;
        device.set_state(DeviceState::Up)?;
        Ok(device)
    });
    let device = created.map_err(|error| format!("the TUN device of site {site}: {error}"))?;
    space.ip(&["link", "set", DEVICE, "txqueuelen", DEVICE_QUEUE])?;
    space.ip(&["addr", "add", &format!("{}/24", address(site)), "dev", DEVICE])?;
    Ok(device)
}

/// Has the calling thread run before all others that are not in real time. Returns `false` if that is not allowed:
/// packets are later then, which the lateness shows.
fn be_realtime() -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let set = Command::new("chrt").args(["-f", "-p", PRIORITY, &thread]).stdin(Stdio::null()).output();
    set.is_ok_and(|output| output.status.success())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
