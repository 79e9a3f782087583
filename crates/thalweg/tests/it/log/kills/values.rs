//! Writers of the latest value of each key: a durable cache, strings and a hash of Redis, and committed offsets of
//! Kafka.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use client::{Cache, CacheSettings};
use kafka_protocol::messages::OffsetCommitRequest;

use super::site::{Miss, Site, Step, replied, text};
use super::{Outcome, Tally, Writer};
use crate::cache::caches::all;
use crate::door::kafka::groups::{commit_request, committed};
use crate::door::kafka::raw::Raw;
use crate::door::redis::commands::Redis;

/// Size of a value.
const VALUE_BYTES: usize = 100;
/// One in this number of changes is a deletion.
const DELETION_ONE_IN: u64 = 7;
/// Version of the commits and of their fetches.
const OFFSETS: i16 = 7;
/// Codes after which Kafka's consumers commit again: the coordinator is loading or unavailable.
const TRY_AGAIN: [i16; 2] = [14, 15];

/// Door to write values through.
trait Door: Send {
    /// Returns the number of keys, which are written in turn.
    fn keys(&self) -> u64;
    /// Returns the maximum number of unanswered changes.
    fn in_flight(&self) -> usize;
    fn create(&self, site: &Site);
    fn open<'s>(&self, site: &'s Site) -> Box<dyn Connection + 's>;
    /// Returns the value of each key.
    fn all(&self, site: &Site) -> BTreeMap<String, String>;

    /// Returns the value with this number; `None` deletes the key.
    fn value(&self, name: &str, number: u64) -> Option<String> {
        (!number.is_multiple_of(DELETION_ONE_IN)).then(|| text(name, number, VALUE_BYTES))
    }
}

/// Connection to a door, which answers changes in the order in which they are sent.
trait Connection {
    fn send(&mut self, key: &str, value: Option<&str>) -> Result<(), Miss>;
    fn answer(&mut self) -> Result<(), Miss>;
}

/// Returns a writer for each door.
pub fn writers() -> Vec<Box<dyn Writer>> {
    let writer = |name, door| Box::new(ValueWriter::new(name, door)) as Box<dyn Writer>;
    vec![
        writer("cache", Box::new(Durable)),
        writer("redis.strings", Box::new(Strings)),
        writer("redis.hash", Box::new(Hash)),
        writer("kafka.offsets", Box::new(Offsets)),
    ]
}

/// Value of a key; `None` if it has none.
type Latest = Option<String>;

/// Writer of values.
struct ValueWriter {
    tally: Arc<Tally>,
    door: Box<dyn Door>,
    next: u64,
    /// Values that were acknowledged last, or found by the last check.
    known: BTreeMap<String, String>,
    /// Values that were sent after the known one, and not acknowledged.
    unknown: BTreeMap<String, Vec<Latest>>,
}

impl ValueWriter {
    fn new(name: &'static str, door: Box<dyn Door>) -> Self {
        Self { tally: Tally::new(name), door, next: 1, known: BTreeMap::new(), unknown: BTreeMap::new() }
    }

    fn change(&mut self) -> (String, Latest) {
        let number = self.next;
        self.next += 1;
        ((number % self.door.keys()).to_string(), self.door.value(self.tally.name, number))
    }

    /// Notes that a change was acknowledged. It follows all earlier changes of its key.
    fn acknowledge(&mut self, key: String, value: Latest) {
        self.unknown.remove(&key);
        match value {
            Some(value) => self.known.insert(key, value),
            None => self.known.remove(&key),
        };
        self.tally.add(1);
    }

    fn note_unknown(&mut self, (key, value): (String, Latest)) {
        self.unknown.entry(key).or_default().push(value);
    }
}

impl Writer for ValueWriter {
    fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn prepare(&mut self, site: &Site) {
        self.door.create(site);
    }

    fn write(&mut self, site: &Site) -> Outcome {
        let mut connection = self.door.open(site);
        let mut unanswered = VecDeque::new();
        let outcome = site.pipeline(self.door.in_flight(), |step| match step {
            Step::Send => {
                unanswered.push_back(self.change());
                let (key, value) = unanswered.back().expect("it was sent");
                connection.send(key, value.as_deref())
            }
            Step::Answer => {
                let (key, value) = unanswered.pop_front().expect("one is in flight");
                let answer = connection.answer();
                match answer {
                    Ok(()) => self.acknowledge(key, value),
                    Err(_) => self.note_unknown((key, value)),
                }
                answer
            }
        });
        unanswered.into_iter().for_each(|change| self.note_unknown(change));
        outcome
    }

    fn check(&mut self, site: &Site, _is_complete: bool) -> Outcome {
        let found = self.door.all(site);
        let keys: BTreeSet<&String> = self.known.keys().chain(self.unknown.keys()).chain(found.keys()).collect();
        for key in keys {
            let known = self.known.get(key);
            let found = found.get(key);
            let is_unknown = |values: &Vec<Latest>| values.iter().any(|value| value.as_ref() == found);
            if known != found && !self.unknown.get(key).is_some_and(is_unknown) {
                let unknown = self.unknown.get(key);
                return Err(format!(
                    "key {key} has {found:?}; acknowledged was {known:?}, sent after that were {unknown:?}"
                ));
            }
        }
        self.known = found;
        self.unknown.clear();
        Ok(())
    }
}

/// Durable cache of the native client, with one put at a time.
struct Durable;

struct CacheConnection<'s> {
    site: &'s Site,
    cache: Cache,
    answer: Result<(), Miss>,
}

impl Durable {
    fn cache(site: &Site) -> Cache {
        site.client().cache("cache")
    }
}

impl Door for Durable {
    fn keys(&self) -> u64 {
        50
    }

