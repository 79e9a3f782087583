//! Interest against the directories of simulated sites: after each step these have what the site wants.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::mesh::directory::{Directory, owners};

const SITES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const TOPICS: [&str; 4] = ["t", "u", "v", "w"];

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a topic")
}

fn site(name: &str) -> SiteName {
    SiteName::parse(name).expect("a site")
}

fn sites(names: &[&str]) -> Vec<SiteName> {
    names.iter().map(|name| site(name)).collect()
}

fn told(announcements: &[Announcement], kind: AnnouncementKind) -> Vec<SiteName> {
    announcements.iter().filter(|one| one.kind == kind).map(|one| one.to.clone()).collect()
}

const ADVERTISE: AnnouncementKind = AnnouncementKind::Advertise { ttl_ms: ADVERTISE_TTL_MS };

#[test]
fn new_interest_is_announced_immediately_and_renewed_after_half_of_its_time() {
    let mut interest = Interest::new();
    let all = sites(&SITES);
    let t = topic("t");
    assert_eq!((interest.due(&all, 0), interest.next_due_ms()), (vec![], None));
    interest.set(&t, true, 7);
    assert_eq!((interest.next_due_ms(), interest.len()), (Some(7), 1));
    let expected = owners(&t, &all).to_vec();
    assert_eq!(told(&interest.due(&all, 10), ADVERTISE), expected);
    assert_eq!(interest.next_due_ms(), Some(10 + ADVERTISE_TTL_MS / 2));
    assert_eq!(interest.due(&all, 9 + ADVERTISE_TTL_MS / 2), []);
    assert_eq!(told(&interest.due(&all, 10 + ADVERTISE_TTL_MS / 2), ADVERTISE), expected);
}

#[test]
fn interest_that_is_lost_and_regained_between_calls_is_not_announced() {
    let mut interest = Interest::new();
    let all = sites(&SITES);
    let t = topic("t");
    interest.set(&t, true, 0);
    interest.set(&t, false, 0);
    assert_eq!((interest.due(&all, 0), interest.topics.len()), (vec![], 0));
    interest.set(&t, true, 0);
    assert_eq!(interest.due(&all, 0).len(), 3);
    interest.set(&t, false, 1);
    interest.set(&t, true, 2);
    assert_eq!((interest.due(&all, 3), interest.next_due_ms()), (vec![], Some(ADVERTISE_TTL_MS / 2)));
}

#[test]
fn lost_interest_is_withdrawn_from_all_sites_that_were_told() {
    let mut interest = Interest::new();
    let t = topic("t");
    let first = sites(&["a", "b", "c"]);
    interest.set(&t, true, 0);
    assert_eq!(told(&interest.due(&first, 0), ADVERTISE).len(), 3);
    let all = sites(&SITES);
    let added: BTreeSet<SiteName> = told(&interest.due(&all, 1), ADVERTISE).into_iter().collect();
    let expected: BTreeSet<SiteName> = owners(&t, &all).into_iter().filter(|owner| !first.contains(owner)).collect();
    assert!(!added.is_empty() && added == expected, "only owners that were not told");
    interest.set(&t, false, 2);
    // Site `c` is not live: it receives the withdrawal once it has returned.
    let without: Vec<SiteName> = all.iter().filter(|one| one.as_str() != "c").cloned().collect();
    let withdrawn = told(&interest.due(&without, 2), AnnouncementKind::Withdraw);
    assert_eq!(withdrawn.len(), 2 + added.len());
    assert_eq!(interest.due(&without, 3), []);
    assert_eq!(told(&interest.due(&all, 4), AnnouncementKind::Withdraw), [site("c")]);
    assert_eq!((interest.topics.len(), interest.next_due_ms()), (0, None));
}

#[test]
fn a_site_that_returned_or_restarted_is_told_again() {
    let mut interest = Interest::new();
    let t = topic("t");
    let both = sites(&["a", "b"]);
    interest.set(&t, true, 0);
    assert_eq!(interest.due(&both, 0).len(), 2);
    assert_eq!(interest.due(&both[..1], 1), []);
    assert_eq!(told(&interest.due(&both, 2), ADVERTISE), [site("b")]);
    interest.reset_site(&site("a"), 3);
    interest.reset_site(&site("x"), 3);
    assert_eq!(interest.next_due_ms(), Some(3));
    assert_eq!(told(&interest.due(&both, 3), ADVERTISE), [site("a")]);
    assert_eq!(interest.next_due_ms(), Some(2 + ADVERTISE_TTL_MS / 2));
    // Neither the order of the list nor repetitions change anything.
    assert_eq!(interest.due(&sites(&["b", "a", "b"]), 4), []);
}

