//! Near cache contents, step by step, and against a broker that remembers the history of each key.

use std::collections::VecDeque;

use engine::cache::ScanCursor;
use proptest::prelude::*;

use super::*;

/// Near cache with a running watch, and the time for it.
struct Fixture {
    kept: Kept,
    now: Now,
}

impl Fixture {
    fn new(bytes_max: u64) -> Self {
        let settings = NearSettings { bytes_max, stale_max: Duration::from_secs(5), ..NearSettings::default() };
        let kept = Kept::new(&settings);
        let now = Now { at: Instant::now(), ms: 1_000_000 };
        let mut fixture = Self { kept, now };
        fixture.told(WatchFrom::Snapshot, Vec::new());
        fixture
    }

    fn told(&mut self, from: WatchFrom, changes: Vec<Change>) {
        let watched = Watched { changes, next: WatchFrom::Changes { position: 1 }, is_reset: false };
        self.kept.told(self.now.at, from, &watched, self.now);
    }

    fn news(&mut self, change: Change) {
        self.told(WatchFrom::Changes { position: 1 }, vec![change]);
    }

    fn look(&mut self, key: &str) -> Look {
        self.kept.look(key.as_bytes(), self.now)
    }

    fn miss(&mut self, key: &str) -> Mark {
        match self.look(key) {
            Look::Miss(mark) => mark,
            other => panic!("{key}: {other:?}"),
        }
    }

    fn answered(&mut self, key: &str, mark: Mark, answer: Option<Value>) {
        self.kept.answered(key.as_bytes(), Some(mark), answer.as_ref(), self.now);
    }

    /// Requests a key and receives an answer.
    fn ask(&mut self, key: &str, answer: Option<Value>) {
        let mark = self.miss(key);
        self.answered(key, mark, answer);
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now = Now { at: self.now.at + Duration::from_millis(ms), ms: self.now.ms + ms };
    }
}

fn value(text: &str, version: u64) -> Option<Value> {
    Some(Value { value: Bytes::copy_from_slice(text.as_bytes()), version, expires_ms: None })
}

fn put(key: &str, text: &str, version: u64) -> Change {
    let kind = ChangeKind::Put(Bytes::copy_from_slice(text.as_bytes()));
    Change { key: Bytes::copy_from_slice(key.as_bytes()), kind, version, expires_ms: None }
}

fn gone(key: &str, kind: ChangeKind, version: u64) -> Change {
    Change { key: Bytes::copy_from_slice(key.as_bytes()), kind, version, expires_ms: None }
}

#[test]
fn requested_entries_are_kept_and_follow_the_watch() {
    let mut near = Fixture::new(1 << 20);
    near.ask("a", value("one", 1));
    near.ask("b", None);
    assert_eq!(near.look("a"), Look::Hit(value("one", 1)));
    assert_eq!(near.look("b"), Look::Hit(None));
    near.news(put("a", "two", 2));
    near.news(put("never asked for", "x", 3));
    assert_eq!(near.look("a"), Look::Hit(value("two", 2)));
    near.miss("never asked for");
    near.news(gone("a", ChangeKind::Deleted, 4));
    assert_eq!(near.look("a"), Look::Hit(None));
    near.news(put("a", "three", 5));
    assert_eq!(near.look("a"), Look::Hit(value("three", 5)));
    // The absence of a key has no version: the reported change may precede it.
    near.news(put("b", "one", 3));
    near.miss("b");
    for kind in [ChangeKind::Expired, ChangeKind::Evicted, ChangeKind::Flushed] {
        near.news(gone("a", kind, 0));
        near.ask("a", value("four", 6));
    }
    assert_eq!(near.kept.stats(near.now.at).entries, 1);
}

#[test]
fn news_older_than_the_kept_entry_change_nothing() {
    let mut near = Fixture::new(1 << 20);
    near.ask("a", value("new", 10));
    near.news(put("a", "old", 9));
    near.news(gone("a", ChangeKind::Deleted, 9));
    near.news(put("a", "the same, with an older time", 10));
    assert_eq!(near.look("a"), Look::Hit(value("new", 10)));
}

