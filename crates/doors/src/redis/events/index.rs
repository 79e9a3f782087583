//! Subscriptions of one tenant that may receive events. Those of a channel are found with bounded work, because the
//! thread that changes the key of the channel does it under the lock of the key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engine::glob::{Glob, GlobSet, literal_start};
use engine::prefixes::PrefixMap;
use parking_lot::Mutex;

use crate::redis::channels::Selector;

/// Maximum number of tokens of all patterns with at most one star, which are compared token by token.
pub(super) const TOKENS_MAX: usize = 1 << 19;
/// Number of tokens that each of these patterns counts in addition to its own.
const PATTERN_TOKENS: usize = 64;
/// Maximum number of sets of patterns with several stars. Each set reads a channel once. With the tokens, the worst
/// patterns take about 2 ms for a key of 64 KiB.
pub(super) const SETS_MAX: usize = 12;
/// Number of sets that a pattern counts which has too many states for a set.
const LONG_SETS: usize = 4;

/// Subscriptions to one channel or pattern, by their numbers.
pub(super) type Subscriptions<S> = Arc<BTreeMap<u64, Arc<S>>>;

/// Index of subscriptions.
///
/// - A channel, and a pattern that is a text with a star at its end, are found by lookups.
/// - Other patterns with at most one star are found by the text before their first special character, and compared.
/// - Patterns with several stars are compared in sets, in one pass over the channel for each set.
pub(super) struct Index<S> {
    channels: HashMap<Box<[u8]>, Subscriptions<S>>,
    /// All patterns, each once.
    patterns: HashMap<Box<[u8]>, Arc<Pattern<S>>>,
    /// Patterns with at most one star, by their literal starts.
    by_start: PrefixMap<BTreeMap<u64, Arc<Pattern<S>>>>,
    sets: Vec<Arc<Set<S>>>,
    /// Number of tokens of the compared patterns in `by_start`.
    tokens: usize,
    /// `true` while events are published: only then patterns are in `by_start` and `sets`, which are bounded.
    is_open: bool,
    /// Number of the next subscription.
    next: u64,
    /// Number of subscriptions.
    count: usize,
}

/// A pattern, and its subscriptions.
pub(super) struct Pattern<S> {
    number: u64,
    pub(super) glob: Arc<Glob>,
    subscriptions: Mutex<Subscriptions<S>>,
}

/// Patterns with several stars.
struct Set<S> {
    patterns: Vec<Arc<Pattern<S>>>,
    /// The patterns as a set; `None` for a single one that has too many states.
    globs: Option<GlobSet>,
}

/// Subscriptions that are found for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// Subscriptions that are found by lookups.
    LookedUp,
    /// Subscriptions whose patterns are compared with the channel.
    Compared,
}

/// Refusal of a pattern: with it, finding the subscriptions of a channel would take too much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuchWork;

/// Subscriptions that may be those of a channel, and are to be compared with it.
pub(super) struct Candidates<S> {
    of_channel: Option<Subscriptions<S>>,
    patterns: Vec<Arc<Pattern<S>>>,
    sets: Vec<Arc<Set<S>>>,
    /// Number of patterns that were looked up, and of lookups of the channel.
    steps: usize,
}

/// Subscriptions of a channel.
pub(super) struct Found<S> {
    pub(super) of_channel: Option<Subscriptions<S>>,
    pub(super) patterns: Vec<Arc<Pattern<S>>>,
    /// Number of lookups, looked up patterns, compared tokens, and bytes that sets have read.
    pub(super) steps: usize,
}

impl<S> Index<S> {
    /// Creates an index whose first subscription has this number.
    pub(super) fn new(next: u64) -> Self {
        Self {
            channels: HashMap::new(),
            patterns: HashMap::new(),
            by_start: PrefixMap::default(),
            sets: Vec::new(),
            tokens: 0,
            is_open: false,
            next,
            count: 0,
        }
    }

    /// Adds a subscription, and returns its number.
    pub(super) fn add(&mut self, selector: &Selector, subscription: Arc<S>) -> Result<u64, TooMuchWork> {
        let number = self.next;
        match selector {
            Selector::Channel(name) => {
                let subscriptions = self.channels.entry(name[..].into()).or_default();
                Arc::make_mut(subscriptions).insert(number, subscription);
            }
            Selector::Pattern(glob) => {
                let pattern = match self.patterns.get(glob.pattern()) {
                    Some(pattern) => pattern.clone(),
                    None => self.add_pattern(number, glob)?,
                };
                Arc::make_mut(&mut pattern.subscriptions.lock()).insert(number, subscription);
            }
        }
        self.next += 1;
        self.count += 1;
        Ok(number)
    }

