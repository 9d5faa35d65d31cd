"""Runs in the browser: FastAPI, server-sent events, and a page that follows.

Shows: run events mounted, an agent that is started, a page that survives a restart.
Needs: ``pip install '.[web]' fastapi`` and a Redis at ``BLS_REDIS_URL``.
Run:   ``python examples/fastapi_events.py`` and open http://127.0.0.1:8000.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import uvicorn
from fastapi import BackgroundTasks, FastAPI, responses

from bls_agent import EventStore
from bls_agent.integrations.run_events import RunEventsApp, allow_all

PAGE = """<!doctype html><meta charset="utf-8"><title>Run</title><button id="ask">Ask</button>
<b id="state"></b><p id="text"></p><script>ask.onclick = async () => {
  const run = await (await fetch("/start", {method: "POST"})).json();
  const source = new EventSource(`/runs/${run}/events/stream`);  // comes back by itself
  const on = (name, act) => source.addEventListener(name, (e) => act(JSON.parse(e.data)));
  on("llm.stream", (event) => text.append(event.data.text));
  on("gap", (gap) => text.append(` [missing: ${gap.reason}] `));
  on("close", () => { source.close(); state.textContent = "done"; });
};</script>"""
store = EventStore()


async def think(run_id: int) -> None:
    async with store.run(run_id, source={"agent_name": "助手"}) as run:
        for token in "春眠不觉晓，处处闻啼鸟。":
            run.emit("llm", "stream", {"text": token})
            await anyio.sleep(0.1)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with store:  # closes its connections
        yield


app = FastAPI(lifespan=lifespan)
app.add_api_route("/", lambda: responses.HTMLResponse(PAGE))


@app.post("/start")
async def start(background: BackgroundTasks) -> int:
    background.add_task(think, run := time.time_ns() // 1_000_000)
    return run


app.mount("/", RunEventsApp(store, authorize=allow_all, wait=True))  # yours asks who

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
