"""
One measurement, in a process of its own: `python benchmarks/measure.py MODULE WORKLOAD '{"n": 1000}'`.

Prints the numbers as one line of JSON. `run.py` starts these.
"""

import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Awaitable

from common import Numbers, log_as_in_production

LIMIT_S = 600
"""Nothing here takes a minute; a workload that takes longer than this waits for jobs that will never end."""


def main(module: str, workload: str, arguments: str) -> None:
    log_as_in_production()
    # Imported only now: a bare reference must not run beside the engine's modules.
    numbers = importlib.import_module(module).WORKLOADS[workload](**json.loads(arguments))
    print(json.dumps(asyncio.run(_bounded(numbers)) if inspect.iscoroutine(numbers) else numbers))


async def _bounded(numbers: Awaitable[Numbers]) -> Numbers:
    async with asyncio.timeout(LIMIT_S):
        return await numbers


if __name__ == "__main__":
    main(*sys.argv[1:])
