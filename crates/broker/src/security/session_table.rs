//! Sessions of browsers by the hash of their secret, which only the browser has.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use engine::Result;
use engine::limits::{WEB_SESSIONS_MAX, WEB_SESSIONS_PER_USER_MAX};
use engine::security::{RoleName, TenantName, UserName};
use parking_lot::Mutex;

use super::identity::Proof;
use super::random::random;
use super::session::{Session, SessionUse};
use crate::clock::Clock;
use crate::metrics::{Counter, Exposition};

/// Number of random bytes in a secret, which is written with two digits for each.
const SECRET_BYTES: usize = 32;

/// SHA-256 hash of a secret. A secret has 256 random bits, so a hash that takes long would not make it safer.
pub(super) type SessionHash = [u8; 32];

/// Secret that stands for a session, as the cookie of its browser. `Debug` does not print it.
pub struct SessionSecret(String);

impl SessionSecret {
    pub(super) fn generate() -> Result<Self> {
        Ok(Self(random(SECRET_BYTES)?.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret")
    }
}

/// Returns the hash of a secret; `None` if a text is none.
pub(super) fn hash_of(text: &str) -> Option<SessionHash> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * SECRET_BYTES || !text.bytes().all(is_digit) {
        return None;
    }
    let mut hash = SessionHash::default();
    hash.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    Some(hash)
}

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The user has logged out.
    Logout,
    /// The browser has logged in again.
    Replaced,
    /// Nothing has used it for too long.
    Idle,
    /// It has reached its maximum age.
    Expired,
    /// Another session needed its place.
    Displaced,
    /// The credential of its login is no longer valid.
    Revoked,
}

impl SessionEnd {
    const ALL: [Self; 6] = [Self::Logout, Self::Replaced, Self::Idle, Self::Expired, Self::Displaced, Self::Revoked];

    fn name(self) -> &'static str {
        match self {
            Self::Logout => "logout",
            Self::Replaced => "replaced",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Displaced => "displaced",
            Self::Revoked => "revoked",
        }
    }
}

/// Login that a session continues.
#[derive(Clone)]
pub(super) struct SessionLogin {
    pub user: UserName,
    pub roles: Box<[RoleName]>,
    pub tenant: Option<TenantName>,
    pub proof: Proof,
}

struct Entry {
    login: SessionLogin,
    session: Arc<Session>,
}

type Entries = HashMap<SessionHash, Entry, foldhash::fast::RandomState>;

/// All sessions of a broker: at most [`WEB_SESSIONS_MAX`], of a user at most [`WEB_SESSIONS_PER_USER_MAX`]. A further
/// one displaces the one that was used longest ago.
#[derive(Default)]
pub(super) struct Sessions {
    all: Mutex<Entries>,
    opened: Counter,
    ended: [Counter; SessionEnd::ALL.len()],
}

impl Sessions {
    /// Opens a session. Returns it, and whether one that is in use was displaced.
    pub(super) fn open(&self, hash: SessionHash, login: SessionLogin, now_ms: u64) -> (Arc<Session>, bool) {
        let all = &mut *self.all.lock();
        self.sweep(all, now_ms);
        let mut has_cut = false;
        let of_user = |entry: &Entry| entry.login.user == login.user;
        if all.values().filter(|entry| of_user(entry)).count() >= WEB_SESSIONS_PER_USER_MAX {
            has_cut |= self.displace(all, of_user);
        }
        if all.len() >= WEB_SESSIONS_MAX {
            has_cut |= self.displace(all, |_| true);
        }
        let session = Arc::new(Session::new(now_ms));
        all.insert(hash, Entry { login, session: session.clone() });
        self.opened.add(1);
        (session, has_cut)
    }

    /// Begins to use a session, and returns its login.
    pub(super) fn begin(&self, hash: &SessionHash, clock: Clock) -> Option<(SessionLogin, SessionUse)> {
        let all = &mut *self.all.lock();
        let now_ms = clock.now_ms();
        if let Some(end) = end_of(&all.get(hash)?.session, now_ms) {
            self.remove(all, hash, end);
            return None;
        }
        let entry = all.get(hash)?;
        Some((entry.login.clone(), SessionUse::begin(entry.session.clone(), clock)))
    }

    /// Ends a session. Returns its user, and whether it is in use.
    pub(super) fn end(&self, hash: &SessionHash, end: SessionEnd) -> Option<(UserName, bool)> {
        let entry = self.remove(&mut self.all.lock(), hash, end)?;
        Some((entry.login.user, entry.session.is_in_use()))
    }

