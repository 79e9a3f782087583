//! The subscriber cache against a model that reads the whole history of a topic, and its rules one by one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const TTL_MS: u64 = CACHE_TTL_MS;
const INTERVAL_MS: u64 = MIN_DISCOVERY_INTERVAL_MS;

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a topic")
}

fn sites(names: &[&str]) -> Vec<SiteName> {
    names.iter().map(|name| SiteName::parse(name).expect("a site")).collect()
}

fn hit(names: &[&str]) -> Lookup {
    Lookup::Hit(sites(names).into())
}

fn stale(names: &[&str], is_refresh_due: bool) -> Lookup {
    Lookup::Stale { sites: sites(names).into(), is_refresh_due }
}

fn miss(is_query_due: bool, retry_at_ms: u64) -> Lookup {
    Lookup::Miss { is_query_due, retry_at_ms }
}

#[test]
fn presets_have_the_documented_times() {
    let times = |preset: DiscoveryPreset| {
        let settings = CacheSettings::preset(preset);
        (settings.ttl_ms, settings.min_discovery_interval_ms)
    };
    assert_eq!(DiscoveryPreset::ALL.map(times), [(2000, 1000), (30_000, 10_000), (5000, 2000)]);
    for preset in DiscoveryPreset::ALL {
        assert_eq!(preset.name().parse(), Ok(preset));
    }
    assert!("fast".parse::<DiscoveryPreset>().is_err());
    assert_eq!(CacheSettings::default().entries_max, 1000);
}

#[test]
fn a_miss_has_one_query_for_all_callers() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    assert_eq!(cache.lookup(&t, 0), miss(true, QUERY_TIMEOUT_MS));
    assert_eq!(cache.lookup(&t, 1), miss(false, QUERY_TIMEOUT_MS));
    assert_eq!(cache.lookup(&t, INTERVAL_MS), miss(false, QUERY_TIMEOUT_MS));
    assert_eq!(*cache.store(&t, sites(&["b", "a", "b"]), INTERVAL_MS), sites(&["a", "b"]));
    assert_eq!(cache.lookup(&t, INTERVAL_MS + TTL_MS - 1), hit(&["a", "b"]));
    let stats = CacheStats { hits: 1, misses: 3, stores: 1, rate_limited: 1, table_size: 1 };
    assert_eq!(cache.stats(), stats);
}

#[test]
fn an_expired_entry_is_used_while_one_caller_refreshes_it() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    cache.lookup(&t, 0);
    cache.store(&t, sites(&["a"]), 0);
    assert_eq!(cache.lookup(&t, TTL_MS), stale(&["a"], true));
    assert_eq!(cache.lookup(&t, TTL_MS), stale(&["a"], false));
    cache.fail(&t);
    assert_eq!(cache.lookup(&t, TTL_MS + INTERVAL_MS - 1), stale(&["a"], false));
    assert_eq!(cache.lookup(&t, TTL_MS + INTERVAL_MS), stale(&["a"], true));
    // A query without answer counts as failed after its timeout.
    let retry_ms = TTL_MS + INTERVAL_MS + QUERY_TIMEOUT_MS;
    assert_eq!(cache.lookup(&t, retry_ms - 1), stale(&["a"], false));
    assert_eq!(cache.lookup(&t, retry_ms), stale(&["a"], true));
    cache.fail(&t);
    let end_ms = TTL_MS + CACHE_STALE_MS_MAX;
    assert_eq!(cache.lookup(&t, end_ms - 1), stale(&["a"], true));
    assert_eq!(cache.lookup(&t, end_ms), miss(false, end_ms - 1 + QUERY_TIMEOUT_MS));
}

#[test]
fn a_limited_miss_says_when_to_look_up_again() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    cache.lookup(&t, 100);
    cache.fail(&t);
    assert_eq!(cache.lookup(&t, 200), miss(false, 100 + INTERVAL_MS));
    assert_eq!(cache.lookup(&t, 100 + INTERVAL_MS), miss(true, 100 + INTERVAL_MS + QUERY_TIMEOUT_MS));
    assert_eq!(cache.stats().rate_limited, 1);
}

#[test]
fn a_topic_without_sites_is_an_entry() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    cache.lookup(&t, 0);
    cache.store(&t, vec![], 0);
    assert_eq!(cache.lookup(&t, 1), hit(&[]));
    assert_eq!(cache.lookup(&t, TTL_MS), stale(&[], true));
}

