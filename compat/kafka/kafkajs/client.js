#!/usr/bin/env node
// Client kafkajs: pure JavaScript. The scenarios are those of suite.py: client.js HOST:PORT [SCENARIO..]

const assert = require("node:assert/strict");
const fs = require("node:fs");
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require("kafkajs");
const lz4 = require("lz4js");
const xxh32 = require("lz4js/xxh32");
const { ZstdCodec } = require("zstd-codec");

const SCENARIO_MS = 90_000;
const WAIT_MS = 30_000;
// Time without records after which no more are expected.
const QUIET_MS = 400;
const START_MS = 1_700_000_000_000;

process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => {
    const frame = Buffer.from(lz4.compress(encoder.buffer));
    // The blocks are independent, but the library does not set the flag for it, which Apache Kafka requires.
    frame[4] |= 0x20;
    frame[6] = xxh32.hash(0, frame, 4, 2) >> 8;
    return frame;
  },
  decompress: async (bytes) => Buffer.from(lz4.decompress(bytes)),
});
const zstd = new Promise((ready) => ZstdCodec.run((codec) => ready(new codec.Simple())));
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (bytes) => Buffer.from((await zstd).decompress(bytes)),
});

class Skip extends Error {}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(what, holds) {
  for (const end = Date.now() + WAIT_MS; Date.now() < end; await sleep(20)) {
    const answer = await holds();
    if (answer) return answer;
  }
  assert.fail(`not within ${WAIT_MS} ms: ${what}`);
}

// Returns the protocol's names of an error and of all its causes.
function names(error) {
  return error ? [error.type, ...names(error.cause), ...names(error.originalError), ...(error.errors ?? []).flatMap(names)] : [];
}

async function refused(expected, call) {
  const error = await call().then(() => null, (error) => error);
  assert(error, `not refused, though it should be ${expected}`);
  assert(expected.split("|").some((name) => names(error).includes(name)), `refused with ${error}, not ${expected}`);
}

const bytes = (value) => (typeof value === "string" ? Buffer.from(value) : value);
const plain = (records) => records.map(({ key, value }) => [bytes(key), bytes(value)]);

function numbered(count, { begin = 0, partition = 0, tag = "value" } = {}) {
  return Array.from({ length: count }, (_, i) => ({ key: `key-${(begin + i) % 7}`, value: `${tag}-${begin + i}`, partition }));
}

class Client {
  constructor(address, security) {
    this.kafka = new Kafka({
      brokers: [address], logLevel: logLevel.NOTHING, retry: { retries: security ? 0 : 5, initialRetryTime: 50 },
      ...(security && {
        sasl: security.sasl,
        ssl: security.ca && { ca: [fs.readFileSync(security.ca)] },
      }),
    });
  }

  async admin(call) {
    const admin = this.kafka.admin();
    await admin.connect();
    return call(admin).finally(() => admin.disconnect());
  }

