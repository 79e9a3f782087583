#!/usr/bin/env node
// Libraries that are built on Redis, as their users write them: client.js HOST:PORT [SCENARIO..]

"use strict";

const assert = require("node:assert");
const crypto = require("node:crypto");

const { Queue, Worker, QueueEvents } = require("bullmq");
const Bee = require("bee-queue");
const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");
const Redlock = require("redlock");

const WAIT_MS = 60_000;
const [address, ...wanted] = process.argv.slice(2);
if (!address) {
  console.error("usage: client.js HOST:PORT [SCENARIO..]");
  process.exit(2);
}
const [host, port] = [address.slice(0, address.lastIndexOf(":")), Number(address.slice(address.lastIndexOf(":") + 1))];
const connection = { host, port, maxRetriesPerRequest: null };
const name = `lib-${crypto.randomUUID().slice(0, 8)}`;

async function until(what, holds) {
  for (const end = Date.now() + WAIT_MS; Date.now() < end; ) {
    const found = await holds();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`not within ${WAIT_MS} ms: ${what}`);
}

async function bullmq() {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  const seen = [];
  const work = async (job) => {
    seen.push([job.name, Date.now(), job.data.at]);
    if (job.name === "retried" && job.attemptsMade === 0) throw new Error("as it should");
    return 2 * (job.data.at ?? 0);
  };
  const worker = new Worker(name, work, { connection, concurrency: 4 });
  const of = (kind) => seen.filter(([each]) => each === kind);
  try {
    await events.waitUntilReady();
    const jobs = await queue.addBulk([...Array(50).keys()].map((at) => ({ name: "plain", data: { at } })));
    const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, WAIT_MS)));
    assert.deepStrictEqual(results, jobs.map((_, at) => 2 * at));
    const begin = Date.now();
    const delayed = await queue.add("delayed", { at: 7 }, { delay: 1000 });
    const retried = await queue.add("retried", { at: 8 }, { attempts: 3, backoff: { type: "fixed", delay: 200 } });
    assert.strictEqual(await delayed.waitUntilFinished(events, WAIT_MS), 14);
    assert.ok(of("delayed")[0][1] - begin >= 950, "the delayed job came too early");
    assert.strictEqual(await retried.waitUntilFinished(events, WAIT_MS), 16);
    assert.strictEqual(of("retried").length, 2);
    await queue.upsertJobScheduler("every", { every: 300 }, { name: "repeated", data: { at: 1 } });
    await until("three repeated jobs", () => of("repeated").length >= 3);
    assert.strictEqual(await queue.removeJobScheduler("every"), true);
    const counts = await queue.getJobCounts("completed", "failed");
    assert.ok(counts.completed >= 55 && counts.failed === 0, JSON.stringify(counts));
    await queue.add("last", {}, { priority: 5 });
    await until("the job with a priority", () => of("last").length === 1);
  } finally {
    await worker.close();
    await events.close();
    await queue.obliterate({ force: true });
    await queue.close();
  }
}

async function beeQueue() {
  const queue = new Bee(`${name}-bee`, { redis: { host, port }, activateDelayedJobs: true });
  try {
    let attempts = 0;
    queue.process(4, async (job) => {
      if (job.data.retried && ++attempts === 1) throw new Error("as it should");
      return job.data.at + 1;
    });
    const done = (job) =>
      new Promise((resolve, reject) => {
        job.on("succeeded", resolve);
        setTimeout(() => reject(new Error("a job has not ended")), WAIT_MS).unref();
      });
    const jobs = [...Array(20).keys()].map((at) => queue.createJob({ at }));
    const results = jobs.map(done);
    await Promise.all(jobs.map((job) => job.save()));
    assert.deepStrictEqual(await Promise.all(results), jobs.map((_, at) => at + 1));
    const retried = queue.createJob({ at: 1, retried: true }).retries(2);
    const again = done(retried);
    await retried.save();
    assert.strictEqual(await again, 2);
    const begin = Date.now();
    const delayed = queue.createJob({ at: 2 }).delayUntil(begin + 1000);
    const later = done(delayed);
    await delayed.save();
    assert.strictEqual(await later, 3);
    assert.ok(Date.now() - begin >= 950, "the delayed job came too early");
  } finally {
    await queue.close(2000);
  }
}