    fn remove(&self, all: &mut Entries, hash: &SessionHash, end: SessionEnd) -> Option<Entry> {
        let entry = all.remove(hash)?;
        entry.session.end();
        self.ended[end as usize].add(1);
        Some(entry)
    }

    /// Ends the one of these sessions that was used longest ago; one in use only if all are. Returns `true` if it is in
    /// use.
    fn displace(&self, all: &mut Entries, is_meant: impl Fn(&Entry) -> bool) -> bool {
        let last_use = |entry: &Entry| (entry.session.is_in_use(), entry.session.used_ms());
        let meant = all.iter().filter(|(_, entry)| is_meant(entry));
        let oldest = meant.min_by_key(|(_, entry)| last_use(entry)).map(|(hash, _)| *hash);
        let removed = oldest.and_then(|hash| self.remove(all, &hash, SessionEnd::Displaced));
        removed.is_some_and(|entry| entry.session.is_in_use())
    }

    /// Removes sessions that are over.
    fn sweep(&self, all: &mut Entries, now_ms: u64) {
        all.retain(|_, entry| match end_of(&entry.session, now_ms) {
            Some(end) => {
                entry.session.end();
                self.ended[end as usize].add(1);
                false
            }
            None => true,
        });
    }

    pub(super) fn expose(&self, now_ms: u64, out: &mut Exposition<'_>) -> fmt::Result {
        let open = {
            let all = &mut *self.all.lock();
            self.sweep(all, now_ms);
            all.len() as u64
        };
        out.gauge("thalweg_web_sessions", "Sessions of browsers that have logged in to the console", open)?;
        out.counter("thalweg_web_sessions_opened", "Logins to the console", self.opened.get())?;
        let rows: Vec<_> =
            SessionEnd::ALL.iter().map(|end| (end.name().to_owned(), self.ended[*end as usize].get())).collect();
        out.counters("thalweg_web_sessions_ended", "Sessions of browsers that have ended", "reason", &rows)
    }
}

