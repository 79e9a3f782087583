//! Listeners of sites: who gets a topic, against a naive model, and their limits.

use proptest::prelude::*;

use super::*;

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a topic")
}

fn site(name: &str) -> SiteName {
    SiteName::parse(name).expect("a site")
}

fn listener(topics: &str, group: Option<&str>) -> SiteListener {
    SiteListener::new(ListenedTopics::parse(topics).expect("topics"), group).expect("a listener")
}

fn these(names: &[&str]) -> Groups {
    Groups::named(names.iter().map(|name| (*name).into()).collect())
}

fn receivers(listeners: &Listeners, of: &str, readers: &[&str]) -> Vec<(String, Groups)> {
    let readers: Vec<SiteName> = readers.iter().map(|name| site(name)).collect();
    let receivers = listeners.receivers(&topic(of), &readers, |_| Some(0));
    receivers.into_iter().map(|(site, groups)| (site.to_string(), groups)).collect()
}

#[test]
fn patterns_reach_topics_that_their_sites_do_not_have() {
    let mut listeners = Listeners::default();
    listeners.set(&site("oslo"), vec![listener("orders.*", None)]).expect("room");
    let glob = ListenedTopics::glob("news.[a-e]*").expect("a pattern");
    listeners.set(&site("rome"), vec![SiteListener::new(glob, None).expect("a listener")]).expect("room");
    let plain = |name: &str| (name.to_owned(), these(&[]));
    assert_eq!(receivers(&listeners, "orders.eu", &[]), [plain("oslo")]);
    assert_eq!(receivers(&listeners, "orders.eu", &["oslo", "paris"]), [plain("oslo"), plain("paris")]);
    assert_eq!(receivers(&listeners, "orders.eu.west", &[]), []);
    assert_eq!(receivers(&listeners, "news.eu", &[]), [plain("rome")]);
    assert_eq!(receivers(&listeners, "news.us", &[]), []);
}

#[test]
fn a_group_gets_its_records_at_one_site_and_at_its_own_first() {
    let mut listeners = Listeners::default();
    let workers = || vec![listener("jobs", Some("workers")), listener("jobs", Some("audit"))];
    for name in ["oslo", "rome"] {
        listeners.set(&site(name), workers()).expect("room");
    }
    let chosen = receivers(&listeners, "jobs", &[]);
    let groups: Vec<&Groups> = chosen.iter().map(|(_, groups)| groups).collect();
    let count = |name: &str| groups.iter().filter(|groups| groups.contains(name)).count();
    assert_eq!((count("workers"), count("audit"), count("others")), (1, 1, 0));
    // A site with plain readers gets the records as well, for them.
    assert_eq!(receivers(&listeners, "jobs", &["oslo", "rome"]).len(), 2);
    let own =
        |groups: &[&str]| OwnGroups::from([(topic("jobs"), groups.iter().map(|group| (*group).into()).collect())]);
    let (has_news, changed) = listeners.set_own(Vec::new(), own(&["workers"]));
    assert!(has_news && changed.concerns(&topic("jobs")) && !changed.concerns(&topic("news")));
    let left = receivers(&listeners, "jobs", &[]);
    assert!(left.len() == 1 && left[0].1 == these(&["audit"]), "{left:?}");
    // A pattern is a member of the topics that it reads, and told once for all of them.
    let (has_news, changed) = listeners.set_own(vec![listener("*", Some("workers"))], own(&["workers", "audit"]));
    assert!(has_news && changed.concerns(&topic("jobs")));
    assert_eq!(listeners.own(), [listener("jobs", Some("audit")), listener("*", Some("workers"))]);
    assert_eq!(receivers(&listeners, "jobs", &[]), []);
    // A member that may not read the topic is none.
    listeners.set_own(vec![listener("*", Some("workers"))], own(&["audit"]));
    assert_eq!(receivers(&listeners, "jobs", &[]).len(), 1);
    assert!(!listeners.set_own(vec![listener("*", Some("workers"))], own(&["audit"])).0);
}

#[test]
fn a_nearer_site_is_chosen_and_one_without_a_path_is_not() {
    let mut listeners = Listeners::default();
    for name in ["a", "b", "c"] {
        listeners.set(&site(name), vec![listener("jobs", Some("workers"))]).expect("room");
    }
    let distances = [("a", Some(1)), ("b", Some(0)), ("c", None)];
    let distance = |of: &SiteName| distances.iter().find(|(name, _)| site(name) == *of).and_then(|(_, at)| *at);
    let chosen = listeners.receivers(&topic("jobs"), &[], distance);
    assert_eq!(chosen, [(site("b"), these(&["workers"]))].into());
    assert_eq!(listeners.receivers(&topic("jobs"), &[], |_| None), BTreeMap::new());
}

#[test]
fn many_groups_of_a_topic_are_all_of_them() {
    let mut listeners = Listeners::default();
    let all = (0..=GROUPS_PER_TOPIC_MAX).map(|number| listener("jobs", Some(&format!("group {number}"))));
    let all: Vec<SiteListener> = all.collect();
    listeners.set(&site("a"), all[1..].to_vec()).expect("room");
    let [(_, Groups::These(names))] = &receivers(&listeners, "jobs", &[])[..] else { panic!("named groups") };
    assert_eq!(names.len(), GROUPS_PER_TOPIC_MAX);
    listeners.set(&site("a"), all).expect("room");
    assert_eq!(receivers(&listeners, "jobs", &[]), [("a".to_owned(), Groups::All)]);
}

