//! Memory budget of all responses in flight to clients, at all doors. Nothing large is decompressed or encoded for a
//! client without a permit for its bytes. The permit is released when the last of them was written to the client's
//! socket.
//!
//! Each address has a share of the budget, so that a client that does not read leaves room for others. A response that
//! finds no room waits in a queue, without holding anything, for as long as its door allows. Then it is refused with a
//! retryable error.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::{Error, RecordBatch, Result};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::metrics::{Counter, Exposition};

/// Maximum size of a response that needs no permit: a connection itself costs more.
pub const FREE_BYTES: usize = 4 << 10;
/// Size above which bytes are decompressed and encoded off the threads that serve others, a few at a time.
const LARGE_BYTES: usize = 64 << 10;
/// Maximum concurrent pieces of large work.
const WORK_MAX: usize = 2;
/// Maximum concurrent reads of batches without a permit, because their size is known only afterwards.
const READS_MAX: usize = 4;
/// Maximum waiting responses. Further ones are refused immediately.
const WAITERS_MAX: usize = 1024;
/// Divisor of the budget that yields the share of one address.
const SHARE_PART: u64 = 2;
/// Divisor of the budget that yields the overdraft: the bytes by which responses to requests that were carried out may
/// exceed the budget, and the share of an address.
const OVERDRAFT_PART: u64 = 4;

/// Memory budget of all responses. Clones share it.
#[derive(Clone)]
pub struct Answers(Arc<Budget>);

struct Budget {
    max: u64,
    state: Mutex<State>,
    /// Copy of [`State::used`], readable without the lock: most of the time it is 0.
    used: AtomicU64,
    /// Batches that are decompressed for readers now, by the address and length of their bytes. Each entry holds those
    /// bytes, so that no other batch can get this address.
    expanded: Mutex<HashMap<(usize, usize), Weak<Expanded>>>,
    working: Semaphore,
    reading: Semaphore,
    waits: Counter,
    refused: Counter,
    shared: Counter,
}

#[derive(Default)]
struct State {
    used: u64,
    peers: HashMap<IpAddr, u64>,
    /// Waiting responses, in the order of their arrival.
    queue: VecDeque<Waiting>,
    next_ticket: u64,
}

struct Waiting {
    ticket: u64,
    peer: IpAddr,
    bytes: u64,
    told: oneshot::Sender<Held>,
}

/// Permit for a number of bytes, released when it is dropped.
#[must_use = "the memory is released when it is dropped"]
pub struct Held {
    budget: Arc<Budget>,
    peer: IpAddr,
    bytes: u64,
}

/// Decompressed records of a batch, shared by all its current readers.
struct Expanded {
    plain: Bytes,
    /// Bytes of the compressed batch. Invariant: while they are held, no other batch has this address.
    _batch: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Expanded {
    fn as_ref(&self) -> &[u8] {
        &self.plain
    }
}

impl Answers {
    pub fn new(max: u64) -> Self {
        Self(Arc::new(Budget {
            max,
            state: Mutex::default(),
            used: AtomicU64::new(0),
            expanded: Mutex::default(),
            working: Semaphore::new(WORK_MAX),
            reading: Semaphore::new(READS_MAX),
            waits: Counter::default(),
            refused: Counter::default(),
            shared: Counter::default(),
        }))
    }

    /// Returns a permit for `bytes` if there is room now and no earlier response waits for it. A client without an
    /// address is on this machine.
    pub fn try_take(&self, peer: Option<IpAddr>, bytes: usize) -> Option<Held> {
        let peer = peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let mut state = self.0.state.lock();
        let max = self.0.max;
        let bytes = bytes as u64;
        let is_next = !state.queue.iter().any(|first| state.has_share(max, first.peer, first.bytes));
        if !is_next || !state.has_share(max, peer, bytes) || state.used.saturating_add(bytes) > max {
            return None;
        }
        self.0.add(&mut state, peer, bytes);
        Some(Held { budget: self.0.clone(), peer, bytes })
    }

