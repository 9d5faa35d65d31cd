"""A FastAPI service with an agent in its lifespan, observed or not."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import make_asgi_app

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.observing import observe
from benchmarks.subjects.serving import serve
from bls_agent import ProjectAgent


async def run(options: Options) -> dict[str, float]:
    """Serve until the client has seen enough."""
    agent = ProjectAgent(options["project"], redis=options["url"])
    app = FastAPI(lifespan=agent.lifespan)
    app.mount("/metrics", make_asgi_app())
    observe(agent, options["observed"])

    @agent.command
    async def nothing() -> None: ...

    @app.get("/prices/{goods}")
    async def show_price(goods: str) -> dict[str, float]:
        agent.log.info("price shown", goods=goods, price=12.5)
        return {"price": 12.5}

    return await serve(app)


if __name__ == "__main__":
    act(run)
