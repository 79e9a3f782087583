//! Scripts for feeds and fanouts (`testdata/*.txt`), and feeds against a naive model. The commands:
//!
//! - `feed overflow=P batches=N bytes=N credit=N [shared=yes]`: creates a feed and drops all sources; `shared` is for
//!   the member of a queue group
//! - `source [log=N,N] [at=N]`: adds a source whose log has batches of `N` records each; it starts at an offset, or
//!   live
//! - `offer S N [bytes=N]`: appends a batch of N records (of 100 bytes) to the log of source S and
//!   offers it
//! - `elsewhere S N`: N records of source S are delivered to another member of its queue group
//! - `take [records=N] [bytes=N]`, `credit N`, `blocks S [bytes=N]`, `behind`, `catch_up S`, `remove S`
//! - `backfill S [batches=N]`: reads `N` batches of the log from the position of source S; commands between it and its
//!   `behind` happen while the log is read
//! - `trim S N`: retention removes the records before offset N
//! - `state`: shows the queue and the counts; `history` was read from a log and takes no room
//! - `fanout`: creates a fanout; `join NAME [group=G]`, `leave NAME`, `members`
//! - `deliver [full=NAME,NAME] [groups=G,G]`, `all_accept [full=NAME,NAME] [groups=G,G]`: an append while some are full

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::record::BatchBuilder;
use crate::script::{self, Command};

/// Returns a batch of `bytes` bytes, or as few less as the layout allows.
fn batch_of(base: Offset, records: u32, bytes: usize) -> RecordBatch {
    let build = |filler: usize| {
        let mut builder = BatchBuilder::new();
        for i in 0..records {
            let value = vec![b'v'; if i == 0 { filler } else { 0 }];
            builder.push(0, None, Some(&value), &[]).expect("a small record");
        }
        builder.finish().expect("records").stamp(base)
    };
    let most = bytes.saturating_sub(build(0).len());
    (0..=most).rev().map(build).find(|batch| batch.len() <= bytes).expect("room for the records")
}

/// Log of a partition, as far as retention has left it.
#[derive(Debug, Default)]
struct Log {
    batches: VecDeque<RecordBatch>,
    end: Offset,
}

impl Log {
    fn append(&mut self, records: u32, bytes: usize) -> RecordBatch {
        let batch = batch_of(self.end, records, bytes);
        self.end = batch.next_offset();
        self.batches.push_back(batch.clone());
        batch
    }

    fn read(&self, from: Offset, batches_max: usize) -> Vec<RecordBatch> {
        self.batches.iter().filter(|batch| batch.next_offset() > from).take(batches_max).cloned().collect()
    }
}

struct Script {
    feed: Feed,
    logs: Vec<Log>,
    fanout: Fanout<String>,
}

impl Script {
    fn new() -> Self {
        let limits = FeedLimits { batches_max: 1, bytes_max: 1 };
        let feed = Feed::new(limits, Overflow::Replay, 0, false);
        Self { feed, logs: Vec::new(), fanout: Fanout::default() }
    }

    fn run(&mut self, line: &str) -> String {
        let command = Command::parse(line);
        match command.word(0) {
            "fanout" | "join" | "leave" | "members" | "deliver" | "all_accept" => self.run_fanout(&command),
            _ => self.run_feed(&command),
        }
    }

    fn run_feed(&mut self, command: &Command<'_>) -> String {
        match command.word(0) {
            "feed" => {
                let number = |name| command.named_number(name).unwrap_or_else(|| panic!("feed wants {name}="));
                let limits = FeedLimits { batches_max: number("batches"), bytes_max: number("bytes") };
                let overflow = command.named("overflow").expect("feed wants overflow=").parse().expect("a policy");
                let is_shared = command.named("shared").is_some_and(|shared| shared == "yes");
                self.feed = Feed::new(limits, overflow, number("credit") as i64, is_shared);
                self.logs.clear();
                String::new()
            }
            "source" => self.add_source(command),
            "state" => self.state(),
            "credit" => {
                self.feed.add_credit(command.number(1));
                if self.feed.is_ready() { "ready\n".into() } else { "not ready\n".into() }
            }
            "take" => {
                let mut out = Vec::new();
                let max = |name| command.named_number(name).unwrap_or(usize::MAX);
                self.feed.take(max("records"), max("bytes"), &mut out);
                if out.is_empty() { "nothing\n".into() } else { show(&out) }
            }
            "behind" => match self.feed.behind() {
                Some((source, from)) => format!("{source} from {from}\n"),
                None => "none\n".into(),
            },
            _ => self.run_source(command),
        }
    }

