//! Targets of groups: random histories against a plain resolution of all subscriptions, and the work that changes cost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::targets::Targets;
use super::tests::{BEGIN, Client, Log, Topics, join_of, new_group, topic};
use super::*;
use crate::ids::TopicPartition;
use crate::limits::{GROUP_MEMBERS_MAX, GROUP_PARTITIONS_MAX, GROUP_PATTERNS_MAX};
use crate::pattern::{Pattern, Rule};

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Returns the topics that the members subscribe to, up to the limit, and the number of partitions beyond it.
fn resolve(members: &BTreeMap<MemberId, Vec<Pattern>>, topics: &Topics) -> (BTreeMap<TopicName, u32>, usize) {
    let (mut taken, mut left_out) = (0, 0);
    let mut found = BTreeMap::new();
    for (name, partitions) in topics.topics() {
        if members.values().flatten().any(|pattern| pattern.matches(&name)) {
            if taken + partitions as usize <= GROUP_PARTITIONS_MAX {
                taken += partitions as usize;
                found.insert(name, partitions);
            } else {
                left_out += partitions as usize;
            }
        }
    }
    (found, left_out)
}

/// Returns a subscription of names, wildcards and rules. The rules of even members match only one half of the topics
/// while the permissions are even.
fn subscription(random: &mut Random, permissions: &Arc<AtomicUsize>) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for _ in 0..1 + random.below(3) {
        let number = random.below(12);
        patterns.push(match random.below(4) {
            0 | 1 => Pattern::Topic(topic(&format!("t{number}.{}", number % 3))),
            2 => Pattern::parse(["*.0", "*.1", "t1.*", "t2.>", ">", "*.7"][number % 6]).expect("a pattern"),
            _ => {
                let permissions = permissions.clone();
                let digit = number % 4;
                let takes = move |name: &TopicName| {
                    let is_shown = permissions.load(Ordering::Relaxed) % 2 == 1 || !name.as_str().ends_with('1');
                    is_shown && name.as_str().contains(&format!("{digit}"))
                };
                Pattern::Rule(Rule::new(&format!("has {digit}"), "someone", takes))
            }
        });
    }
    patterns
}

/// Changes a topic. Few are so large that not all of them fit.
fn change_topics(random: &mut Random, topics: &mut Topics, is_wide: bool) {
    let number = random.below(12);
    let partitions = match random.below(4) {
        0 => 0,
        1 if is_wide => 5000 + random.below(4000) as u32,
        _ => 1 + random.below(5) as u32,
    };
    topics.set(&format!("t{number}.{}", number % 3), partitions);
}

fn id(number: usize) -> MemberId {
    MemberId::parse(&format!("m{number}")).expect("an id")
}

/// Runs the plan of a group, with changes in the meantime, until none is due.
fn settle(group: &mut Group, topics: &Topics, log: &mut Log) {
    for _ in 0..3 {
        log.save(group, false);
        group.refresh(topics);
        while let Some(plan) = group.plan() {
            log.save(group, false);
            group.apply(&mut plan.run(topics));
        }
    }
    assert!(!group.is_due() && !group.is_outdated(topics));
}

