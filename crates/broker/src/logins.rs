//! Logins: the order in which passwords are checked, the results that are remembered, and the penalty for wrong
//! passwords.
//!
//! Hashing a password takes milliseconds on purpose. Three measures keep a client that guesses passwords from locking
//! others out: a password that was correct recently is recognized without hashing, addresses take turns at the threads
//! that hash, and responses to wrong passwords are delayed more and more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use engine::security::{Credential, UserName};
use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::doors::{Door, Family};
use crate::metrics::{Counter, Exposition};
use crate::recent::Recent;

/// Threads that hash passwords concurrently. Hashing is slow on purpose, and clients that guess must not slow others
/// down.
const HASHING_THREADS: usize = 2;
/// Maximum logins of one address that wait for a thread. A further login displaces the oldest, so that all are answered
/// within half a second.
const WAITING_PER_ADDRESS_MAX: usize = 256;
/// Maximum waiting logins of all addresses. A further login displaces the oldest of the address that has the most.
const WAITING_MAX: usize = 4096;
/// Maximum remembered passwords, correct ones and wrong ones each, stored as keyed hashes.
const REMEMBERED_MAX: usize = 4096;
/// Maximum addresses, and names, whose wrong passwords are counted. A further one replaces another.
const COUNTED_MAX: usize = 16_384;
/// Wrong passwords that are answered without a pause.
const FREE_FAILURES: u32 = 3;
/// Pause before the response to the next wrong password. It doubles with each further one, up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time after which half of the wrong passwords of an address or a name are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Failures of an address that are logged individually; after these, one line per second is logged.
const LOGGED_EACH: u32 = 10;
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Time after which a login of a client that logs in with each request is recorded again.
const RECORD_EVERY: Duration = Duration::from_secs(600);
/// Maximum logged characters of a name.
const NAME_CHARS_MAX: usize = 64;

/// Origin of a login.
#[derive(Clone, Copy, Debug)]
pub struct LoginSource {
    pub door: Door,
    /// Address of the client. A client on this machine may have none.
    pub address: Option<IpAddr>,
}

impl LoginSource {
    /// Returns the address as text, as access control entries have it.
    pub fn host(&self) -> String {
        self.address.map_or_else(|| "127.0.0.1".to_owned(), |address| address.to_canonical().to_string())
    }
}

impl fmt::Display for LoginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{}", address.to_canonical()),
            None => f.write_str("this machine"),
        }
    }
}

/// Hash of an address that takes turns: an IPv4 address, or the first 64 bits of an IPv6 address.
type Lane = u64;

/// Keyed hash of a password that was checked against a credential.
pub(crate) type Mark = [u8; 32];

pub(crate) struct Logins {
    key: hmac::Key,
    hasher: foldhash::fast::RandomState,
    remembered: Mutex<Remembered>,
    turns: Arc<Turns>,
    failures: Mutex<[Counts; 2]>,
    /// Recorded logins of clients that log in with each request. A login that is displaced is recorded again.
    recorded: Recent,
    began: Instant,
    by_door: [Counter; Door::ALL.len()],
    /// Requests of clients that had not logged in, by door.
    missing_by_door: [Counter; Door::ALL.len()],
    /// Time at which such a request was last logged.
    missing_logged: Mutex<Option<Instant>>,
}

/// Marks of correct and of wrong passwords, in the order of their arrival.
#[derive(Default)]
struct Remembered {
    right: Marks,
    wrong: Marks,
}

#[derive(Default)]
struct Marks {
    all: HashSet<Mark, foldhash::fast::RandomState>,
    in_order: VecDeque<Mark>,
}

