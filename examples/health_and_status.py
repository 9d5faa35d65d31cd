"""A service that says how it is.

Shows: a health check (故障 while the database is away, 在线 when it is back), set_status,
the error window (报错 for five seconds after an error record), and which source speaks.
Needs: ``pip install .`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/health_and_status.py [project [database]]``, Ctrl-C ends it in
order. The "database" is a file (default: this one): move it away and back again, or
send ``sell {"count": 0}`` or ``maintain`` from a console, and see what is printed.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import anyio

from bls_agent import ProjectAgent, Status

arguments = dict(enumerate(sys.argv))
agent = ProjectAgent(arguments.get(1, "订单系统"), error_window=5.0)
DATABASE = Path(arguments.get(2, __file__))


@agent.health_check("database", interval=0.5, timeout=1.0, failures=2)
def look_at_database() -> None:  # plain: it runs in a thread; it fails if it raises
    DATABASE.stat()


@agent.command
async def sell(count: int) -> None:
    if count < 1:
        agent.log.error("nothing to sell", count=count)  # 报错, until 5 s have passed


@agent.command
async def maintain(seconds: float = 5.0) -> None:
    agent.set_status(Status.OFFLINE)
    await anyio.sleep(seconds)
    agent.set_status(Status.ONLINE)


def print_changes() -> None:
    shown = ""
    while True:
        stats = agent.stats()  # from any thread
        if shown != (shown := f"{stats.status}, says the {stats.status_source}"):
            print(shown, flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    threading.Thread(target=print_changes, daemon=True).start()
    anyio.run(agent.run)
