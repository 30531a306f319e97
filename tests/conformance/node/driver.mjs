// Runs scenarios on the real BullMQ and answers their traces, one JSON line each way (../data/README.md has the formats).
//
//   node driver.mjs SOCKET FOLDER
//
//   SOCKET: unix socket of a Redis or Valkey server that is for this process alone
//   FOLDER: where `npm ci` was run
//
// What makes it fast: the queues, workers and the one connection live as long as the process, the server is emptied
// between two scenarios, and time is virtual on both sides. Here `Date` stands still until a step moves it. In the server
// every lifetime that a script sets is stretched by STRETCH and every one that it reads is shrunk, so that the real time
// that passes is nothing; a sleep takes its length off all of them, and deletes those that are over.

import { createRequire } from 'node:module';
import readline from 'node:readline';

const STRETCH = 10_000;
const DEFAULT_T0 = 1700000000123;
const PREFIX = 'bull';
const STATES = ['active', 'waiting', 'prioritized', 'delayed', 'waiting-children', 'completed', 'failed'];
const UNORDERED = new Set(['remove', 'jobRemove', 'removeUnprocessedChildren']);

let now = DEFAULT_T0;
const RealDate = globalThis.Date;
globalThis.Date = class extends RealDate {
  constructor(...args) {
    super(...(args.length ? args : [now]));
  }
  static now() {
    return now;
  }
};
console.warn = console.error = () => {};

const require = createRequire(`${process.argv[3]}/`);
const { Redis } = require('ioredis');
const bull = require('bullmq');

// --- lifetimes -------------------------------------------------------------------------------------------------------

const PRELUDE = `
local redis = setmetatable({call = (function(real)
  return function(command, ...)
    if command == 'PTTL' then
      local left = real(command, ...)
      return left > 0 and math.ceil(left / ${STRETCH}) or left
    elseif command == 'PEXPIRE' then
      local key, ms = ...
      return real(command, key, string.format('%.0f', ms * ${STRETCH}))
    elseif command == 'SET' then
      local given = {...}
      for i = 3, #given - 1 do
        if given[i] == 'PX' then given[i + 1] = string.format('%.0f', given[i + 1] * ${STRETCH}) end
      end
      return real(command, unpack(given))
    end
    return real(command, ...)
  end
end)(redis.call)}, {__index = redis})
`;
const AGE = `
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    left = math.ceil(left / ${STRETCH}) - ARGV[1]
    if left > 0 then redis.call('PEXPIRE', key, string.format('%.0f', left * ${STRETCH})) else redis.call('DEL', key) end
  end
end`;

const define = Redis.prototype.defineCommand;
Redis.prototype.defineCommand = function (name, definition) {
  return define.call(this, name, { ...definition, lua: PRELUDE + definition.lua });
};
const connection = new Redis({ path: process.argv[2], maxRetriesPerRequest: null });
const set = connection.set.bind(connection);
connection.set = (...args) => set(...args.map((arg, i) => (args[i - 1] === 'PX' ? arg * STRETCH : arg)));
const raw = new Redis({ path: process.argv[2] });
define.call(raw, 'age', { numberOfKeys: 0, lua: AGE });

// --- objects that outlive a scenario ---------------------------------------------------------------------------------

const made = new Map();
async function once(key, make) {
  if (!made.has(key)) made.set(key, await make());
  return made.get(key);
}

const flows = new bull.FlowProducer({ connection, prefix: PREFIX });
flows.on('error', () => {});

const makeQueue = (name, opts) =>
  once(`queue ${name} ${JSON.stringify(opts)}`, async () => {
    const queue = new bull.Queue(name, { connection, prefix: PREFIX, ...opts });
    queue.on('error', () => {});
    await queue.queueMetaInitialized;
    return queue;
  });

const makeWorker = (queue, name, opts) =>
  once(`worker ${queue} ${name} ${JSON.stringify(opts)}`, async () => {
    const { backoffTable: table, ...rest } = opts;
    const settings = table && {
      backoffStrategy: (made, type) => table[type][Math.min(made, table[type].length) - 1],
    };
    const worker = new bull.Worker(queue, null, { connection, prefix: PREFIX, ...rest, ...(settings && { settings }) });
    await worker.waitUntilReady();
    return worker;
  });

// --- JSON ------------------------------------------------------------------------------------------------------------

function plain(value) {
  if (value === undefined) return null;
  if (typeof value === 'number') return Number.isFinite(value) ? value : null;
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined).map(([k, v]) => [k, plain(v)]));
}