    /// Waits up to `wait` for a permit for `bytes`, in order of arrival. Fails with `busy` after that, and with
    /// `too_large` if the whole budget is smaller.
    pub async fn take(&self, peer: Option<IpAddr>, bytes: usize, wait: Duration) -> Result<Held> {
        if bytes as u64 > self.0.max {
            self.0.refused.add(1);
            return Err(Error::too_large(format!(
                "the response needs {bytes} bytes of memory, and all responses together may use {}: request less at a \
                 time, or raise response_memory_max",
                self.0.max
            )));
        }
        if let Some(held) = self.try_take(peer, bytes) {
            return Ok(held);
        }
        self.wait_in_line(peer, bytes as u64, wait).await
    }

    async fn wait_in_line(&self, peer: Option<IpAddr>, bytes: u64, wait: Duration) -> Result<Held> {
        let Some((place, granted)) = self.stand_in_line(peer, bytes) else {
            return Err(self.refuse());
        };
        self.0.waits.add(1);
        let held = tokio::time::timeout(wait, granted).await;
        drop(place);
        match held {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(_)) | Err(_) => Err(self.refuse()),
        }
    }

    /// Waits for the turn of an address, if others wait or nothing is free now. A caller that is about to take
    /// something that others compete for, such as a message, calls this first, as it holds nothing while it waits.
    pub async fn wait_for_turn(&self, peer: Option<IpAddr>, wait: Duration) -> Result<()> {
        if !self.is_full(peer) {
            return Ok(());
        }
        self.wait_in_line(peer, FREE_BYTES as u64, wait).await.map(drop)
    }

    /// Returns a permit for a response that must be sent now, because its request has been carried out. It may exceed
    /// the budget without limit; then no further permit is granted until it is read.
    pub fn overdraw(&self, peer: Option<IpAddr>, bytes: usize) -> Held {
        let peer = peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
        self.0.add(&mut self.0.state.lock(), peer, bytes as u64);
        Held { budget: self.0.clone(), peer, bytes: bytes as u64 }
    }

    /// Returns a permit for the response to a request that was carried out, where a refusal would repeat the request.
    /// It may exceed the budget and the share of its address by a quarter of the budget; beyond that, returns `None`.
    pub fn try_overdraw(&self, peer: Option<IpAddr>, bytes: usize) -> Option<Held> {
        if let Some(held) = self.try_take(peer, bytes) {
            return Some(held);
        }
        let peer = peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let mut state = self.0.state.lock();
        let overdraft = self.0.max / OVERDRAFT_PART;
        let bytes = bytes as u64;
        let of_peer = state.peers.get(&peer).copied().unwrap_or_default().saturating_add(bytes);
        if state.used.saturating_add(bytes) > self.0.max + overdraft || of_peer > self.0.max / SHARE_PART + overdraft {
            return None;
        }
        self.0.add(&mut state, peer, bytes);
        Some(Held { budget: self.0.clone(), peer, bytes })
    }

    /// Returns the bytes for which an address could get a permit now.
    pub fn room(&self, peer: Option<IpAddr>) -> usize {
        if self.0.used.load(Ordering::Relaxed) == 0 {
            return usize::try_from(self.0.max).unwrap_or(usize::MAX);
        }
        let peer = peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let state = self.0.state.lock();
        let free = self.0.max.saturating_sub(state.used);
        let share = state.peers.get(&peer).map_or(free, |used| (self.0.max / SHARE_PART).saturating_sub(*used));
        usize::try_from(free.min(share)).unwrap_or(usize::MAX)
    }

    /// Returns `true` if an address can get no permit now, or if others of its responses wait for one.
    pub fn is_full(&self, peer: Option<IpAddr>) -> bool {
        if self.0.used.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let peer = peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let state = self.0.state.lock();
        let has_share = state.peers.get(&peer).is_none_or(|used| *used < self.0.max / SHARE_PART);
        !has_share || state.used >= self.0.max || state.queue.iter().any(|first| first.peer == peer)
    }

    /// Returns `true` if the whole budget is in use.
    pub fn is_used_up(&self) -> bool {
        self.0.used.load(Ordering::Relaxed) >= self.0.max
    }

    /// Counts a refusal and returns its error.
    pub fn refuse(&self) -> Error {
        self.0.refused.add(1);
        let used = self.0.state.lock().used;
        let max = self.0.max;
        Error::busy(format!(
            "responses that clients have not read hold {used} of {max} bytes (response_memory_max; one address may \
             use half): read pending responses, request less at a time, or try again later"
        ))
    }

