//! The directory and the interest of a site against naive models, and their limits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a topic")
}

fn site(name: &str) -> SiteName {
    SiteName::parse(name).expect("a site")
}

fn sites(names: &[&str]) -> Vec<SiteName> {
    names.iter().map(|name| site(name)).collect()
}

fn numbered(numbers: impl IntoIterator<Item = u8>) -> Vec<SiteName> {
    numbers.into_iter().map(|number| site(&format!("site-{number}"))).collect()
}

#[test]
fn hashes_are_those_of_their_sources() {
    // Vectors of the FNV reference code, and the first output of SplitMix64 with seed 0.
    for (bytes, hash) in [("", FNV_OFFSET), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)] {
        assert_eq!(fnv1a(FNV_OFFSET, bytes.as_bytes()), hash, "{bytes}");
    }
    assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
}

#[test]
fn owners_never_change_between_versions() {
    let all = sites(&["berlin", "lagos", "osaka", "plant-7", "quito"]);
    for (name, expected) in [
        ("orders", ["lagos", "quito", "plant-7"]),
        ("a", ["lagos", "osaka", "quito"]),
        ("berlin", ["berlin", "plant-7", "osaka"]),
        ("metrics.cpu", ["osaka", "quito", "plant-7"]),
        ("_inbox.x", ["lagos", "osaka", "plant-7"]),
    ] {
        assert_eq!(owners(&topic(name), &all).to_vec(), sites(&expected), "{name}");
        assert_eq!(owners(&topic(name), all.iter().rev().chain(&all)).to_vec(), sites(&expected), "{name}");
    }
    assert_eq!(owners(&topic("a"), &[]).len(), 0);
    assert_eq!(owners(&topic("a"), &all[..2]).to_vec(), sites(&["lagos", "berlin"]));
}

#[test]
fn equal_ranks_are_ordered_by_name() {
    let found = |ranked: &[(u64, u8)]| highest(ranked.iter().copied()).to_vec();
    assert_eq!(found(&[(1, 9), (1, 3), (1, 5), (1, 3), (1, 4)]), [(1, 3), (1, 4), (1, 5)]);
    assert_eq!(found(&[(1, 1), (2, 9), (2, 8), (0, 0), (3, 7)]), [(3, 7), (2, 8), (2, 9)]);
}

#[test]
fn sites_are_ranked_with_their_owners_first() {
    let all = numbered(0..50);
    let hashes = SiteHashes::new(all.iter().cloned());
    for name in ["orders", "a", "metrics.cpu"] {
        let topic = topic(name);
        let ranked: Vec<SiteName> = hashes.ranked(&topic, 10).into_iter().map(|at| all[at].clone()).collect();
        // The owners among the sites without the first one are the next ones of the list, and so on.
        for from in 0..=7 {
            let others = all.iter().filter(|site| !ranked[..from].contains(site));
            assert_eq!(owners(&topic, others).to_vec(), ranked[from..from + 3], "{name} without {from}");
        }
        assert_eq!(hashes.ranked(&topic, 60).len(), 50);
        assert_eq!(hashes.ranked(&topic, 0), []);
    }
    assert_eq!(SiteHashes::default().ranked(&topic("a"), 3), []);
}

#[test]
fn the_next_expiry_is_that_of_an_advertisement_or_a_watch() {
    let mut directory = Directory::new();
    assert_eq!(directory.next_due_ms(), None);
    directory.advertise(&topic("t"), &site("a"), 1, 100, 0).expect("advertised");
    directory.watch(&topic("t"), &site("b"), 50).expect("watched");
    assert_eq!(directory.next_due_ms(), Some(50));
    directory.sweep(50);
    assert_eq!((directory.watch_count(), directory.next_due_ms()), (0, Some(100)));
    directory.sweep(100);
    assert_eq!((directory.len(), directory.next_due_ms()), (0, None));
}

