//! Client rdkafka: librdkafka from Rust, `compat-rdkafka HOST:PORT [SCENARIO..]`. The scenarios are those of
//! `suite.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

const SCENARIO: Duration = Duration::from_secs(90);
const WAIT: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(100);
/// Time without records after which no more are expected.
const QUIET: Duration = Duration::from_millis(400);
const START_MS: i64 = 1_700_000_000_000;

type Bytes = Option<Vec<u8>>;

#[derive(Clone, Debug, Default, PartialEq)]
struct Record {
    key: Bytes,
    value: Bytes,
    headers: Vec<(String, Bytes)>,
    /// Time of the record; `None` leaves it to the library.
    time_ms: Option<i64>,
    partition: i32,
}

fn text(text: impl Into<String>) -> Bytes {
    Some(text.into().into_bytes())
}

fn numbered(tag: &str, begin: usize, count: usize, partition: i32) -> Vec<Record> {
    let one = |i| Record {
        key: text(format!("key-{}", i % 7)),
        value: text(format!("{tag}-{i}")),
        partition,
        ..Record::default()
    };
    (begin..begin + count).map(one).collect()
}

fn values(count: usize) -> Vec<Record> {
    numbered("value", 0, count, 0)
}

fn plain(records: &[Record]) -> Vec<(Bytes, Bytes)> {
    records.iter().map(|r| (r.key.clone(), r.value.clone())).collect()
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message
        .headers()
        .map(|headers| headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect());
    Record {
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        time_ms: message.timestamp().to_millis(),
        partition: message.partition(),
    }
}

/// Result of each record, by its index among the sent ones.
#[derive(Default)]
struct Deliveries(Mutex<BTreeMap<usize, Result<i64, KafkaError>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, place: Box<usize>) {
        let result = result.as_ref().map(|message| message.offset()).map_err(|(e, _)| e.clone());
        self.0.lock().expect("deliveries").insert(*place, result);
    }
}

type Sender = ThreadedProducer<Deliveries>;

fn deliver(producer: &Sender, topic: &str, records: &[Record]) -> Result<Vec<i64>, KafkaError> {
    let deliveries = &producer.context().0;
    deliveries.lock().expect("deliveries").clear();
    for (place, r) in records.iter().enumerate() {
        let mut out = BaseRecord::with_opaque_to(topic, Box::new(place)).partition(r.partition);
        out.key = r.key.as_deref();
        out.payload = r.value.as_deref();
        out.timestamp = r.time_ms;
        if !r.headers.is_empty() {
            let all = r.headers.iter();
            let headers = all.fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_ref() })
            });
            out = out.headers(headers);
        }
        producer.send(out).map_err(|(e, _)| e)?;
    }
    producer.flush(WAIT)?;
    deliveries.lock().expect("deliveries").values().cloned().collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WAIT, "not within {WAIT:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn same<T: std::fmt::Debug + PartialEq>(found: T, expected: T, what: &str) {
    if found != expected {
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        panic!("{what} is {found:.300}, not {expected:.300}");
    }
}

fn refused<T: std::fmt::Debug>(codes: &[RDKafkaErrorCode], result: Result<T, KafkaError>) {
    let code = match &result {
        Err(KafkaError::AdminOp(code)) => Some(*code),
        other => other.as_ref().err().and_then(KafkaError::rdkafka_error_code),
    };
    assert!(code.is_some_and(|code| codes.contains(&code)), "{result:?} is not one of {codes:?}");
}

/// Connection of a scenario, with names that no other run uses.
struct Suite {
    address: String,
    name: String,
    extra: Vec<(&'static str, String)>,
}

impl Suite {
    fn named(&self, what: &str) -> String {
        format!("{}.{what}", self.name)
    }

    fn topic(&self) -> String {
        self.named("topic")
    }

    fn config(&self, options: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.address);
        config.set_log_level(rdkafka::config::RDKafkaLogLevel::Emerg);
        for (key, value) in &self.extra {
            config.set(*key, value);
        }
        for (key, value) in options {
            config.set(*key, *value);
        }
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config(&[]).create().expect("an admin client")
    }

    fn create(&self, partitions: i32, configs: &[(&str, &str)]) -> Result<String, KafkaError> {
        self.create_named(&self.topic(), partitions, configs).map(|()| self.topic())
    }

