// Jobs of BullMQ that do nothing, added a thousand at a time and then run 50 at a time.
'use strict';

const { Queue, Worker } = require('bullmq');

const [host, port] = process.env.JOBS_ADDRESS.split(':');
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const COUNT = Number(process.env.JOBS_COUNT);
const ADDED = 1000;

function rate(began) {
  return (COUNT / (Number(process.hrtime.bigint() - began) / 1e9)).toFixed(1);
}

async function main() {
  const queue = new Queue('jobs', { connection });
  let began = process.hrtime.bigint();
  for (let count = 0; count < COUNT; count += ADDED) {
    await queue.addBulk(Array.from({ length: ADDED }, () => ({ name: 'nothing', data: {}, opts: { removeOnComplete: true } })));
  }
  console.log(`added ${rate(began)}`);
  began = process.hrtime.bigint();
  let done = 0;
  await new Promise((resolve) => {
    const worker = new Worker('jobs', async () => {}, { connection, concurrency: 50 });
    worker.on('completed', () => {
      done += 1;
      if (done === COUNT) resolve();
    });
  });
  console.log(`worked ${rate(began)}`);
  process.exit(0);
}

main();