    fn stand_in_line(&self, peer: Option<IpAddr>, bytes: u64) -> Option<(Place, oneshot::Receiver<Held>)> {
        let (told, granted) = oneshot::channel();
        let ticket = {
            let mut state = self.0.state.lock();
            if state.queue.len() >= WAITERS_MAX {
                return None;
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.queue.push_back(Waiting { ticket, peer: peer.unwrap_or(Ipv4Addr::LOCALHOST.into()), bytes, told });
            ticket
        };
        // Room may have become free in the meantime.
        self.0.serve();
        Some((Place { budget: self.0.clone(), ticket }, granted))
    }

    /// Returns the decompressed records of a batch, shared with all its current readers. `held` must have room for them
    /// ([`RecordBatch::expansion_bytes_max`]); it is released with them.
    pub async fn expand(&self, batch: &RecordBatch, held: Held) -> Result<Bytes> {
        let key = (batch.bytes().as_ptr() as usize, batch.len());
        if let Some(found) = self.find_expanded(key) {
            return Ok(found);
        }
        let _turn = self.turn().await;
        if let Some(found) = self.find_expanded(key) {
            return Ok(found);
        }
        let plain = off_thread(|| batch.expand())?;
        let expanded = Arc::new(Expanded { plain, _batch: batch.bytes().clone(), _held: held });
        let mut all = self.0.expanded.lock();
        all.retain(|_, stored| stored.strong_count() > 0);
        all.insert(key, Arc::downgrade(&expanded));
        Ok(Bytes::from_owner(Owner(expanded)))
    }

    /// Runs work on this number of bytes, such as decompression or encoding. Large work waits for its turn, a few
    /// pieces at a time, so that it never takes all threads from small requests. Work that waits holds no thread.
    pub async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= LARGE_BYTES {
            return work();
        }
        let _turn = self.turn().await;
        off_thread(work)
    }

    /// Waits for a turn to read batches from a file, for which there is no permit yet. It is held until they have one,
    /// or are dropped.
    pub async fn read_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.0.reading.acquire().await.ok()
    }

    /// Waits for a turn. It never returns `None`, because the semaphore is never closed.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.0.working.acquire().await.ok()
    }

    fn find_expanded(&self, key: (usize, usize)) -> Option<Bytes> {
        let found = self.0.expanded.lock().get(&key).and_then(Weak::upgrade)?;
        self.0.shared.add(1);
        Some(Bytes::from_owner(Owner(found)))
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let Budget { max, state, waits, refused, shared, .. } = &*self.0;
        let (used, queued) = {
            let state = state.lock();
            (state.used, state.queue.len() as u64)
        };
        out.gauge(
            "thalweg_response_bytes",
            "Bytes of responses that clients have not read, and of data decompressed for them",
            used,
        )?;
        out.gauge("thalweg_response_bytes_max", "Maximum of thalweg_response_bytes: response_memory_max", *max)?;
        out.gauge("thalweg_response_waiting", "Responses that wait for memory", queued)?;
        out.counter("thalweg_response_waits", "Responses that waited for memory", waits.get())?;
        out.counter("thalweg_response_refused", "Responses refused for lack of memory", refused.get())?;
        out.counter("thalweg_response_shared", "Batches already decompressed for another reader", shared.get())
    }
}

struct Owner(Arc<Expanded>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}

/// Runs large work. Other connections of this thread do not wait for it, if the runtime has threads that take them
/// over.
fn off_thread<T>(work: impl FnOnce() -> T) -> T {
    let has_others = Handle::try_current().is_ok_and(|here| here.runtime_flavor() == RuntimeFlavor::MultiThread);
    if has_others { tokio::task::block_in_place(work) } else { work() }
}

impl State {
    /// Returns `true` if the bytes fit into the share of the address, or the address has no other response.
    fn has_share(&self, max: u64, peer: IpAddr, bytes: u64) -> bool {
        self.peers.get(&peer).is_none_or(|used| used.saturating_add(bytes) <= max / SHARE_PART)
    }
}

impl Budget {
    fn add(&self, state: &mut State, peer: IpAddr, bytes: u64) {
        state.used += bytes;
        *state.peers.entry(peer).or_default() += bytes;
        self.used.store(state.used, Ordering::Relaxed);
    }

