"""
The scripts that run inside Redis: each is one atomic step that begins by looking at the lease.

They run on Redis 6.2 and newer and on Valkey. Arguments are msgpack; numbers that may exceed what a Lua number prints
exactly come as text. Every script answers a list whose first item is a word: "ok", or why nothing was done.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ACQUIRE", "APPLY", "BLOCKED", "LAYOUT", "OPEN", "READ", "RELEASE", "RENEW", "STAMP", "WORKED_ON"]

LAYOUT: Final = 1
"""Number of our own part of the layout (lease, kept settings, the field `inproc`). A higher one is left untouched."""
BLOCKED: Final = 9_007_199_254_740_991
"""What BullMQ's own `rateLimit()` writes into `Q:limiter`: no worker starts anything while it is there."""

# KEYS: lease, fence, layout. ARGV: owner's record, lease ms, layout number, record that may be displaced ("" for none).
ACQUIRE: Final = """
local layout = redis.call('GET', KEYS[3])
if layout and tonumber(layout) > tonumber(ARGV[3]) then return {'layout', layout} end
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[4] then return {'held', held} end
local time = redis.call('TIME')
local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or '0') + 1, time[1] * 1000 + math.floor(time[2] / 1000))
fence = string.format('%.0f', fence)
redis.call('SET', KEYS[1], fence .. ' ' .. ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], fence)
redis.call('SET', KEYS[3], ARGV[3])
return {'ok', fence}
"""

# What the others begin with. KEYS: lease, fence. ARGV[1]: {token, fence, lease, kept, mine, seen, reserve}.
_HEAD: Final = """
local call = redis.call
local head = cmsgpack.unpack(ARGV[1])
local BLOCKED = '9007199254740991'
local HARMLESS = {added = true, waiting = true, delayed = true, duplicated = true, deduplicated = true, paused = true,
  resumed = true, progress = true, removed = true, ['waiting-children'] = true, debounced = true}

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The lease may have run out while nobody came: then it is taken up again, unless a BullMQ worker was here meanwhile.
local function guard()
  local held = call('GET', KEYS[1])
  if held == head.token then return nil end
  if held then return {'lost', held} end
  local fence = call('GET', KEYS[2])
  if not fence then return {'emptied', ''} end
  if fence ~= head.fence then return {'lost', ''} end
  for q, last in pairs(head.seen) do
    for _, entry in ipairs(call('XRANGE', q .. ':events', '(' .. last, '+')) do
      local fields = entry[2]
      for i = 1, #fields, 2 do
        if fields[i] == 'event' and not HARMLESS[fields[i + 1]] then return {'worked', q} end
      end
    end
  end
  call('SET', KEYS[1], head.token, 'PX', head.lease)
  return nil
end

local function kept_key(q) return head.kept .. q end

-- Other engines take it in from now on, whether or not they have jobs for it.
local function claim(q) call('SADD', head.mine, q) end

-- Meta max must be there for the blocked limiter to count; the true values are kept beside.
local function show_limit(q, limit)
  local kept = kept_key(q)
  local max, duration = call('HGET', kept, 'max'), call('HGET', kept, 'duration')
  if not max and limit then max, duration = limit[1], limit[2] end
  max, duration = max or BLOCKED, duration or '1000'
  call('HSET', q .. ':meta', 'max', max, 'duration', duration)
  call('HSET', kept, 'shown', max)
end

-- While the lease lives, BullMQ's workers take nothing from this queue.
local function block(q, limit)
  local limiter, kept = q .. ':limiter', kept_key(q)
  if call('EXISTS', kept) == 0 then
    local old = call('HMGET', q .. ':meta', 'max', 'duration')
    call('HSET', kept, 'since', string.format('%.0f', clock()))
    if old[1] then call('HSET', kept, 'max', old[1]) end
    if old[2] then call('HSET', kept, 'duration', old[2]) end
    local count, left = call('GET', limiter), call('PTTL', limiter)
    if count and count ~= BLOCKED and left > 0 then
      call('HSET', kept, 'count', count, 'until', string.format('%.0f', clock() + left))
    end
    show_limit(q, limit)
  end
  call('SET', limiter, BLOCKED, 'PX', head.lease)
  if call('HEXISTS', q .. ':meta', 'max') == 0 then show_limit(q, limit) end
  call('HSETNX', q .. ':meta', 'opts.maxLenEvents', '10000')
end

-- The counter runs ahead of ours, so that no foreign producer draws an id that we have drawn and not yet written.
local function reserve(q, counter)
  local kept = kept_key(q)
  local stored = tonumber(call('GET', q .. ':id') or '0') or 0
  if stored < counter + head.reserve / 2 then
    stored = counter + head.reserve
    call('SET', q .. ':id', string.format('%.0f', stored))
    call('HSET', kept, 'ahead', string.format('%.0f', stored))
  end
  call('HSET', kept, 'counter', string.format('%.0f', counter))
end

local function hold(q, id) call('SET', q .. ':' .. id .. ':lock', 'inproc-jobs:' .. head.fence, 'PX', head.lease) end
"""

