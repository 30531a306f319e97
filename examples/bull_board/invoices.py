# Jobs to look at in bull-board: some done, one failed, some delayed, one schedule. Start it, then `npm start` (README.md).
#
# Watch: the counts, why "invoice:13" failed, and when the next report is due. All of it is still there after this program
# has ended, and it goes on from there when it is started again.
import asyncio
import os
import sys

from inproc_jobs import Engine, RedisSnapshot, UnrecoverableError, define_job


@define_job("invoices.send", remove_on_complete=False)
async def send_invoice(payload: dict[str, int]) -> str:
    if payload["number"] == 13:
        raise UnrecoverableError("no such customer")
    return f"invoice {payload['number']} sent"


@define_job("reports.make")
async def make_report(payload: dict[str, int]) -> None: ...


async def main(seconds: float) -> None:
    snapshot = RedisSnapshot(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"), mode="write_through")
    async with Engine(concurrency=5, snapshot=snapshot) as engine:
        for number in range(10, 15):
            await send_invoice.dispatch({"number": number}, job_id=f"invoice:{number}")
        for number in range(20, 23):
            await send_invoice.dispatch({"number": number}, job_id=f"invoice:{number}", delay="1h")
        await engine.schedule("daily-report", make_report, {}, cron="0 6 * * *", tz="UTC")
        await asyncio.sleep(seconds)
        print(engine.queue("default").counts())


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1))