#[test]
fn an_invalidation_keeps_the_limit() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let [t, u] = [topic("t"), topic("u")];
    for topic in [&t, &u] {
        cache.lookup(topic, 0);
        cache.store(topic, sites(&["a"]), 0);
    }
    assert!(cache.invalidate(&t) && !cache.invalidate(&t) && !cache.invalidate(&topic("v")));
    assert_eq!(cache.lookup(&t, 1), miss(false, INTERVAL_MS));
    assert_eq!(cache.invalidate_all(), 1);
    assert_eq!((cache.stats().table_size, cache.len()), (0, 2));
    assert_eq!(cache.lookup(&u, INTERVAL_MS), miss(true, INTERVAL_MS + QUERY_TIMEOUT_MS));
}

#[test]
fn a_pushed_change_replaces_a_known_entry_only() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    assert!(!cache.changed(&t, sites(&["a"]), 0) && cache.is_empty());
    cache.lookup(&t, 0);
    cache.store(&t, sites(&["a"]), 0);
    assert!(cache.changed(&t, sites(&["c", "b"]), TTL_MS));
    assert_eq!(cache.lookup(&t, 2 * TTL_MS - 1), hit(&["b", "c"]));
    // It also answers a query.
    let u = topic("u");
    cache.lookup(&u, 0);
    assert!(cache.changed(&u, sites(&["a"]), 0));
    assert_eq!(cache.lookup(&u, 1), hit(&["a"]));
}

#[test]
fn an_answer_that_a_change_has_overtaken_removes_no_site() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    cache.lookup(&t, 0);
    cache.changed(&t, sites(&["b", "c"]), 10);
    cache.store(&t, sites(&["a", "b"]), 20);
    assert_eq!(cache.lookup(&t, 30), stale(&["a", "b", "c"], false));
    assert_eq!(cache.lookup(&t, INTERVAL_MS), stale(&["a", "b", "c"], true));
    cache.store(&t, sites(&["b", "c"]), INTERVAL_MS);
    assert_eq!(cache.lookup(&t, INTERVAL_MS), hit(&["b", "c"]));
    // An equal answer confirms the change.
    cache.begin(&t, 2 * INTERVAL_MS);
    cache.changed(&t, sites(&["d"]), 2 * INTERVAL_MS);
    cache.store(&t, sites(&["d"]), 2 * INTERVAL_MS);
    assert_eq!(cache.lookup(&t, 2 * INTERVAL_MS), hit(&["d"]));
    // An answer after an invalidation is used, but refreshed as soon as the interval allows.
    cache.begin(&t, 3 * INTERVAL_MS);
    cache.invalidate(&t);
    cache.store(&t, sites(&["d"]), 3 * INTERVAL_MS);
    assert_eq!(cache.lookup(&t, 3 * INTERVAL_MS), stale(&["d"], false));
    assert_eq!(cache.lookup(&t, 4 * INTERVAL_MS), stale(&["d"], true));
}

#[test]
fn a_query_can_begin_before_an_entry_expires() {
    let mut cache = SubscriberCache::new(CacheSettings::default());
    let t = topic("t");
    assert!(cache.begin(&t, 0) && !cache.begin(&t, 1));
    assert_eq!(cache.lookup(&t, 1), miss(false, QUERY_TIMEOUT_MS));
    cache.store(&t, sites(&["a"]), 1);
    assert!(!cache.begin(&t, INTERVAL_MS - 1) && cache.begin(&t, INTERVAL_MS));
    assert_eq!(cache.lookup(&t, TTL_MS + 1), stale(&["a"], false));
}

#[test]
fn without_a_time_to_live_each_lookup_has_its_own_query() {
    let mut cache = SubscriberCache::new(CacheSettings { ttl_ms: 0, ..CacheSettings::default() });
    let t = topic("t");
    for now_ms in 0..3 {
        assert_eq!(cache.lookup(&t, now_ms), miss(true, now_ms + QUERY_TIMEOUT_MS));
        assert!(cache.begin(&t, now_ms));
        assert_eq!(*cache.store(&t, sites(&["b", "a"]), now_ms), sites(&["a", "b"]));
        assert!(!cache.changed(&t, sites(&["a"]), now_ms));
    }
    assert_eq!(cache.stats(), CacheStats { misses: 3, ..CacheStats::default() });
    assert_eq!(cache.allocated_bytes(), 0);
}

