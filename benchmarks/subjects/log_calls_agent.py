"""Log calls of an open agent, which ships them meanwhile.

``through`` is ``log`` for ``agent.log`` itself, or ``logging`` for the standard
library's face and a ``BLSHandler`` behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.log_calls import time_calls
from bls_agent import BLSHandler, ProjectAgent


def direct(agent: ProjectAgent) -> Callable[[int], None]:
    """Call the agent's log."""
    info = agent.log.info

    def call(number: int) -> None:
        info("订单已支付", order=number, amount=99.5, channel="alipay")

    return call


def through_logging(agent: ProjectAgent) -> Callable[[int], None]:
    """Call a logger whose only handler is the agent's."""
    logger = logging.getLogger("orders")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(BLSHandler(agent))
    info = logger.info

    def call(number: int) -> None:
        extra = {"order": number, "amount": 99.5, "channel": "alipay"}
        info("订单已支付", extra=extra)

    return call


async def run(options: Options) -> dict[str, list[int]]:
    """Time the calls; each record has to be delivered."""
    agent = ProjectAgent(options["project"], redis=options["url"])
    call = direct(agent) if options["through"] == "log" else through_logging(agent)
    async with agent:
        await agent.ready(10)
        found = await time_calls(call, options)
        flushed = await agent.flush(10)
        stats = agent.stats()
    calls = sum(map(len, found.values()))
    if not flushed or stats.logs_dropped or stats.logs_delivered != calls:
        raise RuntimeError(stats)
    return found


if __name__ == "__main__":
    act(run)