#[test]
fn sites_own_equal_parts_and_a_new_site_takes_only_its_own() {
    let before = numbered(0..20);
    let after = numbered(0..21);
    let mut counts = BTreeMap::new();
    let mut moved = 0;
    for number in 0..10_000 {
        let topic = topic(&format!("device.{number}.temperature"));
        let old = owners(&topic, &before);
        let new = owners(&topic, &after);
        old.iter().for_each(|owner| *counts.entry(owner.clone()).or_insert(0usize) += 1);
        if old != new {
            moved += 1;
            let newcomer = &after[20];
            assert!(new.contains(newcomer));
            assert!(new.iter().filter(|owner| *owner != newcomer).eq(&old[..2]), "the lowest owner is replaced");
        }
    }
    // 1500 topics for each site, and 3 of 21 topics for the new one.
    assert!(counts.len() == 20 && counts.values().all(|count| (1350..1650).contains(count)), "{counts:?}");
    assert!((1300..1560).contains(&moved), "{moved}");
}

#[test]
fn watchers_are_notified_of_additions_and_removals_only() {
    let mut directory = Directory::new();
    let [a, b, w] = [site("a"), site("b"), site("w")];
    let t = topic("t");
    directory.watch(&t, &w, 10_000).expect("room");
    assert_eq!(directory.advertise(&t, &b, 1, 1000, 0), Ok(vec![w.clone()]));
    assert_eq!(directory.advertise(&t, &a, 1, 1000, 500), Ok(vec![w.clone()]));
    assert_eq!(directory.advertise(&t, &a, 1, 1000, 600), Ok(vec![]), "a renewal is not a change");
    assert_eq!(directory.lookup(&t, 999), [a.clone(), b.clone()]);
    assert_eq!(directory.lookup(&t, 1000), vec![a.clone()], "expired before it is swept");
    assert_eq!(directory.sweep(1000), [(t.clone(), vec![w.clone()])]);
    assert_eq!(directory.sweep(1000), []);
    assert_eq!(directory.withdraw(&t, &b, 1), Watchers::new());
    assert_eq!(directory.withdraw(&t, &a, 1), vec![w.clone()]);
    assert!(directory.is_empty() && directory.watch_count() == 1);
    assert!(directory.unwatch(&t, &w) && !directory.unwatch(&t, &w));
    assert_eq!(directory.advertise(&t, &b, 1, 1000, 0), Ok(vec![]));
}

#[test]
fn an_earlier_start_of_a_site_changes_nothing() {
    let mut directory = Directory::new();
    let (t, a) = (topic("t"), site("a"));
    directory.advertise(&t, &a, 2, 1000, 0).expect("room");
    directory.advertise(&t, &a, 1, 5000, 0).expect("room");
    assert_eq!(directory.lookup(&t, 999), vec![a.clone()]);
    assert_eq!(directory.lookup(&t, 1000), []);
    directory.withdraw(&t, &a, 1);
    assert_eq!(directory.lookup(&t, 0), vec![a.clone()]);
    // An expired entry tells nothing about the starts of its site: the clock of the site may have been wrong.
    directory.advertise(&t, &a, 1, 5000, 1000).expect("room");
    assert_eq!(directory.lookup(&t, 5999), vec![a.clone()]);
    directory.withdraw(&t, &a, 7);
    assert!(directory.is_empty());
}

#[test]
fn times_to_live_are_bounded() {
    let mut directory = Directory::new();
    let (t, a, b) = (topic("t"), site("a"), site("b"));
    directory.advertise(&t, &a, 1, u64::MAX, 10).expect("room");
    directory.advertise(&t, &b, 1, 0, 10).expect("room");
    assert_eq!(directory.lookup(&t, 10), [a.clone(), b]);
    assert_eq!(directory.lookup(&t, 9 + ADVERTISE_TTL_MS_MAX), [a]);
    assert_eq!(directory.lookup(&t, 10 + ADVERTISE_TTL_MS_MAX), []);
}

