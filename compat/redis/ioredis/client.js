#!/usr/bin/env node
// Driver of ioredis: any command, through the method of its name.

const { Redis } = require("ioredis");
const { version } = require("ioredis/package.json");
const driver = require("../../suite/driver.js");

const split = process.env.COMPAT_REDIS.lastIndexOf(":");
const [host, port] = [process.env.COMPAT_REDIS.slice(0, split), Number(process.env.COMPAT_REDIS.slice(split + 1))];

const bytes = (text) => Buffer.from(text, "latin1");

function plain(value) {
  if (value instanceof Uint8Array) return Buffer.from(value).toString("latin1");
  if (value instanceof Error) return { error: value.message };
  if (value instanceof Set) return [...value].map(plain);
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, each]) => [plain(key), plain(each)]));
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
}

function connection(options = {}) {
  const redis = new Redis({ host, port, ...options });
  // Ignores errors of connections that are killed intentionally. Calls report their own errors.
  redis.on("error", () => {});
  return redis;
}

// Calls the method that returns bytes, if the library has one.
function command(redis, name, args) {
  const method = redis[`${name.toLowerCase()}Buffer`];
  return method ? method.call(redis, ...args.map(bytes)) : redis.callBuffer(name, ...args.map(bytes));
}

function filled(pipeline, commands) {
  for (const [name, ...args] of commands) pipeline[`${name.toLowerCase()}Buffer`](...args.map(bytes));
  return pipeline;
}

// Converts replies, which are pairs of an error and a value.
const answers = (pairs) => pairs && pairs.map(([error, value]) => plain(error ?? value));

const first = connection();
let redis = first;
let listener = null;
let heard = [];
let wake = () => {};

const calls = {
  pipeline: async ({ commands }) => answers(await filled(redis.pipeline(), commands).exec()),
  transaction: async ({ commands }) => answers(await filled(redis.multi(), commands).exec()),
  watched: async ({ keys, rival, commands }) => {
    await redis.watch(...keys.map(bytes));
    if (rival) {
      const other = connection();
      await command(other, rival[0], rival.slice(1));
      other.disconnect();
    }
    return answers(await filled(redis.multi(), commands).exec());
  },
  scan: async ({ match, count }) => {
    const found = [];
    for await (const keys of redis.scanBufferStream({ match, count })) found.push(...keys);
    return plain(found);
  },
  connect: async ({ protocol, db, name }) => {
    redis = connection({ protocol, db, connectionName: name || undefined });
  },
  reconnects: async () => {},
  subscribe: async ({ channels, patterns }) => {
    listener = connection();
    const took = (pattern, channel, payload) => {
      heard.push([plain(channel), plain(payload), pattern && plain(pattern)]);
      wake();
    };
    listener.on("messageBuffer", (channel, payload) => took(null, channel, payload));
    listener.on("pmessageBuffer", took);
    if (channels.length) await listener.subscribe(...channels);
    if (patterns.length) await listener.psubscribe(...patterns);
  },
  messages: async ({ count }) => {
    while (heard.length < count) await new Promise((resolve) => (wake = resolve));
    return heard.splice(0, count);
  },
  reset: async () => {
    if (redis !== first) redis.disconnect();
    listener?.disconnect();
    [redis, listener, heard] = [first, null, []];
  },
};

async function call(name, values) {
  if (calls[name]) return { value: await calls[name](values) };
  return { value: plain(await command(redis, name, values.args)) };
}

driver.main("ioredis", version, call);
