"""An agent that ships records which are in its buffer when the clock starts."""

from __future__ import annotations

import time

from benchmarks.subjects.acting import Options, act, on_cue
from bls_agent import ProjectAgent


async def run(options: Options) -> dict[str, float]:
    """Fill the buffer, which takes the loop for itself, time the rest; on each cue.

    The first of these ``waves`` does not count: the other side needs its bytes.
    """
    count = options["count"]
    agent = ProjectAgent(options["project"], redis=options["url"])

    async def wave() -> float:
        for number in range(count):
            agent.log.info("订单已支付", order=number, amount=99.5, channel="alipay")
        began = time.perf_counter()
        flushed = await agent.flush(60)
        if flushed.delivered != count:
            raise RuntimeError(flushed)
        return time.perf_counter() - began

    async with agent:
        await agent.ready(10)
        return {"seconds": sum((await on_cue(wave, options["waves"]))[1:])}


if __name__ == "__main__":
    act(run)
