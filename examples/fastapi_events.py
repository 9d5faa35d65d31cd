"""Runs in the browser: FastAPI, server-sent events, and a page that follows.

Shows: run events mounted, an agent that is started, a page that survives a restart and
says when a run does not exist (``/#7``).
Needs: FastAPI and the extra ``web`` (``pip install '.[web]' fastapi``), a Redis.
Run:   ``python examples/fastapi_events.py`` and open http://127.0.0.1:8000.
"""

from __future__ import annotations

import time

import anyio
import uvicorn
from fastapi import BackgroundTasks, FastAPI, responses

from bls_agent import EventStore
from bls_agent.integrations.run_events import RunEventsApp, allow_all

PAGE = """<!doctype html><meta charset="utf-8"><title>Run</title><button id="ask">Ask</button>
<b id="state"></b><p id="text"></p><script>
ask.onclick = async () => follow(await (await fetch("/start", {method: "POST"})).json());
const follow = (run) => {
  const source = new EventSource(`/runs/${run}/events/stream`);  // comes back by itself
  const on = (name, act) => source.addEventListener(name, (e) => act(JSON.parse(e.data)));
  on("llm.stream", (event) => text.append(event.data.text));
  on("gap", (gap) => text.append(` [missing: ${gap.reason}] `));
  on("close", () => { source.close(); state.textContent = "done"; });
  source.onerror = async () => source.readyState === 2  // the status was not 200
    && (state.textContent = (await (await fetch(`/runs/${run}/events`)).json()).error);
};
if (location.hash) follow(location.hash.slice(1));</script>"""
store = EventStore(on_error="none")  # the service outlives Redis
events = RunEventsApp(store, authorize=allow_all)  # yours asks who


async def think(run_id: int) -> None:
    async with store.run(run_id, source={"agent_name": "助手"}) as run:
        for token in "春眠不觉晓，处处闻啼鸟。":
            run.emit("llm", "stream", {"text": token})
            await anyio.sleep(0.1)


app = FastAPI(lifespan=events.router.lifespan_context)  # closes the connections
app.add_api_route("/", lambda: responses.HTMLResponse(PAGE))


@app.post("/start")
async def start(background: BackgroundTasks) -> int:
    run = time.time_ns() // 1_000_000
    await store.add(run, "dispatch", "assigned")  # the run exists before it is followed
    background.add_task(think, run)
    return run


app.mount("/", events)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
