"""Everything a command handler can be.

Shows: plain and async handlers, Chinese names, arguments checked by their annotations,
the command's context, a time limit, turning a command down, middleware, a fallback.
Needs: ``pip install .`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/commands.py [project]``, Ctrl-C ends it in order.
"""

from __future__ import annotations

import sys
from typing import Literal

import anyio

from bls_agent import CallNext, CommandContext, ProjectAgent, Reject

agent = ProjectAgent(sys.argv[1] if len(sys.argv) > 1 else "订单系统", concurrency=4)


@agent.command
def count_stock(warehouse: str, articles: list[int]) -> dict[str, object]:
    """A plain function runs in a thread: it may block."""
    return {"warehouse": warehouse, "found": len(articles)}


@agent.command("切换模式")
async def switch_mode(mode: Literal["正常", "维护"] = "正常") -> str:
    return f"now {mode}"  # the command's result, read by the console


@agent.command("发货", timeout=2.0)
async def ship(order: int, context: CommandContext, weight: float | None = None) -> str:
    if order < 1:
        raise Reject("there is no such order", {"order": order})  # no traceback
    context.log.info("shipping", order=order, weight=weight)  # carries the command's id
    await anyio.sleep(weight or 0.0)  # longer than two seconds: timed out
    return f"shipped for {context.source}"


@agent.middleware
async def only_known_senders(context: CommandContext, call_next: CallNext) -> object:
    if not context.source:
        raise Reject("who are you?")
    return await call_next(context)


@agent.fallback
async def anything_else(context: CommandContext) -> dict[str, object]:
    return {"not understood": context.command, "args": context.args}


if __name__ == "__main__":
    anyio.run(agent.run)