  create(topic, numPartitions = 1, configs = {}) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
    return this.admin((admin) => admin.createTopics({ topics: [{ topic, numPartitions, configEntries }], waitForLeaders: true }));
  }

  async produce(topic, messages, { codec = "None", ...options } = {}) {
    const producer = this.kafka.producer(options);
    await producer.connect();
    return producer.send({ topic, messages, acks: -1, compression: CompressionTypes[codec] }).finally(() => producer.disconnect());
  }

  // Sends many concurrent requests with a few records each. Returns the records in the order of their offsets.
  async produceInFlight(topic, messages, each, options) {
    const producer = this.kafka.producer(options);
    await producer.connect();
    const sent = [];
    for (let i = 0; i < messages.length; i += each) {
      const some = messages.slice(i, i + each);
      sent.push(producer.send({ topic, messages: some }).then(([{ baseOffset }]) => ({ baseOffset: Number(baseOffset), some })));
    }
    const answers = await Promise.all(sent).finally(() => producer.disconnect());
    return answers.sort((a, b) => a.baseOffset - b.baseOffset).flatMap((answer) => answer.some);
  }

  // Reads at least `count` records of a partition, and more until none has arrived for a moment. Only groups can read.
  async read(topic, count, { partition = 0, start = "earliest", readUncommitted = true } = {}) {
    const consumer = this.kafka.consumer({ groupId: `${topic}.read.${Math.random()}`, readUncommitted, maxWaitTimeInMs: 200 });
    const found = [];
    let last = Date.now();
    try {
      await consumer.connect();
      await consumer.subscribe({ topic, fromBeginning: start === "earliest" });
      const joined = new Promise((done) => consumer.on(consumer.events.GROUP_JOIN, done));
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition: from, message }) => {
          if (from === partition && (typeof start !== "number" || Number(message.offset) >= start)) found.push(message);
          last = Date.now();
        },
      });
      if (typeof start === "number") consumer.seek({ topic, partition, offset: String(start) });
      await joined;
      last = Date.now();
      await until(`${count} records, but ${found.length}`, () => found.length >= count && Date.now() - last > QUIET_MS);
      return found;
    } finally {
      await consumer.disconnect();
    }
  }

  async member(topic, groupId) {
    const member = new Member(this, topic, groupId);
    await member.start();
    return member;
  }

  async transaction(transactionalId) {
    const producer = this.kafka.producer({ transactionalId, idempotent: true, maxInFlightRequests: 1, retry: { retries: 2 } });
    await producer.connect();
    return producer;
  }
}

class Member {
  constructor(client, topic, groupId) {
    Object.assign(this, { client, topic, groupId, records: [], partitions: [] });
    this.consumer = client.kafka.consumer({
      groupId, sessionTimeout: 10_000, heartbeatInterval: 500, maxWaitTimeInMs: 200, rebalanceTimeout: 20_000,
    });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => (this.partitions = payload.memberAssignment[topic] ?? []));
    this.consumer.on(this.consumer.events.REBALANCING, () => (this.partitions = []));
  }

  async start() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topic: this.topic, fromBeginning: true });
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => void this.records.push({ ...message, partition }),
    });
  }

  async poll() {
    await sleep(50);
    return this.records.splice(0);
  }

  commit(offset, { partition = 0, metadata } = {}) {
    return this.consumer.commitOffsets([{ topic: this.topic, partition, offset: String(offset), metadata }]);
  }

  committed() {
    return committed(this.client, this.topic, this.groupId);
  }

  close() {
    return this.consumer.disconnect();
  }
}

async function committed(client, topic, groupId) {
  const [found] = await client.admin((admin) => admin.fetchOffsets({ groupId, topics: [topic] }));
  return found.partitions.sort((a, b) => a.partition - b.partition);
}

// Polls members until they have `count` records and no more arrive. Each commits its records.
async function drain(members, count, what) {
  const found = [];
  let last = Date.now();
  const end = last + WAIT_MS;
  while ((found.length < count || Date.now() - last < QUIET_MS) && Date.now() < end) {
    for (const member of members) {
      for (const record of await member.poll()) {
        found.push(record);
        last = Date.now();
        await member.commit(Number(record.offset) + 1, record);
      }
    }
  }
  assert.equal(found.length, count, `${what}: ${found.length} records, not ${count}`);
  return found;
}

async function settled(members, partitions, what) {
  await until(what, async () => {
    for (const member of members) assert.deepEqual(await member.poll(), [], "unexpected records");
    const all = members.flatMap((member) => member.partitions).sort();
    return members.every((member) => member.partitions.length) && all.join() === [...Array(partitions).keys()].join();
  });
}

const codec = (name) => async (c, n) => {
  await c.create(n());
  const text = "the same words again and again ".repeat(20);
  const sent = numbered(200, { tag: text }).map((record, i) => ({ ...record, headers: { n: String(i) } }));
  const [{ baseOffset }] = await c.produce(n(), sent, { codec: name });
  assert.equal(baseOffset, "0");
  const found = await c.read(n(), 200);
  assert.deepEqual(plain(found), plain(sent));
  assert.deepEqual(found.map((r) => r.headers), sent.map((r) => ({ n: bytes(r.headers.n) })));
};

const many = (count, each, options) => async (c, n) => {
  await c.create(n());
  const sent = await c.produceInFlight(n(), numbered(count), each, options);
  assert.deepEqual(plain(await c.read(n(), count)), plain(sent));
};

