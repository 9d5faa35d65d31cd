"""The other end: what the BLS Project Console does with a project.

Shows: finding projects, reading a status, calling a command and waiting for its
outcome, sending one without waiting, following the log.
Needs: ``pip install .``, a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0) and an agent on it, such as ``examples/quickstart.py``.
Run:   ``python examples/follow_console.py [project]``, Ctrl-C ends it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import anyio

from bls_agent import Console, NoOutcomeError

REDIS = os.environ.get("BLS_REDIS_URL", "redis://127.0.0.1:6379/0")
PROJECT = sys.argv[1] if len(sys.argv) > 1 else "订单系统"


async def main() -> None:
    async with Console(REDIS) as console:
        for name, status in (await console.projects()).items():
            print("found", name, status or "(no status)")
        print("status", await console.status(PROJECT))

        try:
            # create=True: also to a project that has never been there
            outcome = await console.call(PROJECT, "ping", timeout=3.0, create=True)
            print("ping", outcome.kind, outcome.result, f"{outcome.duration_ms:.1f} ms")
        except NoOutcomeError as error:
            print("ping", error)

        command = await console.send(PROJECT, "reload", {"force": True})
        print("sent", command.id)
        async for entry in console.follow_logs(PROJECT, last=5):
            # repr: nobody knows what others write, and a terminal would obey it
            print(entry.timestamp, entry.level, repr(entry.message), entry.metadata)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        anyio.run(main)
