//! Writers of records: native, HTTP and Kafka clients, and a stream of Redis.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use client::{Acks, Delivery, Level, Offset, PartitionId, Partitioner, Publisher, Record, Storage, TopicSettings};
use engine::codec::Codec;
use kafka_protocol::messages::ProduceRequest;
use serde_json::{Value, json};

use super::partition::Partition;
use super::site::{Miss, Site, Step, replied, succeeded};
use super::{Outcome, Tally, Writer};
use crate::door::kafka::raw::{Raw, batch, produce, produced};
use crate::door::pubsub::push::try_call;
use crate::door::redis::commands::Redis;

/// Size of a segment: the large writers fill several in one cycle.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Version of the produce requests.
const PRODUCE: i16 = 9;
/// Codes after which Kafka's producers send a batch again: timeout, and no leader.
const TRY_AGAIN: [i16; 2] = [6, 7];

/// Door to publish records through.
trait Door: Sync {
    fn open<'s>(&self, site: &'s Site, shape: &Shape) -> Box<dyn Connection + 's>;

    /// Creates the topic.
    fn create(&self, site: &Site, shape: &Shape) {
        let settings = TopicSettings {
            partitions: shape.partitions,
            storage: shape.storage,
            segment_bytes: if shape.storage == Storage::Disk { SEGMENT_BYTES } else { 0 },
            retention_ms: 0,
            ..TopicSettings::on_disk()
        };
        site.wait("a topic", site.client().create_topic(shape.topic, settings)).expect("created");
    }

    /// Checks that the door itself finds this number of records.
    fn check(&self, _site: &Site, _topic: &str, _records: u64) -> Outcome {
        Ok(())
    }
}

/// Connection to a door, which answers batches in the order in which they are sent.
trait Connection {
    fn send(&mut self, partition: PartitionId, records: Vec<Bytes>) -> Result<(), Miss>;
    /// Waits for the answer to the oldest batch: the offset of its first record, if the door reports it.
    fn answer(&mut self) -> Result<Option<Offset>, Miss>;
}

/// Way in which a writer publishes to its topic.
struct Shape {
    topic: &'static str,
    door: &'static dyn Door,
    storage: Storage,
    partitions: u32,
    /// Records of a batch, and the size of each.
    records: usize,
    record_bytes: usize,
    /// Maximum number of unanswered batches.
    in_flight: usize,
}

const SMALL: Shape = Shape {
    topic: "native",
    door: &Native { is_numbered: false },
    storage: Storage::Disk,
    partitions: 1,
    records: 1,
    record_bytes: 100,
    in_flight: 1,
};

/// Batches of 512 KiB go straight to the segment.
const LARGE: Shape = Shape { records: 64, record_bytes: 8 << 10, in_flight: 2, ..SMALL };

const SHAPES: [Shape; 9] = [
    SMALL,
    Shape { topic: "native.pipelined", door: &Native { is_numbered: true }, in_flight: 512, ..SMALL },
    Shape { topic: "native.large", door: &Native { is_numbered: true }, ..LARGE },
    Shape {
        topic: "native.partitions",
        door: &Native { is_numbered: true },
        partitions: 16,
        in_flight: 256,
        record_bytes: 1000,
        ..SMALL
    },
    Shape {
        topic: "native.sqlite",
        door: &Native { is_numbered: true },
        storage: Storage::Sqlite,
        in_flight: 64,
        ..SMALL
    },
    Shape { topic: "http", door: &Http, ..SMALL },
    Shape { topic: "kafka", door: &Kafka, in_flight: 5, ..SMALL },
    Shape { topic: "kafka.large", door: &Kafka, ..LARGE },
    Shape { topic: "redis.stream", door: &Stream, in_flight: 8, ..SMALL },
];

/// Returns a writer of each shape.
pub fn writers() -> Vec<Box<dyn Writer>> {
    SHAPES.into_iter().map(|shape| Box::new(RecordWriter::new(shape)) as Box<dyn Writer>).collect()
}

/// Writer of records, to the partitions of its topic in turn.
struct RecordWriter {
    tally: Arc<Tally>,
    shape: Shape,
    partitions: Vec<Partition>,
    turn: usize,
}