impl Marks {
    fn add(&mut self, mark: Mark) {
        if self.all.insert(mark) {
            self.in_order.push_back(mark);
        }
        if self.in_order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

/// Wrong passwords, by address or by name.
#[derive(Default)]
struct Counts {
    all: HashMap<u64, Count, foldhash::fast::RandomState>,
    /// Time of the last removal of old counts, which visits all of them.
    swept: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Count {
    failures: u32,
    at: Instant,
    logged: Option<Instant>,
}

impl Counts {
    /// Counts a failure. Returns the number of failures, and `true` if this one is to be logged.
    fn add(&mut self, who: u64, now: Instant) -> (u32, bool) {
        if self.all.len() >= COUNTED_MAX && !self.all.contains_key(&who) {
            if self.swept.is_none_or(|swept| now.duration_since(swept) >= LOG_EVERY) {
                self.swept = Some(now);
                self.all.retain(|_, count| now.duration_since(count.at) < HALF_LIFE);
            }
            if self.all.len() >= COUNTED_MAX
                && let Some(any) = self.all.keys().next().copied()
            {
                self.all.remove(&any);
            }
        }
        let count = self.all.entry(who).or_insert(Count { failures: 0, at: now, logged: None });
        let halves = now.duration_since(count.at).as_secs() / HALF_LIFE.as_secs();
        if halves > 0 {
            count.failures = count.failures.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or_default();
            count.at = now;
        }
        count.failures = count.failures.saturating_add(1);
        let is_logged =
            count.failures <= LOGGED_EACH || count.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_EVERY);
        if is_logged {
            count.logged = Some(now);
        }
        (count.failures, is_logged)
    }
}

/// Returns the pause before the response to a wrong password.
fn pause(failures: u32) -> Duration {
    match failures.checked_sub(FREE_FAILURES + 1) {
        None => Duration::ZERO,
        Some(beyond) => PAUSE_MIN.saturating_mul(1 << beyond.min(16)).min(PAUSE_MAX),
    }
}

impl Logins {
    /// Creates the state of logins. `secret` is random and known to no one.
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
            hasher: foldhash::fast::RandomState::default(),
            remembered: Mutex::default(),
            turns: Arc::default(),
            failures: Mutex::default(),
            recorded: Recent::new(RECORD_EVERY.as_millis() as u64),
            began: Instant::now(),
            by_door: Default::default(),
            missing_by_door: Default::default(),
            missing_logged: Mutex::default(),
        }
    }

    /// Returns the keyed hash of a password: useless without the key, and different for each credential.
    pub(crate) fn mark(&self, user: &UserName, credential: &Credential, password: &str) -> Mark {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user.as_str().as_bytes(), credential.stored_key(), password.as_bytes()] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut mark = Mark::default();
        mark.copy_from_slice(context.sign().as_ref());
        mark
    }

    /// Returns `true` if a password is correct and `false` if it is wrong; `None` if it is not remembered.
    pub(crate) fn is_right(&self, mark: &Mark) -> Option<bool> {
        let remembered = self.remembered.lock();
        if remembered.right.all.contains(mark) {
            return Some(true);
        }
        remembered.wrong.all.contains(mark).then_some(false)
    }

    pub(crate) fn remember(&self, mark: Mark, is_right: bool) {
        let mut remembered = self.remembered.lock();
        let Remembered { right, wrong } = &mut *remembered;
        if is_right { right.add(mark) } else { wrong.add(mark) }
    }

    fn lane(&self, source: LoginSource) -> Lane {
        let address = source.address.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => (4, u64::from(address.to_bits())),
            IpAddr::V6(address) => (6, (address.to_bits() >> 64) as u64),
        });
        self.hasher.hash_one(address)
    }

    /// Waits for a turn at the threads that hash.
    pub(crate) async fn turn(&self, source: LoginSource) -> Result<Turn> {
        self.turns.clone().take(self.lane(source)).await
    }

    /// Counts and logs a refused login. Returns whether it was logged, and the pause before its response.
    pub(crate) fn refuse(&self, source: LoginSource, name: &str, error: &Error) -> (bool, Duration) {
        let door = source.door;
        self.by_door[door as usize].add(1);
        if error.kind == ErrorKind::Busy {
            tracing::debug!(%door, address = %source, %error, "a login was displaced by newer ones");
            return (false, Duration::ZERO);
        }
        let now = Instant::now();
        let lane = self.lane(source);
        let name_hash = self.hash_of(name);
        let (failures, is_logged) = {
            let [by_address, by_name] = &mut *self.failures.lock();
            let (of_address, is_logged) = by_address.add(lane, now);
            (of_address.max(by_name.add(name_hash, now).0), is_logged)
        };
        if is_logged {
            let user: String = name.chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect();
            tracing::info!(%door, address = %source, user, failures, %error, "refused a login");
        }
        (is_logged, pause(failures))
    }

    /// Counts a request that was refused because its client has not logged in. One per second is logged.
    pub(crate) fn miss(&self, source: LoginSource) {
        self.missing_by_door[source.door as usize].add(1);
        let now = Instant::now();
        {
            let mut logged = self.missing_logged.lock();
            if logged.is_some_and(|logged| now.duration_since(logged) < LOG_EVERY) {
                return;
            }
            *logged = Some(now);
        }
        tracing::info!(door = %source.door, address = %source, "refused a request without a login");
    }

    /// Returns `true` if a login is to be recorded: each one of a connection, and of a client that logs in with each
    /// request the first one in a while.
    pub(crate) fn is_news(&self, source: LoginSource, name: &str) -> bool {
        if source.door.family() != Family::Http {
            return true;
        }
        let who = self.hash_of((source.door as u8, source.address, name));
        self.recorded.is_first(who, self.began.elapsed().as_millis() as u64 + 1)
    }

    fn hash_of(&self, name: impl Hash) -> u64 {
        self.hasher.hash_one(name)
    }

    pub(crate) fn expose(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let rows: Vec<_> =
            Door::ALL.iter().map(|door| (door.key().to_owned(), self.by_door[*door as usize].get())).collect();
        out.counters("thalweg_logins_refused", "Logins refused, by door", "door", &rows)?;
        let rows: Vec<_> =
            Door::ALL.iter().map(|door| (door.key().to_owned(), self.missing_by_door[*door as usize].get())).collect();
        let help = "Requests refused because their client has not logged in, by door";
        out.counters("thalweg_logins_missing", help, "door", &rows)?;
        let (waiting, pushed_out) = {
            let state = self.turns.0.lock();
            (state.waiting as u64, state.pushed_out)
        };
        out.gauge("thalweg_logins_waiting", "Logins that wait for the check of their password", waiting)?;
        out.counter(
            "thalweg_logins_pushed_out",
            "Logins refused because newer logins of their address took their place",
            pushed_out,
        )?;
        let [by_address, by_name] = {
            let failures = self.failures.lock();
            failures.each_ref().map(|counts| counts.all.len() as u64)
        };
        let rows = [("address".to_owned(), by_address), ("name".to_owned(), by_name)];
        out.gauges("thalweg_logins_counted", "Addresses and names whose wrong passwords are counted", "by", &rows)?;
        let help = "Clients that log in with each request, whose login the audit has recorded lately";
        out.gauge("thalweg_logins_recorded", help, self.recorded.len() as u64)?;
        let help = "Clients whose recorded login was forgotten early, so that the audit records it again";
        out.counter("thalweg_logins_recorded_displaced", help, self.recorded.displaced())
    }
}

