"""Events of a run: written, followed and replayed, in one program.

Shows: a run that writes its events, a follower that misses none and knows the end,
reading a page and what stands behind it.
Needs: ``pip install .`` and a Redis (``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/run_events.py [team]``; it ends by itself.
"""

from __future__ import annotations

import sys
import time

import anyio

from bls_agent import EventStore
from bls_agent.runs import Gap, StreamEvent, WriterLost

TEAM = sys.argv[1] if len(sys.argv) > 1 else "研究小组"
RUN = time.time_ns() // 1_000_000  # a real program takes its database's key
SOURCE = {"agent_id": "analyst", "agent_name": "分析师", "team_name": TEAM}
ANSWER = "茶的价格上涨了三成，因为春天的雨水太少。"


async def analyse(store: EventStore) -> None:
    # Writes lifecycle.started and, on leaving, completed or failed, and system.close.
    async with store.run(RUN, source=SOURCE) as run:
        run.emit("agent", "tool_call", {"tool": "prices", "goods": "茶"})
        await anyio.sleep(0.1)
        run.emit("agent", "tool_result", {"rows": 30})
        for token in ANSWER:  # never waits: sent in the background, some at once
            run.emit("llm", "stream", {"text": token})
            await anyio.sleep(0.01)


async def follow(store: EventStore) -> None:
    async for item in store.follow(RUN):  # waits for the run to begin
        match item:
            case StreamEvent():
                print(item.sequence, item.name, item.data, flush=True)
            case Gap():  # what stood here was trimmed, has expired, or was lost
                print("missing:", item.reason, "behind", item.after, flush=True)
            case WriterLost():
                print("its writer fell silent behind", item.after, flush=True)


async def main() -> None:
    print("run", RUN, flush=True)
    async with EventStore() as store:
        async with anyio.create_task_group() as both:
            both.start_soon(follow, store)
            both.start_soon(analyse, store)
        page = await store.page(RUN, limit=2)
        behind = await store.get_events_after(RUN, page.events[-1].id)
        print("replayed", len(page.events), "and", len(behind), flush=True)


if __name__ == "__main__":
    anyio.run(main)