impl RecordWriter {
    fn new(shape: Shape) -> Self {
        let partitions = (0..shape.partitions).map(|id| Partition::new(shape.topic, id, shape.record_bytes));
        Self { tally: Tally::new(shape.topic), partitions: partitions.collect(), shape, turn: 0 }
    }

    /// Sends a batch. Returns its partition and the number of its first record.
    fn send(&mut self, connection: &mut dyn Connection) -> Result<(usize, u64), Miss> {
        let id = self.turn % self.partitions.len();
        self.turn += 1;
        let records: Vec<(u64, Bytes)> = (0..self.shape.records).map(|_| self.partitions[id].send()).collect();
        let first = records[0].0;
        connection.send(id as PartitionId, records.into_iter().map(|(_, value)| value).collect())?;
        Ok((id, first))
    }

    fn acknowledge(&mut self, (id, first): (usize, u64), offset: Option<Offset>) {
        for at in 0..self.shape.records as u64 {
            self.partitions[id].acknowledge(first + at, offset.map(|offset| offset + at));
        }
        self.tally.add(self.shape.records as u64);
    }
}

impl Writer for RecordWriter {
    fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn prepare(&mut self, site: &Site) {
        self.shape.door.create(site, &self.shape);
    }

    fn write(&mut self, site: &Site) -> Outcome {
        let mut connection = self.shape.door.open(site, &self.shape);
        let mut unanswered = VecDeque::new();
        site.pipeline(self.shape.in_flight, |step| match step {
            Step::Send => {
                unanswered.push_back(self.send(&mut *connection)?);
                Ok(())
            }
            Step::Answer => {
                let batch = unanswered.pop_front().expect("one is in flight");
                let offset = connection.answer()?;
                self.acknowledge(batch, offset);
                Ok(())
            }
        })
    }

    fn check(&mut self, site: &Site, is_complete: bool) -> Outcome {
        let client = site.client();
        site.runtime.block_on(async {
            for partition in &mut self.partitions {
                partition.check(&client, is_complete).await?;
                partition.trim(&client).await?;
            }
            Ok::<(), String>(())
        })?;
        self.shape.door.check(site, self.shape.topic, self.partitions.iter().map(Partition::len).sum())
    }
}

/// Native client. If it numbers its batches, it sends them again after a kill, and each has to be acknowledged.
struct Native {
    is_numbered: bool,
}

struct NativeConnection<'s> {
    site: &'s Site,
    publisher: Publisher,
    is_numbered: bool,
    /// Deliveries of the batches in flight, one for each record.
    deliveries: VecDeque<Vec<Delivery>>,
}

impl Door for Native {
    fn open<'s>(&self, site: &'s Site, shape: &Shape) -> Box<dyn Connection + 's> {
        // The key of a record is its partition.
        let partitioner = Partitioner::Custom(Arc::new(|record, _| {
            let key = record.key.as_deref().expect("a key");
            std::str::from_utf8(key).expect("text").parse().expect("a partition")
        }));
        let client = site.client();
        let publisher = client
            .publisher(shape.topic)
            .acks(Acks::Committed)
            .idempotent(self.is_numbered)
            .partitioner(partitioner)
            .batch_bytes((shape.records * (shape.record_bytes + 100)).max(16 << 10));
        let publisher = site.wait("a publisher", publisher.open()).expect("opened");
        Box::new(NativeConnection { site, publisher, is_numbered: self.is_numbered, deliveries: VecDeque::new() })
    }
}

impl Connection for NativeConnection<'_> {
    fn send(&mut self, partition: PartitionId, records: Vec<Bytes>) -> Result<(), Miss> {
        let mut deliveries = Vec::with_capacity(records.len());
        for value in records {
            let record = Record::new(value).with_key(partition.to_string());
            deliveries.push(self.site.wait("room in the buffer", self.publisher.send(&record))?);
        }
        self.deliveries.push_back(deliveries);
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Offset>, Miss> {
        let mut offsets = Vec::new();
        for delivery in self.deliveries.pop_front().expect("one is in flight") {
            match self.site.runtime.block_on(delivery.delivered()) {
                Ok(delivered) if delivered.level == Level::Committed => offsets.push(delivered.offset),
                Ok(delivered) => return Err(Miss::Wrong(format!("it was not committed: {delivered:?}"))),
                Err(error) if self.is_numbered => return Err(Miss::Wrong(format!("it was not sent again: {error}"))),
                Err(error) => return Err(error.into()),
            }
        }
        let first = offsets[0];
        if offsets.iter().copied().ne(first..first + offsets.len() as u64) {
            return Err(Miss::Wrong(format!("the offsets of a batch are {offsets:?}")));
        }
        Ok(Some(first))
    }
}