#[test]
fn an_answer_that_was_overtaken_is_not_kept_and_revives_nothing() {
    let overtake: [fn(&mut Fixture); 6] = [
        |near| near.news(put("a", "new", 2)),
        |near| near.news(gone("a", ChangeKind::Deleted, 2)),
        |near| near.news(gone("a", ChangeKind::Flushed, 0)),
        |near| near.kept.learn(b"a", 2, News::Gone, near.now),
        |near| near.kept.forget(b"a", near.now),
        |near| near.kept.clear(),
    ];
    for overtake in overtake {
        let mut near = Fixture::new(1 << 20);
        let mark = near.miss("a");
        overtake(&mut near);
        near.answered("a", mark, value("old", 1));
        near.miss("a");
    }
    // Of two concurrent requests, the one that is answered last may have the older answer.
    let mut near = Fixture::new(1 << 20);
    let first = near.miss("a");
    let second = near.miss("a");
    near.answered("a", first, None);
    near.answered("a", second, value("old", 1));
    near.miss("a");
}

#[test]
fn a_value_deleted_before_an_answer_is_not_kept_when_the_watch_reports_it() {
    let mut near = Fixture::new(1 << 20);
    let first = near.miss("a");
    let second = near.miss("a");
    near.answered("a", first, value("one", 1));
    near.news(gone("a", ChangeKind::Deleted, 2));
    // Another client writes version 3 and deletes it in version 4, as this answer says.
    near.answered("a", second, None);
    assert_eq!(near.look("a"), Look::Hit(None));
    near.news(put("a", "two", 3));
    near.miss("a");
}

#[test]
fn own_changes_count_at_once() {
    let mut near = Fixture::new(1 << 20);
    near.ask("a", value("one", 1));
    near.kept.learn(b"a", 3, News::Value { value: b"three", expires_ms: None }, near.now);
    assert_eq!(near.look("a"), Look::Hit(value("three", 3)));
    near.news(put("a", "two", 2));
    assert_eq!(near.look("a"), Look::Hit(value("three", 3)));
    near.kept.learn(b"a", 4, News::Gone, near.now);
    assert_eq!(near.look("a"), Look::Hit(None));
    near.news(put("a", "three", 3));
    assert_eq!(near.look("a"), Look::Hit(None));
    near.news(put("a", "five", 5));
    near.kept.learn(b"a", 6, News::Unseen, near.now);
    near.miss("a");
    // A value is not kept for being put, only for being requested.
    near.kept.learn(b"b", 7, News::Value { value: b"x", expires_ms: None }, near.now);
    near.miss("b");
}

#[test]
fn nothing_is_served_that_the_watch_has_not_vouched_for_lately() {
    let mut near = Fixture::new(1 << 20);
    near.ask("a", value("one", 1));
    near.wait_ms(5000);
    assert_eq!(near.look("a"), Look::Hit(value("one", 1)));
    near.wait_ms(1);
    assert_eq!(near.look("a"), Look::Past);
    let asked_at = near.now.at;
    near.wait_ms(3000);
    // The time of the request matters, not that of the answer.
    let nothing = Watched { changes: Vec::new(), next: WatchFrom::Changes { position: 1 }, is_reset: false };
    near.kept.told(asked_at, WatchFrom::Changes { position: 1 }, &nothing, near.now);
    near.wait_ms(2000);
    assert_eq!(near.look("a"), Look::Hit(value("one", 1)));
    near.wait_ms(1);
    assert_eq!(near.look("a"), Look::Past);
    near.told(WatchFrom::Changes { position: 1 }, Vec::new());
    near.kept.cut();
    assert_eq!(near.look("a"), Look::Past);
    // A full answer may be incomplete; one with room left is complete.
    let many: Vec<_> = (0..CHANGES_MAX).map(|number| put("other", "x", 2 + u64::from(number))).collect();
    near.told(WatchFrom::Changes { position: 1 }, many);
    assert_eq!(near.look("a"), Look::Past);
    near.told(WatchFrom::Changes { position: 1 }, vec![put("other", &"x".repeat(SHORT_BYTES_MAX), 5000)]);
    assert_eq!(near.look("a"), Look::Past);
    near.told(WatchFrom::Changes { position: 1 }, vec![put("other", "x", 5001)]);
    assert_eq!(near.look("a"), Look::Hit(value("one", 1)));
    assert_eq!(near.kept.stats(near.now.at).bypassed, 5);
}