    fn create_named(&self, topic: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<(), KafkaError> {
        let wanted = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let wanted = configs.iter().fold(wanted, |wanted, (key, value)| wanted.set(key, value));
        let done = block_on(self.admin().create_topics([&wanted], &AdminOptions::new()))?;
        one(done)
    }

    fn partitions(&self, topic: &str) -> usize {
        let consumer = self.consumer(&[]);
        let found = consumer.fetch_metadata(None, WAIT).expect("metadata");
        found.topics().iter().find(|t| t.name() == topic).map_or(0, |t| t.partitions().len())
    }

    fn send(&self, topic: &str, records: &[Record], options: &[(&str, &str)]) -> Result<Vec<i64>, KafkaError> {
        let mut all = vec![("message.max.bytes", "2000000"), ("linger.ms", "5")];
        all.extend(options);
        deliver(&self.config(&all).create_with_context(Deliveries::default())?, topic, records)
    }

    fn produce(&self, records: &[Record]) -> Vec<i64> {
        self.send(&self.topic(), records, &[]).expect("produced")
    }

    fn consumer(&self, options: &[(&str, &str)]) -> BaseConsumer {
        let mut all = vec![("group.id", "none"), ("enable.auto.commit", "false"), ("auto.offset.reset", "earliest")];
        all.extend(options);
        self.config(&all).create().expect("a consumer")
    }

    /// Reads at least `count` records, and all that are available then.
    fn read_from(&self, topic: &str, count: usize, partition: i32, start: Offset, isolation: &str) -> Vec<Record> {
        let consumer = self.consumer(&[("isolation.level", isolation), ("enable.partition.eof", "true")]);
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(topic, partition, start).expect("a place");
        consumer.assign(&at).expect("assigned");
        let (mut found, begin) = (Vec::new(), Instant::now());
        loop {
            match consumer.poll(MOMENT) {
                Some(Err(KafkaError::PartitionEOF(_))) if found.len() >= count => return found,
                None | Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(message) => found.push(record(&message.expect("a record"))),
            }
            assert!(begin.elapsed() < WAIT, "{} records, not {count}", found.len());
        }
    }

    fn read(&self, topic: &str, count: usize) -> Vec<Record> {
        self.read_from(topic, count, 0, Offset::Beginning, "read_uncommitted")
    }

    fn committed(&self, topic: &str, count: usize) -> Vec<Record> {
        self.read_from(topic, count, 0, Offset::Beginning, "read_committed")
    }

    fn member(&self, topic: &str, options: &[(&str, &str)]) -> Member {
        let group = self.named("group");
        let mut all = vec![("group.id", group.as_str())];
        if !options.iter().any(|(key, _)| *key == "group.protocol") {
            all.extend([("heartbeat.interval.ms", "500"), ("session.timeout.ms", "10000")]);
        }
        all.extend(options);
        let consumer = self.consumer(&all);
        consumer.subscribe(&[topic]).expect("subscribed");
        Member { consumer, topic: topic.to_owned() }
    }

    fn transaction(&self) -> Result<Sender, KafkaError> {
        let config = self.config(&[("transactional.id", &self.named("id"))]);
        let producer: Sender = config.create_with_context(Deliveries::default())?;
        producer.init_transactions(WAIT)?;
        Ok(producer)
    }
}

fn one<T>(done: Vec<Result<T, (T, RDKafkaErrorCode)>>) -> Result<(), KafkaError> {
    done.into_iter().try_for_each(|each| each.map(drop).map_err(|(_, code)| KafkaError::AdminOp(code)))
}

struct Member {
    consumer: BaseConsumer,
    topic: String,
}

impl Member {
    fn poll(&self) -> Vec<(Record, i64)> {
        let mut found = Vec::new();
        while let Some(message) = self.consumer.poll(MOMENT) {
            let message = message.expect("a record");
            found.push((record(&message), message.offset()));
        }
        found
    }

    fn assignment(&self) -> BTreeSet<i32> {
        let found = self.consumer.assignment().expect("an assignment");
        found.elements().iter().map(|at| at.partition()).collect()
    }

    fn commit(&self, partition: i32, offset: i64, metadata: &str) {
        let mut at = TopicPartitionList::new();
        let mut place = at.add_partition(&self.topic, partition);
        place.set_offset(Offset::Offset(offset)).expect("an offset");
        place.set_metadata(metadata);
        self.consumer.commit(&at, CommitMode::Sync).expect("committed");
    }

