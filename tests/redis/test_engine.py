"""An engine on a real server: what only shows when all parts are put together."""

from __future__ import annotations

from inproc_jobs import Engine, RedisSnapshot, Registry


async def test_flow_under_another_prefix_survives_a_restart(place, redis_client):
    """Parent and child name each other by the store's own keys, so BullMQ and the next process find them."""
    registry = Registry()
    ran = []

    @registry.define_job("step")
    async def step(payload: str) -> str:
        ran.append(payload)
        return payload

    def engine() -> Engine:
        return Engine(registry=registry, snapshot=RedisSnapshot(place.server.url, prefix="app"))

    async with engine() as first:
        await first.queue("default").pause()
        await first.flow(step.node("parent", job_id="p", children=[step.node("child", job_id="c")]))
    assert redis_client.smembers("app:default:p:dependencies") == {"app:default:c"}
    assert redis_client.hget("app:default:c", "parentKey") == "app:default:p"
    assert not redis_client.keys("bull:*")

    async with engine() as second:
        await second.queue("default").resume()
        await second.runtime.wait_idle()
    assert ran == ["child", "parent"]


async def test_queue_is_tracked_from_its_first_job_on(place):
    """What has come before would have to be noted in one go, with the host's loop waiting for the lock."""
    registry = Registry()
    job = registry.define_job("n", handle=lambda payload: None)
    async with Engine(registry=registry, snapshot=RedisSnapshot(place.server.url, every="1h")) as engine:
        await job.dispatch({}, delay="1h")
        assert engine.health()["unsaved_changes"] == 1