function view(job) {
  if (!job) return null;
  const { id, name, data, delay, priority, timestamp, progress, attemptsMade, attemptsStarted, stalledCounter } = job;
  const { returnvalue = null, failedReason = null, processedOn = null, finishedOn = null } = job;
  const { deduplicationId = null, repeatJobKey = null, parent = null, deferredFailure = null } = job;
  return plain({
    id, name, data, delay, priority, timestamp, progress, attemptsMade, attemptsStarted, stalledCounter, returnvalue,
    failedReason, stacktraceLength: (job.stacktrace ?? []).length, processedOn, finishedOn, deduplicationId,
    repeatJobKey, parent, deferredFailure,
  });
}

function errorView(err) {
  const message = String(err?.message ?? err).replace(/\s+/g, ' ');
  if (/user_script|Error running script|ERR Error|Script/.test(message)) {
    return { error: { name: 'ScriptError', message: '<script error>' } };
  }
  const out = { message };
  if (err?.name && err.name !== 'Error') out.name = err.name;
  if (typeof err?.code === 'number') out.code = err.code;
  return { error: out };
}

function eventView(flat) {
  const out = {};
  for (let i = 0; i < flat.length; i += 2) {
    const [key, text] = [flat[i], flat[i + 1]];
    out[key] = text;
    if (key === 'returnvalue' || key === 'data') {
      try {
        out[key] = JSON.parse(text);
      } catch {}
    } else if (['delay', 'count', 'attemptsMade'].includes(key) && /^-?\d+(\.\d+)?$/.test(text)) {
      out[key] = Number(text);
    }
  }
  return out;
}

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const roundUp = ms => (ms > 0 ? Math.ceil(ms / 100) * 100 : ms);

const qualified = opts =>
  opts?.parent?.queue ? { ...opts, parent: { ...opts.parent, queue: `${PREFIX}:${opts.parent.queue}` } } : opts;

const tree = node => ({
  ...node,
  ...(node.opts && { opts: qualified(node.opts) }),
  ...(node.children && { children: node.children.map(tree) }),
});

const treeIds = node => ({
  id: node.job.id,
  queue: node.job.queueName,
  ...(node.children && { children: node.children.map(treeIds) }),
});

function treeView(node) {
  const out = { id: node.job.id, queue: node.job.queueName };
  if (node.children) {
    out.children = node.children.filter(Boolean).map(treeView);
    out.children.sort((a, b) => compare(`${a.queue} ${a.id}`, `${b.queue} ${b.id}`));
  }
  return out;
}

const given = (step, ...names) => Object.fromEntries(names.filter(n => step[n] !== undefined).map(n => [n, step[n]]));

// --- one scenario ----------------------------------------------------------------------------------------------------

class Run {
  constructor(scenario) {
    this.scenario = scenario;
    this.names = scenario.queues ?? ['main'];
    this.queues = new Map();
    this.workers = new Map();
    this.held = new Map();
    this.tokens = 0;
    this.errors = [];
    this.last = {};
    this.events = {};
  }

  async trace() {
    const { scenario } = this;
    now = scenario.t0 ?? DEFAULT_T0;
    await raw.flushall();
    for (const name of this.names) {
      const queue = await makeQueue(name, scenario.queueOpts ?? {});
      await raw.hset(queue.toKey('meta'), queue.metaValues);
      this.queues.set(name, queue);
      this.last[name] = '0-0';
      this.events[name] = [];
    }
    const results = [];
    for (const [i, step] of scenario.steps.entries()) {
      this.index = i;
      try {
        results.push(plain(await OPS[step.op](this, step)));
      } catch (err) {
        if (!OPS[step.op]) throw err;
        results.push(errorView(err));
      }
      await this.collect(step);
    }
    const trace = { name: scenario.name, area: scenario.area, results, events: this.events };
    if (this.errors.length) trace.workerErrors = this.errors;
    trace.final = await this.final();
    for (const worker of this.workers.values()) worker.removeAllListeners('error');
    return trace;
  }