#[test]
fn a_reset_empties_the_cache_and_continues_after_the_scan() {
    let mut near = Fixture::new(1 << 20);
    near.ask("a", value("one", 1));
    let mark = near.miss("b");
    let next = WatchFrom::Scan { cursor: ScanCursor(7), position: 42 };
    let watched = Watched { changes: vec![put("a", "two", 2)], next, is_reset: true };
    let next = near.kept.told(near.now.at, WatchFrom::Changes { position: 1 }, &watched, near.now);
    assert_eq!(next, WatchFrom::Changes { position: 42 });
    near.answered("b", mark, value("before", 1));
    near.miss("a");
    near.miss("b");
    let stats = near.kept.stats(near.now.at);
    assert_eq!((stats.resets, stats.entries, stats.is_live), (1, 0, true));
}

#[test]
fn responses_that_bypassed_the_cache_are_never_reverted() {
    let mut near = Fixture::new(1 << 20);
    for answer in [None, value("three", 3)] {
        near.ask("a", value("one", 1));
        near.kept.cut();
        assert_eq!(near.look("a"), Look::Past);
        near.kept.answered(b"a", None, answer.as_ref(), near.now);
        near.told(WatchFrom::Changes { position: 1 }, Vec::new());
        near.miss("a");
    }
    // An equal version is not newer.
    near.ask("a", value("three", 3));
    near.kept.answered(b"a", None, value("three", 3).as_ref(), near.now);
    assert_eq!(near.look("a"), Look::Hit(value("three", 3)));
}

#[test]
fn an_entry_is_kept_until_its_expiry_and_no_longer() {
    let mut near = Fixture::new(1 << 20);
    let timed = Value { expires_ms: Some(near.now.ms + 100), ..value("one", 1).expect("a value") };
    near.ask("a", Some(timed.clone()));
    near.wait_ms(99);
    assert_eq!(near.look("a"), Look::Hit(Some(timed)));
    near.wait_ms(1);
    near.miss("a");
    near.told(WatchFrom::Changes { position: 1 }, Vec::new());
    assert_eq!(near.kept.stats(near.now.at).entries, 0);
}

#[test]
fn its_bytes_are_bounded_and_frequently_requested_entries_stay() {
    let mut near = Fixture::new(100 << 10);
    let text = "x".repeat(1000);
    let mut hits = 0;
    for version in 1..2000 {
        near.ask(&format!("{version}"), value(&text, version));
        match near.look("hot") {
            Look::Hit(_) => hits += 1,
            Look::Miss(mark) => near.answered("hot", mark, value("hot", version)),
            Look::Past => panic!("the watch goes on"),
        }
        assert!(near.kept.stats(near.now.at).bytes <= 100 << 10);
    }
    let stats = near.kept.stats(near.now.at);
    assert!(stats.entries > 80 && stats.evictions > 1800, "{stats:?}");
    assert!(hits > 1900, "{hits}");
    // An entry that would take most of the bytes is not kept, and its previous value is dropped.
    near.ask("large", value("small", 3000));
    near.news(put("large", &"x".repeat(50 << 10), 3001));
    near.miss("large");
    assert!(near.kept.stats(near.now.at).entries > 80);
}