    fn committed(&self) -> (Offset, String) {
        let mut at = TopicPartitionList::new();
        at.add_partition(&self.topic, 0);
        let found = self.consumer.committed_offsets(at, WAIT).expect("offsets");
        let place = found.find_partition(&self.topic, 0).expect("the partition");
        (place.offset(), place.metadata().to_owned())
    }
}

/// Polls members until they have `count` records and no more arrive. Each commits its records.
fn drain(members: &[&Member], count: usize, what: &str) -> Vec<Record> {
    let (mut found, begin, mut last) = (Vec::new(), Instant::now(), Instant::now());
    while (found.len() < count || last.elapsed() < QUIET) && begin.elapsed() < WAIT {
        for member in members {
            let mut next = BTreeMap::new();
            for (record, offset) in member.poll() {
                next.insert(record.partition, offset + 1);
                found.push(record);
                last = Instant::now();
            }
            next.iter().for_each(|(partition, offset)| member.commit(*partition, *offset, ""));
        }
    }
    assert_eq!(found.len(), count, "{what}: the number of records");
    found
}

/// Polls members until each has some of the partitions, and each partition has one member.
fn settled(members: &[&Member], partitions: i32, what: &str) -> Vec<BTreeSet<i32>> {
    let mut parts = Vec::new();
    until(what, || {
        members.iter().for_each(|member| same(member.poll().len(), 0, "the number of unexpected records"));
        parts = members.iter().map(|member| member.assignment()).collect();
        let mut all: Vec<i32> = parts.iter().flatten().copied().collect();
        all.sort_unstable();
        parts.iter().all(|part| !part.is_empty()) && all == (0..partitions).collect::<Vec<_>>()
    });
    parts
}

fn codec(s: &Suite, codec: &str) {
    let topic = s.create(1, &[]).expect("created");
    let words = "the same words again and again ".repeat(20);
    let mut sent = numbered(&words, 0, 200, 0);
    sent.iter_mut().enumerate().for_each(|(i, r)| r.headers = vec![("n".into(), text(i.to_string()))]);
    let offsets = s.send(&topic, &sent, &[("compression.type", codec)]).expect("produced");
    same(offsets, (0..200).collect(), "the offsets");
    let found = s.read(&topic, 200);
    same(plain(&found), plain(&sent), "the records read");
    same(found[199].headers.clone(), sent[199].headers.clone(), "the last headers");
}

fn headers(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let pair = |key: &str, value: Bytes| (key.to_owned(), value);
    let lists = [
        vec![pair("a", text("1")), pair("b", text("2"))],
        vec![pair("same", text("first")), pair("same", text("second")), pair("same", text("first"))],
        vec![pair("null", None), pair("empty", text("")), pair("binary", Some((0..=255).collect()))],
        vec![pair("größe", text("naïve"))],
        vec![],
    ];
    let record = |headers: &Vec<_>| Record { value: text("v"), headers: headers.clone(), ..Record::default() };
    s.produce(&lists.iter().map(record).collect::<Vec<_>>());
    let found: Vec<_> = s.read(&topic, lists.len()).into_iter().map(|r| r.headers).collect();
    same(found, lists.to_vec(), "the headers");
}

fn nulls(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let pairs = [(None, text("no key")), (text("no value"), None), (None, None), (text(""), text(""))];
    let sent = pairs.map(|(key, value)| Record { key, value, ..Record::default() });
    s.produce(&sent);
    same(plain(&s.read(&topic, sent.len())), plain(&sent), "the records read");
}

fn timestamps(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let times = [START_MS, START_MS + 1, START_MS - 86_400_000, START_MS + 5].map(Some);
    s.produce(&times.map(|time_ms| Record { value: text("v"), time_ms, ..Record::default() }));
    let found: Vec<_> = s.read(&topic, times.len()).iter().map(|r| r.time_ms).collect();
    same(found, times.to_vec(), "the timestamps");
}

fn large_record(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let value: Vec<u8> = (0..1_000_000_usize).map(|i| (i * (i / 1000) % 251) as u8).collect();
    s.produce(&[Record { value: Some(value.clone()), ..Record::default() }]);
    assert!(s.read(&topic, 1)[0].value == Some(value), "the value read differs from the sent one");
}

fn many(s: &Suite, count: usize, idempotent: &str) {
    let topic = s.create(1, &[]).expect("created");
    let offsets = s.send(&topic, &values(count), &[("enable.idempotence", idempotent)]).expect("produced");
    same(offsets, (0..count as i64).collect(), "the offsets");
    same(plain(&s.read(&topic, count)), plain(&values(count)), "the records read");
}

fn from_offset(s: &Suite) {
    let topic = s.create(2, &[]).expect("created");
    s.produce(&numbered("other", 0, 5, 0));
    let sent = numbered("value", 0, 50, 1);
    s.produce(&sent);
    for start in [0, 17, 49] {
        let found = s.read_from(&topic, 50 - start, 1, Offset::Offset(start as i64), "read_uncommitted");
        same(plain(&found), plain(&sent[start..]), "the records read");
    }
}

fn from_time(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let sent = (0..20).map(|i| Record { value: text("v"), time_ms: Some(START_MS + 1000 * i), ..Record::default() });
    s.produce(&sent.collect::<Vec<_>>());
    for (after, expected) in
        [(-5, Offset::Offset(0)), (7000, Offset::Offset(7)), (7001, Offset::Offset(8)), (60_000, Offset::End)]
    {
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(&topic, 0, Offset::Offset(START_MS + after)).expect("a time");
        let found = s.consumer(&[]).offsets_for_times(at, WAIT).expect("offsets");
        same(found.find_partition(&topic, 0).expect("the partition").offset(), expected, "the offset");
    }
}

fn earliest_latest(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    s.produce(&values(5));
    same(s.consumer(&[]).fetch_watermarks(&topic, 0, WAIT).expect("offsets"), (0, 5), "first and next offset");
    same(plain(&s.read(&topic, 5)), plain(&values(5)), "from the earliest");
    same(s.read_from(&topic, 0, 0, Offset::End, "read_uncommitted").len(), 0, "the number of records from the latest");
}

fn group(s: &Suite, options: &[(&str, &str)]) {
    const PARTITIONS: i32 = 4;
    let topic = s.create(PARTITIONS, &[]).expect("created");
    let lines = |records: &[Record]| {
        let mut lines: Vec<_> = records.iter().map(|r| (r.partition, r.value.clone())).collect();
        lines.sort();
        lines
    };
    let round = |number: i32, members: &[&Member]| {
        let tag = |p| format!("round-{number}-{p}");
        let sent: Vec<_> = (0..PARTITIONS).flat_map(|p| numbered(&tag(p), 0, 10, p)).collect();
        s.produce(&sent);
        let what = format!("round {number}");
        same(lines(&drain(members, sent.len(), &what)), lines(&sent), &what);
    };
    let first = s.member(&topic, options);
    round(0, &[&first]);
    settled(&[&first], PARTITIONS, "one member has all partitions");
    let second = s.member(&topic, options);
    settled(&[&first, &second], PARTITIONS, "both members have partitions");
    round(1, &[&first, &second]);
    drop(second);
    settled(&[&first], PARTITIONS, "the remaining member has all partitions");
    round(2, &[&first]);
}

fn group_static(s: &Suite) {
    let topic = s.create(4, &[]).expect("created");
    let join = |instance| s.member(&topic, &[("group.instance.id", instance)]);
    let (first, second) = (join("one"), join("two"));
    let before = settled(&[&first, &second], 4, "both members have partitions");
    drop(second);
    let again = join("two");
    until("the returning member has partitions", || {
        same(first.poll().len() + again.poll().len(), 0, "the number of unexpected records");
        same(first.assignment(), before[0].clone(), "the partitions of the other member");
        !again.assignment().is_empty()
    });
    same(again.assignment(), before[1].clone(), "the partitions of the returning member");
}

fn commit_resume(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    s.produce(&values(10));
    let member = s.member(&topic, &[]);
    until("records", || !member.poll().is_empty());
    member.commit(0, 4, "four of ten, café");
    same(member.committed(), (Offset::Offset(4), "four of ten, café".into()), "the committed offset");
    drop(member);
    let member = s.member(&topic, &[]);
    same(plain(&drain(&[&member], 6, "the rest")), plain(&numbered("value", 4, 6, 0)), "the later records");
    same(member.committed().0, Offset::Offset(10), "the last committed offset");
}

fn admin_topics(s: &Suite) {
    let topic = s.create(2, &[]).expect("created");
    same(s.partitions(&topic), 2, "partitions");
    refused(&[RDKafkaErrorCode::TopicAlreadyExists], s.create(2, &[]));
    let add = |count| block_on(s.admin().create_partitions([&NewPartitions::new(&topic, count)], &AdminOptions::new()));
    one(add(5).expect("asked")).expect("added");
    until("the topic has five partitions", || s.partitions(&topic) == 5);
    refused(&[RDKafkaErrorCode::InvalidPartitions], one(add(3).expect("asked")));
    let delete = || one(block_on(s.admin().delete_topics(&[&topic], &AdminOptions::new())).expect("asked"));
    delete().expect("deleted");
    until("the topic is deleted", || s.partitions(&topic) == 0);
    refused(&[RDKafkaErrorCode::UnknownTopicOrPartition], delete());
}

fn admin_configs(s: &Suite) {
    let topic = s.create(1, &[("retention.ms", "3600000")]).expect("created");
    let resource = ResourceSpecifier::Topic(&topic);
    let config = |name: &str| {
        let found = block_on(s.admin().describe_configs([&resource], &AdminOptions::new())).expect("asked");
        found[0].as_ref().expect("described").get(name).expect("a setting").value.clone().unwrap_or_default()
    };
    same(config("retention.ms"), "3600000".into(), "retention.ms");
    let change = AlterConfig::new(resource).set("retention.ms", "7200000");
    let done = block_on(s.admin().alter_configs([&change], &AdminOptions::new())).expect("asked");
    one(done).expect("altered");
    until("retention.ms is altered", || config("retention.ms") == "7200000");
}

fn admin_delete_records(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    s.produce(&values(10));
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&topic, 0, Offset::Offset(4)).expect("a place");
    let done = block_on(s.admin().delete_records(&before, &AdminOptions::new())).expect("deleted");
    same(done.find_partition(&topic, 0).expect("the partition").offset(), Offset::Offset(4), "the first offset");
    same(plain(&s.read(&topic, 6)), plain(&numbered("value", 4, 6, 0)), "the records read");
}