/// Returns why a session is over.
fn end_of(session: &Session, now_ms: u64) -> Option<SessionEnd> {
    if !session.is_valid(now_ms) {
        return Some(SessionEnd::Expired);
    }
    session.is_idle(now_ms).then_some(SessionEnd::Idle)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use engine::limits::{WEB_SESSION_IDLE_MS, WEB_SESSION_MS_MAX};

    use super::*;

    thread_local! {
        static NOW_MS: Cell<u64> = const { Cell::new(BEGIN_MS) };
    }

    const BEGIN_MS: u64 = 1_800_000_000_000;
    const CLOCK: Clock = Clock::reading(|| NOW_MS.get());

    fn login(user: &str) -> SessionLogin {
        let user = UserName::parse(user).expect("a name");
        SessionLogin { user, roles: Box::default(), tenant: None, proof: Proof::Lasting }
    }

    fn hash(n: usize) -> SessionHash {
        hash_of(&format!("{n:064x}")).expect("a secret")
    }

    fn advance(ms: u64) {
        NOW_MS.set(NOW_MS.get() + ms);
    }

    fn ended(sessions: &Sessions) -> Vec<(&'static str, u64)> {
        let all = SessionEnd::ALL.iter().map(|end| (end.name(), sessions.ended[*end as usize].get()));
        all.filter(|(_, n)| *n > 0).collect()
    }

    #[test]
    fn a_secret_has_64_digits_and_is_kept_as_a_hash() {
        let secret = SessionSecret::generate().expect("random bytes");
        assert_eq!(secret.reveal().len(), 64);
        assert!(hash_of(secret.reveal()).is_some() && !format!("{secret:?}").contains(secret.reveal()));
        assert_ne!(secret.reveal(), SessionSecret::generate().expect("random bytes").reveal());
        for wrong in ["", "0", &"0".repeat(63), &"0".repeat(65), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(hash_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_session_ends_after_30_minutes_without_a_use_and_a_stream_is_a_use() {
        let sessions = Sessions::default();
        sessions.open(hash(1), login("ann"), CLOCK.now_ms());
        advance(WEB_SESSION_IDLE_MS - 1);
        let stream = sessions.begin(&hash(1), CLOCK).expect("it was used just in time").1;
        advance(2 * WEB_SESSION_IDLE_MS);
        drop(sessions.begin(&hash(1), CLOCK).expect("the stream uses it"));
        advance(2 * WEB_SESSION_IDLE_MS);
        drop(stream);
        advance(WEB_SESSION_IDLE_MS - 1);
        drop(sessions.begin(&hash(1), CLOCK).expect("the end of the stream was a use"));
        advance(WEB_SESSION_IDLE_MS);
        assert!(sessions.begin(&hash(1), CLOCK).is_none());
        assert_eq!(ended(&sessions), [("idle", 1)]);
    }

    #[test]
    fn a_session_ends_after_12_hours_even_if_it_is_in_use() {
        let sessions = Sessions::default();
        sessions.open(hash(1), login("ann"), CLOCK.now_ms());
        let stream = sessions.begin(&hash(1), CLOCK).expect("it is valid").1;
        advance(WEB_SESSION_MS_MAX - 60_000);
        assert!(stream.session().is_valid(CLOCK.now_ms()));
        advance(60_000);
        assert!(!stream.session().is_valid(CLOCK.now_ms()));
        assert!(sessions.begin(&hash(1), CLOCK).is_none());
        assert_eq!(ended(&sessions), [("expired", 1)]);
    }

    #[test]
    fn a_further_session_of_a_user_displaces_the_one_that_was_used_longest_ago() {
        let sessions = Sessions::default();
        sessions.open(hash(0), login("bob"), CLOCK.now_ms());
        for n in 1..=WEB_SESSIONS_PER_USER_MAX {
            advance(1);
            let (_, has_cut) = sessions.open(hash(n), login("ann"), CLOCK.now_ms());
            assert!(!has_cut && ended(&sessions).is_empty());
        }
        let stream = sessions.begin(&hash(1), CLOCK).expect("it is valid").1;
        advance(1);
        drop(sessions.begin(&hash(2), CLOCK).expect("it is valid"));
        assert!(!sessions.open(hash(100), login("ann"), CLOCK.now_ms()).1);
        assert!(sessions.begin(&hash(3), CLOCK).is_none(), "it was used longest ago");
        assert!(sessions.begin(&hash(0), CLOCK).is_some() && sessions.begin(&hash(2), CLOCK).is_some());
        assert!(stream.session().is_valid(CLOCK.now_ms()));
        assert_eq!(ended(&sessions), [("displaced", 1)]);

        let streams: Vec<_> = (2..=100).filter_map(|n| sessions.begin(&hash(n), CLOCK)).collect();
        assert_eq!(streams.len(), WEB_SESSIONS_PER_USER_MAX - 1);
        assert!(sessions.open(hash(101), login("ann"), CLOCK.now_ms()).1, "each one is in use");
        assert_eq!(sessions.all.lock().len(), WEB_SESSIONS_PER_USER_MAX + 1);
    }

    #[test]
    fn sessions_of_all_users_have_a_bound_and_those_that_are_over_take_no_place() {
        let sessions = Sessions::default();
        let user = |n: usize| login(&format!("user-{}", n / WEB_SESSIONS_PER_USER_MAX));
        for n in 0..WEB_SESSIONS_MAX {
            sessions.open(hash(n), user(n), CLOCK.now_ms());
        }
        advance(1);
        sessions.open(hash(WEB_SESSIONS_MAX), login("ann"), CLOCK.now_ms());
        assert_eq!((sessions.all.lock().len(), ended(&sessions)), (WEB_SESSIONS_MAX, vec![("displaced", 1)]));
        advance(WEB_SESSION_IDLE_MS);
        sessions.open(hash(WEB_SESSIONS_MAX + 1), login("ann"), CLOCK.now_ms());
        assert_eq!(sessions.all.lock().len(), 1);
        assert_eq!(ended(&sessions), [("idle", WEB_SESSIONS_MAX as u64), ("displaced", 1)]);
    }

    #[test]
    fn an_ended_session_is_invalid_for_its_streams() {
        let sessions = Sessions::default();
        sessions.open(hash(1), login("ann"), CLOCK.now_ms());
        let stream = sessions.begin(&hash(1), CLOCK).expect("it is valid").1;
        let (user, is_in_use) = sessions.end(&hash(1), SessionEnd::Logout).expect("it was open");
        assert!(user.as_str() == "ann" && is_in_use && !stream.session().is_valid(CLOCK.now_ms()));
        assert!(sessions.end(&hash(1), SessionEnd::Logout).is_none());
        assert!(sessions.begin(&hash(1), CLOCK).is_none());
    }
}