    fn release(self: &Arc<Self>, peer: IpAddr, bytes: u64) {
        let is_awaited = {
            let mut state = self.state.lock();
            state.used -= bytes;
            if let Some(used) = state.peers.get_mut(&peer) {
                *used -= bytes;
                if *used == 0 {
                    state.peers.remove(&peer);
                }
            }
            self.used.store(state.used, Ordering::Relaxed);
            !state.queue.is_empty()
        };
        if is_awaited {
            self.serve();
        }
    }

    /// Grants permits to waiting responses in order of arrival. An address that has used up its share is passed over.
    fn serve(self: &Arc<Self>) {
        let mut granted = Vec::new();
        {
            let mut state = self.state.lock();
            let mut at = 0;
            let mut passed_over = HashSet::new();
            while let Some(Waiting { peer, bytes, .. }) = state.queue.get(at) {
                let peer = *peer;
                let bytes = *bytes;
                if passed_over.contains(&peer) || !state.has_share(self.max, peer, bytes) {
                    passed_over.insert(peer);
                    at += 1;
                    continue;
                }
                if state.used.saturating_add(bytes) > self.max {
                    break;
                }
                self.add(&mut state, peer, bytes);
                granted.extend(state.queue.remove(at));
            }
        }
        for Waiting { peer, bytes, told, .. } in granted {
            // If the waiter has left, the permit is dropped and so released.
            drop(told.send(Held { budget: self.clone(), peer, bytes }));
        }
    }
}

/// Place of a waiter in the queue; dropping it leaves the queue.
struct Place {
    budget: Arc<Budget>,
    ticket: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = {
            let mut state = self.budget.state.lock();
            let at = state.queue.binary_search_by_key(&self.ticket, |waiting| waiting.ticket).ok();
            at.and_then(|at| state.queue.remove(at))
        };
        if left.is_some() {
            self.budget.serve();
        }
    }
}