#[test]
fn keys_beyond_the_prefix_are_left_to_the_broker() {
    let settings = NearSettings { prefix: "user.".into(), ..NearSettings::default() };
    let now = Now { at: Instant::now(), ms: 0 };
    let mut kept = Kept::new(&settings);
    let watched = Watched { changes: Vec::new(), next: WatchFrom::Changes { position: 1 }, is_reset: false };
    kept.told(now.at, WatchFrom::Snapshot, &watched, now);
    assert!(matches!(kept.look(b"user.1", now), Look::Miss(_)));
    assert_eq!(kept.look(b"order.1", now), Look::Past);
    assert_eq!(kept.stats(now.at).bypassed, 0);
}

const KEYS: usize = 3;

/// Event between a near cache and its broker.
#[derive(Clone, Copy, Debug)]
enum Step {
    Put(usize),
    Delete(usize),
    /// The key vanishes by itself, which has no version.
    Vanish(usize),
    Flush,
    /// The program requests a key; answers arrive later, in any order.
    Get(usize),
    /// The broker processes the request.
    Serve(usize),
    /// The broker's answer arrives.
    Answer(usize),
    OwnPut {
        key: usize,
        is_known: bool,
    },
    OwnDelete(usize),
    /// The answer to a change of this client arrives.
    Confirm(usize),
    /// The watch reports this number of changes.
    Tell(usize),
    Cut,
    Reset,
}

fn a_step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let place = 0usize..8;
    prop_oneof![
        4 => key.clone().prop_map(Step::Put),
        3 => key.clone().prop_map(Step::Delete),
        2 => key.clone().prop_map(Step::Vanish),
        1 => Just(Step::Flush),
        12 => key.clone().prop_map(Step::Get),
        9 => place.clone().prop_map(Step::Serve),
        9 => place.clone().prop_map(Step::Answer),
        3 => (key.clone(), any::<bool>()).prop_map(|(key, is_known)| Step::OwnPut { key, is_known }),
        2 => key.prop_map(Step::OwnDelete),
        4 => place.clone().prop_map(Step::Confirm),
        6 => (0usize..5).prop_map(Step::Tell),
        1 => Just(Step::Cut),
        1 => Just(Step::Reset),
    ]
}

/// Request in flight, and the state of its key that the answer contains.
struct Question {
    key: usize,
    mark: Option<Mark>,
    served: Option<usize>,
}

/// Change of this client that is not answered yet.
struct Own {
    key: usize,
    state: usize,
    version: u64,
    news: Option<Bytes>,
    is_known: bool,
}

struct World {
    near: Fixture,
    version: u64,
    /// States that each key has had, the oldest first.
    states: [Vec<Option<Value>>; KEYS],
    /// Changes that are not reported yet, each with the states of the keys after it.
    untold: VecDeque<(Change, [usize; KEYS])>,
    /// State of each key that the watch has reported, and the one that the program has seen or caused.
    told: [usize; KEYS],
    seen: [usize; KEYS],
    questions: Vec<Question>,
    own: Vec<Own>,
}

fn name(key: usize) -> String {
    format!("key {key}")
}

impl World {
    fn new() -> Self {
        Self {
            near: Fixture::new(1 << 20),
            version: 0,
            states: std::array::from_fn(|_| vec![None]),
            untold: VecDeque::new(),
            told: [0; KEYS],
            seen: [0; KEYS],
            questions: Vec::new(),
            own: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put(key) => drop(self.put(key)),
            Step::Delete(key) => self.delete(key),
            Step::Vanish(key) => {
                if self.latest(key).is_some() {
                    self.states[key].push(None);
                    self.write_down(gone(&name(key), ChangeKind::Evicted, 0));
                }
            }
            Step::Flush => {
                self.states.iter_mut().for_each(|states| states.push(None));
                self.write_down(gone("", ChangeKind::Flushed, 0));
            }
            Step::Get(key) => self.get(key),
            Step::Serve(at) => {
                if let Some(at) = at.checked_rem(self.questions.len()) {
                    let newest = self.newest()[self.questions[at].key];
                    self.questions[at].served.get_or_insert(newest);
                }
            }
            Step::Answer(at) => self.answer(at),
            Step::OwnPut { key, is_known } => {
                let value = self.put(key);
                self.begun(key, Some(value), is_known);
            }
            Step::OwnDelete(key) => {
                self.delete(key);
                self.begun(key, None, true);
            }
            Step::Confirm(at) => self.confirm(at),
            Step::Tell(count) => {
                let count = count.min(self.untold.len());
                let changes = self.untold.drain(..count).map(|(change, told)| {
                    self.told = told;
                    change
                });
                let changes = changes.collect();
                self.near.told(WatchFrom::Changes { position: 1 }, changes);
            }
            Step::Cut => self.near.kept.cut(),
            Step::Reset => {
                self.untold.clear();
                self.told = self.newest();
                let next = WatchFrom::Changes { position: 1 };
                let watched = Watched { changes: Vec::new(), next, is_reset: true };
                self.near.kept.told(self.near.now.at, next, &watched, self.near.now);
            }
        }
    }