/// Threads that hash, and the logins that wait for them.
#[derive(Default)]
struct Turns(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Passwords that are being hashed.
    running: usize,
    /// Number of waiting logins in all lanes.
    waiting: usize,
    pushed_out: u64,
    /// Waiting logins, by their source. No lane is empty.
    lanes: HashMap<Lane, VecDeque<oneshot::Sender<Turn>>, foldhash::fast::RandomState>,
    /// Order of the lanes, the next one first.
    order: VecDeque<Lane>,
}

/// A turn at a thread that hashes. Dropping it passes the turn on to the next login.
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass_on();
        }
    }
}

impl Turns {
    async fn take(self: Arc<Self>, lane: Lane) -> Result<Turn> {
        let turn = {
            let mut state = self.0.lock();
            if state.running < HASHING_THREADS && state.waiting == 0 {
                state.running += 1;
                return Ok(Turn(Some(self.clone())));
            }
            state.push(lane)
        };
        turn.await.map_err(|_pushed_out| {
            Error::busy(format!(
                "more than {WAITING_PER_ADDRESS_MAX} logins of an address, or {WAITING_MAX} of all, wait for their \
                 passwords to be checked: try again"
            ))
        })
    }

    /// Passes a finished turn on to the next login.
    fn pass_on(self: Arc<Self>) {
        let mut state = self.0.lock();
        while let Some(next) = state.pop() {
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // The client has left; the turn remains with this call.
                Err(mut turn) => drop(turn.0.take()),
            }
        }
        state.running -= 1;
    }
}

impl Waiting {
    fn push(&mut self, lane: Lane) -> oneshot::Receiver<Turn> {
        let (sender, receiver) = oneshot::channel();
        let is_lane_full = self.lanes.get(&lane).is_some_and(|lane| lane.len() >= WAITING_PER_ADDRESS_MAX);
        let longest = || self.lanes.iter().max_by_key(|(_, lane)| lane.len()).map(|(lane, _)| *lane);
        let full = if is_lane_full {
            Some(lane)
        } else if self.waiting >= WAITING_MAX {
            longest()
        } else {
            None
        };
        if let Some(full) = full {
            self.pushed_out += 1;
            drop(self.pop_of(full));
        }
        let waiting = self.lanes.entry(lane).or_default();
        if waiting.is_empty() {
            self.order.push_back(lane);
        }
        waiting.push_back(sender);
        self.waiting += 1;
        receiver
    }