#[test]
fn listeners_are_bounded_and_a_site_with_too_many_has_none() {
    let mut listeners = Listeners::default();
    let some = |count: usize| (0..count).map(|number| listener(&format!("t{number}.>"), None)).collect::<Vec<_>>();
    listeners.set(&site("a"), some(2)).expect("room");
    listeners.set(&site("a"), some(LISTENERS_PER_SITE_MAX + 1)).expect_err("too many");
    assert_eq!(listeners.len(), 0);
    for number in 0..LISTENERS_MAX / LISTENERS_PER_SITE_MAX {
        listeners.set(&site(&format!("s{number}")), some(LISTENERS_PER_SITE_MAX)).expect("room");
    }
    let left = LISTENERS_MAX - listeners.len();
    listeners.set(&site("a"), some(left + 1)).expect_err("too many");
    listeners.set(&site("a"), some(left)).expect("room");
    for number in 0..LISTENERS_MAX / LISTENERS_PER_SITE_MAX {
        listeners.forget(&site(&format!("s{number}")));
    }
    listeners.forget(&site("a"));
    assert!(listeners.is_empty());
    assert!(listeners.sites.is_empty());
}

#[test]
fn names_and_patterns_are_checked() {
    for bad in ["a..b", "a b", "", ">.a"] {
        assert!(ListenedTopics::parse(bad).is_err(), "{bad}");
    }
    assert!(ListenedTopics::glob(&"*".repeat(TOPIC_NAME_BYTES_MAX + 1)).is_err());
    for bad in ["", &"g".repeat(GROUP_NAME_BYTES_MAX + 1)] {
        assert!(SiteListener::new(ListenedTopics::Wildcard(">".into()), Some(bad)).is_err());
    }
}

const NAMES: [&str; 4] = ["a", "a.b", "c", "c.d"];
const TOPICS: [&str; 7] = ["a", "a.b", "c", "c.d", "*", "a.*", ">"];

fn some_listeners() -> impl Strategy<Value = Vec<(usize, Option<u8>)>> {
    proptest::collection::vec((0..TOPICS.len(), proptest::option::of(0u8..3)), 0..5)
}

proptest! {
    /// With any listeners: each site with a plain one receives the topic, each group with members at another site and
    /// none at this one is chosen at one site that has members, and no other site receives anything. What is not
    /// reported as changed keeps its receivers.
    #[test]
    fn each_group_is_chosen_once(steps in proptest::collection::vec((0usize..4, some_listeners()), 1..12)) {
        let mut listeners = Listeners::default();
        let mut model: BTreeMap<usize, Vec<SiteListener>> = BTreeMap::new();
        for (at, list) in steps {
            let list: Vec<SiteListener> = list
                .iter()
                .map(|(topics, group)| listener(TOPICS[*topics], group.map(|group| format!("g{group}")).as_deref()))
                .collect();
            let before = NAMES.map(|name| listeners.receivers(&topic(name), &[], |_| Some(0)));
            let changed = if at == 0 {
                let mut groups = OwnGroups::new();
                for name in NAMES.map(topic) {
                    let members = list.iter().filter(|it| it.topics.contains(&name));
                    let of_name = members.filter_map(|it| it.group.clone()).collect();
                    groups.insert(name, of_name);
                }
                listeners.set_own(Vec::new(), groups).1
            } else {
                listeners.set(&site(&format!("s{at}")), list.clone()).expect("room")
            };
            model.insert(at, list);
            for (name, before) in NAMES.iter().zip(before) {
                let of = topic(name);
                let got = listeners.receivers(&of, &[], |_| Some(0));
                prop_assert!(changed.concerns(&of) || got == before);
                let hears = |at: usize, group: Option<&str>| {
                    model.get(&at).into_iter().flatten().any(|it| {
                        // The directory has the plain readers of a name.
                        let is_told = group.is_some() || !matches!(it.topics, ListenedTopics::Name(_));
                        it.group.as_deref() == group && is_told && it.topics.contains(&of)
                    })
                };
                for at in 1..4 {
                    let is_receiver = got.contains_key(&site(&format!("s{at}")));
                    prop_assert!(is_receiver || !hears(at, None));
                }
                for (receiver, groups) in &got {
                    let at: usize = receiver.as_str()[1..].parse().expect("a number");
                    let Groups::These(names) = groups else { panic!("few groups") };
                    prop_assert!(hears(at, None) || !names.is_empty());
                    prop_assert!(names.iter().all(|group| hears(at, Some(group)) && !hears(0, Some(group))));
                }
                for group in ["g0", "g1", "g2"] {
                    let is_elsewhere = (1..4).any(|at| hears(at, Some(group))) && !hears(0, Some(group));
                    let count = got.values().filter(|groups| groups.contains(group)).count();
                    prop_assert_eq!(count, usize::from(is_elsewhere));
                }
            }
        }
    }
}