    fn in_flight(&self) -> usize {
        1
    }

    fn create(&self, site: &Site) {
        let settings = CacheSettings { is_durable: true, ..CacheSettings::default() };
        site.wait("a cache", site.client().create_cache("cache", settings)).expect("created");
    }

    fn open<'s>(&self, site: &'s Site) -> Box<dyn Connection + 's> {
        Box::new(CacheConnection { site, cache: Self::cache(site), answer: Ok(()) })
    }

    fn all(&self, site: &Site) -> BTreeMap<String, String> {
        let entries = site.wait("all entries", all(&Self::cache(site), ""));
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        entries.into_iter().map(|(key, found)| (key, text(&found.value))).collect()
    }
}

impl Connection for CacheConnection<'_> {
    fn send(&mut self, key: &str, value: Option<&str>) -> Result<(), Miss> {
        let key = key.to_owned();
        let changed = match value {
            Some(value) => self.site.wait("a put", self.cache.put(key, value.to_owned())).map(drop),
            None => self.site.wait("a deletion", self.cache.delete(key)).map(drop),
        };
        self.answer = changed.map_err(Miss::from);
        Ok(())
    }

    fn answer(&mut self) -> Result<(), Miss> {
        std::mem::replace(&mut self.answer, Ok(()))
    }
}

/// Strings of Redis's database 1.
struct Strings;

/// One hash of Redis's database 2.
struct Hash;

struct RedisConnection {
    redis: Redis,
    put: &'static str,
    delete: &'static str,
}

impl RedisConnection {
    fn open(site: &Site, database: u32) -> Redis {
        let mut redis = Redis::open_at(site.redis);
        assert_eq!(redis.call(&format!("SELECT {database}")), "+OK");
        redis
    }
}

impl Connection for RedisConnection {
    fn send(&mut self, key: &str, value: Option<&str>) -> Result<(), Miss> {
        let command = match value {
            Some(value) => format!("{}{key} {value}", self.put),
            None => format!("{}{key}", self.delete),
        };
        self.redis.try_ask(&command).ok_or(Miss::Lost)
    }

    fn answer(&mut self) -> Result<(), Miss> {
        replied(self.redis.try_answer()).map(drop)
    }
}

/// Returns the words of an array; none for an empty one.
fn words(answer: &str) -> Vec<String> {
    answer.trim_matches(['(', ')']).split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

impl Door for Strings {
    fn keys(&self) -> u64 {
        50
    }

    fn in_flight(&self) -> usize {
        8
    }

    /// The first command creates the database.
    fn create(&self, _site: &Site) {}

    fn open<'s>(&self, site: &'s Site) -> Box<dyn Connection + 's> {
        Box::new(RedisConnection { redis: RedisConnection::open(site, 1), put: "SET ", delete: "DEL " })
    }

    fn all(&self, site: &Site) -> BTreeMap<String, String> {
        let mut redis = RedisConnection::open(site, 1);
        let keys = words(&redis.call("KEYS *"));
        keys.into_iter().map(|key| (key.clone(), redis.call(&format!("GET {key}")))).collect()
    }
}

impl Door for Hash {
    fn keys(&self) -> u64 {
        50
    }

    fn in_flight(&self) -> usize {
        8
    }

    fn create(&self, _site: &Site) {}

    fn open<'s>(&self, site: &'s Site) -> Box<dyn Connection + 's> {
        Box::new(RedisConnection { redis: RedisConnection::open(site, 2), put: "HSET hash ", delete: "HDEL hash " })
    }

    fn all(&self, site: &Site) -> BTreeMap<String, String> {
        let found = words(&RedisConnection::open(site, 2).call("HGETALL hash"));
        found.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }
}

/// Offsets that a Kafka consumer commits for group `g` and topic `t`. They count up.
struct Offsets;

struct OffsetConnection<'s> {
    site: &'s Site,
    raw: Raw,
}

impl Offsets {
    fn connect(site: &Site) -> Raw {
        site.runtime.block_on(Raw::connect_to(site.kafka))
    }
}

impl Door for Offsets {
    /// One partition.
    fn keys(&self) -> u64 {
        1
    }

    fn in_flight(&self) -> usize {
        5
    }

    fn create(&self, site: &Site) {
        site.runtime.block_on(async { Raw::connect_to(site.kafka).await.create("t").await });
    }

    fn open<'s>(&self, site: &'s Site) -> Box<dyn Connection + 's> {
        Box::new(OffsetConnection { site, raw: Self::connect(site) })
    }

    fn all(&self, site: &Site) -> BTreeMap<String, String> {
        let (offset, _) = site.wait("an offset", committed(&mut Self::connect(site), OFFSETS, 0));
        (offset >= 0).then(|| ("0".to_owned(), offset.to_string())).into_iter().collect()
    }

    fn value(&self, _name: &str, number: u64) -> Option<String> {
        Some(number.to_string())
    }
}

impl Connection for OffsetConnection<'_> {
    fn send(&mut self, _key: &str, value: Option<&str>) -> Result<(), Miss> {
        let offset = value.expect("offsets are not deleted").parse().expect("a number");
        self.site.wait("room in the socket", self.raw.send(OFFSETS, &commit_request(0, offset)));
        Ok(())
    }

    fn answer(&mut self) -> Result<(), Miss> {
        let answer = self.site.runtime.block_on(self.raw.try_answer::<OffsetCommitRequest>(OFFSETS));
        match answer.ok_or(Miss::Lost)?.topics[0].partitions[0].error_code {
            0 => Ok(()),
            code if TRY_AGAIN.contains(&code) => Err(Miss::Busy),
            code => Err(Miss::Wrong(format!("code {code}"))),
        }
    }
}