/// Refreshes a topic 6 times with `lookups` lookups in each time to live, and returns the times to live.
fn adaptive_ttls(lookups: u64, is_pushed: bool, sites_of: impl Fn(usize) -> Vec<SiteName>) -> Vec<u64> {
    let mut cache = SubscriberCache::new(CacheSettings { is_adaptive: true, ..CacheSettings::default() });
    let t = topic("t");
    let mut now_ms = 0;
    cache.lookup(&t, now_ms);
    let mut ttls = Vec::new();
    for round in 0..6 {
        if is_pushed {
            cache.changed(&t, sites_of(round), now_ms);
        }
        cache.store(&t, sites_of(round), now_ms);
        let at = cache.entries.find(&t).expect("an entry");
        let ttl_ms = cache.entries.value_mut(at).known.as_ref().expect("sites").ttl_ms;
        for number in 1..=lookups {
            let lookup = cache.lookup(&t, now_ms + number * ttl_ms / lookups);
            let is_last = number == lookups;
            assert_eq!(matches!(lookup, Lookup::Stale { is_refresh_due: true, .. }), is_last, "{lookup:?}");
        }
        now_ms += ttl_ms;
        ttls.push(ttl_ms);
    }
    ttls
}

#[test]
fn the_time_to_live_grows_while_a_busy_topic_keeps_its_sites() {
    let same = |_| sites(&["a"]);
    assert_eq!(adaptive_ttls(2, false, same), [5000, 10_000, 20_000, 30_000, 30_000, 30_000]);
    assert_eq!(adaptive_ttls(50, false, same), [5000, 10_000, 20_000, 30_000, 30_000, 30_000]);
    // The answer of the first owner is also pushed, before it is stored.
    assert_eq!(adaptive_ttls(50, true, same), [5000, 10_000, 20_000, 30_000, 30_000, 30_000]);
    assert_eq!(adaptive_ttls(1, false, same), [5000; 6]);
    let changed_once = |round| sites(if round < 3 { &["a"] } else { &["b"] });
    assert_eq!(adaptive_ttls(5, false, changed_once), [5000, 10_000, 20_000, 5000, 10_000, 20_000]);
}

#[test]
fn the_least_recently_used_topic_is_evicted() {
    let mut cache = SubscriberCache::new(CacheSettings { entries_max: 2, ..CacheSettings::default() });
    let [t, u, v] = [topic("t"), topic("u"), topic("v")];
    for topic in [&t, &u] {
        cache.lookup(topic, 0);
        cache.store(topic, sites(&["a"]), 0);
    }
    cache.lookup(&t, 1);
    cache.lookup(&v, 2);
    assert_eq!(cache.lookup(&t, 3), hit(&["a"]));
    assert!(matches!(cache.lookup(&u, 3), Lookup::Miss { is_query_due: true, .. }));
    assert_eq!(cache.len(), 2);
}