    /// Runs the commands whose first word is a source.
    fn run_source(&mut self, command: &Command<'_>) -> String {
        let source = command.number(1) as SourceId;
        let log = &mut self.logs[source as usize];
        let bytes = command.named_number("bytes").unwrap_or(100);
        match command.word(0) {
            "offer" => {
                let batch = log.append(command.number(2) as u32, bytes);
                assert_eq!(batch.len(), bytes, "no batch has exactly this number of bytes");
                show_offer(self.feed.offer(source, &batch))
            }
            "elsewhere" => {
                log.end += command.number(2);
                String::new()
            }
            "blocks" => format!("{}\n", if self.feed.blocks(source, bytes) { "yes" } else { "no" }),
            "backfill" => {
                let from = self.feed.sources[source as usize].next;
                let batches = log.read(from, command.named_number("batches").unwrap_or(usize::MAX));
                let text = format!("{} batches\n", batches.len());
                self.feed.backfill(source, batches);
                text
            }
            "catch_up" => {
                self.feed.catch_up(source, log.end);
                String::new()
            }
            "trim" => {
                log.batches.retain(|batch| batch.base_offset() >= command.number(2));
                String::new()
            }
            "remove" => {
                self.feed.remove_source(source);
                String::new()
            }
            other => panic!("no command '{other}'"),
        }
    }

    fn add_source(&mut self, command: &Command<'_>) -> String {
        let mut log = Log::default();
        for records in command.named("log").unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
            log.append(records.parse().expect("records of a batch"), 100);
        }
        let next = command.named_number("at").map_or(log.end, |at| at as Offset);
        let is_live = next == log.end;
        let source = self.feed.add_source(next, is_live);
        self.logs.push(log);
        format!("{source} {} at {next}\n", if is_live { "live" } else { "behind" })
    }

    fn state(&self) -> String {
        let feed = &self.feed;
        let queued: Vec<Delivery> = feed.queue.iter().cloned().collect();
        assert_eq!(feed.queued_batches(), feed.history_batches + feed.batches);
        format!(
            "{}{} live of {} bytes, {} history, {} dropped, credit {}\n",
            show(&queued),
            feed.batches,
            feed.bytes,
            feed.history_batches,
            feed.dropped_records(),
            feed.credit
        )
    }

    fn run_fanout(&mut self, command: &Command<'_>) -> String {
        let full: Vec<&str> = command.named("full").unwrap_or_default().split(',').collect();
        let accepts = |member: &Member<String>| !full.contains(&&*member.handle);
        let chosen = command.named("groups").map(|names| names.split(',').collect::<Vec<&str>>());
        let is_for = |group: &str| chosen.as_ref().is_none_or(|chosen| chosen.contains(&group));
        match command.word(0) {
            "fanout" => {
                self.fanout = Fanout::default();
                String::new()
            }
            "join" => {
                let member = Member { handle: command.word(1).to_owned(), source: 0 };
                self.fanout.join(id_of(command.word(1)), member, command.named("group"));
                format!("{} receivers\n", self.fanout.receivers())
            }
            "leave" => {
                let (id, name) = (id_of(command.word(1)), command.word(1));
                let groups: Vec<String> = self.fanout.groups().map(|(name, _)| name.to_owned()).collect();
                let joined = groups.iter().map(|name| Some(name.as_str())).chain([None]);
                for group in joined.filter(|group| self.fanout.has(id, *group)).collect::<Vec<_>>() {
                    assert!(self.fanout.leave(id, group).is_some_and(|member| member.handle == name));
                    assert!(!self.fanout.has(id, group) && self.fanout.leave(id, group).is_none());
                }
                let receivers = self.fanout.receivers();
                assert_eq!(self.fanout.is_empty(), receivers == 0);
                format!("{receivers} receivers\n")
            }
            "members" => {
                let members: Vec<&str> = self.fanout.members().map(|member| &*member.handle).collect();
                format!("{}\n", members.join(" "))
            }
            "all_accept" => match self.fanout.all_accept(is_for, accepts) {
                Ok(()) => "ok\n".into(),
                Err(member) => format!("{} does not\n", member.handle),
            },
            _ => {
                let mut got = Vec::new();
                let groups = self.fanout.groups().filter(|(name, _)| is_for(name)).count();
                let expected = self.fanout.plain_members().count() + groups;
                self.fanout.deliver(is_for, accepts, |member| got.push(member.handle.clone()));
                assert_eq!(got.len(), expected);
                assert!(chosen.is_some() || expected == self.fanout.receivers());
                if got.is_empty() { "nobody\n".into() } else { format!("{}\n", got.join(" ")) }
            }
        }
    }
}

