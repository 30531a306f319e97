"""Hypothesis strategies: whatever they draw, a dispatch accepts, and what is accepted runs."""

from hypothesis import given, settings

from inproc_jobs import JobIdTakenError, Registry
from inproc_jobs.testing import harness
from inproc_jobs.testing.strategies import (
    backoffs,
    deduplications,
    dispatch_options,
    durations,
    job_ids,
    payloads,
    retentions,
)

REGISTRY = Registry()


@REGISTRY.define_job("echo")
async def echo(payload):
    return payload


@REGISTRY.define_job("fail")
async def fail(payload):
    raise ValueError(payload)


@given(payloads(), dispatch_options())
def test_every_option_set_is_accepted_and_runs(payload, options):
    """The job ends, and its result is the payload that went in."""
    with harness(registry=REGISTRY) as kit:
        receipt = echo.dispatch_sync(payload, **options)
        assert receipt.created
        assert receipt.result_sync() == payload
        kit.assert_dispatched(echo, lambda given: given == payload)


@given(dispatch_options())
@settings(max_examples=50)
def test_every_option_set_survives_failures(options):
    """Backoffs and attempts of every kind come to an end."""
    with harness(registry=REGISTRY) as kit:
        fail.dispatch_sync(None, **options)
        summary = kit.run_until_idle_sync()
        assert summary.failed == 1
        assert summary.retried == options.get("attempts", 1) - 1


@given(job_ids(), durations(), backoffs(), retentions(), deduplications())
@settings(max_examples=50)
def test_each_strategy_by_itself(id, delay, backoff, retention, deduplication):
    """For those who put their own options together."""
    with harness(registry=REGISTRY) as kit:
        options = {"backoff": backoff, "attempts": 2, "remove_on_complete": retention, "remove_on_fail": retention}
        assert echo.dispatch_sync(1, job_id=id, delay=delay, deduplication=deduplication, **options).created
        try:
            assert echo.dispatch_sync(2, job_id=id).duplicate
        except JobIdTakenError:
            raise AssertionError("the id belongs to the same job") from None
        kit.assert_dispatched(echo, 1, job_id=id)
