"""What Prometheus reads of a service: real commands, logs, caches, heartbeats and runs."""

from __future__ import annotations

import gc
import math
import os
import re
from pathlib import Path
from typing import Any

import anyio
import httpx2
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from bls_agent import (
    ConfigurationError,
    Console,
    EventStore,
    ProjectAgent,
    __version__,
)
from bls_agent.integrations.prometheus import FAMILIES, AgentCollector
from bls_agent.ops.web import metrics as console_metrics
from bls_agent.project.agent_state import state_of
from bls_agent.workers import FunctionCache, Heartbeat, TaskStatus
from tests.documents import blocks, run_block
from tests.harness import eventually

ROOT = Path(__file__).parents[2]

Values = dict[str, float]


def scrape(*collectors: AgentCollector) -> Values:
    """Read a registry as Prometheus does: sample with its labels → value."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    generate: Any = exposition.generate_latest  # has no annotations
    text = generate(registry).decode()
    values: Values = {}
    parse: Any = parser.text_string_to_metric_families  # has no annotations
    for family in parse(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}"] = sample.value
    return values


def test_a_collector_that_is_gone_counts_no_more() -> None:
    """A collector for each scrape does not make commands slower and slower."""
    agent = ProjectAgent("订单系统")
    for _ in range(20):
        scrape(AgentCollector(agent))
    gc.collect()
    assert not state_of(agent).observers.all


async def test_commands(redis_url: str, project: str) -> None:
    """By registered name and outcome, with the time that they took and waited."""
    agent = ProjectAgent(project, redis=redis_url, instance="甲")
    running, go_on = anyio.Event(), anyio.Event()

    @agent.command
    async def reload(force: bool = False) -> None: ...

    @agent.command
    async def wait() -> None:
        running.set()
        await go_on.wait()

    collector = AgentCollector(agent)
    values = scrape(collector)
    assert values[f"bls_agent_open{{project={project}}}"] == 0
    ended = {name for name in values if name.startswith("bls_commands_total")}
    assert len(ended) == 2 * len(("succeeded", "failed", "timed_out", "rejected"))
    assert {values[name] for name in ended} == {0}
    async with agent, Console(redis_url) as console, anyio.create_task_group() as tasks:
        for _ in range(3):
            await console.call(project, "reload")
        for name, args in (("reload", {"force": "x"}), ("无", {}), ("别的", {})):
            outcome = await console.call(project, name, args)
            assert not outcome.succeeded
        tasks.start_soon(console.call, project, "wait")
        await running.wait()
        values = await anyio.to_thread.run_sync(scrape, collector)
        assert values[f"bls_commands_running{{project={project}}}"] == 1
        go_on.set()
    agent.log.info("waits")
    values = scrape(collector)

    def value(name: str, *labels: str) -> float:
        return values[f"{name}{{{','.join(sorted([*labels, f'project={project}']))}}}"]

    for command, kind, count in (
        ("reload", "succeeded", 3), ("reload", "rejected", 1), ("_unknown", "unknown", 2),
        ("wait", "succeeded", 1),
    ):  # fmt: skip
        labels = f"command={command}", f"outcome={kind}"
        assert value("bls_commands_total", *labels) == count
    duration = "bls_command_duration_seconds"
    assert value(f"{duration}_count", "command=reload") == 4
    assert value(f"{duration}_bucket", "command=reload", "le=300.0") == 4
    assert 0 < value(f"{duration}_sum", "command=reload") < 4
    assert value("bls_command_wait_seconds_count") == 7
    assert value("bls_log_queue_records") == 1
    delivered = agent.stats().logs_delivered
    assert value("bls_log_records_total", "result=written") == delivered >= 7
    assert value("bls_agent_info", "process=甲", f"version={__version__}") == 1
    assert not any("无" in name for name in values)


async def test_everything_else(redis_url: str, project: str, run_id: int) -> None:
    """A cache, a heartbeat and stores; every name of the table can be scraped."""
    cache, store = FunctionCache(redis_url), EventStore(redis_url, ttl=60)
    beat = Heartbeat("下载", project, redis=redis_url)
    tasks = TaskStatus("redis://127.0.0.1:1", on_error="none", timeout=0.5)

    @cache.cached(ttl=10, name=f"f{project}")
    async def double(number: int) -> int:
        return 2 * number

    agent = ProjectAgent(project)
    state_of(agent).stream.delivery.buffer.max_items = 1
    for _ in range(3):
        agent.log.info("茶")
    async with cache, beat, store:
        await beat.ready(5)
        assert await double(1) == await double(1) == 2
        assert await tasks.set("1", "running") is None
        async with store.run(run_id) as run:
            run.emit("llm", "stream", {"text": "好"})
            await run.flush()
            sources = AgentCollector(cache, beat, store, tasks)
            values = scrape(AgentCollector(agent), sources)
            assert values["bls_run_writers_open{}"] == 1
        run.emit("llm", "stream", {"text": "晚"})
        values = scrape(AgentCollector(agent), sources)
        await store.delete(run_id)
    assert values["bls_function_cache_calls_total{result=hit}"] == 1
    assert values["bls_function_cache_calls_total{result=miss}"] == 1
    assert values["bls_function_cache_computed_total{}"] == 1
    key = beat.stats().key
    assert values[f"bls_heartbeat_owned{{key={key}}}"] == 1
    assert values[f"bls_heartbeat_beats_total{{key={key},result=written}}"] >= 1
    assert values["bls_store_failed_writes_total{store=TaskStatus}"] == 1
    assert values["bls_run_writers_open{}"] == 0
    assert values["bls_run_writer_events_total{result=written}"] == 4
    assert values["bls_run_writer_dropped_total{reason=closed}"] == 1
    dropped = f"bls_log_dropped_total{{project={project},reason=buffer_full}}"
    assert values[dropped] == 2
    shown = {name.partition("{")[0] for name in values}
    without_samples = {"bls_commands_total", "bls_command_duration_seconds"}
    missing = {
        name for name in FAMILIES if not any(one.startswith(name) for one in shown)
    }
    assert missing == without_samples


PAGES = [ROOT / "docs/monitoring.md", ROOT / "docs/monitoring.zh-CN.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is the table of the code, and its three lines open a port."""
    rows = re.findall(
        r"^\| `(bls_\w+)(?:\{([\w,]+)\})?` \| (\w+) ", page.read_text(), re.MULTILINE
    )
    listed = {name: (labels, kind) for name, labels, kind in rows}
    for family in FAMILIES.values():
        assert listed[family.name] == (",".join(family.labels), family.kind)
    fleet = {one.name for one in console_metrics.FAMILIES}
    assert fleet.isdisjoint(FAMILIES)
    opened: list[Any] = []
    start = prometheus_client.start_http_server
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(
        prometheus_client,
        "start_http_server",
        lambda _port, host: opened.append(start(0, host, registry)),
    )
    (block,) = blocks(page)
    await run_block(block, {"__name__": "shop"})
    ((server, thread),) = opened
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            assert "bls_agent_open" in (await client.get(url)).text
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_several_agents() -> None:
    """One collector has all of them; a second one of agents is refused by the registry."""
    first, second = ProjectAgent("甲"), ProjectAgent("乙")
    values = scrape(AgentCollector(first, second, first))
    assert [values[f"bls_agent_open{{project={name}}}"] for name in "甲乙"] == [0, 0]
    with pytest.raises(ValueError, match="Duplicated"):
        scrape(AgentCollector(first), AgentCollector(second))