fn show(deliveries: &[Delivery]) -> String {
    deliveries.iter().fold(String::new(), |mut text, delivery| {
        match delivery {
            Delivery::Batch { source, batch } => {
                writeln!(text, "{source}: batch {}..{}", batch.base_offset(), batch.next_offset())
            }
            Delivery::Gap { source, from, to } => writeln!(text, "{source}: gap {from}..{to}"),
        }
        .expect("a string takes all");
        text
    })
}

fn show_offer(offer: Offer) -> String {
    match offer {
        Offer::Queued { first: true } => "queued, first\n".into(),
        Offer::Queued { first: false } => "queued\n".into(),
        Offer::Dropped { records } => format!("dropped {records}\n"),
        Offer::Behind => "behind\n".into(),
        Offer::FellBehind => "fell behind\n".into(),
        Offer::Disconnect => "disconnect\n".into(),
    }
}

#[test]
fn scripts() {
    script::check("", Script::new, Script::run);
}

#[test]
fn policies_have_names_and_codes_that_lead_back() {
    for policy in Overflow::ALL {
        assert_eq!(Overflow::from_code(policy as u8), Some(policy));
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    assert_eq!(Overflow::from_code(5), None);
    assert!("drop".parse::<Overflow>().is_err());
}

/// Source of the model: every record from `start` up to `told` was delivered or reported as missing, exactly once.
#[derive(Debug, Default)]
struct ModelSource {
    log: Log,
    is_live: bool,
    is_removed: bool,
    start: Offset,
    /// Offset up to which records are delivered, queued or lost.
    next: Offset,
    told: Offset,
    /// Records that will never be delivered and were not reported: a shared feed never reports any.
    lost: BTreeSet<Offset>,
    /// Records that another member of the queue group received.
    elsewhere: BTreeSet<Offset>,
}

/// Model of a feed and its expected behavior: lists of batches and sets of lost records.
#[derive(Debug)]
struct Model {
    feed: Feed,
    limits: FeedLimits,
    is_shared: bool,
    credit: i64,
    /// Batches that were read from logs. They precede live batches and take none of their room.
    history: VecDeque<(SourceId, RecordBatch)>,
    live: VecDeque<(SourceId, RecordBatch)>,
    sources: Vec<ModelSource>,
    /// Source whose log is being read, and the offset that the read starts at.
    reading: Option<(SourceId, Offset)>,
    gaps_told: u64,
    is_over: bool,
}

/// Source with `batches` batches of two records, and the offset to start at: at most its end.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    batches: usize,
    start: Offset,
}