fn admin_groups(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    s.produce(&values(5));
    let member = s.member(&topic, &[]);
    drain(&[&member], 5, "records");
    let name = s.named("group");
    let states = || {
        let found = s.consumer(&[]).fetch_group_list(None, WAIT).expect("groups");
        let ours = found.groups().iter().find(|group| group.name() == name);
        ours.map(|group| (group.state().to_owned(), group.members().len()))
    };
    same(states(), Some(("Stable".into(), 1)), "state and members");
    drop(member);
    until("the group is empty", || states() == Some(("Empty".into(), 0)));
    let delete = || one(block_on(s.admin().delete_groups(&[&name], &AdminOptions::new())).expect("asked"));
    delete().expect("deleted");
    until("the group is deleted", || states().is_none());
    refused(&[RDKafkaErrorCode::GroupIdNotFound], delete());
}

fn admin_cluster(s: &Suite) {
    let consumer = s.consumer(&[]);
    let found = consumer.fetch_metadata(None, WAIT).expect("metadata");
    assert!(!found.brokers().is_empty(), "no brokers");
    assert!(consumer.client().fetch_cluster_id(WAIT).is_some_and(|id| !id.is_empty()), "no cluster id");
}

fn transaction_commit_abort(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let rounds = [0, 1, 2].map(|round| numbered(&format!("round-{round}"), 0, 3, 0));
    let producer = s.transaction().expect("a producer");
    for (round, records) in rounds.iter().enumerate() {
        producer.begin_transaction().expect("begun");
        deliver(&producer, &topic, records).expect("produced");
        if round == 2 {
            same(plain(&s.committed(&topic, 3)), plain(&rounds[0]), "the committed records");
        }
        let ended = if round == 1 { producer.abort_transaction(WAIT) } else { producer.commit_transaction(WAIT) };
        ended.expect("ended");
    }
    until("the last transaction is committed", || s.committed(&topic, 0).len() == 6);
    same(plain(&s.committed(&topic, 6)), plain(&[rounds[0].clone(), rounds[2].clone()].concat()), "committed records");
    same(plain(&s.read(&topic, 9)), plain(&rounds.concat()), "the records of all transactions");
}