    fn latest(&self, key: usize) -> Option<Value> {
        self.states[key].last().cloned().flatten()
    }

    fn newest(&self) -> [usize; KEYS] {
        std::array::from_fn(|key| self.states[key].len() - 1)
    }

    fn write_down(&mut self, change: Change) {
        let newest = self.newest();
        self.untold.push_back((change, newest));
    }

    fn put(&mut self, key: usize) -> Bytes {
        self.version += 1;
        let text = format!("{key} in {}", self.version);
        self.states[key].push(value(&text, self.version));
        self.write_down(put(&name(key), &text, self.version));
        text.into()
    }

    fn delete(&mut self, key: usize) {
        self.version += 1;
        if self.latest(key).is_some() {
            self.states[key].push(None);
            self.write_down(gone(&name(key), ChangeKind::Deleted, self.version));
        }
    }

    fn begun(&mut self, key: usize, news: Option<Bytes>, is_known: bool) {
        let state = self.states[key].len() - 1;
        self.own.push(Own { key, state, version: self.version, news, is_known });
    }

    fn confirm(&mut self, at: usize) {
        if self.own.is_empty() {
            return;
        }
        let Own { key, state, version, news, is_known } = self.own.swap_remove(at % self.own.len());
        let news = match &news {
            Some(value) if is_known => News::Value { value, expires_ms: None },
            Some(_) => News::Unseen,
            None => News::Gone,
        };
        self.near.kept.learn(name(key).as_bytes(), version, news, self.near.now);
        self.seen[key] = self.seen[key].max(state);
    }

    fn get(&mut self, key: usize) {
        match self.near.look(&name(key)) {
            Look::Hit(found) => self.see(key, found.as_ref()),
            Look::Miss(mark) => self.questions.push(Question { key, mark: Some(mark), served: None }),
            Look::Past => self.questions.push(Question { key, mark: None, served: None }),
        }
    }

    fn answer(&mut self, at: usize) {
        let Some(at) = at.checked_rem(self.questions.len()) else {
            return;
        };
        let Question { key, mark, served: Some(state) } = self.questions[at] else {
            return;
        };
        self.questions.swap_remove(at);
        let answer = self.states[key][state].as_ref();
        self.near.kept.answered(name(key).as_bytes(), mark, answer, self.near.now);
        self.seen[key] = self.seen[key].max(state);
    }

    /// Records that the program is shown this kept state. From now on, it must not be shown an older one.
    fn see(&mut self, key: usize, found: Option<&Value>) {
        let states = &self.states[key];
        let earliest = self.seen[key].max(self.told[key]);
        let state = (earliest..states.len()).find(|state| states[*state].as_ref() == found);
        self.seen[key] = state.unwrap_or_else(|| panic!("key {key}: {found:?} is older than {earliest} of {states:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// With any mix of watch, answers and own changes, no get returns an older state of a key than was seen or caused
    /// before, and none returns a state that the watch has reported as outdated.
    #[test]
    fn nobody_sees_less_than_before(steps in proptest::collection::vec(a_step(), 1..120)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        let stats = world.near.kept.stats(world.near.now.at);
        prop_assert!(stats.entries <= KEYS as u64);
    }
}