#[derive(Clone, Debug)]
enum Op {
    Offer {
        source: usize,
        records: u32,
        bytes: usize,
    },
    Elsewhere {
        source: usize,
        records: u64,
    },
    Take {
        records_max: usize,
        bytes_max: usize,
    },
    Credit(u64),
    /// The reader queries which log to read.
    Behind,
    /// The reader has read this many batches of it. All operations between the two happen concurrently.
    Read {
        batches_max: usize,
    },
    Trim {
        source: usize,
        batches: usize,
    },
    Add(Beginning),
    /// The partition is deleted, perhaps after its log was read a last time.
    Remove {
        source: usize,
        was_read: bool,
    },
}

impl Model {
    fn new(limits: FeedLimits, overflow: Overflow, credit: i64, is_shared: bool) -> Self {
        Self {
            feed: Feed::new(limits, overflow, credit, is_shared),
            limits,
            is_shared,
            credit,
            history: VecDeque::new(),
            live: VecDeque::new(),
            sources: Vec::new(),
            reading: None,
            gaps_told: 0,
            is_over: false,
        }
    }

    fn live_bytes(&self) -> usize {
        self.live.iter().map(|(_, batch)| batch.len()).sum()
    }

    fn lost(&self) -> u64 {
        self.sources.iter().map(|source| source.lost.len() as u64).sum()
    }

    fn is_empty(&self) -> bool {
        self.history.is_empty() && self.live.is_empty() && (self.is_shared || self.lost() == 0)
    }

    fn has_room(&self, bytes: usize) -> bool {
        let is_within = self.live.len() < self.limits.batches_max && self.live_bytes() + bytes <= self.limits.bytes_max;
        self.live.is_empty() || is_within
    }

    fn apply(&mut self, op: &Op) {
        let at = |source: &usize| source % self.sources.len();
        match op {
            Op::Offer { source, records, bytes } => self.offer(at(source), *records, *bytes),
            Op::Elsewhere { source, records } => {
                let source = at(source);
                let source = &mut self.sources[source];
                if self.is_shared && !source.is_removed {
                    source.elsewhere.extend(source.log.end..source.log.end + records);
                    source.log.end += records;
                }
            }
            Op::Take { records_max, bytes_max } => self.take(*records_max, *bytes_max),
            Op::Credit(bytes) => {
                self.feed.add_credit(*bytes);
                self.credit = self.credit.saturating_add_unsigned(*bytes);
            }
            Op::Behind => self.behind(),
            Op::Read { batches_max } => self.read(*batches_max),
            Op::Trim { source, batches } => {
                let source = at(source);
                let log = &mut self.sources[source].log.batches;
                log.drain(..(*batches).min(log.len()));
            }
            Op::Add(beginning) => self.add(*beginning),
            Op::Remove { source, was_read } => self.remove(at(source), *was_read),
        }
    }

    fn add(&mut self, beginning: Beginning) {
        let mut source = ModelSource::default();
        for _ in 0..beginning.batches {
            source.log.append(2, 100);
        }
        let end = source.log.end;
        // Members of a queue group start live.
        source.start = if self.is_shared { end } else { beginning.start.min(end) };
        source.next = source.start;
        source.told = source.start;
        source.is_live = source.start == end;
        assert_eq!(self.feed.add_source(source.start, source.is_live), self.sources.len() as SourceId);
        self.sources.push(source);
    }

    fn remove(&mut self, at: usize, was_read: bool) {
        let source = &mut self.sources[at];
        if source.is_removed {
            return;
        }
        source.is_removed = true;
        source.is_live = true;
        source.log.end = 0;
        if !was_read {
            source.log.batches.clear();
        }
        self.feed.remove_source(at as SourceId);
    }

    fn offer(&mut self, at: usize, records: u32, bytes: usize) {
        if self.sources[at].is_removed {
            return;
        }
        let batch = self.sources[at].log.append(records, bytes);
        let is_blocking = self.feed.overflow() == Overflow::Block && self.sources[at].is_live;
        assert_eq!(self.feed.blocks(at as SourceId, batch.len()), is_blocking && !self.has_room(batch.len()));
        let offered = self.feed.offer(at as SourceId, &batch);
        assert_eq!(offered, self.expect_offer(at, batch));
    }