# ARGV[1]: a list of q. Answers q, id and ms left of an active job that a BullMQ worker holds; nothing for none.
WORKED_ON: Final = """
for _, q in ipairs(cmsgpack.unpack(ARGV[1])) do
  if redis.call('TYPE', q .. ':active').ok == 'list' then
    for _, id in ipairs(redis.call('LRANGE', q .. ':active', 0, -1)) do
      local key = q .. ':' .. id .. ':lock'
      local lock = redis.call('TYPE', key).ok == 'string' and redis.call('GET', key)
      if lock and string.sub(lock, 1, 12) ~= 'inproc-jobs:' then return {q, id, redis.call('PTTL', key)} end
    end
  end
end
return {}
"""

# ARGV[2]: a list of (q, limit or false).
RENEW: Final = (
    _HEAD
    + """
local refused = guard()
if refused then return refused end
call('PEXPIRE', KEYS[1], head.lease)
for _, entry in ipairs(cmsgpack.unpack(ARGV[2])) do
  local q = entry[1]
  block(q, entry[2])
  for _, id in ipairs(call('LRANGE', q .. ':active', 0, -1)) do hold(q, id) end
end
return {'ok'}
"""
)

# As RENEW, for one queue that is about to be read; a list that BullMQ 5 left of a paused queue is merged, as its resume does.
OPEN: Final = (
    _HEAD
    + """
local refused = guard()
if refused then return refused end
local KINDS = {wait = 'list', paused = 'list', active = 'list', prioritized = 'zset', delayed = 'zset',
  completed = 'zset', failed = 'zset', ['waiting-children'] = 'zset', meta = 'hash', id = 'string', pc = 'string',
  limiter = 'string', ['repeat'] = 'zset', events = 'stream'}
for _, entry in ipairs(cmsgpack.unpack(ARGV[2])) do
  local q = entry[1]
  for name, kind in pairs(KINDS) do
    local found = call('TYPE', q .. ':' .. name).ok
    if found ~= 'none' and found ~= kind then return {'type', q .. ':' .. name, found, kind} end
  end
  local drawn = call('GET', q .. ':id') or '0'
  if not tonumber(drawn) then return {'type', q .. ':id', 'text', 'number'} end
  claim(q)
  block(q, entry[2])
  -- Unless nobody has drawn an id since the last owner reserved some.
  if call('HGET', kept_key(q), 'ahead') ~= drawn then reserve(q, tonumber(drawn)) end
  if call('EXISTS', q .. ':paused') == 1 then
    if call('EXISTS', q .. ':wait') == 0 then
      call('RENAME', q .. ':paused', q .. ':wait')
    else
      local from = 0
      while true do
        local ids = call('LRANGE', q .. ':paused', from, from + 999)
        if #ids == 0 then break end
        call('RPUSH', q .. ':wait', unpack(ids))
        from = from + 1000
      end
      call('DEL', q .. ':paused')
    end
  end
  for _, id in ipairs(call('LRANGE', q .. ':active', 0, -1)) do hold(q, id) end
end
return {'ok'}
"""
)

