"""A naive model of one queue: plain lists, sorted whenever somebody asks. What it does is meant to be plainly right."""

from __future__ import annotations

from dataclasses import dataclass, field

HISTORY = {"completed": 3, "failed": 2}


@dataclass(eq=False)
class ModelJob:
    id: str
    state: str
    seq: int
    priority: int = 0
    due: int = 0
    dated: bool = False
    attempts: int = 0
    backoff: int | None = None
    lifo: bool = False
    kept: bool = False
    watched: bool = False
    deduplication: str | None = None
    attempts_made: int = 0
    attempts_started: int = 0
    counter: int = 0
    finished_on: int | None = None
    processed_on: int | None = None
    timestamp: int = 0


@dataclass
class ModelQueue:
    now: int
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    wait: list[ModelJob] = field(default_factory=list)
    keys: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    paused: bool = False
    counter: int = 0
    seq: int = 0

    # --- looking ------------------------------------------------------------------------------------------------

    def ids(self, state: str) -> list[str]:
        """Ids of one state in BullMQ's ascending order."""
        if state == "waiting":
            return [job.id for job in self.wait]
        jobs = [job for job in self.jobs.values() if job.state == state]
        keys = {
            "delayed": lambda job: (job.due, job.seq),
            "prioritized": lambda job: (job.priority, job.counter, job.id),
            "active": lambda job: job.seq,
        }
        jobs.sort(key=keys.get(state, lambda job: (job.finished_on, job.id)))
        return [job.id for job in jobs]

    def living(self, id: str) -> ModelJob | None:
        """The job whose id is taken, or None."""
        job = self.jobs.get(id)
        return None if job is None or (job.finished_on is not None and not job.kept) else job

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    # --- moving -------------------------------------------------------------------------------------------------

    def leave(self, job: ModelJob) -> None:
        if job in self.wait:
            self.wait.remove(job)

    def ready(self, job: ModelJob, *, front: bool = False) -> None:
        self.leave(job)
        if job.priority:
            job.state, job.counter = "prioritized", self.next_seq()
        else:
            job.state = "waiting"
            self.wait.insert(0 if front else len(self.wait), job)

    def delay(self, job: ModelJob, due: int) -> None:
        self.leave(job)
        job.state, job.due, job.seq = "delayed", due, self.next_seq()

    def gone(self, job: ModelJob, *, removed: bool = True) -> None:
        """`removed`: not by retention, so a deduplication key goes too."""
        self.leave(job)
        del self.jobs[job.id]
        if job.finished_on is None and job.watched:
            self.ended.append(job.id)
        if removed and job.deduplication in self.keys and self.keys[job.deduplication][0] == job.id:
            del self.keys[job.deduplication]

    # --- commands -----------------------------------------------------------------------------------------------

    def owner(self, key: str) -> str | None:
        held = self.keys.get(key)
        if held is not None and held[1] is not None and held[1] <= self.now:
            del self.keys[key]
            held = None
        return held[0] if held is not None else None

    def add(
        self,
        id: str,
        *,
        delay: int,
        key: str | None,
        ttl: int,
        replace: bool,
        **fields: object,
    ) -> str:
        """The id of the job that won."""
        taken = self.living(id) if id else None
        if taken is not None:
            self.counter += 1
            return taken.id
        if id in self.jobs:
            self.gone(self.jobs[id], removed=False)
        self.counter += 1
        id = id or str(self.counter)
        if key is not None:
            winner = self.collapse(id, key, ttl, replace=replace)
            if winner is not None:
                return winner
        job = ModelJob(id, "", self.next_seq(), deduplication=key, timestamp=self.now, **fields)  # type: ignore[arg-type]
        self.jobs[id] = job
        if delay > 0:
            self.delay(job, self.now + delay)
        else:
            self.ready(job, front=job.lifo)
        return id

    def collapse(self, id: str, key: str, ttl: int, *, replace: bool) -> str | None:
        owner = self.owner(key)
        until = self.now + ttl if ttl else None
        if owner is not None:
            job = self.jobs.get(owner)
            if replace and job is not None and job.state == "delayed":
                kept_until = self.keys[key][1] if ttl else until
                self.gone(job, removed=False)
                self.keys[key] = (id, kept_until)
                return None
            if job is not None or self.keys[key][1] is not None:
                return owner
        self.keys[key] = (id, until)
        return None

    def fetch(self) -> str | None:
        for id in self.ids("delayed"):
            if self.jobs[id].due <= self.now:
                self.ready(self.jobs[id])
        if self.paused:
            return None
        following = self.ids("waiting") or self.ids("prioritized")
        if not following:
            return None
        job = self.jobs[following[0]]
        self.leave(job)
        job.state, job.seq, job.processed_on = "active", self.next_seq(), self.now
        job.attempts_started += 1
        return job.id

    def finish(self, job: ModelJob, state: str) -> None:
        job.state, job.finished_on = state, self.now
        job.attempts_made += 1
        held = self.keys.get(job.deduplication or "")
        if held == (job.id, None):
            del self.keys[job.deduplication or ""]
        if job.watched:
            self.ended.append(job.id)
        job.seq = self.next_seq()
        if not job.kept:
            past = [one for one in self.jobs.values() if one.state == state and not one.kept]
            past.sort(key=lambda one: one.seq)
            for one in past[: -HISTORY[state]]:
                self.gone(one, removed=False)

    def fail(self, job: ModelJob) -> None:
        if job.attempts_made + 1 >= job.attempts:
            self.finish(job, "failed")
            return
        job.attempts_made += 1
        if job.backoff:
            job.dated = False
            self.delay(job, self.now + job.backoff)
        else:
            for id in self.ids("delayed"):
                if self.jobs[id].due <= self.now:
                    self.ready(self.jobs[id])
            self.ready(job, front=job.lifo)

    def retry(self, job: ModelJob) -> None:
        job.finished_on = job.processed_on = None
        self.ready(job, front=job.lifo)

    def shift(self, delta: int) -> None:
        self.now += delta
        for job in self.jobs.values():
            if job.state == "delayed" and not job.dated:
                job.due += delta
        for key, (owner, until) in self.keys.items():
            self.keys[key] = (owner, None if until is None else until + delta)