  async collect(step) {
    const pipeline = raw.pipeline();
    const keys = this.names.map(name => this.queues.get(name).toKey('events'));
    keys.forEach((key, i) => pipeline.xrange(key, `(${this.last[this.names[i]]}`, '+').exists(key));
    const answers = await pipeline.exec();
    this.names.forEach((name, i) => {
      const [[, rows], [, exists]] = [answers[2 * i], answers[2 * i + 1]];
      if (!exists) this.last[name] = '0-0'; // obliterated: the next stream starts with lower ids
      if (!rows.length) return;
      this.last[name] = rows.at(-1)[0];
      const list = rows.map(([, flat]) => ({ step: this.index, ...eventView(flat) }));
      if (UNORDERED.has(step.op) && list.filter(e => e.event === 'removed').length > 1) {
        list.sort((a, b) => compare(a.event, b.event) || compare(a.jobId ?? '', b.jobId ?? ''));
      }
      this.events[name].push(...list);
    });
  }

  async final() {
    const out = {};
    for (const [name, queue] of this.queues) {
      const states = {};
      const jobs = {};
      for (const state of STATES) {
        const found = await queue.getJobs([state], 0, -1, true);
        if (found.length) states[state] = found.map(job => job.id);
        for (const job of found) jobs[job.id] = view(job);
      }
      const schedulers = plain(await queue.getJobSchedulers(0, -1, true));
      out[name] = { paused: await queue.isPaused(), states, jobs, schedulers };
    }
    return out;
  }

  name(step) {
    return step.q ?? this.names[0];
  }

  queue(step) {
    return this.queues.get(this.name(step));
  }

  token(step) {
    return step.token ?? `token-${++this.tokens}`;
  }

  async worker(step) {
    const name = step.worker ?? 'w';
    const key = `${this.name(step)} ${name}`;
    if (!this.workers.has(key)) {
      const worker = await makeWorker(this.name(step), name, this.scenario.workers?.[name] ?? {});
      Object.assign(worker, { limitUntil: 0, blockUntil: 0, drained: false });
      worker.removeAllListeners('error');
      worker.on('error', err =>
        this.errors.push({ step: this.index, message: errorView(err).error.message }),
      );
      this.workers.set(key, worker);
    }
    return this.workers.get(key);
  }

  hold(step, job, token) {
    this.held.set(`${this.name(step)} ${job.id}`, { job, token });
    return view(job);
  }

  async stored(step) {
    const queue = this.queue(step);
    return (await bull.Job.fromId(queue, step.id)) ?? new bull.Job(queue, 'detached', {}, {}, step.id);
  }

  async delivered(step) {
    const held = this.held.get(`${this.name(step)} ${step.id}`);
    return { job: held?.job ?? (await this.stored(step)), token: step.token ?? held?.token ?? 'none' };
  }

  async following(step, worker, answer) {
    if (!step.fetchNext || !Array.isArray(answer)) return null;
    const [data, id, limitDelay, delayUntil] = answer;
    worker.updateDelays(limitDelay, delayUntil);
    const token = step.token ?? this.held.get(`${this.name(step)} ${step.id}`)?.token;
    const job = await worker.nextJobFromJobData(data, id, token);
    return job ? this.hold(step, job, token) : null;
  }
}

function thrown({ message, unrecoverable, errorName }) {
  if (unrecoverable) return new bull.UnrecoverableError(message);
  const err = new Error(message);
  if (errorName) err.name = errorName;
  return err;
}

async function processor(run, step, job, token) {
  const outcome = step.outcome ?? {};
  if (outcome.delayMs !== undefined) {
    await job.moveToDelayed(now + outcome.delayMs, token);
    throw new bull.DelayedError();
  }
  if (outcome.wait) {
    await job.moveToWait(token);
    throw new bull.WaitingError();
  }
  if (outcome.waitChildren && (await job.moveToWaitingChildren(token))) throw new bull.WaitingChildrenError();
  if (outcome.rateLimitMs !== undefined) {
    await run.queue(step).rateLimit(outcome.rateLimitMs);
    throw new bull.RateLimitError();
  }
  if (outcome.throw !== undefined) throw thrown({ ...outcome, message: outcome.throw });
  return outcome.return;
}

// Of each op only its own words are here; what it answers is in ../data/README.md.
const onQueue = call => async (run, s) => (await call(run.queue(s), s)) ?? null;
const quietly = call => async (run, s) => (await call(run.queue(s), s), null);
const onStored = call => async (run, s) => (await call(await run.stored(s), s)) ?? null;
const quietlyOnStored = call => async (run, s) => (await call(await run.stored(s), s), null);

