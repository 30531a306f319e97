"""What stays of finished jobs: retention and history (spec section 7, DESIGN 2.1), and counts per minute (10.9)."""

from __future__ import annotations

from inproc_jobs.core.fetching import FetchingFloor
from inproc_jobs.core.job import IN_HISTORY, Job
from inproc_jobs.core.options import Retention
from inproc_jobs.core.queue import Metrics, Queue
from inproc_jobs.core.states import COMPLETED, REMOVED, JobState

__all__ = ["RetentionFloor"]


class RetentionFloor(FetchingFloor):
    """Applied at each finish, to all jobs of its outcome."""

    def _retain(self, queue: Queue, job: Job, now_ms: int, worker_keep: Retention | None) -> None:
        """Apply this job's retention to all jobs of its outcome (spec section 7), or the queue's history (DESIGN 2.1)."""
        state, opts = job.state, job.opts
        keep = opts.remove_on_complete if state is COMPLETED else opts.remove_on_fail
        if keep is None:
            if opts.frees_id and queue.history is not None:
                past = queue.past[state]
                job.flags |= IN_HISTORY
                past.add(job)
                if past.size > queue.history[state]:
                    self._trim_history(queue, state, queue.history[state], now_ms)
                return
            keep = worker_keep
            if keep is None:
                return
        if keep.count == 0:
            self._forget(queue, job, now_ms)
            return
        finished = queue.completed if state is COMPLETED else queue.failed
        if keep.age_s is not None:
            self._trim_by_age(queue, finished, now_ms - keep.age_s * 1000, keep.limit, now_ms)
        if keep.count is not None:
            self._trim_by_count(queue, finished, keep.count, now_ms)

    def _trim_history(self, queue: Queue, state: JobState, bound: int, now_ms: int) -> None:
        """Let the oldest jobs with a free id go."""
        past = queue.past[state]
        while past.size > bound and (oldest := past.head()) is not None:
            if oldest.extra is not None:
                self._forget(queue, oldest, now_ms)
                continue
            # `_forget` written out for a job that has no parent: once the history is full every finish comes here.
            past.discard(oldest)
            queue.containers[state].discard(oldest)
            oldest.flags &= ~IN_HISTORY
            oldest.state = REMOVED
            del queue.index[oldest.id]
            if queue.touched is not None:
                self._touch(queue, oldest.id)

    @staticmethod
    def _collect_metrics(metrics: Metrics, now_ms: int, points: int) -> None:
        """One more finish; a new minute first writes down what the past ones had. Source: spec section 10.9."""
        before = metrics.count
        metrics.count += 1
        if not metrics.prev_ms:
            metrics.prev_ms = now_ms
            return
        minutes = min(now_ms // 60_000 - metrics.prev_ms // 60_000, points)
        if minutes > 0:
            metrics.data[:0] = [0] * (minutes - 1) + [before - metrics.prev_count]
            del metrics.data[points:]
            metrics.prev_count, metrics.prev_ms = before, now_ms