    fn expect_offer(&mut self, at: usize, batch: RecordBatch) -> Offer {
        if !self.sources[at].is_live {
            return Offer::Behind;
        }
        let first = self.is_empty();
        let mut dropped = 0;
        if !self.has_room(batch.len()) {
            match self.feed.overflow() {
                // The publisher did not check `blocks` first: nothing is lost.
                Overflow::Block => {}
                Overflow::Replay if !self.is_shared => {
                    self.fall_behind();
                    return Offer::FellBehind;
                }
                Overflow::Replay | Overflow::DropNew => {
                    self.lose(at, batch.base_offset(), batch.next_offset());
                    return Offer::Dropped { records: u64::from(batch.count()) };
                }
                Overflow::DropOld => {
                    while !self.has_room(batch.len()) {
                        let (source, old) = self.live.pop_front().expect("without live ones there is room");
                        self.sources[source as usize].lost.extend(old.base_offset()..old.next_offset());
                        dropped += u64::from(old.count());
                    }
                }
                Overflow::DisconnectSlow => {
                    self.is_over = true;
                    return Offer::Disconnect;
                }
            }
        }
        self.sources[at].next = batch.next_offset();
        self.live.push_back((at as SourceId, batch));
        if dropped == 0 { Offer::Queued { first } } else { Offer::Dropped { records: dropped } }
    }

    /// Everything of deleted partitions is kept, and of the others the gaps before the first batch.
    fn fall_behind(&mut self) {
        let sources = &mut self.sources;
        self.history.retain(|(source, _)| sources[*source as usize].is_removed);
        self.live.retain(|(source, _)| sources[*source as usize].is_removed);
        for source in sources.iter_mut().filter(|source| !source.is_removed) {
            source.is_live = false;
            source.next = source.told;
            while source.lost.contains(&source.next) {
                source.next += 1;
            }
            assert_eq!(source.lost.range(source.next..).next(), None, "this gap would be counted twice");
        }
    }

    fn lose(&mut self, at: usize, from: Offset, to: Offset) {
        self.sources[at].lost.extend(from..to);
        self.sources[at].next = to;
    }

    fn take(&mut self, records_max: usize, bytes_max: usize) {
        let has_something = !self.is_empty();
        assert_eq!(self.feed.is_ready(), has_something && self.credit > 0);
        let mut taken = Vec::new();
        self.feed.take(records_max, bytes_max, &mut taken);
        assert_eq!(taken.is_empty(), !has_something || self.credit <= 0);

        let mut batches = 0;
        let mut records = 0;
        let mut bytes = 0;
        for delivery in taken {
            assert!(self.credit > 0, "without credit nothing is sent");
            match delivery {
                Delivery::Batch { source, batch } => {
                    let first = self.history.pop_front().or_else(|| self.live.pop_front());
                    assert_eq!(first, Some((source, batch.clone())));
                    batches += 1;
                    records += batch.count() as usize;
                    bytes += batch.len();
                    self.credit -= batch.len() as i64;
                    let source = &mut self.sources[source as usize];
                    // A start in the middle of a batch delivers the batch whole.
                    let from = batch.base_offset().max(source.start);
                    if self.is_shared {
                        source.told = source.after_missing(from);
                    }
                    assert_eq!(source.told, from, "every record once and in order");
                    source.told = batch.next_offset();
                }
                Delivery::Gap { source, from, to } => {
                    assert!(!self.is_shared, "a hole means nothing to a queue group's member");
                    let source = &mut self.sources[source as usize];
                    assert_eq!(source.told, from, "every record once and in order");
                    assert!(from < to && (from..to).all(|offset| source.lost.remove(&offset)));
                    self.gaps_told += to - from;
                    source.told = to;
                }
            }
        }
        assert!(batches <= 1 || (records <= records_max && bytes <= bytes_max), "too much at once");
    }