    /// Removes and returns the next login of the lane whose turn it is.
    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        let lane = self.order.pop_front()?;
        let next = self.pop_of(lane);
        if self.lanes.contains_key(&lane) {
            self.order.push_back(lane);
        }
        next
    }

    fn pop_of(&mut self, lane: Lane) -> Option<oneshot::Sender<Turn>> {
        let waiting = self.lanes.get_mut(&lane)?;
        let oldest = waiting.pop_front()?;
        self.waiting -= 1;
        if waiting.is_empty() {
            self.lanes.remove(&lane);
            self.order.retain(|other| *other != lane);
        }
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> LoginSource {
        LoginSource { door: Door::Redis, address: Some(address.parse().expect("an address")) }
    }

    #[test]
    fn pauses_double_up_to_a_maximum_and_are_forgotten() {
        let pauses: Vec<u128> = (1..=10).map(|failures| pause(failures).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
        let mut counts = Counts::default();
        let begin = Instant::now();
        let failures: Vec<u32> = (0..8).map(|_| counts.add(1, begin).0).collect();
        assert_eq!(failures, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(counts.add(1, begin + 2 * HALF_LIFE).0, 3);
        assert_eq!(counts.add(1, begin + 1000 * HALF_LIFE).0, 1);
    }

    #[test]
    fn failures_are_logged_one_by_one_and_then_once_a_second() {
        let mut counts = Counts::default();
        let begin = Instant::now();
        assert_eq!((0..50).filter(|_| counts.add(1, begin).1).count(), LOGGED_EACH as usize);
        assert!(counts.add(1, begin + LOG_EVERY).1 && !counts.add(1, begin + LOG_EVERY).1);
        assert!(counts.add(2, begin).1, "another address");
    }

    #[test]
    fn a_table_that_is_full_takes_another_address() {
        let mut counts = Counts::default();
        let begin = Instant::now();
        for who in 0..2 * COUNTED_MAX as u64 {
            counts.add(who, begin);
        }
        assert_eq!(counts.all.len(), COUNTED_MAX);
        counts.add(u64::MAX, begin + HALF_LIFE);
        assert_eq!(counts.all.len(), 1, "those of long ago go first");
    }

    #[test]
    fn passwords_are_remembered_up_to_a_maximum() {
        let logins = Logins::new(&[1; 32]);
        let mark = |number: u64| {
            let mut mark = Mark::default();
            mark[..8].copy_from_slice(&number.to_be_bytes());
            mark
        };
        logins.remember(mark(0), true);
        (1..=REMEMBERED_MAX as u64 + 1).for_each(|number| logins.remember(mark(number), false));
        assert_eq!(logins.is_right(&mark(0)), Some(true), "wrong ones do not push out right ones");
        assert_eq!((logins.is_right(&mark(1)), logins.is_right(&mark(2))), (None, Some(false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_logs_in_with_each_request_is_news_once_in_a_while() {
        let logins = Logins::new(&[1; 32]);
        let of = |door| LoginSource { door, ..source("192.0.2.1") };
        assert!(logins.is_news(of(Door::Http), "ann") && !logins.is_news(of(Door::Http), "ann"));
        assert!(logins.is_news(of(Door::Sqs), "ann") && logins.is_news(of(Door::Http), "bob"));
        assert!(logins.is_news(of(Door::Redis), "ann") && logins.is_news(of(Door::Redis), "ann"), "each connection");
        tokio::time::advance(RECORD_EVERY).await;
        assert!(logins.is_news(of(Door::Http), "ann") && !logins.is_news(of(Door::Http), "ann"));
        assert_eq!((logins.recorded.len(), logins.recorded.displaced()), (3, 0));
    }

    #[tokio::test]
    async fn addresses_take_turns_and_the_oldest_of_one_are_pushed_out() {
        let logins = Arc::new(Logins::new(&[1; 32]));
        let busy = source("192.0.2.1");
        let other = source("192.0.2.2");
        let mut running = vec![logins.turn(busy).await.expect("a turn"), logins.turn(busy).await.expect("a turn")];
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        let wait = |source: LoginSource, number: usize| {
            let logins = logins.clone();
            let done = done.clone();
            tokio::spawn(async move {
                let turn = logins.turn(source).await;
                let outcome = turn.as_ref().map(|_| number).map_err(|error| error.kind);
                done.send(outcome).expect("the test listens");
            })
        };
        let more = 3;
        let mut tasks = Vec::new();
        for number in 0..WAITING_PER_ADDRESS_MAX + more {
            tasks.push(wait(busy, number));
            tokio::task::yield_now().await;
        }
        tasks.push(wait(other, 9999));
        tokio::task::yield_now().await;
        for _ in 0..more {
            assert_eq!(order.recv().await, Some(Err(ErrorKind::Busy)));
        }
        running.clear();
        for task in tasks {
            task.await.expect("no panic");
        }
        let mut served = Vec::new();
        while let Ok(Ok(number)) = order.try_recv() {
            served.push(number);
        }
        assert_eq!(served.len(), WAITING_PER_ADDRESS_MAX + 1);
        let place = served.iter().position(|number| *number == 9999).expect("it was served");
        assert!(place <= 2, "the other address waited for {place}");
        let state = logins.turns.0.lock();
        assert_eq!((state.running, state.waiting, state.lanes.len(), state.order.len()), (0, 0, 0, 0));
    }
}