/// However members and topics change, the members have the partitions of all their topics, as if everything had been
/// resolved from the beginning; also if plans are late, or were made before the last changes.
#[test]
fn groups_have_the_partitions_that_a_plain_resolution_finds() {
    for seed in 0..40 {
        let random = &mut Random(seed);
        let permissions = Arc::new(AtomicUsize::new(1));
        let mut topics = Topics::default();
        let mut group = new_group();
        group.targets = Targets::new([0, 40, 1 << 20][seed as usize % 3]);
        let mut log = Log::default();
        let mut members: BTreeMap<MemberId, Vec<Pattern>> = BTreeMap::new();
        let mut planned: Option<Planned> = None;
        for _ in 0..80 {
            log.save(&mut group, true);
            match random.below(10) {
                0..3 => {
                    let who = Client::new(&format!("m{}", random.below(6)), None).who;
                    let subscription = subscription(random, &permissions);
                    let join =
                        Join { assignor: Assignor::ALL[random.below(2)], ..join_of(who.clone(), subscription.clone()) };
                    group.join(join, &topics, BEGIN).expect("there is room");
                    members.insert(who.member, subscription);
                }
                3 => {
                    let member = id(random.below(6));
                    let who = Identity { member: member.clone(), instance: None };
                    let was_in = members.remove(&member).is_some();
                    assert_eq!(group.leave(&who, false, BEGIN).is_ok(), was_in);
                }
                4..7 => change_topics(random, &mut topics, seed % 10 == 0),
                7 => {
                    topics.forget();
                    topics.permissions = permissions.fetch_add(1, Ordering::Relaxed) as u64;
                    topics.set("other", 1);
                }
                8 => planned = group.plan().map(|plan| plan.run(&topics)),
                _ => planned.take().into_iter().for_each(|mut planned| group.apply(&mut planned)),
            }
            if random.below(3) == 0 {
                log.save(&mut group, false);
                group.refresh(&topics);
            }
            let in_targets: BTreeSet<&MemberId> = group.members().map(|member| member.id).collect();
            assert_eq!(in_targets, members.keys().collect());
            if random.below(4) > 0 {
                continue;
            }
            settle(&mut group, &topics, &mut log);
            let (found, left_out) = resolve(&members, &topics);
            let all = |(name, count): (&TopicName, &u32)| (0..*count).map(move |at| (name.clone(), at)).collect();
            let all: BTreeSet<(TopicName, u32)> = found.iter().flat_map(|of| -> Vec<_> { all(of) }).collect();
            let listed: BTreeSet<_> = group.partitions().map(|at| (at.topic, at.partition)).collect();
            // Without a list of all partitions.
            assert!(all == listed, "{seed}: {} {found:?}", listed.len());
            assert_eq!(left_out, group.left_out(), "{seed}");
            let mut given: Vec<TopicPartition> = Vec::new();
            for member in group.members() {
                let reads = |at: &TopicPartition| members[member.id].iter().any(|pattern| pattern.matches(&at.topic));
                assert!(member.target.iter().all(reads), "{seed}");
                given.extend(member.target.iter().cloned());
            }
            assert_eq!(given.len(), all.len(), "{seed}");
            assert!(given.into_iter().all(|at| all.contains(&(at.topic, at.partition))), "{seed}");
        }
    }
}

