// The same jobs on BullMQ in Node:  node peer.mjs FOLDER PORT N DISPATCHERS CONCURRENCY BULK
//
//   FOLDER: where `npm ci` was run; BULK: how many the producer adds in one call, 0 for one by one by many dispatchers

import { createRequire } from 'node:module';

const [folder, ...numbers] = process.argv.slice(2);
const [port, n, dispatchers, concurrency, bulk] = numbers.map(Number);
const { Queue, Worker } = createRequire(`${folder}/`)('bullmq');

const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
const opts = { removeOnComplete: true };
const payload = (i) => ({ user_id: i, kind: 'welcome' });
const queue = new Queue('npm-peer', { connection });
let left = n;
let open;
const opened = new Promise((resolve) => (open = resolve));
const worker = new Worker('npm-peer', async () => { if (!--left) open(); }, { connection, concurrency });
await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);

async function dispatch(first) {
  for (let i = first; i < n; i += dispatchers) await queue.add('noop', payload(i), opts);
}

async function dispatchInBulk() {
  for (let first = 0; first < n; first += bulk) {
    const some = Array.from({ length: Math.min(bulk, n - first) }, (_, i) => first + i);
    await queue.addBulk(some.map((i) => ({ name: 'noop', data: payload(i), opts })));
  }
}

const since = process.hrtime.bigint();
await (bulk ? dispatchInBulk() : Promise.all(Array.from({ length: dispatchers }, (_, first) => dispatch(first))));
await opened;
const seconds = Number(process.hrtime.bigint() - since) / 1e9;
const usage = process.cpuUsage();
console.log(JSON.stringify({ rate: n / seconds, running: (usage.user + usage.system) / 1e6 / seconds }));
await worker.close();
await queue.close();
process.exit(0);
