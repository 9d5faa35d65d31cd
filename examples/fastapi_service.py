"""An HTTP service that has an event loop of its own: FastAPI.

Shows: the agent inside of the application's lifespan, a route that logs, a command on
the application's state. Handlers run in the event loop of the routes.
Needs: ``pip install . fastapi uvicorn`` and a Redis at ``BLS_REDIS_URL``
(default redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/fastapi_service.py``, or ``uvicorn fastapi_service:app`` in that
folder; Ctrl-C or ``kill`` ends it in order. The variables PROJECT and PORT name another
project and port. Ask it with ``curl http://127.0.0.1:8000/prices/茶``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException

from bls_agent import ProjectAgent

Prices = dict[str, float]
agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"))


@asynccontextmanager
async def connect() -> AsyncGenerator[Prices]:
    yield {"茶": 12.5}  # a real service would open its pool here, and close it


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    # The agent inside: no command comes before the database or after it.
    async with connect() as app.state.prices, agent.lifespan(app):
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/prices/{goods}")
async def show_price(goods: str) -> Prices:
    prices: Prices = app.state.prices
    if goods not in prices:
        raise HTTPException(404)
    agent.log.info("price shown", goods=goods, price=prices[goods])  # never waits
    return {"price": prices[goods]}


@agent.command
async def set_price(goods: str, price: float) -> dict[str, float | None]:
    prices: Prices = app.state.prices
    before, prices[goods] = prices.get(goods), price
    return {"before": before}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