# ARGV[2]: q, ARGV[3]: ids. Marks jobs that somebody else has added as known to us.
STAMP: Final = (
    _HEAD
    + """
local refused = guard()
if refused then return refused end
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  local key = ARGV[2] .. ':' .. id
  if call('EXISTS', key) == 1 then call('HSETNX', key, 'inproc', '{}') end
end
return {'ok'}
"""
)

# ARGV[1]: q, ARGV[2]: ids. Answers one msgpack text: per id its fields, false for none, text for an error.
READ: Final = """
local rows = {}
for i, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  local row = redis.pcall('HGETALL', ARGV[1] .. ':' .. id)
  if row.err then rows[i] = row.err elseif #row == 0 then rows[i] = false else rows[i] = row end
end
return cmsgpack.pack(rows)
"""

# ARGV[2..]: parts of a batch: {q, limit, jobs, commands, meta}.
#   job: {id, was, state, moved, front, score, tie, fields, side commands, whole}; state false: it goes; whole false: a
#   large payload that is already there was left out.
APPLY: Final = (
    _HEAD
    + """
local PLACE = {waiting = 'wait', prioritized = 'prioritized', delayed = 'delayed', active = 'active',
  completed = 'completed', failed = 'failed', ['waiting-children'] = 'waiting-children'}
local LISTS = {'wait', 'active', 'paused'}
local SETS = {'prioritized', 'delayed', 'completed', 'failed', 'waiting-children'}
local OPTIONAL = {'parentKey', 'parent', 'rjk', 'deid', 'processedOn', 'pb', 'ats', 'atm', 'stc', 'defa', 'progress',
  'failedReason', 'stacktrace', 'returnvalue', 'finishedOn', 'attemptsMade', 'inprocTie'}
local SIDES = {'', ':logs', ':dependencies', ':processed', ':failed', ':unsuccessful', ':lock'}
local KINDS = {list = LISTS, zset = SETS}

local function purge(q, id)
  local keys = {}
  for i, side in ipairs(SIDES) do keys[i] = q .. ':' .. id .. side end
  call('DEL', unpack(keys))
end

local function is_placed(q, id)
  for _, name in ipairs(SETS) do if call('ZSCORE', q .. ':' .. name, id) then return true end end
  for _, name in ipairs(LISTS) do if call('LPOS', q .. ':' .. name, id) then return true end end
  return false
end

-- 1. Look at everything that is to be written, before anything is.
local parts, taken = {}, {}
for i = 2, #ARGV do parts[#parts + 1] = cmsgpack.unpack(ARGV[i]) end
for _, part in ipairs(parts) do
  local q = part.q
  for kind, names in pairs(KINDS) do
    for _, name in ipairs(names) do
      local found = call('TYPE', q .. ':' .. name).ok
      if found ~= 'none' and found ~= kind then return {'type', q .. ':' .. name, found, kind} end
    end
  end
  local repeats = call('TYPE', q .. ':repeat').ok
  if repeats ~= 'none' and repeats ~= 'zset' then return {'type', q .. ':repeat', repeats, 'zset'} end
  local meta = call('TYPE', q .. ':meta').ok
  if meta ~= 'none' and meta ~= 'hash' then return {'type', q .. ':meta', meta, 'hash'} end
  for _, job in ipairs(part.jobs) do
    local key = q .. ':' .. job[1]
    local known = redis.pcall('HEXISTS', key, 'inproc')
    if type(known) == 'table' then return {'type', key, call('TYPE', key).ok, 'hash'} end
    if known == 1 then
      job.ours = true
    elseif call('EXISTS', key) == 1 then
      -- Not written by us. In a queue it is somebody else's job; elsewhere it is what was left of one.
      if is_placed(q, job[1]) then job.taken = true; taken[#taken + 1] = key else job.rest = true end
    end
    if not job.ours and not job.taken and not job[10] then return {'stale', key} end
  end
end
local refused = guard()
if refused then return refused end

-- 2. The places that jobs leave.
local function remove_everywhere(q, id)
  for _, name in ipairs(SETS) do call('ZREM', q .. ':' .. name, id) end
  for _, name in ipairs(LISTS) do call('LREM', q .. ':' .. name, 0, id) end
end

-- Most leave at the right end; many out of the middle are filtered out in one pass, as each LREM walks the list.
local function remove_waiting(q, gone, count)
  local key = q .. ':wait'
  local missing = {}
  for _, side in ipairs({{-1, 'RPOP'}, {0, 'LPOP'}}) do
    while count > 0 do
      local id = call('LINDEX', key, side[1])
      if not id or not gone[id] then break end
      call(side[2], key)
      gone[id] = nil
      count = count - 1
    end
  end
  if count > 16 then
    local stay = {}
    for _, id in ipairs(call('LRANGE', key, 0, -1)) do
      if gone[id] then gone[id] = nil else stay[#stay + 1] = id end
    end
    call('DEL', key)
    for from = 1, #stay, 1000 do call('RPUSH', key, unpack(stay, from, math.min(from + 999, #stay))) end
    for id in pairs(gone) do missing[id] = true end
  else
    for id in pairs(gone) do
      if call('LREM', key, -1, id) == 0 then missing[id] = true end
    end
  end
  return missing
end

local function take_out(q, jobs)
  local gone, count = {}, 0
  for _, job in ipairs(jobs) do
    local id, was = job[1], job[2]
    if job.taken or not (job[4] or not job[3]) then
      -- stays where it is
    elseif was == 'waiting' then
      gone[id] = true
      count = count + 1
    elseif was == 'active' then
      if call('LREM', q .. ':active', 1, id) == 0 then remove_everywhere(q, id) end
    elseif was and was ~= '?' then
      -- A stray worker may have promoted it.
      if call('ZREM', q .. ':' .. PLACE[was], id) == 0 then remove_everywhere(q, id) end
    elseif was == '?' or job.ours then
      remove_everywhere(q, id)
    end
  end
  if count > 0 then
    for id in pairs(remove_waiting(q, gone, count)) do remove_everywhere(q, id) end
  end
end

-- 3. What is there now.
local function delayed_score(q, id, due, tie)
  local low = tonumber(due) * 4096
  local high, score = low + 4095, low
  local top = call('ZREVRANGEBYSCORE', q .. ':delayed', string.format('%.17g', high), string.format('%.17g', low),
    'WITHSCORES', 'LIMIT', 0, 1)
  if top[2] then
    local last = tonumber(top[2])
    score = math.min(last + 1, high)
    -- No room for its order in the score (more than 4,096 of one ms, or a date after 2039): it is kept beside.
    if score <= last then call('HSET', q .. ':' .. id, 'inprocTie', tie) end
  end
  return string.format('%.17g', score)
end

local function place(q, job)
  local id, state = job[1], job[3]
  local key = q .. ':' .. PLACE[state]
  if state == 'waiting' then
    call(job[5] and 'RPUSH' or 'LPUSH', key, id)
  elseif state == 'active' then
    call('LPUSH', key, id)
    call('SADD', q .. ':stalled', id)
    hold(q, id)
  elseif state == 'delayed' then
    call('ZADD', key, delayed_score(q, id, job[6], job[7]), id)
  else
    call('ZADD', key, job[6], id)
  end
  if state ~= 'active' and (job[2] == 'active' or job[2] == '?' or job.ours and not job[2]) then
    call('SREM', q .. ':stalled', id)
    call('DEL', q .. ':' .. id .. ':lock')
  end
end

local function write_fields(q, job)
  local key, fields = q .. ':' .. job[1], job[8]
  if job.ours then
    local present, absent = {}, {}
    for i = 1, #fields, 2 do present[fields[i]] = true end
    for _, name in ipairs(OPTIONAL) do
      if not present[name] and not (name == 'inprocTie' and not job[4]) then absent[#absent + 1] = name end
    end
    if #absent > 0 then call('HDEL', key, unpack(absent)) end
  end
  call('HSET', key, unpack(fields))
  for _, command in ipairs(job[9]) do call(unpack(command)) end
end

local function write_meta(q, meta, limit)
  local key, kept = q .. ':meta', kept_key(q)
  for _, command in ipairs(meta.commands) do call(unpack(command)) end
  call('HDEL', kept, 'max', 'duration', 'count', 'until')
  if #meta.kept > 0 then call('HSET', kept, unpack(meta.kept)) end
  show_limit(q, limit)
  reserve(q, tonumber(meta.counter))
end

for _, part in ipairs(parts) do
  local q = part.q
  claim(q)
  block(q, part.limit)
  take_out(q, part.jobs)
  for _, job in ipairs(part.jobs) do
    if not job.taken then
      if not job[3] then
        purge(q, job[1])
        call('SREM', q .. ':stalled', job[1])
      else
        if job.rest then purge(q, job[1]) end
        write_fields(q, job)
        if job[4] then place(q, job) end
      end
    end
  end
  for _, command in ipairs(part.commands) do call(unpack(command)) end
  if part.meta then write_meta(q, part.meta, part.limit) end
end
return {'ok', taken}
"""
)