#[test]
fn an_entry_has_a_bounded_size() {
    let long = |number: usize| topic(&format!("{number:0>249}"));
    let names: Vec<String> = (0..5).map(|number| format!("{number:0>63}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cache = SubscriberCache::new(CacheSettings::default());
    for number in 0..5 * CACHE_ENTRIES_MAX {
        cache.lookup(&long(number), 0);
        cache.store(&long(number), sites(&names), 0);
    }
    assert_eq!(cache.len(), CACHE_ENTRIES_MAX);
    let of_sites = 5 * (16 + shared_bytes(63));
    let bound = CACHE_ENTRIES_MAX * (CACHE_ENTRY_BYTES + 249 + of_sites);
    assert!(cache.allocated_bytes() <= bound, "{} of {bound}", cache.allocated_bytes());
    assert!(cache.allocated_bytes() > bound * 9 / 10, "the bound is near: {} of {bound}", cache.allocated_bytes());
}

#[derive(Clone, Debug)]
enum Step {
    Lookup,
    Begin,
    Store(BTreeSet<u8>),
    Fail,
    Changed(BTreeSet<u8>),
    Invalidate,
}

fn step() -> impl Strategy<Value = (u64, u8, Option<Step>)> {
    let a_set = || prop::collection::btree_set(0u8..3, 0..3);
    let kind = prop_oneof![
        8 => Just(Some(Step::Lookup)),
        1 => Just(Some(Step::Begin)),
        5 => a_set().prop_map(|sites| Some(Step::Store(sites))),
        1 => Just(Some(Step::Fail)),
        2 => a_set().prop_map(|sites| Some(Step::Changed(sites))),
        1 => Just(Some(Step::Invalidate)),
        // A sweep.
        1 => Just(None),
    ];
    (prop_oneof![4 => 0u64..30, 1 => 100u64..1500], 0u8..2, kind)
}

/// Known sites of a topic, with the time at which they expire and their time to live.
type ModelSites = (BTreeSet<u8>, u64, u64);

/// Model of one topic: all that ever happened to it.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Each event with its time, and whether it began a query.
    events: Vec<(u64, Step, bool)>,
}

impl Model {
    fn begun_ms(events: &[(u64, Step, bool)]) -> Option<u64> {
        events.iter().rev().find(|(.., is_begin)| *is_begin).map(|(at_ms, ..)| *at_ms)
    }

    /// Returns the events since the latest query began if it has neither an answer nor failed.
    fn since_open(events: &[(u64, Step, bool)]) -> Option<&[(u64, Step, bool)]> {
        let begin = events.iter().rposition(|(.., is_begin)| *is_begin)?;
        let since = &events[begin..];
        let is_end = |step: &Step| matches!(step, Step::Store(_) | Step::Fail);
        (!since[1..].iter().any(|(_, step, _)| is_end(step))).then_some(since)
    }

    /// Returns the sites after the first `count` events.
    fn known(&self, settings: &CacheSettings, count: usize) -> Option<ModelSites> {
        let ((at_ms, step, _), before) = self.events[..count].split_last()?;
        let at_ms = *at_ms;
        let known = self.known(settings, before.len());
        let sites = match step {
            Step::Lookup | Step::Begin | Step::Fail => return known,
            Step::Invalidate => return None,
            Step::Store(sites) | Step::Changed(sites) => sites.clone(),
        };
        let same_ttl_ms = known.as_ref().filter(|known| known.0 == sites).map(|known| known.2);
        if let Step::Changed(_) = step {
            let ttl_ms = same_ttl_ms.unwrap_or(0).max(settings.ttl_ms);
            return Some((sites, at_ms + ttl_ms, ttl_ms));
        }
        let open = Self::since_open(before);
        let is_overtaking = |(_, step, _): &(u64, Step, bool)| matches!(step, Step::Changed(_) | Step::Invalidate);
        let is_overtaken = open.is_some_and(|since| since[1..].iter().any(is_overtaking));
        if is_overtaken && same_ttl_ms.is_none() {
            let both = known.map_or(sites.clone(), |known| &known.0 | &sites);
            return Some((both, at_ms, 0));
        }
        let ttl_ms = match (same_ttl_ms, known) {
            (Some(ttl_ms), Some(_)) if settings.is_adaptive => {
                let queried_ms = Self::begun_ms(before).unwrap_or(at_ms);
                // A change that says nothing new does not begin another count.
                let is_news = |at: &usize| match &before[*at].1 {
                    Step::Store(_) => true,
                    Step::Changed(sites) => self.known(settings, *at).is_none_or(|known| known.0 != *sites),
                    _ => false,
                };
                let counted = (0..before.len()).rev().find(is_news).expect("known sites were stored");
                let lookups = before[counted..].iter().filter(|(_, step, _)| matches!(step, Step::Lookup)).count();
                let periods = queried_ms.saturating_sub(before[counted].0).max(ttl_ms);
                let next_ms = if lookups as u64 * ttl_ms >= 2 * periods { 2 * ttl_ms } else { ttl_ms };
                next_ms.clamp(settings.ttl_ms, 6 * settings.ttl_ms)
            }
            _ => settings.ttl_ms,
        };
        Some((sites, at_ms + ttl_ms, ttl_ms))
    }

    /// Returns the sites that may be used, and whether they are fresh.
    fn usable(&self, settings: &CacheSettings, now_ms: u64) -> Option<(BTreeSet<u8>, bool)> {
        let (sites, expires_ms, _) = self.known(settings, self.events.len())?;
        (now_ms < expires_ms + settings.max_stale_ms).then_some((sites, now_ms < expires_ms))
    }

    fn is_limited(&self, settings: &CacheSettings, now_ms: u64) -> bool {
        Self::begun_ms(&self.events).is_some_and(|begun_ms| now_ms < begun_ms + settings.min_discovery_interval_ms)
    }

    fn is_waited_for(&self, settings: &CacheSettings, now_ms: u64) -> bool {
        Self::since_open(&self.events).is_some_and(|since| now_ms < since[0].0 + settings.query_timeout_ms)
    }

    fn lookup(&mut self, settings: &CacheSettings, now_ms: u64) -> Lookup {
        let usable = self.usable(settings, now_ms);
        let is_fresh = usable.as_ref().is_some_and(|(_, is_fresh)| *is_fresh);
        let is_due = !is_fresh && !self.is_limited(settings, now_ms) && !self.is_waited_for(settings, now_ms);
        self.events.push((now_ms, Step::Lookup, is_due));
        let Some((sites, _)) = usable else {
            let timeout_ms = Self::since_open(&self.events).map_or(0, |_| settings.query_timeout_ms);
            let begun_ms = Self::begun_ms(&self.events).expect("a query");
            return miss(is_due, begun_ms + timeout_ms.max(settings.min_discovery_interval_ms));
        };
        let sites: Sites = named(&sites).into();
        if is_fresh { Lookup::Hit(sites) } else { Lookup::Stale { sites, is_refresh_due: is_due } }
    }
}

fn named(numbers: &BTreeSet<u8>) -> Vec<SiteName> {
    numbers.iter().map(|number| SiteName::parse(&format!("site-{number}")).expect("a site")).collect()
}

/// Plays one step on a cache and on its model, and compares what both return.
fn play(cache: &mut SubscriberCache, model: &mut Model, t: &TopicName, step: Step, now_ms: u64) {
    let settings = *cache.settings();
    let is_new = model.events.is_empty();
    match &step {
        Step::Lookup => {
            let is_counted = model.usable(&settings, now_ms).is_none_or(|(_, is_fresh)| !is_fresh);
            let limited = u64::from(is_counted && model.is_limited(&settings, now_ms));
            let before = cache.stats();
            assert_eq!(cache.lookup(t, now_ms), model.lookup(&settings, now_ms));
            assert_eq!(cache.stats().rate_limited - before.rate_limited, limited);
            return;
        }
        Step::Begin => {
            let is_begun = !model.is_limited(&settings, now_ms) && !model.is_waited_for(&settings, now_ms);
            assert_eq!(cache.begin(t, now_ms), is_begun);
            model.events.push((now_ms, step, is_begun));
            return;
        }
        Step::Store(sites) => _ = cache.store(t, named(sites), now_ms),
        Step::Fail => cache.fail(t),
        Step::Changed(sites) => assert_eq!(cache.changed(t, named(sites), now_ms), !is_new),
        Step::Invalidate => {
            let is_known = model.known(&settings, model.events.len()).is_some();
            assert_eq!(cache.invalidate(t), is_known);
        }
    }
    if !is_new || matches!(step, Step::Store(_)) {
        model.events.push((now_ms, step, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_cache_is_the_history_of_its_topics(
        is_adaptive: bool, interval_ms in 1u64..100, query_timeout_ms in 1u64..120,
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let settings = CacheSettings {
            ttl_ms: 50,
            min_discovery_interval_ms: interval_ms,
            max_stale_ms: 400,
            query_timeout_ms,
            is_adaptive,
            ..CacheSettings::default()
        };
        let mut cache = SubscriberCache::new(settings);
        let mut models: BTreeMap<u8, Model> = BTreeMap::new();
        let mut now_ms = 0;
        for (ms, number, step) in steps {
            now_ms += ms;
            let name = |number: u8| topic(&format!("t.{number}"));
            if let Some(step) = step {
                play(&mut cache, models.entry(number).or_default(), &name(number), step, now_ms);
            } else {
                models.retain(|_, model| {
                    let is_kept = model.usable(&settings, now_ms).is_some();
                    is_kept || model.is_limited(&settings, now_ms) || model.is_waited_for(&settings, now_ms)
                });
                cache.sweep(now_ms);
            }
            models.retain(|_, model| !model.events.is_empty());
            prop_assert_eq!(cache.len(), models.len());
        }
    }
}
