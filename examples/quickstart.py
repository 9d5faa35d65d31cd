"""A service on the BLS Project Console: the shortest agent that is of use.

Shows: the status (在线 while it runs, 离线 when it ends), one command with a checked
argument, one log record.
Needs: ``pip install .`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/quickstart.py [project]``, Ctrl-C ends it in order. Talk to it
from another terminal with ``python examples/follow_console.py [project]``.
"""

from __future__ import annotations

import sys

import anyio

from bls_agent import ProjectAgent

agent = ProjectAgent(sys.argv[1] if len(sys.argv) > 1 else "订单系统")


@agent.command
async def reload(force: bool = False) -> dict[str, int]:
    agent.log.info("configuration reloaded", force=force)
    return {"rules": 42}


if __name__ == "__main__":
    anyio.run(agent.run)