    fn add_pattern(&mut self, number: u64, glob: &Arc<Glob>) -> Result<Arc<Pattern<S>>, TooMuchWork> {
        let pattern = Arc::new(Pattern { number, glob: glob.clone(), subscriptions: Mutex::default() });
        if self.is_open {
            self.place(&pattern)?;
        }
        self.patterns.insert(glob.pattern().into(), pattern.clone());
        Ok(pattern)
    }

    /// Removes a subscription.
    pub(super) fn remove(&mut self, selector: &Selector, number: u64) {
        let is_removed = match selector {
            Selector::Channel(name) => {
                let Some(subscriptions) = self.channels.get_mut(&name[..]) else {
                    return;
                };
                let is_removed = Arc::make_mut(subscriptions).remove(&number).is_some();
                if subscriptions.is_empty() {
                    self.channels.remove(&name[..]);
                }
                is_removed
            }
            Selector::Pattern(glob) => {
                let Some(pattern) = self.patterns.get(glob.pattern()).cloned() else {
                    return;
                };
                let mut subscriptions = pattern.subscriptions.lock();
                let is_removed = Arc::make_mut(&mut subscriptions).remove(&number).is_some();
                if subscriptions.is_empty() {
                    self.patterns.remove(glob.pattern());
                    self.displace(&pattern);
                }
                is_removed
            }
        };
        self.count -= usize::from(is_removed);
    }

    /// Prepares the patterns for events, which are published from now on.
    pub(super) fn open(&mut self) -> Result<(), TooMuchWork> {
        if self.is_open {
            return Ok(());
        }
        let mut patterns: Vec<_> = self.patterns.values().cloned().collect();
        // In the order in which they were added, so that those that had room once have it again.
        patterns.sort_unstable_by_key(|pattern| pattern.number);
        for pattern in patterns {
            if let Err(refused) = self.place(&pattern) {
                self.close();
                return Err(refused);
            }
        }
        self.is_open = true;
        Ok(())
    }

    /// Forgets how patterns are compared, as no events are published any more.
    pub(super) fn close(&mut self) {
        self.by_start = PrefixMap::default();
        self.sets = Vec::new();
        self.tokens = 0;
        self.is_open = false;
    }

    fn place(&mut self, pattern: &Arc<Pattern<S>>) -> Result<(), TooMuchWork> {
        if pattern.glob.stars() < 2 {
            let tokens = self.tokens + pattern.tokens();
            if tokens > TOKENS_MAX {
                return Err(TooMuchWork);
            }
            self.tokens = tokens;
            self.by_start.entry(pattern.start()).insert(pattern.number, pattern.clone());
            return Ok(());
        }
        let with_room = self.sets.iter_mut().find_map(|set| Some((set.with(pattern)?, set)));
        if let Some((with_pattern, set)) = with_room {
            *set = Arc::new(with_pattern);
            return Ok(());
        }
        let set = Set::new(vec![pattern.clone()]);
        if self.sets() + set.cost() > SETS_MAX {
            return Err(TooMuchWork);
        }
        self.sets.push(Arc::new(set));
        Ok(())
    }

    fn displace(&mut self, pattern: &Arc<Pattern<S>>) {
        if !self.is_open {
            return;
        }
        if pattern.glob.stars() < 2 {
            self.tokens -= pattern.tokens();
            self.by_start.change(pattern.start(), |patterns| {
                patterns.remove(&pattern.number);
                patterns.is_empty()
            });
            return;
        }
        let is_this = |other: &Arc<Pattern<S>>| other.number == pattern.number;
        if let Some(at) = self.sets.iter().position(|set| set.patterns.iter().any(is_this)) {
            let rest: Vec<_> = self.sets[at].patterns.iter().filter(|it| !is_this(it)).cloned().collect();
            if rest.is_empty() {
                self.sets.swap_remove(at);
            } else {
                self.sets[at] = Arc::new(Set::new(rest));
            }
        }
    }

    /// Returns the subscriptions of this part that may be those of a channel. The caller compares them without the lock
    /// of the index.
    pub(super) fn candidates(&self, channel: &[u8], part: Part) -> Candidates<S> {
        let is_wanted = |pattern: &&Arc<Pattern<S>>| match part {
            Part::All => true,
            Part::LookedUp => pattern.glob.is_prefix(),
            Part::Compared => !pattern.glob.is_prefix(),
        };
        let patterns: Vec<_> =
            self.by_start.of(channel).flat_map(BTreeMap::values).filter(is_wanted).cloned().collect();
        Candidates {
            of_channel: self.channels.get(channel).filter(|_| part != Part::Compared).cloned(),
            steps: 1 + patterns.len(),
            patterns,
            sets: if part == Part::LookedUp { Vec::new() } else { self.sets.clone() },
        }
    }