#[test]
fn a_site_that_is_told_everything_again_removes_what_was_withdrawn_while_it_received_nothing() {
    let mut interest = Interest::new();
    let mut directory = Directory::new();
    let (me, a, all) = (site("me"), site("a"), sites(&["a"]));
    let mut announce = |interest: &mut Interest, now_ms, is_received: fn(&TopicName) -> bool| {
        for Announcement { arrival, topic, kind, .. } in interest.due(&all, now_ms) {
            match kind {
                _ if !is_received(&topic) => {}
                AnnouncementKind::Advertise { ttl_ms } => {
                    drop(directory.advertise(&topic, &me, arrival, ttl_ms, now_ms).expect("room"));
                }
                AnnouncementKind::Withdraw => drop(directory.withdraw(&topic, &me, arrival)),
            }
        }
        let advertised = interest.advertised();
        for Advertised { arrival, topics, .. } in &advertised {
            directory.complete(&me, *arrival, *topics);
        }
        let has = |name: &&&str| !directory.lookup(&topic(name), now_ms).is_empty();
        (advertised.len(), TOPICS.iter().filter(has).copied().collect::<Vec<_>>())
    };
    interest.set(&topic("t"), true, 0);
    interest.set(&topic("u"), true, 0);
    assert_eq!(announce(&mut interest, 0, |_| true), (0, vec!["t", "u"]), "it had been told nothing");
    interest.set(&topic("t"), false, 1);
    assert_eq!(announce(&mut interest, 1, |_| false), (0, vec!["t", "u"]));
    // An advertisement is lost: what it had is not removed.
    interest.reset_site(&a, 2);
    assert_eq!(announce(&mut interest, 2, |_| false), (1, vec!["t", "u"]));
    interest.reset_site(&a, 3);
    assert_eq!(announce(&mut interest, 3, |_| true), (1, vec!["u"]));
    assert_eq!(announce(&mut interest, 4, |_| true), (0, vec!["u"]));
    interest.set(&topic("u"), false, 4 + ADVERTISE_TTL_MS);
    assert_eq!(announce(&mut interest, 4 + ADVERTISE_TTL_MS, |_| true), (0, vec![]));
    interest.reset_site(&a, 4 + 2 * ADVERTISE_TTL_MS);
    assert_eq!(announce(&mut interest, 4 + 2 * ADVERTISE_TTL_MS, |_| true), (0, vec![]), "it can have nothing");
}

/// The end of the advertisements that a site is sent again comes after all of them, whatever else changes meanwhile.
#[test]
fn a_site_is_told_the_end_after_all_topics() {
    let count = 2 * INTEREST_TOPICS_PER_CALL_MAX + 1;
    let first = topic("t.0");
    let changes: [&dyn Fn(&mut Interest); 3] = [
        &|interest| interest.reset_site(&site("b"), 6),
        &|interest| drop(interest.due(&sites(&["a", "b", "c"]), 6)),
        &|interest| {
            interest.set(&first, false, 6);
            interest.set(&first, true, 6);
        },
    ];
    for change in changes {
        let mut interest = Interest::new();
        for number in 0..count {
            interest.set(&topic(&format!("t.{number}")), true, 0);
        }
        let both = sites(&["a", "b"]);
        while interest.next_due_ms() == Some(0) {
            interest.due(&both, 0);
        }
        interest.advertised();
        interest.reset_site(&site("a"), 5);
        change(&mut interest);
        let mut ends = Vec::new();
        while interest.next_due_ms().is_some_and(|due_ms| due_ms <= 6) {
            let list = interest.list.clone();
            interest.due(&list, 6);
            let advertised = interest.advertised();
            ends.extend(advertised.into_iter().filter(|end| end.to == site("a")).map(|end| end.topics));
        }
        assert_eq!(ends, [count]);
    }
}

#[test]
fn one_call_has_a_bounded_number_of_topics() {
    let mut interest = Interest::new();
    let count = 2 * INTEREST_TOPICS_PER_CALL_MAX + 1;
    for number in 0..count {
        interest.set(&topic(&format!("t.{number}")), true, 0);
    }
    let all = sites(&SITES);
    let mut lengths = Vec::new();
    while interest.next_due_ms().is_some_and(|due_ms| due_ms == 0) {
        lengths.push(interest.due(&all, 0).len());
    }
    assert_eq!(lengths, [INTEREST_TOPICS_PER_CALL_MAX * 3, INTEREST_TOPICS_PER_CALL_MAX * 3, 3]);
    assert_eq!((interest.len(), interest.topics().len()), (count, count));
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        topic: usize,
        is_wanted: bool,
    },
    Pass {
        ms: u64,
    },
    Join {
        site: usize,
    },
    /// Leaves the list and keeps its directory, as when the network is cut.
    Leave {
        site: usize,
    },
    /// Leaves the list and loses its directory.
    Crash {
        site: usize,
    },
    /// Loses its directory without leaving the list.
    Restart {
        site: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let a_site = || 0..SITES.len();
    prop_oneof![
        4 => (0..TOPICS.len(), any::<bool>()).prop_map(|(topic, is_wanted)| Step::Set { topic, is_wanted }),
        3 => (0..100_000u64).prop_map(|ms| Step::Pass { ms }),
        3 => a_site().prop_map(|site| Step::Join { site }),
        2 => a_site().prop_map(|site| Step::Leave { site }),
        1 => a_site().prop_map(|site| Step::Crash { site }),
        1 => a_site().prop_map(|site| Step::Restart { site }),
    ]
}