#[test]
fn beyond_a_limit_new_entries_are_refused_and_known_ones_renewed() {
    let limits = Limits {
        advertisements_per_site: 2,
        advertisements: 3,
        watchers_per_topic: 2,
        watches_per_site: 2,
        watches: 3,
    };
    let mut directory = Directory { limits, ..Directory::default() };
    let [t, u, v] = [topic("t"), topic("u"), topic("v")];
    let [a, b, c] = [site("a"), site("b"), site("c")];
    let refused = |result: Result<Watchers>, what: &str| {
        let error = result.expect_err("beyond a limit");
        assert!(error.kind == ErrorKind::Busy && error.message.contains(what), "{error:?}");
    };
    directory.advertise(&t, &a, 1, 1000, 0).expect("room");
    directory.advertise(&u, &a, 1, 1000, 0).expect("room");
    refused(directory.advertise(&v, &a, 1, 1000, 0), "site a advertises to one site reached (2)");
    directory.advertise(&t, &b, 1, 1000, 0).expect("room");
    refused(directory.advertise(&u, &b, 1, 1000, 0), "advertisements at one site reached (3)");
    directory.advertise(&t, &a, 1, 2000, 0).expect("known");
    directory.sweep(1000);
    directory.advertise(&v, &a, 1, 1000, 1000).expect("room again");

    let mut watch = |topic: &TopicName, site: &SiteName| directory.watch(topic, site, 1000).map(|()| Watchers::new());
    watch(&t, &a).expect("room");
    watch(&t, &b).expect("room");
    refused(watch(&t, &c), "watchers of topic t reached (2)");
    watch(&u, &a).expect("room");
    refused(watch(&v, &a), "site a watches at one site reached (2)");
    refused(watch(&u, &b), "watches at one site reached (3)");
    watch(&u, &a).expect("known");
}

const TOPICS: [&str; 3] = ["t", "u", "v"];

#[derive(Clone, Debug)]
enum Step {
    Advertise { topic: usize, site: u8, epoch: u64, ttl_ms: u64 },
    Withdraw { topic: usize, site: u8, epoch: u64 },
    Watch { topic: usize, site: u8, for_ms: u64 },
    Unwatch { topic: usize, site: u8 },
    ForgetSite { site: u8 },
    Complete { site: u8, epoch: u64, count: usize },
    Pass { ms: u64 },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || (0..TOPICS.len(), 0u8..4);
    prop_oneof![
        6 => (pair(), 1u64..4, 1u64..100)
            .prop_map(|((topic, site), epoch, ttl_ms)| Step::Advertise { topic, site, epoch, ttl_ms }),
        2 => (pair(), 1u64..4).prop_map(|((topic, site), epoch)| Step::Withdraw { topic, site, epoch }),
        4 => (pair(), 0u64..150).prop_map(|((topic, site), for_ms)| Step::Watch { topic, site, for_ms }),
        1 => pair().prop_map(|(topic, site)| Step::Unwatch { topic, site }),
        1 => (0u8..4).prop_map(|site| Step::ForgetSite { site }),
        2 => (0u8..4, 1u64..4, 0..3usize).prop_map(|(site, epoch, count)| Step::Complete { site, epoch, count }),
        4 => (1u64..60).prop_map(|ms| Step::Pass { ms }),
        4 => Just(Step::Sweep),
    ]
}

/// Model that searches plain lists, and the sites of each watched topic as its watchers know them.
#[derive(Default)]
struct Model {
    /// Topic, site, epoch and time of the expiry.
    advertisements: Vec<(usize, u8, u64, u64)>,
    /// Topic, site and end.
    watches: Vec<(usize, u8, u64)>,
    views: BTreeMap<(TopicName, SiteName), Vec<SiteName>>,
}

impl Model {
    fn lookup(&self, topic: usize, now_ms: u64) -> Vec<SiteName> {
        let found = self.advertisements.iter().filter(|entry| entry.0 == topic && entry.3 > now_ms);
        numbered(found.map(|entry| entry.1).collect::<BTreeSet<u8>>())
    }

    /// Adds an advertisement if its epoch allows it.
    fn advertise(&mut self, new: (usize, u8, u64, u64), now_ms: u64) {
        let is_same = |other: &(usize, u8, u64, u64)| (other.0, other.1) == (new.0, new.1);
        if !self.advertisements.iter().any(|other| is_same(other) && other.3 > now_ms && other.2 > new.2) {
            self.advertisements.retain(|other| !is_same(other));
            self.advertisements.push(new);
        }
    }

