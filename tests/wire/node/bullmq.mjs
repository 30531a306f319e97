// The real BullMQ as a server of JSON lines: one request in, one answer out.
//
//   node bullmq.mjs FOLDER PORT
//
//   FOLDER: where `npm ci` was run; PORT: of a Redis or Valkey server on this machine

import { createRequire } from 'node:module';
import readline from 'node:readline';

const require = createRequire(`${process.argv[2]}/`);
const bull = { 5: require('bullmq5'), 6: require('bullmq6') };
const connection = { host: '127.0.0.1', port: Number(process.argv[3]), maxRetriesPerRequest: null };
const queues = new Map();
const workers = new Map();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
console.warn = console.error = () => {};

function queueOf({ version, queue }) {
  const key = `${version}:${queue}`;
  if (!queues.has(key)) queues.set(key, new bull[version].Queue(queue, { connection }));
  return queues.get(key);
}

const plain = (value) => {
  if (Array.isArray(value)) return value.map(plain);
  if (!value || typeof value.asJSON !== 'function') return value ?? null;
  const { id, name, data, opts, progress, delay, timestamp, attemptsMade, attemptsStarted, priority } = value;
  const { returnvalue, failedReason, stacktrace, deduplicationId, repeatJobKey, parentKey, finishedOn } = value;
  return { id, name, data, opts, progress, delay, timestamp, attemptsMade, attemptsStarted, priority, returnvalue,
    failedReason, stacktrace, deduplicationId, repeatJobKey, parentKey, finishedOn };
};

const doors = {
  // Starts a worker. A job whose data has `fail` throws in that many first attempts; `sleep` is its length in ms.
  start({ version, queue, worker, options }) {
    const log = { ran: [], errors: [], failed: [] };
    const made = new bull[version].Worker(
      queue,
      async (job) => {
        const children = await job.getChildrenValues();
        log.ran.push({ ...plain(job), at: Date.now(), children });
        if (job.data?.sleep) await sleep(job.data.sleep);
        if (job.data?.fail > job.attemptsMade) throw new Error(`told to fail ${job.attemptsMade}`);
        return { done: job.id };
      },
      { connection, drainDelay: 1, ...options },
    );
    made.on('error', (error) => log.errors.push(String(error?.message)));
    made.on('failed', (job, error) => log.failed.push([job?.id, error.message]));
    workers.set(worker, { made, log });
  },
  log: ({ worker }) => workers.get(worker).log,
  async stop({ worker }) {
    const { made, log } = workers.get(worker);
    await made.close(true);
    workers.delete(worker);
    return log;
  },
  async call({ method, args, ...where }) {
    return plain(await queueOf(where)[method](...args));
  },
  async job({ id, method, args, ...where }) {
    const job = await queueOf(where).getJob(id);
    return method ? plain(await job[method](...args)) : job ? plain(job) : null;
  },
  async flow({ version, tree }) {
    const producer = new bull[version].FlowProducer({ connection });
    await producer.add(tree);
    await producer.close();
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await doors[request.door](request)) ?? null };
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
