"""A FastAPI service under load, with everything that observes it and without."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round
from bls_agent.core.keys import CONTROL

__all__ = ["FIGURE"]

PLAIN, OBSERVED = "without", "everything switched on"
RATE, P99, COST = "requests/s", "p99 ms", "processor µs/request"
MOST = 0.03  # what observing may cost


def play(stage: Stage) -> Round:
    """Let one client ask both services in turn, a quarter of a second each."""
    pieces = 2 if stage.quick else 24
    with ExitStack() as stack:
        targets, services = [], []
        for observed in ("", "metrics, spans"):
            project = stack.enter_context(stage.project())
            service = stack.enter_context(
                stage.perform("service_agent", project=project, observed=observed)
            )
            services.append(service)
            port = service.hear("port")["port"]
            targets.append({"port": port, "control": CONTROL.build(project=project)})
        before = [service.busy for service in services]
        found = stage.measure("service_client", targets=targets, pieces=pieces)
        busy = [s.busy - b for s, b in zip(services, before, strict=True)]
    measured: dict[str, dict[str, float]] = {}
    for number, name in enumerate((PLAIN, OBSERVED)):
        cost = 1e6 * busy[number] / found["answers"][number]
        measured[name] = {**found["services"][number], COST: cost}
    return measured


FIGURE = Figure(
    name="service",
    title="Requests per second of a service, observed",
    about=(
        "A FastAPI application with an agent in its lifespan, under uvicorn; each request "
        "writes a log record. A client with eight connections asks two of them in turn, for a "
        "quarter of a second each, and sends five commands in that time. One service has the "
        "metrics and all spans of the figure above, and its `/metrics` is read once in the six "
        "seconds of its turns."
    ),
    rounds=5,
    play=play,
    goals=(
        Goal("requests/s", OBSERVED, RATE, "at least", 1 - MOST, (PLAIN,)),
        Goal("p99", OBSERVED, P99, "at most", 1 + MOST, (PLAIN,)),
        Goal("processor time", OBSERVED, COST, "at most", 1 + MOST, (PLAIN,)),
    ),
)