    fn notify(&mut self, directory: &Directory, topic: &TopicName, watchers: Watchers, now_ms: u64) {
        for watcher in watchers {
            self.views.insert((topic.clone(), watcher), directory.lookup(topic, now_ms));
        }
    }
}

/// Plays one step on both and delivers its notifications.
fn play(directory: &mut Directory, model: &mut Model, step: &Step, now_ms: u64) {
    let name = |at: usize| topic(TOPICS[at]);
    let number = |at: u8| site(&format!("site-{at}"));
    let notified = match *step {
        Step::Advertise { topic, site, epoch, ttl_ms } => {
            model.advertise((topic, site, epoch, now_ms + ttl_ms), now_ms);
            let watchers = directory.advertise(&name(topic), &number(site), epoch, ttl_ms, now_ms);
            vec![(name(topic), watchers.expect("room"))]
        }
        Step::Withdraw { topic, site, epoch } => {
            model.advertisements.retain(|entry| (entry.0, entry.1) != (topic, site) || entry.2 > epoch);
            vec![(name(topic), directory.withdraw(&name(topic), &number(site), epoch))]
        }
        Step::Watch { topic, site, for_ms } => {
            model.watches.retain(|watch| (watch.0, watch.1) != (topic, site));
            model.watches.push((topic, site, now_ms + for_ms));
            directory.watch(&name(topic), &number(site), now_ms + for_ms).expect("room");
            vec![(name(topic), vec![number(site)])]
        }
        Step::Unwatch { topic, site } => {
            let is_watched = model.watches.iter().any(|watch| (watch.0, watch.1) == (topic, site));
            assert_eq!(directory.unwatch(&name(topic), &number(site)), is_watched);
            model.watches.retain(|watch| (watch.0, watch.1) != (topic, site));
            vec![]
        }
        Step::ForgetSite { site } => {
            model.advertisements.retain(|entry| entry.1 != site);
            model.watches.retain(|watch| watch.1 != site);
            directory.forget_site(&number(site))
        }
        Step::Complete { site, epoch, count } => {
            if model.advertisements.iter().filter(|entry| (entry.1, entry.2) == (site, epoch)).count() == count {
                model.advertisements.retain(|entry| entry.1 != site || entry.2 >= epoch);
            }
            directory.complete(&number(site), epoch, count)
        }
        Step::Pass { .. } => vec![],
        Step::Sweep => {
            model.advertisements.retain(|entry| entry.3 > now_ms);
            model.watches.retain(|watch| watch.2 > now_ms);
            directory.sweep(now_ms)
        }
    };
    for (topic, watchers) in notified {
        model.notify(directory, &topic, watchers, now_ms);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_directory_is_a_list_and_its_watchers_know_it(steps in prop::collection::vec(step(), 1..120)) {
        let mut directory = Directory::new();
        let mut model = Model::default();
        let mut now_ms = 1000;
        for step in steps {
            if let Step::Pass { ms } = step {
                now_ms += ms;
            }
            play(&mut directory, &mut model, &step, now_ms);
            for (at, name) in TOPICS.iter().enumerate() {
                prop_assert_eq!(directory.lookup(&topic(name), now_ms), model.lookup(at, now_ms));
            }
            let counts = (directory.len(), directory.watch_count());
            prop_assert_eq!(counts, (model.advertisements.len(), model.watches.len()));
            for entries in [&directory.advertisements, &directory.watches] {
                let by_topic: usize = entries.topics.values().map(SmallVec::len).sum();
                let by_site: usize = entries.sites.values().map(BTreeSet::len).sum();
                prop_assert_eq!((by_topic, by_site, entries.due.len()), (entries.len, entries.len, entries.len));
            }
            // What has expired since the last sweep has not been notified yet.
            if let Step::Sweep = step {
                for (at, site, _) in &model.watches {
                    let view = &model.views[&(topic(TOPICS[*at]), numbered([*site]).remove(0))];
                    prop_assert_eq!(view, &model.lookup(*at, now_ms));
                }
            }
        }
    }
}