    fn behind(&mut self) {
        if self.reading.is_some() {
            return;
        }
        self.reading = self.feed.behind();
        let is_behind = |source: &ModelSource| !source.is_live;
        assert_eq!(self.feed.has_behind(), self.sources.iter().any(is_behind));
        assert_eq!(self.reading.is_some(), self.is_empty() && self.feed.has_behind(), "a source is forgotten");
        if let Some((source, from)) = self.reading {
            let source = &self.sources[source as usize];
            assert!(is_behind(source));
            assert_eq!(from, source.next);
        }
    }

    fn read(&mut self, batches_max: usize) {
        let Some((id, from)) = self.reading.take() else {
            return;
        };
        let at = id as usize;
        let source = &mut self.sources[id as usize];
        assert_eq!(from, source.next, "another read was begun meanwhile");
        let batches = source.log.read(from, batches_max);
        if batches.is_empty() {
            let end = source.log.end;
            source.is_live = true;
            self.feed.catch_up(id, end);
            if end > from {
                self.lose(at, from, end);
            }
            return;
        }
        self.feed.backfill(id, batches.clone());
        for batch in batches {
            if batch.base_offset() > self.sources[at].next {
                self.lose(at, self.sources[at].next, batch.base_offset());
            }
            self.sources[at].next = batch.next_offset();
            self.history.push_back((id, batch));
        }
    }

    fn check(&self) {
        let feed = &self.feed;
        assert_eq!(feed.queued_batches(), self.history.len() + self.live.len());
        assert_eq!((feed.batches, feed.bytes), (self.live.len(), self.live_bytes()));
        for bytes in [0, 1, 100, 300, 1000] {
            assert_eq!(feed.has_room(bytes), self.has_room(bytes), "for {bytes} bytes");
        }
        let is_within = self.live.len() <= self.limits.batches_max && self.live_bytes() <= self.limits.bytes_max;
        // A blocking feed may hold batches of publishers that did not check first, at most one per partition.
        let is_blocking = self.feed.overflow() == Overflow::Block;
        assert!(is_within || self.live.len() == 1 || is_blocking, "more than the limits allow");
        assert_eq!(feed.dropped_records(), self.gaps_told + self.lost());

        let mut told = 0;
        let mut noticed = BTreeSet::new();
        for delivery in &feed.queue {
            match delivery {
                Delivery::Batch { .. } => noticed.clear(),
                Delivery::Gap { source, from, to } => {
                    assert!(noticed.insert(*source), "two notices of one source side by side");
                    told += to - from;
                }
            }
        }
        assert_eq!(told, if self.is_shared { 0 } else { self.lost() });
    }

    /// Reads everything: afterwards each source is delivered or reported up to its end.
    fn finish(mut self) {
        self.apply(&Op::Credit(1 << 40));
        loop {
            self.read(3);
            self.take(usize::MAX, usize::MAX);
            self.check();
            self.behind();
            if self.reading.is_none() {
                break;
            }
        }
        for source in &self.sources {
            assert!(source.is_live && (self.is_shared || source.lost.is_empty()));
            let end = if source.is_removed { source.next } else { source.log.end };
            let told = if self.is_shared { source.after_missing(end) } else { source.told };
            assert_eq!(told, end, "every record is delivered or told as missing");
        }
    }
}

impl ModelSource {
    /// Returns the offset up to which it is delivered if missing records are not reported.
    fn after_missing(&self, up_to: Offset) -> Offset {
        let is_missing = |offset: &Offset| self.lost.contains(offset) || self.elsewhere.contains(offset);
        (self.told..up_to).find(|offset| !is_missing(offset)).unwrap_or(up_to.max(self.told))
    }
}

fn a_beginning() -> impl Strategy<Value = Beginning> {
    (0usize..4, 0u64..9).prop_map(|(batches, start)| Beginning { batches, start })
}