#[test]
fn share_groups_have_the_partitions_that_a_plain_resolution_finds() {
    for seed in 0..40 {
        let random = &mut Random(seed);
        let permissions = Arc::new(AtomicUsize::new(1));
        let mut topics = Topics::default();
        let mut group = ShareGroup::new(GroupName::parse("g").expect("a name"));
        group.targets = Targets::new([0, 40, 1 << 20][seed as usize % 3]);
        let mut members: BTreeMap<MemberId, Vec<Pattern>> = BTreeMap::new();
        let mut planned: Option<Planned> = None;
        for _ in 0..80 {
            match random.below(9) {
                0..3 => {
                    let member = id(random.below(6));
                    let subscription = subscription(random, &permissions);
                    let join = ShareJoin {
                        member: member.clone(),
                        client: String::new(),
                        host: String::new(),
                        topics: subscription.clone(),
                        session_timeout_ms: 1000,
                    };
                    group.join(join, &topics, BEGIN).expect("there is room");
                    members.insert(member, subscription);
                }
                3 => {
                    let member = id(random.below(6));
                    assert_eq!(group.leave(&member).is_ok(), members.remove(&member).is_some());
                }
                4..7 => {
                    change_topics(random, &mut topics, seed % 10 == 0);
                    let deleted = group.topics().find(|name| topics.partitions(name).is_none()).cloned();
                    deleted.iter().for_each(|name| group.forget_topic(name));
                }
                7 => planned = group.plan().map(|plan| plan.run(&topics)),
                _ => planned.take().into_iter().for_each(|mut planned| group.apply(&mut planned)),
            }
            if random.below(4) > 0 {
                continue;
            }
            for _ in 0..3 {
                group.refresh(&topics);
                while let Some(plan) = group.plan() {
                    group.apply(&mut plan.run(&topics));
                }
            }
            assert!(!group.is_due() && !group.is_outdated(&topics));
            let (found, _) = resolve(&members, &topics);
            assert_eq!(group.topics().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{seed}");
            let mut given: BTreeMap<TopicName, BTreeSet<u32>> = BTreeMap::new();
            for member in group.members() {
                for at in member.assigned {
                    assert!(members[member.id].iter().any(|pattern| pattern.matches(&at.topic)), "{seed}");
                    given.entry(at.topic).or_default().insert(at.partition);
                }
            }
            let all: BTreeMap<TopicName, BTreeSet<u32>> =
                found.into_iter().map(|(name, count)| (name, (0..count).collect())).collect();
            assert_eq!(given, all, "{seed}");
        }
    }
}

/// Returns a rule for the topics whose number has this remainder, which counts the topics that it is compared with.
fn counted(number: usize, of: usize, compared: &Arc<AtomicUsize>) -> Pattern {
    let compared = compared.clone();
    let takes = move |name: &TopicName| {
        compared.fetch_add(1, Ordering::Relaxed);
        name.as_str().trim_start_matches("topic-").parse().is_ok_and(|topic: usize| topic % of == number % of)
    };
    Pattern::Rule(Rule::new(&format!("{number} of {of}"), "someone", takes))
}

#[test]
fn a_new_topic_is_compared_once_with_each_pattern_and_no_other_topic_is() {
    const PATTERNS: usize = 40;
    let compared = Arc::new(AtomicUsize::new(0));
    let mut topics = Topics::default();
    (0..5000).for_each(|number| topics.set(&format!("topic-{number}"), 1));
    let mut group = new_group();
    let mut shares = ShareGroup::new(GroupName::parse("g").expect("a name"));
    let mut log = Log::default();
    for number in 0..PATTERNS {
        // Two members have each pattern.
        for name in ["a", "b"] {
            let who = Client::new(&format!("{name}{number}"), None).who;
            let topics_of = || vec![counted(number, PATTERNS, &compared)];
            log.save(&mut group, true);
            group.join(join_of(who.clone(), topics_of()), &topics, BEGIN).expect("there is room");
            let join = ShareJoin {
                member: who.member,
                client: String::new(),
                host: String::new(),
                topics: topics_of(),
                session_timeout_ms: 1000,
            };
            shares.join(join, &topics, BEGIN).expect("there is room");
        }
    }
    settle(&mut group, &topics, &mut log);
    while let Some(plan) = shares.plan() {
        shares.apply(&mut plan.run(&topics));
    }
    // Each pattern was compared with each topic once in each group.
    assert_eq!(compared.swap(0, Ordering::Relaxed), 2 * PATTERNS * 5000);
    let epochs = (group.epoch(), shares.epoch());
    topics.set("topic-5000", 3);
    settle(&mut group, &topics, &mut log);
    shares.refresh(&topics);
    while let Some(plan) = shares.plan() {
        shares.apply(&mut plan.run(&topics));
    }
    assert_eq!(compared.swap(0, Ordering::Relaxed), 2 * PATTERNS);
    assert_eq!((group.epoch(), shares.epoch()), (epochs.0 + 1, epochs.1 + 1));
    assert_eq!((group.partitions().count(), shares.topics().count()), (5003, 5001));
    // Nor is any comparison made when a member leaves, or when a topic changes that nobody subscribes to by rules.
    let who = Client::new("a7", None).who;
    group.leave(&who, false, BEGIN).expect("a member");
    shares.leave(&who.member).expect("a member");
    settle(&mut group, &topics, &mut log);
    assert_eq!(compared.load(Ordering::Relaxed), 0);
}

/// A member that joins gets what its rule matches now, even if another member has brought the same rule before.
#[test]
fn rules_are_compared_again_once_permissions_have_changed() {
    let mut topics = Topics::default();
    topics.set("a", 1);
    let mut group = new_group();
    let mut log = Log::default();
    let permitted = Arc::new(AtomicUsize::new(0));
    let rule = || {
        let permitted = permitted.clone();
        vec![Pattern::Rule(Rule::new("all", "someone", move |_| permitted.load(Ordering::Relaxed) == 1))]
    };
    let mut join = |group: &mut Group, topics: &Topics, name: &str| {
        log.save(group, true);
        group.join(join_of(Client::new(name, None).who, rule()), topics, BEGIN).expect("there is room");
        log.save(group, false);
    };
    join(&mut group, &topics, "one");
    permitted.store(1, Ordering::Relaxed);
    group.refresh(&topics);
    assert_eq!(group.partitions().count(), 0, "as long as neither the members nor the topics change");
    topics.permissions += 1;
    join(&mut group, &topics, "two");
    assert_eq!(group.partitions().count(), 1);
    permitted.store(0, Ordering::Relaxed);
    topics.permissions += 1;
    topics.set("b", 1);
    group.refresh(&topics);
    assert_eq!(group.partitions().count(), 0);
}

/// A member that joins a group whose targets take long gets its partitions with the plan; other members keep theirs.
#[test]
fn members_keep_their_partitions_while_a_plan_runs() {
    let mut topics = Topics::default();
    topics.set("a", 4);
    topics.set("b", 2);
    let mut group = new_group();
    group.targets = Targets::new(0);
    let mut log = Log::default();
    let clients = ["one", "two", "three"].map(|name| Client::new(name, None).who);
    let join = |group: &mut Group, log: &mut Log, who: &Identity, names: &str| {
        log.save(group, true);
        group.join(join_of(who.clone(), super::tests::patterns(names)), &topics, BEGIN).expect("there is room");
    };
    let targets = |group: &Group| group.members().map(|member| super::tests::show(member.target)).collect::<Vec<_>>();
    join(&mut group, &mut log, &clients[0], "a,b");
    assert_eq!((targets(&group), group.epoch(), group.state()), (vec![String::new()], 0, GroupState::Reconciling));
    settle(&mut group, &topics, &mut log);
    assert_eq!((targets(&group), group.epoch()), (vec!["a/0 a/1 a/2 a/3 b/0 b/1".to_owned()], 1));
    let plan = group.plan();
    assert!(plan.is_none(), "nothing has changed");

    join(&mut group, &mut log, &clients[1], "a");
    let plan = group.plan().expect("a member has joined");
    // It changes what it subscribes to, and another member joins, before the plan is done.
    log.save(&mut group, false);
    let epoch = group.members().next().expect("a member").epoch;
    group.resubscribe(&clients[0], epoch, super::tests::patterns("b"), &topics).expect("a member");
    join(&mut group, &mut log, &clients[2], "a");
    assert_eq!(targets(&group), ["b/0 b/1", "", ""]);
    log.save(&mut group, false);
    group.apply(&mut plan.run(&topics));
    assert!(group.is_due());
    assert_eq!(targets(&group), ["b/0 b/1", "", "a/1 a/2 a/3"], "in the order of their ids");
    settle(&mut group, &topics, &mut log);
    assert_eq!(targets(&group), ["b/0 b/1", "a/0 a/3", "a/1 a/2"]);

    // A plan is void once another member has taken over the target of one.
    join(&mut group, &mut log, &clients[1], "a,b");
    let void = group.plan().expect("a subscription has changed");
    group.targets.rename(&clients[1].member, &id(9));
    let epoch = group.epoch();
    group.apply(&mut void.run(&topics));
    assert_eq!((group.epoch(), group.is_due()), (epoch, true));
}

#[test]
fn patterns_beyond_the_limit_are_refused() {
    let topics = Topics::default();
    let mut group = new_group();
    let mut shares = ShareGroup::new(GroupName::parse("g").expect("a name"));
    let mut log = Log::default();
    let rules = |from: usize| -> Vec<Pattern> {
        (from..from + 256).map(|at| Pattern::Rule(Rule::new(&format!("{at:04}"), "", |_| true))).collect()
    };
    let join = |group: &mut Group, log: &mut Log, name: &str, topics_of: Vec<Pattern>| {
        log.save(group, true);
        let who = Client::new(name, None).who;
        group.join(join_of(who, topics_of), &topics, BEGIN).map(drop).map_err(|refused| refused.reason)
    };
    let share = |shares: &mut ShareGroup, name: &str, topics_of: Vec<Pattern>| {
        let (client, host) = Default::default();
        let member = MemberId::parse(name).expect("an id");
        let join = ShareJoin { member, client, host, topics: topics_of, session_timeout_ms: 1000 };
        shares.join(join, &topics, BEGIN).map(drop).map_err(|refused| refused.reason)
    };
    for number in 0..GROUP_PATTERNS_MAX / 256 {
        for name in ["a", "b"] {
            let name = format!("{name}{number}");
            assert_eq!(join(&mut group, &mut log, &name, rules(256 * number)), Ok(()));
            assert_eq!(share(&mut shares, &name, rules(256 * number)), Ok(()));
        }
    }
    let one_more = || vec![Pattern::parse("one.*").expect("a pattern")];
    assert_eq!(join(&mut group, &mut log, "c", one_more()), Err(Reason::GroupFull));
    assert_eq!(share(&mut shares, "c", one_more()), Err(Reason::GroupFull));
    assert_eq!((group.members_len(), shares.len()), (GROUP_PATTERNS_MAX / 128, GROUP_PATTERNS_MAX / 128));
    // Others have all patterns of this one.
    assert_eq!(join(&mut group, &mut log, "a0", one_more()), Err(Reason::GroupFull));
    assert_eq!(join(&mut group, &mut log, "a0", rules(256)), Ok(()));
    // Now no other member has its patterns.
    assert_eq!(join(&mut group, &mut log, "b0", one_more()), Ok(()));
    assert_eq!(join(&mut group, &mut log, "c", one_more()), Ok(()));
    shares.leave(&MemberId::parse("a0").expect("an id")).expect("a member");
    assert_eq!(share(&mut shares, "c", one_more()), Err(Reason::GroupFull));
    shares.leave(&MemberId::parse("b0").expect("an id")).expect("a member");
    assert_eq!(share(&mut shares, "c", one_more()), Ok(()));
}

/// Prints how long the largest groups take, at once and in plans:
/// `cargo test --release -p thalweg-engine --lib groups::target_tests -- --ignored --nocapture`
#[test]
#[ignore = "prints times"]
fn times_of_large_groups() {
    let mut topics = Topics::default();
    (0..60_000).for_each(|number| topics.set(&format!("topic-{number}"), 1));
    let compared = Arc::new(AtomicUsize::new(0));
    let mut group = new_group();
    let mut log = Log::default();
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let begin = Instant::now();
        work();
        let took = begin.elapsed();
        if took.as_micros() > 500 {
            println!("{what}: {took:?}");
        }
    };
    let mut clients = Vec::new();
    for number in 0..GROUP_MEMBERS_MAX {
        let who = Client::new(&format!("m{number:03}"), None).who;
        // Each member has others of the rules, so that most topics differ in their readers.
        let rules = (0..256).map(|at| (number * 37 + at * 4) % GROUP_PATTERNS_MAX);
        let rules = rules.map(|rule| counted(rule, 2 + rule, &compared));
        let join = join_of(who.clone(), rules.collect());
        log.save(&mut group, true);
        timed("join", &mut || assert!(group.join(join.clone(), &topics, BEGIN).is_ok()));
        clients.push(who);
    }
    let mut planned = None;
    let plan = |group: &mut Group, log: &mut Log, topics: &Topics| {
        log.save(group, false);
        let begin = Instant::now();
        let plan = group.plan()?;
        let made = begin.elapsed();
        let begin = Instant::now();
        let mut planned = plan.run(topics);
        let ran = begin.elapsed();
        let begin = Instant::now();
        group.apply(&mut planned);
        println!("plan: made in {made:?}, ran {ran:?}, applied in {:?}", begin.elapsed());
        Some(planned)
    };
    while let Some(done) = plan(&mut group, &mut log, &topics) {
        planned = Some(done);
    }
    drop(planned);
    for round in 0..2 {
        for who in &clients {
            timed("reconcile", &mut || drop(group.reconcile(who, BEGIN)));
        }
        topics.set(&format!("topic-{}", 60_000 + round), 1);
        log.save(&mut group, false);
        timed("new topic", &mut || group.refresh(&topics));
        plan(&mut group, &mut log, &topics);
        log.save(&mut group, false);
        timed("leave", &mut || drop(group.leave(&clients[round], false, BEGIN)));
        plan(&mut group, &mut log, &topics);
    }

    println!("40 members of different rules, 5,000 topics");
    let mut few = Topics::default();
    (0..5000).for_each(|number| few.set(&format!("topic-{number}"), 1));
    let mut group = new_group();
    let mut log = Log::default();
    for (number, who) in clients.iter().take(40).enumerate() {
        let join = join_of(who.clone(), vec![counted(number, 40, &compared)]);
        log.save(&mut group, true);
        timed("join", &mut || assert!(group.join(join.clone(), &few, BEGIN).is_ok()));
        plan(&mut group, &mut log, &few);
    }
    few.set("topic-5000", 1);
    log.save(&mut group, false);
    timed("new topic", &mut || group.refresh(&few));
    plan(&mut group, &mut log, &few);

    println!("one member with all partitions");
    let mut group = new_group();
    let mut log = Log::default();
    let who = &clients[0];
    log.save(&mut group, true);
    let all = join_of(who.clone(), super::tests::patterns(">"));
    timed("join", &mut || assert!(group.join(all.clone(), &topics, BEGIN).is_ok()));
    plan(&mut group, &mut log, &topics);
    timed("reconcile", &mut || drop(group.reconcile(who, BEGIN)));
    timed("answer", &mut || drop(group.answer(who, 1, true)));
    let mut records = Vec::new();
    timed("to records", &mut || records = group.to_records());
    timed("encode", &mut || drop(records.iter().map(OffsetsRecord::value).collect::<Vec<_>>()));
}