const OPS = {
  sleep: async (run, s) => {
    now += s.ms;
    await raw.age(s.ms);
  },
  add: async (run, s) => (await run.queue(s).add(s.name ?? 'job', s.data, qualified(s.opts))).id,
  addBulk: async (run, s) => {
    const jobs = s.jobs.map(({ name = 'job', data, opts }) => ({ name, data, opts: qualified(opts) }));
    return (await run.queue(s).addBulk(jobs)).map(job => job.id);
  },
  flow: async (run, s) =>
    treeIds(await flows.add(tree(s.tree), s.queuesOptions && { queuesOptions: s.queuesOptions })),
  flowBulk: async (run, s) => (await flows.addBulk(s.trees.map(tree))).map(treeIds),

  next: async (run, s) => {
    const worker = await run.worker(s);
    const token = run.token(s);
    const job = await worker.getNextJob(token, { block: false });
    return job ? run.hold(s, job, token) : null;
  },
  complete: async (run, s) => {
    const worker = await run.worker(s);
    const { job, token } = await run.delivered(s);
    return run.following(s, worker, await job.moveToCompleted(s.value, token, !!s.fetchNext));
  },
  fail: async (run, s) => {
    const worker = await run.worker(s);
    const { job, token } = await run.delivered(s);
    return run.following(s, worker, await job.moveToFailed(thrown(s), token, !!s.fetchNext));
  },
  moveToDelayed: async (run, s) => {
    const { job, token } = await run.delivered(s);
    await job.moveToDelayed(now + s.delayMs, token);
  },
  moveToWait: async (run, s) => {
    const { job, token } = await run.delivered(s);
    return roundUp(await job.moveToWait(token));
  },
  moveToWaitingChildren: async (run, s) => {
    const { job, token } = await run.delivered(s);
    const child = s.child && { id: s.child.id, queue: `${PREFIX}:${s.child.queue ?? run.name(s)}` };
    return job.moveToWaitingChildren(token, child ? { child } : {});
  },
  extendLock: async (run, s) => {
    const { job, token } = await run.delivered(s);
    return job.extendLock(token, s.duration);
  },
  stalledCheck: async (run, s) =>
    [...(await (await run.worker(s)).getBackend().moveStalledJobsToWait())].sort(compare),
  work: async (run, s) => {
    const worker = await run.worker(s);
    const token = run.token(s);
    const job = await worker.getNextJob(token, { block: false });
    if (!job) return null;
    run.hold(s, job, token);
    const emitted = [];
    const note = { completed: () => emitted.push('completed'), failed: () => emitted.push('failed') };
    for (const [event, listener] of Object.entries(note)) worker.on(event, listener);
    let processorRan = false;
    worker.processFn = (j, t) => {
      processorRan = true;
      return processor(run, s, j, t);
    };
    try {
      await worker.processJob(job, token, () => false);
    } finally {
      for (const [event, listener] of Object.entries(note)) worker.off(event, listener);
    }
    return { id: job.id, processorRan, emitted };
  },

  state: onQueue((q, s) => q.getJobState(s.id)),
  isInState: onStored((job, s) => job.isInState(s.state)),
  counts: onQueue((q, s) => q.getJobCounts(...(s.types ?? []))),
  count: onQueue(q => q.count()),
  delayedCount: onQueue((q, s) => q.getDelayedCount(s.beforeMs === undefined ? undefined : now + s.beforeMs)),
  job: async (run, s) => view(await run.queue(s).getJob(s.id)),
  jobOpts: onQueue(async (q, s) => {
    const job = await q.getJob(s.id);
    if (!job) return null;
    const { repeat, prevMillis, timestamp, ...opts } = job.opts;
    return opts;
  }),
  list: onQueue(async (q, s) => (await q.getJobs(s.types, s.start, s.end, s.asc)).map(job => job.id)),
  typed: onQueue(async (q, s) => (await q[s.method](s.start, s.end)).map(job => job.id)),
  countsPerPriority: onQueue((q, s) => q.getCountsPerPriority(s.priorities)),
  logs: onQueue((q, s) => q.getJobLogs(s.id, s.start, s.end, s.asc)),
  meta: onQueue(async q => {
    const { version, maxLenEvents, ...meta } = await q.getMeta();
    return meta;
  }),
  metrics: onQueue((q, s) => q.getMetrics(s.type, s.start, s.end)),

  remove: onQueue((q, s) => q.remove(s.id, s.removeChildren === undefined ? undefined : given(s, 'removeChildren'))),
  jobRemove: quietlyOnStored((job, s) =>
    job.remove(s.removeChildren === undefined ? undefined : given(s, 'removeChildren')),
  ),
  retry: quietlyOnStored((job, s) => job.retry(s.state, s.opts)),
  promote: quietlyOnStored(job => job.promote()),
  changeDelay: quietlyOnStored((job, s) => job.changeDelay(s.delay)),
  changePriority: quietlyOnStored((job, s) => job.changePriority({ priority: s.priority, lifo: s.lifo })),
  updateData: quietlyOnStored((job, s) => job.updateData(s.data)),
  updateProgress: quietlyOnStored((job, s) => job.updateProgress(s.progress)),
  log: onQueue((q, s) => q.addJobLog(s.id, s.row, s.keep)),
  jobLog: onStored((job, s) => job.log(s.row)),
  clearLogs: quietlyOnStored((job, s) => job.clearLogs(s.keep)),

  pause: quietly(q => q.pause()),
  resume: quietly(q => q.resume()),
  isPaused: onQueue(q => q.isPaused()),
  drain: quietly((q, s) => q.drain(s.delayed)),
  clean: onQueue((q, s) => q.clean(s.grace, s.limit, s.type)),
  obliterate: quietly((q, s) => q.obliterate(given(s, 'force', 'count'))),
  promoteJobs: quietly((q, s) => q.promoteJobs(given(s, 'count'))),
  retryJobs: quietly((q, s) =>
    q.retryJobs({
      ...given(s, 'count', 'state'),
      ...(s.olderThanMs === undefined ? {} : { timestamp: now - s.olderThanMs }),
    }),
  ),

  getDeduplicationJobId: onQueue((q, s) => q.getDeduplicationJobId(s.id)),
  removeDeduplicationKey: onQueue((q, s) => q.removeDeduplicationKey(s.id)),
  jobRemoveDeduplicationKey: onStored(job => job.removeDeduplicationKey()),

  upsertJobScheduler: onQueue(async (q, s) => {
    const { startDateInMs, endDateInMs, ...repeat } = s.repeat;
    if (startDateInMs !== undefined) repeat.startDate = now + startDateInMs;
    if (endDateInMs !== undefined) repeat.endDate = now + endDateInMs;
    const job = await q.upsertJobScheduler(s.id, repeat, s.template);
    return job && { id: job.id, name: job.name, data: job.data, delay: job.opts.delay };
  }),
  getJobScheduler: onQueue((q, s) => q.getJobScheduler(s.id)),
  getJobSchedulers: onQueue((q, s) => q.getJobSchedulers(s.start, s.end, s.asc)),
  getJobSchedulersCount: onQueue(q => q.getJobSchedulersCount()),
  removeJobScheduler: onQueue((q, s) => q.removeJobScheduler(s.id)),

  setGlobalConcurrency: quietly((q, s) => q.setGlobalConcurrency(s.concurrency)),
  removeGlobalConcurrency: quietly(q => q.removeGlobalConcurrency()),
  getGlobalConcurrency: onQueue(q => q.getGlobalConcurrency()),
  isMaxed: onQueue(q => q.isMaxed()),
  setGlobalRateLimit: quietly((q, s) => q.setGlobalRateLimit(s.max, s.duration)),
  removeGlobalRateLimit: quietly(q => q.removeGlobalRateLimit()),
  getGlobalRateLimit: onQueue(q => q.getGlobalRateLimit()),
  rateLimit: quietly((q, s) => q.rateLimit(s.ms)),
  rateLimitTtl: async (run, s) => roundUp(await run.queue(s).getRateLimitTtl(s.maxJobs)),
  removeRateLimitKey: onQueue(q => q.removeRateLimitKey()),

  getFlow: async (run, s) => {
    const opts = { id: s.id, queueName: run.name(s), prefix: PREFIX, ...given(s, 'depth', 'maxChildren') };
    const node = await flows.getFlow(opts);
    return node ? treeView(node) : null;
  },
  childrenValues: onStored(job => job.getChildrenValues()),
  ignoredChildrenFailures: onStored(job => job.getIgnoredChildrenFailures()),
  dependencies: onStored(async (job, s) => {
    const found = await job.getDependencies(s.opts);
    if (found.unprocessed) found.unprocessed.sort(compare);
    return found;
  }),
  dependenciesCount: onStored((job, s) => job.getDependenciesCount(s.opts)),
  removeChildDependency: onStored(job => job.removeChildDependency()),
  removeUnprocessedChildren: quietlyOnStored(job => job.removeUnprocessedChildren()),
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { trace: await new Run(JSON.parse(line)).trace() };
  } catch (err) {
    answer = { failure: String(err?.stack ?? err) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