fn transaction_transform(s: &Suite) {
    let (input, output) = (s.named("in"), s.named("out"));
    s.create_named(&input, 1, &[]).expect("created");
    s.create_named(&output, 1, &[]).expect("created");
    s.send(&input, &values(6), &[]).expect("produced");
    let doubled = |records: &[Record]| -> Vec<Record> {
        let twice = |r: &Record| Record { value: r.value.as_ref().map(|value| value.repeat(2)), ..r.clone() };
        records.iter().map(twice).collect()
    };
    let producer = s.transaction().expect("a producer");
    let member = s.member(&input, &[]);
    let mut found = Vec::new();
    until("all records", || {
        found.extend(member.poll().into_iter().map(|(record, _)| Record { time_ms: None, ..record }));
        found.len() == 6
    });
    for (begin, end) in [(0, 4), (4, 6)] {
        producer.begin_transaction().expect("begun");
        deliver(&producer, &output, &doubled(&found[begin..end])).expect("produced");
        let mut at = TopicPartitionList::new();
        at.add_partition_offset(&input, 0, Offset::Offset(end as i64)).expect("a place");
        let group = member.consumer.group_metadata().expect("a member");
        producer.send_offsets_to_transaction(&at, &group, WAIT).expect("sent");
        let ended = if end == 4 { producer.commit_transaction(WAIT) } else { producer.abort_transaction(WAIT) };
        ended.expect("ended");
        until("the offset is committed", || member.committed().0 == Offset::Offset(4));
    }
    drop(member);
    same(plain(&s.committed(&output, 4)), plain(&doubled(&values(4))), "the committed records");
    let member = s.member(&input, &[]);
    same(plain(&drain(&[&member], 2, "the rest")), plain(&numbered("value", 4, 2, 0)), "the records of a new member");
}