def test_the_classic_format() -> None:
    """As ``start_http_server`` and ``make_asgi_app`` write it without OpenMetrics."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(ProjectAgent("订单系统")))
    text = generate_latest(registry).decode()
    assert '\nbls_commands_running{project="订单系统"} 0.0\n' in text
    assert "# TYPE bls_lease_losses_total counter\n" in text


@pytest.mark.parametrize(
    ("sources", "options"),
    [
        ((), {}),
        (("订单系统",), {}),
        ((ProjectAgent("甲"),), {"buckets": ()}),
        ((ProjectAgent("甲"),), {"buckets": (1, 1)}),
        ((ProjectAgent("甲"),), {"buckets": (0, 1)}),
        ((ProjectAgent("甲"),), {"buckets": (1, math.nan)}),
        ((ProjectAgent("甲"),), {"buckets": iter(())}),
    ],
)
def test_wrong_arguments_are_refused(sources: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        AgentCollector(*sources, **options)


def test_buckets_may_be_an_iterator() -> None:
    """It is read once."""
    buckets: Any = iter((0.5, 1))
    values = scrape(AgentCollector(ProjectAgent("甲"), buckets=buckets))
    for bound in ("0.5", "1.0", "+Inf"):
        assert f"bls_command_wait_seconds_bucket{{le={bound},project=甲}}" in values


@pytest.mark.skipif(not hasattr(os, "fork"), reason="cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_counts_from_zero(redis_url: str, project: str) -> None:
    """Its parent counts its own commands, and each process has its own scrape."""
    agent = ProjectAgent(project, redis=redis_url)
    collector = AgentCollector(agent)
    async with agent, Console(redis_url) as console:
        await console.call(project, "ping")
        labels = f"command=ping,outcome=succeeded,project={project}"
        ended = f"bls_commands_total{{{labels}}}"
        assert scrape(collector)[ended] == 1
        child = os.fork()
        if not child:
            os._exit(int(ended in scrape(collector)))
        status = await anyio.to_thread.run_sync(os.waitpid, child, 0)
        assert status[1] == 0
        await eventually(lambda: scrape(collector)[ended] == 1)
