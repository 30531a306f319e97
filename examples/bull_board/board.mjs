// bull-board on queues in Redis:  node board.mjs [QUEUE ...]     (default: the queue "default")
//
//   REDIS_URL: where they are (redis://127.0.0.1:6379/0)      PREFIX: as given to RedisSnapshot (bull)
//   PORT: where to listen on this machine (3000; 0 takes a free one, which is printed)
//
// It is read-only: while an engine owns the queues it keeps the jobs in memory, and overwrites what others change in its
// records. After `engine.handover()`, or when the engine has ended for good, start it with WRITABLE=1.

import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import { Queue } from 'bullmq';
import express from 'express';
import { Redis } from 'ioredis';

const names = process.argv.length > 2 ? process.argv.slice(2) : ['default'];
const connection = new Redis(process.env.REDIS_URL ?? 'redis://127.0.0.1:6379/0', { maxRetriesPerRequest: null });
const prefix = process.env.PREFIX ?? 'bull';
const readOnlyMode = process.env.WRITABLE !== '1';

// `skipMetasUpdate`: a mere look must not write the name of its library into the queue.
const queues = names.map((name) => new Queue(name, { connection, prefix, skipMetasUpdate: true }));
const serverAdapter = new ExpressAdapter();
createBullBoard({ queues: queues.map((queue) => new BullMQAdapter(queue, { readOnlyMode })), serverAdapter });

const app = express();
app.use('/', serverAdapter.getRouter());
const listener = app.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${listener.address().port}`);
});