fn an_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        16 => (0usize..4, 1u32..5, 1usize..4).prop_map(|(source, records, bytes)| {
            Op::Offer { source, records, bytes: bytes * 100 }
        }),
        2 => (0usize..4, 1u64..3).prop_map(|(source, records)| Op::Elsewhere { source, records }),
        6 => (1usize..8, 1usize..600)
            .prop_map(|(records_max, bytes_max)| Op::Take { records_max, bytes_max }),
        4 => (0u64..500).prop_map(Op::Credit),
        5 => Just(Op::Behind),
        5 => (1usize..4).prop_map(|batches_max| Op::Read { batches_max }),
        2 => (0usize..4, 1usize..4).prop_map(|(source, batches)| Op::Trim { source, batches }),
        1 => a_beginning().prop_map(Op::Add),
        1 => (0usize..4, any::<bool>()).prop_map(|(source, was_read)| Op::Remove { source, was_read }),
    ]
}

proptest! {
    #[test]
    fn every_record_is_delivered_once_or_told_in_one_gap(
        overflow in prop::sample::select(Overflow::ALL.to_vec()),
        is_shared in prop::bool::weighted(0.25),
        batches_max in 1usize..6,
        bytes_max in 50usize..1000,
        credit in 0i64..2000,
        beginnings in prop::collection::vec(a_beginning(), 1..4),
        ops in prop::collection::vec(an_op(), 0..80),
    ) {
        let mut model = Model::new(FeedLimits { batches_max, bytes_max }, overflow, credit, is_shared);
        for beginning in beginnings {
            model.add(beginning);
        }
        for op in &ops {
            model.apply(op);
            model.check();
            if model.is_over {
                return Ok(());
            }
        }
        model.finish();
    }
}

/// Returns a feed with room for one batch, filled by the first of its sources, which are all live.
fn filled(overflow: Overflow, is_shared: bool, sources: &[Offset]) -> Feed {
    let limits = FeedLimits { batches_max: 1, bytes_max: 1000 };
    let mut feed = Feed::new(limits, overflow, 1 << 40, is_shared);
    for next in sources {
        feed.add_source(*next, true);
    }
    assert_eq!(feed.offer(0, &batch_of(sources[0], 1, 100)), Offer::Queued { first: true });
    feed
}

fn take_all(feed: &mut Feed) -> String {
    let mut taken = Vec::new();
    feed.take(usize::MAX, usize::MAX, &mut taken);
    show(&taken)
}

#[test]
fn a_gap_is_counted_once_however_often_its_source_falls_behind() {
    let mut feed = Feed::new(FeedLimits { batches_max: 1, bytes_max: 1000 }, Overflow::Replay, 1 << 40, false);
    let source = feed.add_source(0, false);
    let mut log = vec![batch_of(5, 1, 100)];
    for (round, (from, gap)) in [(0, "0: gap 0..5\n"), (5, ""), (5, "")].into_iter().enumerate() {
        assert_eq!(feed.behind(), Some((source, from)), "round {round}");
        feed.backfill(source, log.clone());
        let end = 6 + 2 * round as u64;
        feed.catch_up(source, end);
        log.extend([batch_of(end, 1, 100), batch_of(end + 1, 1, 100)]);
        // History takes no room, so it is the second of the live batches that does not fit.
        assert_eq!(feed.offer(source, &log[log.len() - 2]), Offer::Queued { first: false });
        assert_eq!(feed.offer(source, &log[log.len() - 1]), Offer::FellBehind);
        // The gap is before the forgotten batches: it stays, and its log is not read again.
        assert_eq!(feed.behind().is_none(), !gap.is_empty());
        assert_eq!(take_all(&mut feed), gap);
    }
    feed.backfill(source, log);
    assert!(take_all(&mut feed).starts_with("0: batch 5..6\n0: batch 6..7\n"));
    assert_eq!(feed.dropped_records(), 5);
}

#[test]
fn batches_of_a_removed_source_are_delivered_when_another_overflows() {
    let mut feed = filled(Overflow::Replay, false, &[0, 0]);
    feed.remove_source(0);
    assert_eq!(feed.offer(1, &batch_of(0, 1, 100)), Offer::FellBehind);
    assert_eq!(take_all(&mut feed), "0: batch 0..1\n");
}

