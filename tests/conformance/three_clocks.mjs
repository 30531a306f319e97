// Runs a program of test_three_clocks.py on the real BullMQ, in real time, and prints the queue's stream of events.
//
//   node three_clocks.mjs SOCKET FOLDER PROGRAM
//
//   SOCKET: unix socket of a Redis or Valkey server; FOLDER: where `npm ci` was run; PROGRAM: JSON

import { createRequire } from 'node:module';

const [socket, folder, program] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { Queue, Worker } = require('bullmq');
const IORedis = require('ioredis');

const connection = new IORedis({ path: socket, maxRetriesPerRequest: null });
const jobs = JSON.parse(program);
const queue = new Queue('clocks', { connection });
for (const { name, data, opts } of jobs) {
  await queue.add(name, data, opts);
}

let ended = 0;
const expected = new Set(jobs.map(({ opts }, index) => opts.jobId ?? index)).size;
const worker = new Worker(
  'clocks',
  async (job) => {
    await new Promise((resolve) => setTimeout(resolve, job.data.sleeps ?? 0));
    if (job.attemptsMade < (job.data.fails ?? 0)) throw new Error('as asked');
    return job.data;
  },
  { connection },
);
await new Promise((resolve) => {
  worker.on('completed', () => ++ended === expected && resolve());
  worker.on('failed', (job) => job.finishedOn && ++ended === expected && resolve());
});
await new Promise((resolve) => setTimeout(resolve, 50));
const stream = await connection.xrange('bull:clocks:events', '-', '+');
const told = stream.map(([id, fields]) => {
  const pairs = {};
  for (let index = 0; index < fields.length; index += 2) pairs[fields[index]] = fields[index + 1];
  return { ms: Number(id.split('-')[0]), event: pairs.event, id: pairs.jobId ?? null };
});
console.log(JSON.stringify(told));
await worker.close(true);
connection.disconnect();
process.exit(0);
