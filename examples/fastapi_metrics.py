"""A FastAPI service whose counters Prometheus reads at ``/metrics``.

Shows: ``AgentCollector``: how commands end, how long they take and wait, what happens to
the log. Several agents, caches, heartbeats and stores can be passed to one collector.
Needs: ``pip install '.[prometheus]' fastapi uvicorn`` and a Redis at ``BLS_REDIS_URL``
(default redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/fastapi_metrics.py``, Ctrl-C ends it in order. The variables
PROJECT and PORT name another project and port. Read the metrics with
``curl http://127.0.0.1:9464/metrics``.
"""

from __future__ import annotations

import os

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from bls_agent import ProjectAgent
from bls_agent.integrations.prometheus import AgentCollector

agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"))
app = FastAPI(lifespan=agent.lifespan)
REGISTRY.register(AgentCollector(agent))


@app.get("/metrics")
def show_metrics() -> Response:
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


@agent.command
async def take(goods: str, count: int = 1) -> str:
    return f"{count} {goods}"


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "9464")))