/// Mesh of sites that receive every announcement while they are live.
struct Mesh {
    interest: Interest,
    live: BTreeSet<SiteName>,
    directories: BTreeMap<SiteName, Directory>,
    /// Time of the last advertisement to each site that has been live since then.
    sent: BTreeMap<(SiteName, TopicName), u64>,
    wanted: BTreeSet<TopicName>,
    now_ms: u64,
}

impl Mesh {
    fn new() -> Self {
        Self {
            interest: Interest::new(),
            live: sites(&SITES[..2]).into_iter().collect(),
            directories: sites(&SITES).into_iter().map(|site| (site, Directory::new())).collect(),
            sent: BTreeMap::new(),
            wanted: BTreeSet::new(),
            now_ms: 0,
        }
    }

    /// Delivers what is due.
    fn announce(&mut self) {
        let me = site("me");
        let list: Vec<SiteName> = self.live.iter().cloned().collect();
        for Announcement { to, arrival, topic, kind } in self.interest.due(&list, self.now_ms) {
            assert!(self.live.contains(&to), "{to} is not live");
            let directory = self.directories.get_mut(&to).expect("a site");
            let sent_ms = self.sent.remove(&(to.clone(), topic.clone()));
            match kind {
                AnnouncementKind::Advertise { ttl_ms } => {
                    let is_early = sent_ms.is_some_and(|sent_ms| self.now_ms < sent_ms + ADVERTISE_TTL_MS / 2);
                    assert!(!is_early, "{to} has {topic} already");
                    directory.advertise(&topic, &me, arrival, ttl_ms, self.now_ms).expect("room");
                    self.sent.insert((to, topic), self.now_ms);
                }
                AnnouncementKind::Withdraw => _ = directory.withdraw(&topic, &me, arrival),
            }
        }
        for Advertised { to, arrival, topics } in self.interest.advertised() {
            let directory = self.directories.get_mut(&to).expect("a site");
            directory.complete(&me, arrival, topics);
        }
        assert!(self.interest.next_due_ms().is_none_or(|due_ms| due_ms > self.now_ms));
    }

    /// Checks that the directories of the live sites have what is wanted.
    fn check(&self) {
        for topic in TOPICS.map(topic) {
            let owners = owners(&topic, &self.live);
            for site in &self.live {
                let has_entry = !self.directories[site].lookup(&topic, self.now_ms).is_empty();
                if !self.wanted.contains(&topic) {
                    assert!(!has_entry, "{site} has {topic}, which is not wanted");
                } else if owners.contains(site) {
                    assert!(has_entry, "{site} has no {topic}");
                }
            }
        }
    }

    /// Passes time in the steps that `next_due_ms` requires. No entry expires between them.
    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while let Some(due_ms) = self.interest.next_due_ms().filter(|due_ms| *due_ms <= end_ms) {
            self.now_ms = due_ms;
            self.check();
            self.announce();
        }
        self.now_ms = end_ms;
    }

    fn leave(&mut self, site: &SiteName) {
        self.live.remove(site);
        self.sent.retain(|(to, _), _| to != site);
    }

    fn lose(&mut self, site: &SiteName) {
        self.sent.retain(|(to, _), _| to != site);
        self.directories.insert(site.clone(), Directory::new());
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Set { topic: at, is_wanted } => {
                let topic = topic(TOPICS[at]);
                self.interest.set(&topic, is_wanted, self.now_ms);
                if is_wanted {
                    self.wanted.insert(topic);
                } else {
                    self.wanted.remove(&topic);
                }
            }
            Step::Pass { ms } => self.pass(ms),
            Step::Join { site: at } => _ = self.live.insert(site(SITES[at])),
            Step::Leave { site: at } => self.leave(&site(SITES[at])),
            Step::Crash { site: at } => {
                self.leave(&site(SITES[at]));
                self.lose(&site(SITES[at]));
            }
            Step::Restart { site: at } => {
                self.lose(&site(SITES[at]));
                self.interest.reset_site(&site(SITES[at]), self.now_ms);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn live_owners_have_what_is_wanted_and_no_live_site_has_more(steps in prop::collection::vec(step(), 1..80)) {
        let mut mesh = Mesh::new();
        for step in steps {
            mesh.play(&step);
            mesh.announce();
            mesh.check();
            prop_assert_eq!(mesh.interest.topics(), mesh.wanted.iter().cloned().collect::<Vec<_>>());
            prop_assert_eq!(mesh.interest.len(), mesh.wanted.len());
        }
        // Nothing is kept of topics that are not wanted any more.
        for at in 0..TOPICS.len() {
            mesh.play(&Step::Set { topic: at, is_wanted: false });
        }
        mesh.announce();
        mesh.pass(ADVERTISE_TTL_MS);
        prop_assert_eq!((mesh.interest.topics.len(), mesh.interest.due.len()), (0, 0));
    }
}