#[test]
fn unread_records_of_a_closed_log_are_reported_as_a_gap() {
    let mut feed = filled(Overflow::Replay, false, &[0]);
    assert_eq!(feed.offer(0, &batch_of(1, 1, 100)), Offer::FellBehind);
    feed.close_source(0, 7);
    assert_eq!((take_all(&mut feed), feed.dropped_records()), ("0: gap 0..7\n".to_owned(), 7));
    // A feed that received everything misses nothing.
    let mut feed = filled(Overflow::Replay, false, &[0]);
    feed.close_source(0, 1);
    assert_eq!((take_all(&mut feed), feed.dropped_records()), ("0: batch 0..1\n".to_owned(), 0));
}

#[test]
fn the_place_of_a_removed_source_is_free_once_nothing_of_it_is_queued() {
    let mut feed = filled(Overflow::DisconnectSlow, false, &[0]);
    assert_eq!(feed.reuse_source(5), None);
    feed.remove_source(0);
    assert_eq!(feed.reuse_source(5), None, "a batch is queued");
    take_all(&mut feed);
    assert_eq!(feed.reuse_source(5), Some(0));
    assert_eq!(feed.offer(0, &batch_of(5, 1, 100)), Offer::Queued { first: true });
    assert_eq!((take_all(&mut feed), feed.reuse_source(9)), ("0: batch 5..6\n".to_owned(), None));
}

#[test]
fn the_notices_of_a_stalled_group_member_are_bounded() {
    for overflow in [Overflow::Replay, Overflow::DropNew, Overflow::DropOld] {
        let mut feed = filled(overflow, true, &[0]);
        for i in 1..1000 {
            // Every other record of the partition was delivered to the other member of the group.
            assert_eq!(feed.offer(0, &batch_of(2 * i, 1, 100)), Offer::Dropped { records: 1 });
        }
        // A missing offset may have been delivered to another member, so that a notice would be meaningless: no gap is
        // reported, and lost records are only counted.
        assert_eq!((feed.queue.len(), feed.dropped_records()), (1, 999), "{}", overflow.name());
    }
}

#[test]
fn history_of_one_source_does_not_make_the_queue_overflow_for_another() {
    for overflow in Overflow::ALL {
        let limits = FeedLimits { batches_max: 2, bytes_max: 1000 };
        let mut feed = Feed::new(limits, overflow, 1 << 40, false);
        let history = feed.add_source(0, false);
        let live = feed.add_source(0, true);
        assert_eq!(feed.behind(), Some((history, 0)));
        feed.backfill(history, (0..4).map(|i| batch_of(i, 1, 100)));
        for i in 0..2 {
            assert!(feed.has_room(100) && !feed.blocks(live, 100));
            assert_eq!(feed.offer(live, &batch_of(i, 1, 100)), Offer::Queued { first: false });
        }
        assert!(!feed.has_room(100));
        assert_eq!(feed.queued_batches(), 6);
    }
}

#[test]
fn batches_appended_during_a_backfill_keep_their_room() {
    let limits = FeedLimits { batches_max: 2, bytes_max: 1000 };
    let mut feed = Feed::new(limits, Overflow::DropOld, 1 << 40, false);
    let history = feed.add_source(0, false);
    let live = feed.add_source(0, true);
    assert_eq!(feed.behind(), Some((history, 0)));
    assert_eq!(feed.offer(live, &batch_of(0, 1, 100)), Offer::Queued { first: true });
    feed.backfill(history, [batch_of(0, 1, 300)]);
    assert_eq!(feed.offer(live, &batch_of(1, 1, 100)), Offer::Queued { first: false });
    assert_eq!(feed.offer(live, &batch_of(2, 1, 100)), Offer::Dropped { records: 1 });
    assert_eq!(take_all(&mut feed), "0: batch 0..1\n1: gap 0..1\n1: batch 1..2\n1: batch 2..3\n");
    assert_eq!((feed.queued_batches(), feed.batches, feed.bytes), (0, 0, 0));
}

/// Returns the id of a subscriber in the tests: the bytes of its name.
fn id_of(name: &str) -> u64 {
    name.bytes().fold(0, |id, byte| id << 8 | u64::from(byte))
}
