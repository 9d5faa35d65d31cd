"""A worker that loses no command, however it ends: mode ``reliable``.

Shows: commands that survive SIGKILL, what a handler is told of an earlier delivery, an
id that is run once although it is sent twice, several workers on one project.
Needs: ``pip install .`` and a Redis 6.2 or newer at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/reliable_worker.py [project] [instance]``, in two terminals with
two instances. Send ``ship`` with an order number, ``kill -9`` the worker that has it,
and see the other one take over.
"""

from __future__ import annotations

import sys

import anyio

from bls_agent import CommandContext, ProjectAgent

agent = ProjectAgent(
    sys.argv[1] if len(sys.argv) > 1 else "订单系统",
    instance=(sys.argv[2:] or ["worker-1"])[0],
    mode="reliable",
    lease_ttl=3.0,  # a killed worker's commands are taken over after 3 to 4 s
    dedup_window=600.0,
)
shipped: set[int] = set()


@agent.command
async def ship(order: int, context: CommandContext, seconds: float = 0.0) -> str:
    """Ship an order; safe to be run again, because it looks first."""
    print(f"order {order}, delivery {context.delivery}", flush=True)
    if context.delivery > 1:
        context.log.info("somebody has begun this before", delivery=context.delivery)
    if order in shipped:  # in earnest: a row in a database
        return "shipped already"
    await anyio.sleep(seconds)
    shipped.add(order)
    return "shipped"


if __name__ == "__main__":
    anyio.run(agent.run)