fn transaction_fenced(s: &Suite) {
    let topic = s.create(1, &[]).expect("created");
    let zombie = s.transaction().expect("a producer");
    zombie.begin_transaction().expect("begun");
    deliver(&zombie, &topic, &numbered("zombie", 0, 2, 0)).expect("produced");
    let successor = s.transaction().expect("a producer");
    successor.begin_transaction().expect("begun");
    deliver(&successor, &topic, &numbered("successor", 0, 2, 0)).expect("produced");
    let late = deliver(&zombie, &topic, &numbered("late", 0, 1, 0)).and_then(|_| zombie.commit_transaction(WAIT));
    refused(
        &[RDKafkaErrorCode::Fenced, RDKafkaErrorCode::ProducerFenced, RDKafkaErrorCode::InvalidProducerEpoch],
        late,
    );
    successor.commit_transaction(WAIT).expect("committed");
    until("the successor's records are committed", || s.committed(&topic, 0).len() == 2);
    same(plain(&s.committed(&topic, 2)), plain(&numbered("successor", 0, 2, 0)), "the committed records");
}

fn auto_create(s: &Suite) {
    same(s.produce(&values(3)), vec![0, 1, 2], "the offsets");
    same(plain(&s.read(&s.topic(), 3)), plain(&values(3)), "the records read");
}

fn unknown_topic(s: &Suite) {
    let consumer = s.consumer(&[]);
    consumer.subscribe(&[&s.topic()]).expect("subscribed");
    let mut answer = None;
    until("an answer", || {
        answer = consumer.poll(MOMENT).map(|message| message.map(drop));
        answer.is_some()
    });
    refused(&[RDKafkaErrorCode::UnknownTopicOrPartition], answer.expect("an answer"));
}

fn too_large(s: &Suite) {
    let topic = s.create(1, &[("max.message.bytes", "20000")]).expect("created");
    let large = Record { value: Some(vec![0; 50_000]), ..Record::default() };
    refused(&[RDKafkaErrorCode::MessageSizeTooLarge], s.send(&topic, &[large], &[]));
    same(s.produce(&values(3)), vec![0, 1, 2], "the offsets of others");
    same(plain(&s.read(&topic, 3)), plain(&values(3)), "the records read");
}

