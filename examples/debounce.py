"""
Five triggers, one run: `delay` together with `job_id`.

Watch that the first trigger sets the deadline and its payload is the one that runs. The four that follow do nothing
and say so. Once the job has run, its id is free, and the next trigger starts anew.
"""

import asyncio
from datetime import UTC, datetime

from inproc_jobs import Engine, define_job


@define_job("search.reindex")
async def reindex(payload: dict[str, str]) -> None:
    print(f"reindexing shop {payload['shop']}, asked for by edit {payload['edit']}")


async def main() -> None:
    async with Engine():
        for edit in "ABCDE":
            payload = {"shop": "lisbon", "edit": edit}
            receipt = await reindex.dispatch(payload, job_id="reindex:lisbon", delay="500ms")
            print(f"edit {edit}: {'duplicate' if receipt.duplicate else 'created'}, {receipt.state}")
            await asyncio.sleep(0.05)

        view = await reindex.find("reindex:lisbon")
        if view and view.due_at:
            left = (view.due_at - datetime.now(UTC)).total_seconds()
            print("the deadline did not move" if left < 0.5 - 4 * 0.05 else "the deadline moved")
        await asyncio.sleep(0.5)

        receipt = await reindex.dispatch({"shop": "lisbon", "edit": "F"}, job_id="reindex:lisbon", delay="100ms")
        print(f"edit F: {'duplicate' if receipt.duplicate else 'created'}, {receipt.state}")
        await receipt.result()


if __name__ == "__main__":
    asyncio.run(main())