    /// Returns the maximum number of steps that comparing a channel of this length takes; 0 if no pattern is compared.
    pub(super) fn steps_max(&self, channel_bytes: usize) -> usize {
        self.sets() * channel_bytes + self.tokens
    }

    /// Returns the subscriptions whose patterns are compared with channels.
    pub(super) fn compared(&self) -> Vec<Arc<S>> {
        let patterns = self.patterns.values().filter(|pattern| !pattern.glob.is_prefix());
        patterns.flat_map(|pattern| pattern.subscriptions().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Returns the number of the next subscription.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of subscriptions.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of tokens of the patterns with one star that are compared.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of sets of patterns with several stars.
    pub(super) fn sets(&self) -> usize {
        self.sets.iter().map(|set| set.cost()).sum()
    }
}

impl<S> Pattern<S> {
    fn start(&self) -> &[u8] {
        literal_start(self.glob.pattern())
    }

    /// Returns the number of tokens that are compared with a channel, if the pattern has at most one star.
    fn tokens(&self) -> usize {
        if self.glob.is_prefix() { 0 } else { PATTERN_TOKENS + self.glob.tokens() }
    }

    pub(super) fn subscriptions(&self) -> Subscriptions<S> {
        self.subscriptions.lock().clone()
    }
}

impl<S> Set<S> {
    fn new(patterns: Vec<Arc<Pattern<S>>>) -> Self {
        let globs = GlobSet::new(patterns.iter().map(|pattern| &*pattern.glob));
        Self { patterns, globs }
    }

    /// Returns the set with another pattern, if it has room for it.
    fn with(&self, pattern: &Arc<Pattern<S>>) -> Option<Self> {
        let states: usize = self.patterns.iter().map(|it| it.glob.states()).sum();
        if states + pattern.glob.states() > GlobSet::STATES_MAX {
            return None;
        }
        Some(Self::new(self.patterns.iter().chain([pattern]).cloned().collect()))
    }

    fn cost(&self) -> usize {
        if self.globs.is_some() { 1 } else { LONG_SETS }
    }

    /// Adds the patterns that match a channel. Returns the number of bytes read.
    fn find(&self, channel: &[u8], found: &mut Vec<Arc<Pattern<S>>>) -> usize {
        match &self.globs {
            Some(globs) => globs.find(channel, |number| found.push(self.patterns[number].clone())),
            None => {
                found.extend(self.patterns.iter().filter(|pattern| pattern.glob.matches(channel)).cloned());
                LONG_SETS * channel.len()
            }
        }
    }
}

impl<S> Candidates<S> {
    /// Returns those that are subscriptions of the channel.
    pub(super) fn compare(self, channel: &[u8]) -> Found<S> {
        let Self { of_channel, mut patterns, sets, mut steps } = self;
        patterns.retain(|pattern| {
            steps += pattern.tokens();
            pattern.glob.is_prefix() || pattern.glob.matches(channel)
        });
        for set in sets {
            steps += set.find(channel, &mut patterns);
        }
        Found { of_channel, patterns, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Selector {
        Selector::Pattern(Arc::new(Glob::new(text.as_bytes())))
    }

    /// Returns the index of these patterns while events are published, and how many of them it has accepted.
    fn index(patterns: impl IntoIterator<Item = String>) -> (Index<String>, usize) {
        let mut index = Index::new(0);
        index.open().expect("no patterns");
        let accepted =
            patterns.into_iter().take_while(|text| index.add(&pattern(text), Arc::new(text.clone())).is_ok());
        let count = accepted.count();
        (index, count)
    }

    /// Returns the subscriptions of a channel, and the steps of finding them.
    fn find(index: &Index<String>, channel: &str) -> (Vec<String>, usize) {
        let found = index.candidates(channel.as_bytes(), Part::All).compare(channel.as_bytes());
        let of_patterns = found.patterns.iter().map(|pattern| pattern.subscriptions());
        let all =
            found.of_channel.into_iter().chain(of_patterns).flat_map(|it| it.values().cloned().collect::<Vec<_>>());
        let mut all: Vec<String> = all.map(|text| (*text).clone()).collect();
        all.sort_unstable();
        (all, found.steps)
    }

    #[test]
    fn thousands_of_ordinary_patterns_cost_a_few_lookups() {
        let patterns = (0..10_000).flat_map(|number| {
            [format!("__keyspace@0__:user:{number}:*"), format!("__keyevent@{number}__:*"), format!("user:{number}*")]
        });
        let (index, count) = index(patterns);
        assert_eq!((count, index.tokens(), index.sets(), index.len()), (30_000, 0, 0, 30_000));
        let (found, steps) = find(&index, "__keyspace@0__:user:4711:name");
        assert_eq!(found, ["__keyspace@0__:user:4711:*"]);
        assert!(steps < 32, "{steps}");
    }

    #[test]
    fn hostile_patterns_are_refused_before_the_work_for_one_key_is_large() {
        let key = "a".repeat(65_535);
        let channel = format!("__keyspace@0__:{key}");
        let many = "a".repeat(400);
        let work_max = 1025 + TOKENS_MAX + SETS_MAX * channel.len();
        let hostile: [&dyn Fn(usize) -> String; 5] = [
            &|number| format!("__key*{many}[^{many}]{number}*"),
            &|number| format!("*{number}a*b*"),
            &|number| format!("__key*aaaaaaab{number:04}*"),
            &|number| format!("*{}{number:04}", "[ab]".repeat(240)),
            &|number| format!("__keyspace@0__:{}?*{number}", &many[..number % 400]),
        ];
        for make in hostile {
            let (mut index, count) = index((0..).map(make));
            assert!(count > 2 && index.len() == count, "{count}");
            let (found, steps) = find(&index, &channel);
            assert!(found.is_empty() && steps > work_max / 8 && steps <= work_max, "{steps} {work_max} {count}");
            // Another subscription to the same pattern is no more work.
            assert_eq!(index.add(&pattern(&make(0)), Arc::default()), Ok(count as u64));
            assert_eq!(find(&index, &channel).1, steps);
            // Those who share the channel are not affected, and others may follow once one has gone.
            assert!(index.add(&pattern("__keyspace@0__:user:*"), Arc::default()).is_ok());
            assert_eq!(index.add(&pattern(&make(count)), Arc::default()), Err(TooMuchWork));
            for number in [1, 2, 3] {
                index.remove(&pattern(&make(number)), number as u64);
            }
            assert!(index.add(&pattern(&make(1)), Arc::default()).is_ok());
        }
    }

    #[test]
    fn subscriptions_are_found_as_their_patterns_match() {
        let patterns =
            ["*", "**", "__key*__:*", "__key*@0__:k?y", "__keyspace@0__:key", "*e[x-z]", "*k*y*", "no*", "*n*o*"];
        let (mut index, count) = index(patterns.map(str::to_owned));
        assert_eq!(count, patterns.len());
        index.add(&Selector::Channel(b"__keyspace@0__:key".to_vec()), Arc::new("channel".into())).expect("added");
        index.add(&Selector::Channel(b"*".to_vec()), Arc::new("other".into())).expect("added");
        let wanted = ["*", "**", "*e[x-z]", "*k*y*", "__key*@0__:k?y", "__key*__:*", "__keyspace@0__:key", "channel"];
        assert_eq!(find(&index, "__keyspace@0__:key").0, wanted);
        for (number, text) in patterns.iter().enumerate().filter(|(_, text)| text.len() > 2) {
            index.remove(&pattern(text), number as u64);
            index.remove(&pattern(text), number as u64);
        }
        assert_eq!(
            (find(&index, "__keyspace@0__:key").0, index.sets()),
            (vec!["*".into(), "**".into(), "channel".to_owned()], 0)
        );
        index.remove(&Selector::Channel(b"__keyspace@0__:key".to_vec()), count as u64);
        assert_eq!((find(&index, "__keyspace@0__:key").0.len(), index.len()), (2, 3));
    }

    #[test]
    fn patterns_are_only_bounded_while_events_are_published() {
        let (mut index, accepted) = index((0..).map(|number| format!("*a{number}*b*")));
        index.close();
        let more = accepted as u64 + 1000;
        for number in accepted as u64..more {
            let added = index.add(&pattern(&format!("*a{number}*b*")), Arc::default());
            assert_eq!(added, Ok(number));
        }
        assert_eq!((index.open(), index.sets()), (Err(TooMuchWork), 0));
        for number in accepted as u64..more {
            index.remove(&pattern(&format!("*a{number}*b*")), number);
        }
        assert_eq!((index.open(), index.len()), (Ok(()), accepted));
    }
}
