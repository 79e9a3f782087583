#!/usr/bin/env node
// Driver of node-redis: any command. Commands whose replies have a special shape use the library's methods.

const { createClient, RESP_TYPES } = require("redis");
const { version } = require("redis/package.json");
const driver = require("../../suite/driver.js");

const BYTES = { [RESP_TYPES.BLOB_STRING]: Buffer };
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

// Converts the library's { id, message } to [id, fields].
const entry = (each) => each && [each.id, each.message];
const streams = (all) => all && all.map(({ name, messages }) => [name, messages.map(entry)]);
const scored = ({ value, score }) => [value, score];
const map = (fields) => {
  const found = new Map();
  for (let at = 0; at < fields.length; at += 2) found.set(fields[at], fields[at + 1]);
  return found;
};
// Returns the options before STREAMS by name, and the one key after it.
function reading(words) {
  const at = words.findIndex((word) => String(word) === "STREAMS");
  const option = (name) => {
    const place = words.slice(0, at).findIndex((word) => String(word) === name);
    return place < 0 ? undefined : Number(words[place + 1]);
  };
  return [{ key: words[at + 1], id: words[at + 2] }, { COUNT: option("COUNT"), BLOCK: option("BLOCK") }];
}

// Calls of the library's methods with the words of a command; undefined if the words do not have the required form.
const METHODS = {
  GET: (r, ...keys) => (keys.length === 1 ? r.get(keys[0]) : undefined),
  MGET: (r, ...keys) => r.mGet(keys),
  HSET: (r, key, ...fields) => r.hSet(key, map(fields)),
  HGETALL: (r, key) => r.hGetAll(key),
  HMGET: (r, key, ...fields) => r.hmGet(key, fields),
  SADD: (r, key, ...members) => r.sAdd(key, members),
  SMEMBERS: (r, key) => r.sMembers(key),
  EXPIRE: (r, key, seconds) => (Number(seconds) > 0 ? r.expire(key, Number(seconds)) : undefined),
  BLPOP: async (r, ...words) => {
    const found = await r.blPop(words.slice(0, -1), Number(words.at(-1)));
    return found && [found.key, found.element];
  },
  BZPOPMIN: async (r, key, seconds) => {
    const found = await r.bzPopMin(key, Number(seconds));
    return found && [found.key, found.value, found.score];
  },
  ZPOPMAX: async (r, key, count) => (await r.zPopMaxCount(key, Number(count))).map(scored),
  ZRANGE: (r, key, start, stop, ...options) => {
    const isScored = options.length === 1 && String(options[0]) === "WITHSCORES";
    return isScored ? r.zRangeWithScores(key, start, stop).then((all) => all.map(scored)) : undefined;
  },
  XADD: (r, key, id, ...fields) => r.xAdd(key, id, Object.fromEntries(map(fields))),
  XRANGE: async (r, key, start, end, ...options) =>
    (await r.xRange(key, start, end, options.length ? { COUNT: Number(options[1]) } : {})).map(entry),
  XREAD: async (r, ...words) => streams(await r.xRead(...reading(words))),
  XREADGROUP: async (r, _, group, consumer, ...words) =>
    streams(await r.xReadGroup(group, consumer, ...reading(words))),
};

async function connection(options = {}) {
  const client = createClient({ url: `redis://${process.env.COMPAT_REDIS}`, ...options });
  // Ignores errors of connections that are killed intentionally. Calls report their own errors.
  client.on("error", () => {});
  return (await client.connect()).withTypeMapping(BYTES);
}

async function command(client, name, args) {
  const words = args.map(bytes);
  const done = METHODS[name]?.(client, ...words);
  return (await done) ?? (done ? null : client.sendCommand([name, ...words]));
}

function filled(multi, commands) {
  for (const words of commands) multi.addCommand(words.map(bytes));
  return multi;
}

const refusals = (error) => error.replies ?? Promise.reject(error);

let first, redis, listener;
let heard = [];
let wake = () => {};

const calls = {
  // The library writes all calls of one tick together.
  pipeline: async ({ commands }) => {
    const all = await Promise.allSettled(commands.map((words) => redis.sendCommand(words.map(bytes))));
    return all.map(({ reason, value }) => reason ?? value);
  },
  transaction: ({ commands }) => filled(redis.multi(), commands).exec().catch(refusals),
  watched: async ({ keys, rival, commands }) => {
    await redis.watch(keys.map(bytes));
    if (rival) {
      const other = await connection();
      await other.sendCommand(rival.map(bytes));
      other.destroy();
    }
    return filled(redis.multi(), commands).exec().catch((error) => {
      if (error.constructor.name === "WatchError") return null;
      throw error;
    });
  },
  scan: async ({ match, count }) => {
    const found = [];
    for await (const keys of redis.scanIterator({ MATCH: match, COUNT: count })) found.push(...keys);
    return found;
  },
  connect: async ({ protocol, db, name }) => {
    redis = await connection({ RESP: protocol, database: db, name: name || undefined });
  },
  reconnects: async () => {},
  subscribe: async ({ channels, patterns }) => {
    listener = await connection();
    const took = (pattern) => (payload, channel) => {
      heard.push([plain(channel), plain(payload), pattern]);
      wake();
    };
    for (const channel of channels) await listener.subscribe(channel, took(null), true);
    for (const pattern of patterns) await listener.pSubscribe(pattern, took(pattern), true);
  },
  messages: async ({ count }) => {
    while (heard.length < count) await new Promise((resolve) => (wake = resolve));
    return heard.splice(0, count);
  },
  reset: async () => {
    if (redis !== first) redis.destroy();
    listener?.destroy();
    [redis, listener, heard] = [first, null, []];
  },
};

async function call(name, values) {
  redis ??= first = await connection({ RESP: 2 });
  const done = calls[name] ? calls[name](values) : command(redis, name, values.args);
  return { value: plain(await done) };
}

driver.main("node-redis", version, call);