async function rateLimiter() {
  const client = new Redis({ host, port, enableOfflineQueue: true });
  try {
    const limiter = new RateLimiterRedis({ storeClient: client, points: 25, duration: 5, keyPrefix: name });
    const tried = await Promise.allSettled([...Array(100)].map(() => limiter.consume("one")));
    assert.strictEqual(tried.filter(({ status }) => status === "fulfilled").length, 25);
    const refused = tried.find(({ status }) => status === "rejected").reason;
    assert.ok(refused.msBeforeNext > 0 && refused.msBeforeNext <= 5000, String(refused.msBeforeNext));
    assert.strictEqual((await limiter.consume("another", 5)).remainingPoints, 20);
    assert.strictEqual((await limiter.get("another")).consumedPoints, 5);
    await limiter.reward("another", 3);
    assert.strictEqual((await limiter.get("another")).consumedPoints, 2);
    const short = new RateLimiterRedis({ storeClient: client, points: 1, duration: 1, blockDuration: 1, keyPrefix: `${name}s` });
    await short.consume("k");
    await assert.rejects(short.consume("k"));
    await until("the end of the block", () => short.consume("k").then(() => true, () => false));
  } finally {
    await client.quit();
  }
}

async function redlock() {
  const client = new Redis({ host, port });
  try {
    const locks = new Redlock([client], { retryCount: 10_000, retryDelay: 5, retryJitter: 5 });
    const [lock, number] = [`${name}:lock`, `${name}:number`];
    const adder = async () => {
      for (let turn = 0; turn < 20; turn++) {
        // Nothing but the lock keeps two of them from reading the same number.
        const held = await locks.lock(lock, 30_000);
        await client.set(number, Number(await client.get(number)) + 1);
        await held.unlock();
      }
    };
    await Promise.all([...Array(6)].map(adder));
    assert.strictEqual(await client.get(number), "120");
    const once = new Redlock([client], { retryCount: 0 });
    const both = await once.lock([`${name}:a`, `${name}:b`], 30_000);
    await assert.rejects(once.lock(`${name}:b`, 30_000), { name: "LockError" });
    const extended = await both.extend(60_000);
    assert.ok((await client.pttl(`${name}:b`)) > 30_000, "the locks were not extended");
    await client.set(`${name}:a`, "of another client");
    await assert.rejects(extended.unlock(), { name: "LockError" });
    assert.deepStrictEqual(await client.mget(`${name}:a`, `${name}:b`), ["of another client", null]);
    const begin = Date.now();
    await once.lock(`${name}:short`, 3_000);
    await (await locks.lock(`${name}:short`, 30_000)).unlock();
    assert.ok(Date.now() - begin >= 2999, "a lock was acquired before the end of another one");
  } finally {
    await client.quit();
  }
}

const SCENARIOS = { bullmq, "bee-queue": beeQueue, "rate-limiter-flexible": rateLimiter, redlock };
const WHAT = {
  bullmq: "results, bulks, delays, retries, repeated jobs, priorities",
  "bee-queue": "results, retries, delayed jobs",
  "rate-limiter-flexible": "limits of rates, rewards, blocks",
  redlock: "locks under contention, several keys at once, extension, foreign owners",
};

async function forget() {
  const client = new Redis({ host, port });
  for await (const keys of client.scanStream({ match: `*${name}*`, count: 1000 })) {
    if (keys.length) await client.del(...keys);
  }
  await client.quit();
}

async function main() {
  console.log(`client libraries-node ioredis-${require("ioredis/package.json").version}`);
  let isFine = true;
  for (const scenario of wanted.length ? wanted : Object.keys(SCENARIOS)) {
    console.log(`library ${scenario} ${require(`${scenario}/package.json`).version}: ${WHAT[scenario]}`);
    const begin = Date.now();
    try {
      await SCENARIOS[scenario]();
      console.log(`ok ${scenario} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
    } catch (error) {
      isFine = false;
      if (process.env.COMPAT_TRACE) console.error(error);
      console.log(`FAILED ${scenario}: ${String(error).split(/\s+/).join(" ").slice(0, 300)}`);
    }
    await forget();
  }
  process.exit(isFine ? 0 : 1);
}

main();