# ARGV[2]: queues, ARGV[3]: "1" for a handover. The last step: active jobs may be taken, what was hidden is shown again.
RELEASE: Final = (
    _HEAD
    + """
local refused = guard()
if refused then return refused end
local now = clock()
for _, q in ipairs(cmsgpack.unpack(ARGV[2])) do
  local kept = kept_key(q)
  local old = call('HMGET', kept, 'max', 'duration', 'count', 'until', 'shown', 'counter', 'ahead')
  local max = call('HGET', q .. ':meta', 'max')
  if old[5] and max == old[5] then
    if old[1] then call('HSET', q .. ':meta', 'max', old[1]) else call('HDEL', q .. ':meta', 'max') end
    if old[2] then call('HSET', q .. ':meta', 'duration', old[2]) else call('HDEL', q .. ':meta', 'duration') end
  end
  local left = (tonumber(old[4] or '0') or 0) - now
  if old[3] and left > 0 then
    call('SET', q .. ':limiter', old[3], 'PX', string.format('%.0f', left))
  else
    call('DEL', q .. ':limiter')
  end
  -- Nobody has drawn an id since: the reserve is given back.
  if old[6] and old[7] and call('GET', q .. ':id') == old[7] then call('SET', q .. ':id', old[6]) end
  call('DEL', kept)
  for _, id in ipairs(call('LRANGE', q .. ':active', 0, -1)) do
    call('DEL', q .. ':' .. id .. ':lock')
    if ARGV[3] == '1' then
      -- From newest to oldest, so that the oldest is next.
      call('RPUSH', q .. ':wait', id)
    end
  end
  if ARGV[3] == '1' then
    call('DEL', q .. ':active', q .. ':stalled')
    call('SREM', head.mine, q)
  end
  call('DEL', q .. ':marker')
  if call('HEXISTS', q .. ':meta', 'paused') == 0 and
    (call('LLEN', q .. ':wait') > 0 or call('ZCARD', q .. ':prioritized') > 0) then
    call('ZADD', q .. ':marker', 0, '0')
  else
    local next = call('ZRANGE', q .. ':delayed', 0, 0, 'WITHSCORES')
    if next[2] then call('ZADD', q .. ':marker', string.format('%.17g', tonumber(next[2]) / 4096), '1') end
  end
end
call('DEL', KEYS[1])
return {'ok'}
"""
)
