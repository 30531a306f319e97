"""
Slow work in Flask: the view answers at once, and the browser asks later how the report is doing.

Watch `engine.start()`: the engine runs in a thread of its own, and the views use the `_sync` twins. Asking for the same
report again while it is being made gives the same job.

Self-check:  python examples/flask_app.py
Serve it:    flask --app examples/flask_app run       (servers that fork: make the engine in the worker, as here)
"""

import atexit
import time
from typing import Any

from flask import Flask, abort

from inproc_jobs import Engine, JobContext, define_job


@define_job("reports.make", attempts=3, backoff=100)
def make_report(year: int, ctx: JobContext) -> dict[str, int]:
    """Plain functions run in a worker thread, so this may block."""
    for month in range(1, 13):
        time.sleep(0.02)
        ctx.progress({"month": month})
    return {"year": year, "pages": 12}


def create_app() -> Flask:
    app = Flask(__name__)
    engine = Engine(concurrency=4)
    engine.start()
    atexit.register(engine.stop)

    @app.post("/reports/<int:year>")
    def order_report(year: int) -> tuple[dict[str, Any], int]:
        receipt = make_report.dispatch_sync(year, job_id=f"report:{year}")
        return {"job": receipt.id, "duplicate": receipt.duplicate}, 202

    @app.get("/reports/<int:year>")
    def show_report(year: int) -> dict[str, Any]:
        view = make_report.find_sync(f"report:{year}")
        if view is None:
            abort(404)
        return {"state": view.state, "progress": view.progress, "report": view.result}

    return app


def self_check() -> None:
    client = create_app().test_client()
    for _ in range(2):
        print(client.post("/reports/2026").json)
    answer: Any = {}
    while answer.get("state") != "completed":
        time.sleep(0.02)
        answer = client.get("/reports/2026").json
    print(answer)


if __name__ == "__main__":
    self_check()