/// Client of the HTTP door, with one request at a time.
struct Http;

struct HttpConnection<'s> {
    site: &'s Site,
    path: String,
    answer: Option<(u16, Value)>,
}

impl Door for Http {
    fn open<'s>(&self, site: &'s Site, shape: &Shape) -> Box<dyn Connection + 's> {
        Box::new(HttpConnection { site, path: format!("/v1/topics/{}/records", shape.topic), answer: None })
    }
}

impl Connection for HttpConnection<'_> {
    fn send(&mut self, partition: PartitionId, records: Vec<Bytes>) -> Result<(), Miss> {
        let record = |value: &Bytes| json!({ "value": std::str::from_utf8(value).expect("text") });
        let body = json!({ "records": records.iter().map(record).collect::<Vec<_>>() });
        let path = format!("{}?partition={partition}", self.path);
        self.answer = self.site.wait("an answer", try_call(self.site.http, "POST", &path, &body));
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Offset>, Miss> {
        let body = succeeded(self.answer.take())?;
        let offset = body["results"][0]["base_offset"].as_u64();
        offset.ok_or_else(|| Miss::Wrong(format!("no offset: {body}"))).map(Some)
    }
}

/// Kafka's producer with acks = all.
struct Kafka;

struct KafkaConnection<'s> {
    site: &'s Site,
    raw: Raw,
    topic: &'static str,
}

impl Door for Kafka {
    fn open<'s>(&self, site: &'s Site, shape: &Shape) -> Box<dyn Connection + 's> {
        let raw = site.runtime.block_on(Raw::connect_to(site.kafka));
        Box::new(KafkaConnection { site, raw, topic: shape.topic })
    }
}

impl Connection for KafkaConnection<'_> {
    fn send(&mut self, partition: PartitionId, records: Vec<Bytes>) -> Result<(), Miss> {
        let records: Vec<Record> = records.into_iter().map(Record::new).collect();
        let request = produce(self.topic, partition as i32, -1, batch(Codec::None, &records));
        self.site.wait("room in the socket", self.raw.send(PRODUCE, &request));
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Offset>, Miss> {
        let answer = self.site.runtime.block_on(self.raw.try_answer::<ProduceRequest>(PRODUCE));
        match produced(&answer.ok_or(Miss::Lost)?) {
            (0, offset, _) => Ok(Some(offset as Offset)),
            (code, ..) if TRY_AGAIN.contains(&code) => Err(Miss::Busy),
            (code, _, message) => Err(Miss::Wrong(format!("code {code}: {message:?}"))),
        }
    }
}

/// Stream of Redis. Its ids are no offsets.
struct Stream;

struct StreamConnection {
    redis: Redis,
    topic: &'static str,
}

impl Door for Stream {
    fn open<'s>(&self, site: &'s Site, shape: &Shape) -> Box<dyn Connection + 's> {
        Box::new(StreamConnection { redis: Redis::open_at(site.redis), topic: shape.topic })
    }

    /// The first XADD creates the topic.
    fn create(&self, _site: &Site, _shape: &Shape) {}

    fn check(&self, site: &Site, topic: &str, records: u64) -> Outcome {
        match Redis::open_at(site.redis).call(&format!("XLEN {topic}")) {
            found if found == format!(":{records}") => Ok(()),
            found => Err(format!("XLEN is {found}, not :{records}")),
        }
    }
}

impl Connection for StreamConnection {
    fn send(&mut self, _partition: PartitionId, records: Vec<Bytes>) -> Result<(), Miss> {
        for value in records {
            let value = std::str::from_utf8(&value).expect("text");
            self.redis.try_ask(&format!("XADD {} * value {value}", self.topic)).ok_or(Miss::Lost)?;
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<Option<Offset>, Miss> {
        replied(self.redis.try_answer()).map(|_| None)
    }
}