fn sasl_plain(s: &Suite) {
    let variable = |name| env::var(name).unwrap_or_default();
    let address = variable("COMPAT_SASL");
    let as_user = |password: String| Suite {
        address: address.clone(),
        name: s.name.clone(),
        extra: vec![
            ("security.protocol", "sasl_plaintext".into()),
            ("sasl.mechanism", "PLAIN".into()),
            ("sasl.username", variable("COMPAT_USER")),
            ("sasl.password", password),
        ],
    };
    let known = as_user(variable("COMPAT_PASSWORD"));
    let topic = known.create(1, &[]).expect("created");
    known.produce(&values(3));
    same(plain(&known.read(&topic, 3)), plain(&values(3)), "the records read");
    let stranger = as_user("wrong".into()).consumer(&[]);
    assert!(stranger.fetch_metadata(None, Duration::from_secs(3)).is_err(), "a wrong password is accepted");
}

type Scenario = (&'static str, fn(&Suite));

const SCENARIOS: &[Scenario] = &[
    ("codec_none", |s| codec(s, "none")),
    ("codec_gzip", |s| codec(s, "gzip")),
    ("codec_snappy", |s| codec(s, "snappy")),
    ("codec_lz4", |s| codec(s, "lz4")),
    ("codec_zstd", |s| codec(s, "zstd")),
    ("headers", headers),
    ("nulls", nulls),
    ("timestamps", timestamps),
    ("large_record", large_record),
    ("many_in_order", |s| many(s, 10_000, "false")),
    ("from_offset", from_offset),
    ("from_time", from_time),
    ("earliest_latest", earliest_latest),
    ("group_eager", |s| group(s, &[("partition.assignment.strategy", "range")])),
    ("group_cooperative", |s| group(s, &[("partition.assignment.strategy", "cooperative-sticky")])),
    ("group_static", group_static),
    ("group_server_side", |s| group(s, &[("group.protocol", "consumer")])),
    ("commit_resume", commit_resume),
    ("admin_topics", admin_topics),
    ("admin_configs", admin_configs),
    ("admin_delete_records", admin_delete_records),
    ("admin_groups", admin_groups),
    ("admin_cluster", admin_cluster),
    ("idempotent", |s| many(s, 2000, "true")),
    ("transaction_commit_abort", transaction_commit_abort),
    ("transaction_transform", transaction_transform),
    ("transaction_fenced", transaction_fenced),
    ("auto_create", auto_create),
    ("unknown_topic", unknown_topic),
    ("too_large", too_large),
    ("sasl_plain", sasl_plain),
];

/// Runs a scenario. Returns `true` if it did not fail.
fn attempt(name: &'static str, scenario: fn(&Suite), address: &str) -> bool {
    let begin = Instant::now();
    if name == "sasl_plain" && env::var("COMPAT_SASL").is_err() {
        println!("skipped {name}: COMPAT_SASL is not set");
        return true;
    }
    let unique = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() % 1_000_000_000;
    let suite = Suite {
        address: address.to_owned(),
        name: format!("rdkafka.{name}.{}.{unique}", std::process::id()),
        extra: Vec::new(),
    };
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let failure = catch_unwind(AssertUnwindSafe(|| scenario(&suite))).err();
        let why = failure.map(|cause| match cause.downcast::<String>() {
            Ok(text) => *text,
            Err(cause) => cause.downcast::<&str>().map_or_else(|_| "a panic".into(), |text| (*text).to_owned()),
        });
        sender.send(why)
    });
    let line = match receiver.recv_timeout(SCENARIO) {
        Ok(None) => format!("ok {name} ({:.1} s)", begin.elapsed().as_secs_f32()),
        Ok(Some(why)) => format!("FAILED {name}: {}", why.split_whitespace().collect::<Vec<_>>().join(" ")),
        Err(_) => format!("FAILED {name}: not within {SCENARIO:?}"),
    };
    println!("{line}");
    line.starts_with("ok")
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let is_known = |wanted: &String| SCENARIOS.iter().any(|(name, _)| name == wanted);
    let Some((address, wanted)) = args.split_first().filter(|(_, wanted)| wanted.iter().all(is_known)) else {
        eprintln!("usage: compat-rdkafka HOST:PORT [SCENARIO..]");
        return ExitCode::from(2);
    };
    // Failures are printed in separate lines.
    if env::var("COMPAT_TRACE").is_err() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    println!("client rdkafka 0.39.0-librdkafka-{}", rdkafka::util::get_rdkafka_version().1);
    let mut passed = true;
    for (name, scenario) in SCENARIOS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            passed &= attempt(name, *scenario, address);
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
