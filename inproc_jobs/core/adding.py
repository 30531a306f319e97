"""How jobs come in (spec section 2)."""

from __future__ import annotations

from inproc_jobs.core.deduplication import DeduplicationFloor
from inproc_jobs.core.job import CUSTOM_ID, HELD, LIFO, Duplicate, Job, ParentLink
from inproc_jobs.core.options import Deduplication, JobOptions
from inproc_jobs.core.queue import Candidate, Displaced, Queue
from inproc_jobs.core.states import COMPLETED, FINISHED_STATES, ON_ADD, WAITING
from inproc_jobs.errors import QueueFullError

__all__ = ["AddingFloor", "Duplicate"]


class AddingFloor(DeduplicationFloor):
    """`add` and what it needs."""

    def add(
        self,
        queue: Queue,
        name: str,
        data: bytes,
        opts: JobOptions,
        now_ms: int,
        *,
        id: str = "",
        delay: float = 0,
        priority: int = 0,
        timestamp: int | None = None,
        flags: int = 0,
        deduplication: Deduplication | None = None,
        parent: ParentLink | None = None,
        has_children: bool = False,
        defer_release: bool = False,
    ) -> Job | Duplicate:
        """
        Store a job and put it where its options say, or find that there is one already.

        Args:
            data: Payload as JSON text.
            id: Own id, or "" for the next number.
            delay: ms after `timestamp`; 0 and less is none.
            timestamp: Moment of creation, `now_ms` if None; the delay counts from it.
            flags: Bits of `core.job`; CUSTOM_ID is set here.
            has_children: Whether it waits for children that are added next.
            defer_release: A completed job that is attached to `parent` does not make it go on yet (`add_flow` does).

        Returns:
            The new record, or a `Duplicate` when its id is taken or its deduplication id is held.

        Raises:
            QueueFullError: The queue has its `max_waiting`. Nothing has changed.
            ParentJobError: The parent is missing (-5), or the job has another one (-7). Nothing has changed.

        Cost: O(1), O(log n) with a delay or a priority. Source: spec section 2.1; differs: the two rules of ours that
        act on data of the records (`frees_id`, `max_waiting`).
        """
        if parent is not None:
            self._need_parent(parent)
        existing = queue.index.get(id) if id else None
        if existing is not None and not self._frees_its_id(existing):
            return self._duplicate(queue, existing, parent, now_ms, defer_release=defer_release)
        if queue.max_waiting is not None:
            self._need_room(queue, queue.max_waiting, deduplication, now_ms)
        if existing is not None:
            self._make_way(queue, existing, now_ms, flags)
        queue.counter += 1
        if id:
            flags |= CUSTOM_ID
        else:
            id = str(queue.counter)
        if timestamp is None:
            timestamp = now_ms
        if deduplication is not None:
            new = Candidate(deduplication, id, name, data, opts, timestamp, flags, delay, priority)
            winner = self._deduplicate(queue, new, now_ms)
            if winner is not None:
                return winner
        job = Job(id, name, data, opts, timestamp, flags, delay, priority)
        queue.index[id] = job
        if flags & HELD:
            self._hold(queue, job)
        if deduplication is not None:
            job.more().deduplication_id = deduplication.id
        if parent is not None:
            self._attach(job, queue, parent)
        if self.listening:
            self.emit(queue, "added", jobId=id, name=name)
        if delay > 0 or priority or has_children:
            self._place_first(queue, job, has_children=has_children)
        else:
            # What `_place_first` would come to, without its questions: most jobs are plain.
            self._move(queue, job, ON_ADD, WAITING, opts.lifo or flags & LIFO != 0)
            if self.listening:
                self.emit(queue, "waiting", jobId=id)
        return job

    def _place_first(self, queue: Queue, job: Job, *, has_children: bool) -> None:
        if has_children:
            self._place_waiting_children(queue, job)
        elif job.delay > 0:
            self._place_delayed(queue, job, ON_ADD, job.timestamp + job.delay)
        else:
            self._place_new(queue, job)

    def _place_new(self, queue: Queue, job: Job) -> None:
        """A new job that may start at once."""
        if job.priority:
            self._place_prioritized(queue, job, ON_ADD)
        else:
            self._line_up(queue, job)
        if self.listening:
            self.emit(queue, "waiting", jobId=job.id)

    def _line_up(self, queue: Queue, job: Job) -> None:
        self._move(queue, job, ON_ADD, WAITING, job.opts.lifo or job.flags & LIFO != 0)

    def _enqueue_parked(self, queue: Queue, id: str, now_ms: int) -> None:
        """
        Make the job of the add that was kept while the owner of its deduplication id was active.

        BullMQ would overwrite a job that has taken the id meanwhile; here the parked one gets a number instead.
        """
        new = queue.parked.pop(id, None)
        if new is None:
            return
        queue.counter += 1
        job_id = new.id if new.id not in queue.index else str(queue.counter)
        self._take_key(queue, new.deduplication, job_id, now_ms)
        job = Job(job_id, new.name, new.data, new.opts, now_ms, new.flags, new.delay, new.priority)
        new.heir = job
        if new.flags & HELD:
            queue.held += 1
        job.more().deduplication_id = id
        self._store(queue, job, now_ms)

    def _store(self, queue: Queue, job: Job, now_ms: int) -> None:
        """
        Enqueue a job that the queue itself makes.

        Here any delay but 0, negative ones too, leads to delayed, and only a priority above 0 to prioritized, as in
        BullMQ.
        """
        queue.index[job.id] = job
        if self.listening:
            self.emit(queue, "added", jobId=job.id, name=job.name)
        if job.delay:
            self._place_delayed(queue, job, ON_ADD, now_ms + max(job.delay, 0))
        elif job.priority >= 0:
            self._place_new(queue, job)
        else:
            self._line_up(queue, job)
            if self.listening:
                self.emit(queue, "waiting", jobId=job.id)

    @staticmethod
    def _hold(queue: Queue, job: Job) -> None:
        """A new job must not start before a store has it; what it has pushed out may come back until then."""
        queue.held += 1
        if queue.displacing:
            queue.displaced[job], queue.displacing = queue.displacing, []

    def _make_way(self, queue: Queue, finished: Job, now_ms: int, flags: int) -> None:
        """A finished job gives its id to a new one, for good unless no store has that one yet."""
        if not flags & HELD:
            self._forget(queue, finished, now_ms)
            return
        if finished.extra is not None and finished.extra.parent is not None:
            self._detach(queue, finished)
        self._displace(queue, Displaced(finished, finished.state))

    def _need_room(self, queue: Queue, limit: int, deduplication: Deduplication | None, now_ms: int) -> None:
        """Refuse an add beyond `max_waiting`, unless it is going to collapse into a job that is there."""
        if queue.waiting_count + queue.reserved < limit:
            return
        if deduplication is None or self._live_key(queue, deduplication.id, now_ms) is None:
            raise QueueFullError(queue.name, limit)

    @staticmethod
    def _frees_its_id(job: Job) -> bool:
        """Whether a new job may take over this one's id (DESIGN 2.1); the record says so itself."""
        if not job.opts.frees_id or job.state not in FINISHED_STATES:
            return False
        opts = job.opts
        return (opts.remove_on_complete if job.state is COMPLETED else opts.remove_on_fail) is None