const sasl = (mechanism, tls) => async (c, n) => {
  const variable = tls ? "COMPAT_SASL_TLS" : "COMPAT_SASL";
  const { [variable]: address, COMPAT_USER: username, COMPAT_PASSWORD: password, COMPAT_CA: ca } = process.env;
  if (!address) throw new Skip(`${variable} is not set`);
  const as = (password) => new Client(address, { sasl: { mechanism, username, password }, ca: tls && ca });
  await as(password).create(n());
  await as(password).produce(n(), numbered(3));
  assert.deepEqual(plain(await as(password).read(n(), 3)), plain(numbered(3)));
  const error = await as("wrong").admin(() => null).then(() => null, (error) => error);
  assert.equal(error?.name, "KafkaJSSASLAuthenticationError");
};

const missing = (why) => async () => {
  throw new Skip(why);
};

const SCENARIOS = {
  codec_none: codec("None"),
  codec_gzip: codec("GZIP"),
  codec_snappy: codec("Snappy"),
  codec_lz4: codec("LZ4"),
  codec_zstd: codec("ZSTD"),

  // The library merges headers of equal names, and has no null.
  async headers(c, n) {
    await c.create(n());
    const all = Buffer.from([...Array(256).keys()]);
    const sent = [{ a: "1", b: "2" }, { same: ["first", "second", "first"] }, { empty: "", binary: all }, { größe: "naïve" }, {}];
    await c.produce(n(), sent.map((headers) => ({ value: "v", headers })));
    const found = (await c.read(n(), sent.length)).map((r) => ({ ...r.headers }));
    const expected = (value) => (Array.isArray(value) ? value.map(bytes) : bytes(value));
    assert.deepEqual(found, sent.map((h) => Object.fromEntries(Object.entries(h).map(([k, v]) => [k, expected(v)]))));
  },

  async nulls(c, n) {
    await c.create(n());
    const sent = [["no value", null], [null, "no key"], [null, null], ["", ""]].map(([key, value]) => ({ key, value }));
    await c.produce(n(), sent);
    assert.deepEqual(plain(await c.read(n(), sent.length)), plain(sent));
  },

  async timestamps(c, n) {
    await c.create(n());
    const sent = [START_MS, START_MS + 1, START_MS - 86_400_000, START_MS + 5].map(String);
    await c.produce(n(), sent.map((timestamp) => ({ value: "v", timestamp })));
    assert.deepEqual((await c.read(n(), sent.length)).map((r) => r.timestamp), sent);
  },

  async large_record(c, n) {
    await c.create(n());
    const value = Buffer.from(Array.from({ length: 1_000_000 }, (_, i) => (i * i) % 251));
    await c.produce(n(), [{ key: "k", value }]);
    const [found] = await c.read(n(), 1);
    assert(found.value.equals(value), "the value read differs from the sent one");
  },

  many_in_order: many(10_000, 100),

  async from_offset(c, n) {
    await c.create(n(), 2);
    const sent = numbered(50, { partition: 1 });
    await c.produce(n(), [...numbered(5), ...sent]);
    for (const start of [17, 49]) {
      const found = await c.read(n(), 50 - start, { partition: 1, start });
      assert.deepEqual(plain(found), plain(sent.slice(start)));
      assert.equal(found[0].offset, String(start));
    }
  },

  async from_time(c, n) {
    await c.create(n());
    await c.produce(n(), numbered(20).map((r, i) => ({ ...r, timestamp: String(START_MS + 1000 * i) })));
    // The library returns the end if there is no such record.
    for (const [at, offset] of [[-5, "0"], [7000, "7"], [7001, "8"], [60_000, "20"]]) {
      const found = await c.admin((admin) => admin.fetchTopicOffsetsByTimestamp(n(), START_MS + at));
      assert.deepEqual(found, [{ partition: 0, offset }]);
    }
  },

  async earliest_latest(c, n) {
    await c.create(n());
    await c.produce(n(), numbered(5));
    const found = await c.admin((admin) => admin.fetchTopicOffsets(n()));
    assert.deepEqual(found, [{ partition: 0, offset: "5", high: "5", low: "0" }]);
    assert.deepEqual(plain(await c.read(n(), 5)), plain(numbered(5)));
    assert.deepEqual(await c.read(n(), 0, { start: "latest" }), []);
  },

  async group_eager(c, n) {
    const partitions = 4;
    await c.create(n(), partitions);
    const lines = (records) => records.map((r) => `${r.partition} ${r.value}`).sort();
    const round = async (number, members) => {
      const sent = [...Array(partitions).keys()].flatMap((partition) => numbered(10, { partition, tag: `round-${number}-${partition}` }));
      await c.produce(n(), sent);
      assert.deepEqual(lines(await drain(members, sent.length, `round ${number}`)), lines(sent));
    };
    const first = await c.member(n(), n("group"));
    try {
      await round(0, [first]);
      const second = await c.member(n(), n("group"));
      try {
        await settled([first, second], partitions, "both members have partitions");
        await round(1, [first, second]);
      } finally {
        await second.close();
      }
      await settled([first], partitions, "the remaining member has all partitions");
      await round(2, [first]);
    } finally {
      await first.close();
    }
  },

  group_cooperative: missing("the library has no cooperative assignor"),
  group_static: missing("the library has no static members"),
  group_server_side: missing("the library has no server-side groups"),

  async commit_resume(c, n) {
    await c.create(n());
    const sent = numbered(10);
    await c.produce(n(), sent);
    const metadata = "four of ten, café";
    const member = await c.member(n(), n("group"));
    try {
      assert.deepEqual(plain((await until("records", async () => (await member.poll())[0] && [true])) && []), []);
      await member.commit(4, { metadata });
      assert.deepEqual(await member.committed(), [{ partition: 0, offset: "4", metadata }]);
    } finally {
      await member.close();
    }
    const again = await c.member(n(), n("group"));
    try {
      assert.deepEqual(plain(await drain([again], 6, "the rest")), plain(sent.slice(4)));
      assert.equal((await again.committed())[0].offset, "10");
    } finally {
      await again.close();
    }
  },

  async admin_topics(c, n) {
    await c.create(n(), 2);
    const partitions = () => c.admin(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata();
      return topics.find((topic) => topic.name === n())?.partitions.length;
    });
    assert.equal(await partitions(), 2);
    // The library returns `false` if the topic exists.
    assert.equal(await c.create(n(), 2), false);
    await refused("INVALID_TOPIC_EXCEPTION", () => c.create("not a name!"));
    const add = (count) => c.admin((admin) => admin.createPartitions({ topicPartitions: [{ topic: n(), count }] }));
    await add(5);
    await until("the topic has five partitions", async () => (await partitions()) === 5);
    await c.produce(n(), numbered(3, { partition: 4 }));
    assert.deepEqual(plain(await c.read(n(), 3, { partition: 4 })), plain(numbered(3)));
    await refused("INVALID_PARTITIONS", () => add(3));
    const remove = () => c.admin((admin) => admin.deleteTopics({ topics: [n()] }));
    await remove();
    await until("the topic is deleted", async () => (await partitions()) === undefined);
    await refused("UNKNOWN_TOPIC_OR_PARTITION", remove);
  },

  async admin_configs(c, n) {
    await c.create(n(), 1, { "retention.ms": "3600000" });
    const resource = { type: ConfigResourceTypes.TOPIC, name: n() };
    const value = (name) => c.admin(async (admin) => {
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] });
      return resources[0].configEntries.find((entry) => entry.configName === name).configValue;
    });
    assert.equal(await value("retention.ms"), "3600000");
    const set = (configs) => {
      const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }));
      return c.admin((admin) => admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] }));
    };
    const before = await value("retention.bytes");
    // The call replaces all settings: the others get their defaults.
    await set({ "retention.bytes": "123456789" });
    await until("retention.bytes is set", async () => (await value("retention.bytes")) === "123456789");
    await set({ "retention.ms": "60000" });
    await until("retention.bytes has its default", async () => (await value("retention.bytes")) === before);
    await refused("INVALID_CONFIG", () => set({ "retention.ms": "soon" }));
  },

  async admin_delete_records(c, n) {
    await c.create(n());
    await c.produce(n(), numbered(10));
    await c.admin(async (admin) => {
      // This call lets the library find the partition's leader.
      await admin.fetchTopicOffsets(n());
      await admin.deleteTopicRecords({ topic: n(), partitions: [{ partition: 0, offset: "4" }] });
    });
    assert.equal((await c.admin((admin) => admin.fetchTopicOffsets(n())))[0].low, "4");
    assert.deepEqual(plain(await c.read(n(), 6)), plain(numbered(6, { begin: 4 })));
  },

  async admin_groups(c, n) {
    await c.create(n(), 2);
    await c.produce(n(), [...numbered(5), ...numbered(5, { partition: 1 })]);
    const groups = async () => (await c.admin((admin) => admin.listGroups())).groups.map((group) => group.groupId);
    const describe = async () => (await c.admin((admin) => admin.describeGroups([n("group")]))).groups[0];
    const member = await c.member(n(), n("group"));
    await drain([member], 10, "records").finally(() => groups().then((ids) => assert(ids.includes(n("group")))));
    const { state, members } = await describe();
    assert.deepEqual([state, members.length], ["Stable", 1]);
    await member.close();
    await until("the group is empty", async () => (await describe()).state === "Empty");
    const offsets = async () => (await committed(c, n(), n("group"))).map((at) => at.offset);
    assert.deepEqual(await offsets(), ["5", "5"]);
    const set = { groupId: n("group"), topic: n(), partitions: [{ partition: 0, offset: "2" }] };
    await c.admin((admin) => admin.setOffsets(set));
    assert.deepEqual(await offsets(), ["2", "5"]);
    const remove = () => c.admin((admin) => admin.deleteGroups([n("group")]));
    await remove();
    await until("the group is deleted", async () => !(await groups()).includes(n("group")));
    const error = await remove().then(() => null, (error) => error);
    assert.equal(error?.groups?.[0].error.type, "GROUP_ID_NOT_FOUND");
  },

  async admin_cluster(c) {
    const { brokers, controller, clusterId } = await c.admin((admin) => admin.describeCluster());
    assert(clusterId && brokers.some((broker) => broker.nodeId === controller));
  },

  admin_log_dirs: missing("the library has no such call"),

  idempotent: many(2000, 100, { idempotent: true, maxInFlightRequests: 1 }),

  async transaction_commit_abort(c, n) {
    await c.create(n());
    const rounds = [0, 1, 2].map((round) => numbered(3, { tag: `round-${round}` }));
    const committed = (count) => c.read(n(), count, { readUncommitted: false });
    const producer = await c.transaction(n("id"));
    try {
      for (const [round, finish] of ["commit", "abort", "commit"].entries()) {
        const transaction = await producer.transaction();
        await transaction.send({ topic: n(), messages: rounds[round] });
        if (round === 2) assert.deepEqual(plain(await committed(3)), plain(rounds[0]));
        await transaction[finish]();
      }
    } finally {
      await producer.disconnect();
    }
    assert.deepEqual(plain(await committed(6)), plain([...rounds[0], ...rounds[2]]));
    assert.deepEqual(plain(await c.read(n(), 9)), plain(rounds.flat()));
  },

  async transaction_transform(c, n) {
    await c.create(n("in"));
    await c.create(n("out"));
    await c.produce(n("in"), numbered(6));
    const doubled = (records) => records.map(({ key, value }) => ({ key, value: `${value}${value}` }));
    const producer = await c.transaction(n("id"));
    const member = await c.member(n("in"), n("group"));
    try {
      const found = [];
      await until("all records", async () => found.push(...(await member.poll())) && found.length === 6);
      for (const [begin, end, finish] of [[0, 4, "commit"], [4, 6, "abort"]]) {
        const transaction = await producer.transaction();
        await transaction.send({ topic: n("out"), messages: doubled(found.slice(begin, end)) });
        const topics = [{ topic: n("in"), partitions: [{ partition: 0, offset: String(end) }] }];
        await transaction.sendOffsets({ consumerGroupId: n("group"), topics });
        await transaction[finish]();
        await until("the offset is committed", async () => (await member.committed())[0]?.offset === "4");
      }
    } finally {
      await producer.disconnect();
      await member.close();
    }
    assert.deepEqual(plain(await c.read(n("out"), 4, { readUncommitted: false })), plain(doubled(numbered(4))));
    const again = await c.member(n("in"), n("group"));
    const rest = await drain([again], 2, "the rest").finally(() => again.close());
    assert.deepEqual(plain(rest), plain(numbered(2, { begin: 4 })));
  },

  async transaction_fenced(c, n) {
    await c.create(n());
    const zombie = await c.transaction(n("id"));
    const late = await zombie.transaction();
    await late.send({ topic: n(), messages: numbered(2, { tag: "zombie" }) });
    const successor = await c.transaction(n("id"));
    try {
      const transaction = await successor.transaction();
      await transaction.send({ topic: n(), messages: numbered(2, { tag: "successor" }) });
      await refused("PRODUCER_FENCED|INVALID_PRODUCER_EPOCH", () => late.commit());
      await transaction.commit();
    } finally {
      await successor.disconnect();
      await zombie.disconnect();
    }
    assert.deepEqual(plain(await c.read(n(), 2, { readUncommitted: false })), plain(numbered(2, { tag: "successor" })));
  },

  async auto_create(c, n) {
    const [{ baseOffset }] = await c.produce(n(), numbered(3));
    assert.equal(baseOffset, "0");
    assert.deepEqual(plain(await c.read(n(), 3)), plain(numbered(3)));
  },

  async unknown_topic(c, n) {
    await refused("UNKNOWN_TOPIC_OR_PARTITION", () => c.admin((admin) => admin.fetchTopicMetadata({ topics: [n()] })));
    await refused("UNKNOWN_TOPIC_OR_PARTITION", () => c.produce(n(), numbered(1), { allowAutoTopicCreation: false, retry: { retries: 1 } }));
  },

  async too_large(c, n) {
    await c.create(n(), 1, { "max.message.bytes": "20000" });
    await refused("MESSAGE_TOO_LARGE", () => c.produce(n(), [{ value: Buffer.alloc(50_000) }]));
    await c.produce(n(), numbered(3));
    assert.deepEqual(plain(await c.read(n(), 3)), plain(numbered(3)));
  },

  sasl_plain: sasl("plain", false),
  sasl_scram_256: sasl("scram-sha-256", false),
  sasl_scram_512: sasl("scram-sha-512", false),
  tls_plain: sasl("plain", true),
  tls_scram_256: sasl("scram-sha-256", true),
  tls_scram_512: sasl("scram-sha-512", true),
};