impl Held {
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Releases all but `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let over = self.bytes.saturating_sub(bytes as u64);
        if over > 0 {
            self.bytes -= over;
            self.budget.release(self.peer, over);
        }
    }

    /// Adds `more` bytes to the permit if there is room now. Returns `true` if they were added.
    pub fn try_grow(&mut self, more: usize) -> bool {
        let more = more as u64;
        let mut state = self.budget.state.lock();
        let own = state.peers.get(&self.peer).copied().unwrap_or(0);
        // A single response may exceed the share of its address.
        let has_share = own == self.bytes || own.saturating_add(more) <= self.budget.max / SHARE_PART;
        let has_room = has_share && state.used.saturating_add(more) <= self.budget.max;
        if has_room {
            self.budget.add(&mut state, self.peer, more);
            self.bytes += more;
        }
        has_room
    }

    /// Adds `more` bytes to the permit, even if they exceed the budget.
    pub fn overdraw(&mut self, more: usize) {
        self.budget.add(&mut self.budget.state.lock(), self.peer, more as u64);
        self.bytes += more as u64;
    }

    /// Splits off a separate permit for `bytes`, or for all bytes if it has fewer.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = self.bytes.min(bytes as u64);
        self.bytes -= bytes;
        Self { budget: self.budget.clone(), peer: self.peer, bytes }
    }

    /// Attaches the permit to `bytes`; it is released when the last reference to them is dropped.
    pub fn charge(self, bytes: impl Into<Bytes>) -> Bytes {
        Bytes::from_owner(Charged { bytes: bytes.into(), _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.peer, self.bytes);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({} of {})", self.bytes, self.peer)
    }
}

struct Charged {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use engine::{BatchBuilder, Codec, ErrorKind};

    use super::*;

    const A: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    const B: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
    const C: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)));

    fn used(answers: &Answers) -> u64 {
        answers.0.state.lock().used
    }

    #[test]
    fn an_address_has_its_share_or_one_answer() {
        let answers = Answers::new(100);
        let first = answers.try_take(A, 80).expect("its only one");
        assert!(answers.try_take(A, 1).is_none(), "it has more than its share");
        let second = answers.try_take(B, 20).expect("there is room");
        assert!(answers.try_take(B, 1).is_none(), "there is no room");
        drop(first);
        let mut third = answers.try_take(B, 30).expect("half");
        assert!(answers.try_take(B, 1).is_none() && !third.try_grow(1));
        third.shrink(10);
        assert!(third.try_grow(20));
        assert_eq!(used(&answers), 50);
        drop((second, third));
        assert!(answers.0.state.lock().peers.is_empty());
    }

    #[test]
    fn responses_to_completed_requests_exceed_the_budget_by_a_quarter_at_most() {
        let answers = Answers::new(100);
        let first = answers.try_overdraw(A, 50).expect("its share");
        let second = answers.try_overdraw(A, 25).expect("a quarter more");
        assert!(answers.try_overdraw(A, 1).is_none(), "no more than that for one address");
        let third = answers.try_overdraw(B, 50).expect("125 of all");
        assert!(answers.try_overdraw(C, 1).is_none(), "no more than that for all");
        assert_eq!(used(&answers), 125);
        drop((first, second, third));
        assert_eq!(used(&answers), 0);
    }

    #[test]
    fn bytes_hold_their_permit_until_the_last_of_them_is_gone() {
        let answers = Answers::new(100);
        let mut held = answers.try_take(A, 60).expect("room");
        let part = held.split(20);
        let bytes = held.charge(vec![7; 40]);
        let rest = bytes.slice(39..);
        drop((bytes, part));
        assert_eq!(used(&answers), 40);
        drop(rest);
        assert_eq!(used(&answers), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_get_memory_in_turn_and_are_refused_after_their_time() {
        let answers = Answers::new(100);
        let held = answers.try_take(A, 90).expect("room");
        let wait = Duration::from_secs(5);
        let large = tokio::spawn({
            let answers = answers.clone();
            async move { answers.take(B, 40, wait).await }
        });
        tokio::task::yield_now().await;
        assert!(answers.try_take(C, 5).is_none(), "nobody overtakes who waits for room");
        // Waiters of an address that has used up its share do not hold up others.
        let blocked = tokio::spawn({
            let answers = answers.clone();
            async move { answers.take(A, 10, wait).await }
        });
        tokio::task::yield_now().await;
        let refused = answers.take(C, 5, Duration::from_secs(1)).await.expect_err("it is not its turn");
        assert_eq!(refused.kind, ErrorKind::Busy);
        assert!(refused.retry_after_ms > 0, "{refused}");
        drop(held);
        let large = large.await.expect("done").expect("its turn");
        let blocked = blocked.await.expect("done").expect("its turn");
        assert_eq!((used(&answers), large.bytes(), blocked.bytes()), (50, 40, 10));
        drop((large, blocked));
        let beyond = answers.take(A, 101, wait).await.expect_err("more than there is");
        assert_eq!(beyond.kind, ErrorKind::TooLarge);
        assert_eq!((used(&answers), answers.0.state.lock().queue.len()), (0, 0));
        assert_eq!((answers.0.waits.get(), answers.0.refused.get()), (3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn large_work_is_done_in_turn_and_small_work_at_once() {
        let answers = Answers::new(100);
        let turns = [answers.turn().await, answers.turn().await];
        assert_eq!(answers.work(LARGE_BYTES, || 1).await, 1);
        let large = tokio::time::timeout(Duration::from_secs(1), answers.work(LARGE_BYTES + 1, || 2)).await;
        assert!(large.is_err(), "two others have their turn");
        drop(turns);
        assert_eq!(answers.work(LARGE_BYTES + 1, || 2).await, 2);
    }

    #[tokio::test]
    async fn readers_of_a_batch_share_its_decompressed_form() {
        let mut builder = BatchBuilder::new();
        builder.push(1, None, Some(&[1; 100_000]), &[]).expect("it fits");
        let batch = builder.finish_with(Codec::Zstd, None).expect("a record").stamp(0);
        let answers = Answers::new(1 << 20);
        let expand = async || {
            let held = answers.try_take(A, batch.expansion_bytes_max()).expect("room");
            answers.expand(&batch, held).await.expect("it decodes")
        };
        let first = expand().await;
        let second = expand().await;
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert!(first.len() > 100_000);
        let once = used(&answers);
        assert!(once < 150_000, "{once}");
        let count = batch.records_in(second, 0).iter().count();
        assert_eq!((count, used(&answers)), (1, once));
        drop(first);
        assert_eq!(used(&answers), 0);
        expand().await;
        assert_eq!(answers.0.shared.get(), 1);
    }
}