async function attempt(name, client) {
  const begin = Date.now();
  const prefix = `kafkajs.${name}.${process.pid}.${begin}`;
  let timer;
  const expired = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new Error(`not within ${SCENARIO_MS} ms`)), SCENARIO_MS);
  });
  try {
    await Promise.race([SCENARIOS[name](client, (what = "topic") => `${prefix}.${what}`), expired]);
    console.log(`ok ${name} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (error) {
    if (process.env.COMPAT_TRACE) console.error(error);
    const why = `${error.message}`.replace(/\s+/g, " ").slice(0, 300);
    console.log(error instanceof Skip ? `skipped ${name}: ${why}` : `FAILED ${name}: ${why}`);
    return error instanceof Skip;
  } finally {
    clearTimeout(timer);
  }
  return true;
}

async function main([address, ...wanted]) {
  if (!address || wanted.some((name) => !SCENARIOS[name])) {
    console.error(`usage: client.js HOST:PORT [SCENARIO..], of ${Object.keys(SCENARIOS).join(" ")}`);
    process.exit(2);
  }
  console.log(`client kafkajs ${require("kafkajs/package.json").version}`);
  const client = new Client(address);
  let passed = true;
  for (const name of wanted.length ? wanted : Object.keys(SCENARIOS)) passed = (await attempt(name, client)) && passed;
  process.exit(passed ? 0 : 1);
}

main(process.argv.slice(2));
