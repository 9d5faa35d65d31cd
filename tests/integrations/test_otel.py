"""Tracing: which spans and metrics commands make, and what travels with a command."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_trace_id
from redis.asyncio import Redis

from bls_agent import (
    BLSHandler,
    ConfigurationError,
    Console,
    ProjectAgent,
    RedisUnavailableError,
    SyncConsole,
)
from bls_agent.core.settings import Settings
from bls_agent.integrations import otel
from bls_agent.integrations.otel import instrument
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands.runner import CommandRunner
from bls_agent.project.messages import Command, OutcomeKind
from bls_agent.project.receive.receiver import Message
from tests.documents import blocks, run_block
from tests.harness import eventually, records

PAGE = Path(__file__).parents[2] / "docs/tracing.md"

SECRET = "geheim-4711"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Telemetry:
    """Spans and metrics of one test, in memory."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def instrument(self, target: Any) -> None:
        instrument(target, tracer_provider=self.provider, meter_provider=self.meters)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("tests")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [one for one in self.spans if one.name == name]
        return span

    def metrics(self) -> dict[str, Any]:
        """Give the data points: name → points."""
        data: Any = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = data.resource_metrics[0].scope_metrics
        return {one.name: one.data.data_points for one in scopes[0].metrics}

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


@pytest.fixture
def make_telemetry() -> Iterator[Callable[..., Telemetry]]:
    made: list[Telemetry] = []

    def make(**options: Any) -> Telemetry:
        made.append(Telemetry(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def telemetry(make_telemetry: Callable[..., Telemetry]) -> Telemetry:
    return make_telemetry()


def make_runner(agent: ProjectAgent) -> CommandRunner:
    """Run an agent's commands without a server."""
    state = state_of(agent)
    return CommandRunner(
        state.router,
        state.stream,
        Counter(),
        Settings(),
        clock=state.clock,
        observers=state.observers,
    )


def message(fields: dict[str, Any], **how: Any) -> Message:
    return Message(orjson.dumps({"id": "1", "command": "reload", **fields}), **how)


def reloading(telemetry: Telemetry) -> ProjectAgent:
    """An agent that is never opened, with one command."""
    agent = ProjectAgent("订单系统")

    async def reload() -> None: ...

    agent.command(reload)
    telemetry.instrument(agent)
    return agent


async def test_a_command_is_one_trace_from_sender_to_log(
    redis: Redis,
    redis_url: str,
    project: str,
    console: Console,
    telemetry: Telemetry,
) -> None:
    """Sender, handler and spans of the handler; plain handlers, too."""
    agent = ProjectAgent(project, redis=redis_url)
    logger = logging.getLogger(f"tests.{project}")
    logger.addHandler(BLSHandler(agent))
    logger.setLevel(logging.INFO)

    @agent.command
    async def reload(password: str) -> None:
        await anyio.lowlevel.checkpoint()
        with telemetry.tracer.start_as_current_span("own"):
            agent.log.info("reloaded", length=len(password))

    @agent.command
    def count(password: str) -> int:
        with telemetry.tracer.start_as_current_span("own in a thread"):
            logger.info("counted")
        return len(password)

    telemetry.instrument(agent)
    telemetry.instrument(console)
    async with agent:
        await agent.ready(5)
        agent.log.info("outside")
        for command in ("reload", "count"):
            outcome = await console.call(project, command, {"password": SECRET})
            assert outcome.succeeded
        written = {
            one["message"]: one["metadata"] for one in await records(redis, project)
        }

    for command, own, text in (
        ("reload", "own", "reloaded"),
        ("count", "own in a thread", "counted"),
    ):
        send, process = (
            telemetry.named(f"send {command}"),
            telemetry.named(f"process {command}"),
        )
        child = telemetry.named(own)
        assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert send.parent is None
        assert process.parent is not None
        assert process.parent.span_id == send.context.span_id
        assert [link.context.span_id for link in process.links] == [
            send.context.span_id
        ]
        assert child.parent is not None
        assert child.parent.span_id == process.context.span_id
        assert len({one.context.trace_id for one in (send, process, child)}) == 1
        trace_id = format_trace_id(send.context.trace_id)
        ids = {
            "inside": (trace_id, f"{child.context.span_id:016x}"),
            "outcome": (trace_id, f"{process.context.span_id:016x}"),
        }
        found = written[text], written[f"command '{command}' succeeded"]
        assert [(one["trace_id"], one["span_id"]) for one in found] == list(
            ids.values()
        )
    assert "trace_id" not in written["outside"]


async def test_attributes_and_metrics_have_the_names_of_the_conventions(
    redis_url: str, project: str, console: Console, telemetry: Telemetry
) -> None:
    """No argument is among them."""
    agent = ProjectAgent(project, redis=redis_url)

    @agent.command
    def reload(password: str) -> None: ...

    telemetry.instrument(agent)
    telemetry.instrument(console)
    async with agent:
        await agent.ready(5)
        for _ in range(2):
            await console.call(project, "reload", {"password": SECRET})
    span = next(one for one in telemetry.spans if one.name == "process reload")
    attributes: dict[str, Any] = dict(span.attributes or {})
    assert attributes.pop("bls.command.wait") >= 0
    assert attributes.pop("messaging.message.id")
    assert attributes.pop("messaging.message.body.size") > 100
    assert attributes == {
        "messaging.system": "redis",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{project}_控制",
        "bls.command.name": "reload",
        "bls.command.outcome": "succeeded",
        "bls.delivery": 1,
    }
    assert SECRET not in "".join(one.to_json() for one in telemetry.spans)

    metrics = telemetry.metrics()
    assert set(metrics) == {
        "messaging.process.duration",
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
    }
    assert sum(one.value for one in metrics["messaging.client.sent.messages"]) == 2
    assert sum(one.value for one in metrics["messaging.client.consumed.messages"]) == 2
    duration = metrics["messaging.process.duration"][0]
    assert duration.explicit_bounds[:3] == (0.005, 0.01, 0.025)
    assert len(duration.explicit_bounds) == 14
    assert SECRET not in repr(metrics)


async def test_all_agents_and_consoles_of_a_provider_are_counted(
    redis_url: str, project: str, telemetry: Telemetry
) -> None:
    """Also after a console, and after a call with a wrong target."""
    agents = [ProjectAgent(f"{project}-{name}", redis=redis_url) for name in "甲乙"]
    async with Console(redis_url) as console:
        with pytest.raises(ConfigurationError):
            telemetry.instrument("订单系统")
        for target in (console, *agents):
            telemetry.instrument(target)
        for agent in agents:
            async with agent:
                assert (
                    await console.call(agent.project, "ping", create=True)
                ).succeeded
    points = telemetry.metrics()["messaging.client.consumed.messages"]
    counts = {one.attributes["messaging.destination.name"]: one.value for one in points}
    assert counts == {f"{agent.project}_控制": 1 for agent in agents}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"traceparent": 7, "tracestate": ["a=1"]},
        {"traceparent": "00-zz-b7ad6b7169203331-01"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {"traceparent": f"ff{PARENT[2:]}"},
        {"traceparent": PARENT + "0" * 1_000},
        {"tracestate": "a=1"},
    ],
    ids=["peer", "no text", "no hex", "zeros", "version ff", "long", "state alone"],
)
async def test_a_command_without_a_trace_starts_its_own(
    telemetry: Telemetry, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the agent was opened inside of a span of its host."""
    agent = reloading(telemetry)
    with telemetry.tracer.start_as_current_span("host"):
        runner = make_runner(agent)
    assert await runner.run(message(fields), print) is OutcomeKind.SUCCEEDED
    span = telemetry.named("process reload")
    assert span.parent is None
    assert not span.links
    assert span.context.trace_id != telemetry.named("host").context.trace_id
    assert not caplog.records


async def test_a_hostile_tracestate_leaves_the_trace_as_it_is(
    telemetry: Telemetry,
) -> None:
    runner = make_runner(reloading(telemetry))
    for state in ("=,=,\x00\ud7ff", "a=1," * 10_000, "甲=1"):
        fields = {"traceparent": PARENT, "tracestate": state}
        assert await runner.run(message(fields), print) is OutcomeKind.SUCCEEDED
    found = {format_trace_id(one.context.trace_id) for one in telemetry.spans}
    assert found == {TRACE}


async def test_how_a_command_ends_is_in_its_span(telemetry: Telemetry) -> None:
    """An error has its type and no text; names of senders make no name of a span."""
    agent = reloading(telemetry)

    @agent.command
    async def fail(token: str) -> None:
        raise LookupError(token)

    runner = make_runner(agent)
    for fields in (
        {"command": "fail", "args": {"token": SECRET}},
        {"command": "刷新" * 1_000},
        {"args": {"extra": 1}},
        {"command": 7, "traceparent": PARENT},
    ):
        await runner.run(message(fields), print)
    dead = message({"traceparent": PARENT}, delivery=3, mode="reliable")
    runner.report_unstarted(dead, OutcomeKind.DEAD_LETTERED)
    ends = [
        (
            span.name,
            span.status.status_code,
            (span.attributes or {}).get("bls.command.outcome"),
            (span.attributes or {}).get("error.type"),
        )
        for span in telemetry.spans
    ]
    assert ends == [
        ("process fail", StatusCode.ERROR, "failed", "LookupError"),
        ("process", StatusCode.UNSET, "unknown", None),
        ("process reload", StatusCode.UNSET, "rejected", None),
        ("process", StatusCode.ERROR, "discarded", "DecodeError"),
        ("process reload", StatusCode.ERROR, "dead_lettered", "DeadLettered"),
    ]
    traces = [format_trace_id(one.context.trace_id) for one in telemetry.spans]
    assert traces[3:] == [TRACE, TRACE]
    shown = "".join(one.to_json() for one in telemetry.spans) + repr(
        telemetry.metrics()
    )
    assert SECRET not in shown
    names = {
        point.attributes["bls.command.name"]
        for point in telemetry.metrics()["messaging.client.consumed.messages"]
    }
    assert names == {"fail", "reload", "_unknown"}


async def test_a_repeated_delivery_has_a_link(telemetry: Telemetry) -> None:
    runner = make_runner(reloading(telemetry))
    again = message({"traceparent": PARENT}, delivery=2, mode="reliable")
    await runner.run(again, print)
    (span,) = telemetry.spans
    assert [format_trace_id(link.context.trace_id) for link in span.links] == [TRACE]
    assert (span.attributes or {})["bls.delivery"] == 2


async def test_without_samples_the_context_travels_alone(
    redis_url: str,
    project: str,
    redis: Redis,
    console: Console,
    make_telemetry: Callable[..., Telemetry],
) -> None:
    """A sender that samples nothing: no spans there nor here, and no ids in the log."""
    sender, receiver = make_telemetry(sampler=ALWAYS_OFF), make_telemetry()
    agent = ProjectAgent(project, redis=redis_url)
    agent.command("reload")(lambda: agent.log.info("reloaded"))
    sender.instrument(console)
    await console.send(project, "reload", create=True)
    (payload,) = await redis.lrange(f"{project}_控制", 0, -1)
    assert int(orjson.loads(payload)["traceparent"][-2:], 16) & 1 == 0
    receiver.instrument(agent)
    assert isinstance(receiver.provider.sampler, ParentBased)
    async with agent:
        await eventually(lambda: agent.stats().outcomes == {"succeeded": 1})
    assert not sender.spans
    assert not receiver.spans
    assert all(
        "trace_id" not in one["metadata"] for one in await records(redis, project)
    )
    assert len(receiver.metrics()["messaging.client.consumed.messages"]) == 1


async def test_every_replica_continues_the_trace_of_a_broadcast(
    redis_url: str, project: str, console: Console, telemetry: Telemetry
) -> None:
    agents = [ProjectAgent(project, redis=redis_url, replicas=True) for _ in range(2)]
    for agent in agents:
        agent.command("reload")(lambda: None)
        telemetry.instrument(agent)
    telemetry.instrument(console)
    async with agents[0], agents[1]:
        for agent in agents:
            await agent.ready(5)
        await console.send(project, "reload", broadcast=True)
        await eventually(lambda: len(telemetry.spans) == 3)
    assert len({one.context.trace_id for one in telemetry.spans}) == 1


async def test_a_blocking_console_continues_the_trace_of_its_caller(
    redis_url: str, project: str, redis: Redis, telemetry: Telemetry
) -> None:
    def send() -> None:
        with SyncConsole(redis_url) as blocking:
            blocking.send(project, "reload", create=True)  # before it is instrumented
            telemetry.instrument(blocking)
            with telemetry.tracer.start_as_current_span("request"):
                blocking.send(project, "reload")

    await asyncio.to_thread(send)
    first, second = map(orjson.loads, await redis.lrange(f"{project}_控制", 0, -1))
    assert "traceparent" not in first
    request, span = telemetry.named("request"), telemetry.named("send reload")
    assert span.parent is not None
    assert span.parent.span_id == request.context.span_id
    assert f"{span.context.span_id:016x}" in second["traceparent"]


async def test_a_trace_makes_no_command_too_long(
    console: Console, project: str, redis: Redis, telemetry: Telemetry
) -> None:
    """At the limit a command goes without its trace, however JSON escapes the trace."""
    telemetry.instrument(console)
    limit = len(Command.create("reload", now=1e9).encode())
    carrier = {"traceparent": PARENT, "tracestate": 'v="\\"'}
    parent = otel._W3C.extract(carrier)
    with telemetry.tracer.start_as_current_span("request", parent):
        for room in range(120):
            await console.send(project, "reload", create=True, size_limit=limit + room)
    sent = await redis.lrange(f"{project}_控制", 0, -1)
    assert all(len(one) <= limit + room for room, one in enumerate(sent))
    traces = [orjson.loads(one).get("tracestate") for one in (sent[0], sent[-1])]
    assert traces == [None, carrier["tracestate"]]


async def test_a_command_that_was_not_sent(telemetry: Telemetry) -> None:
    async with Console("redis://127.0.0.1:1/0", timeout=0.2) as console:
        telemetry.instrument(console)
        console._seen.add("订单系统")
        with pytest.raises(RedisUnavailableError):
            await console.send("订单系统", "reload")
    (span,) = telemetry.spans
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "RedisUnavailableError"
    assert not span.events  # no text of an exception
    (point,) = telemetry.metrics()["messaging.client.sent.messages"]
    assert point.attributes["error.type"] == "RedisUnavailableError"


def test_what_cannot_be_instrumented(telemetry: Telemetry) -> None:
    for target in (ProjectAgent("订单系统"), Console(), SyncConsole()):
        telemetry.instrument(target)
        with pytest.raises(ConfigurationError, match="instrumented already"):
            telemetry.instrument(target)
    with pytest.raises(ConfigurationError, match="a ProjectAgent, a Console or"):
        telemetry.instrument("订单系统")


# --- the page


async def test_the_code_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    """The blocks as they stand; only the global provider is set for this test alone."""
    monkeypatch.setattr(
        trace, "set_tracer_provider", lambda provider: provider.shutdown()
    )
    for block in blocks(PAGE):
        await run_block(block, {"__name__": "shop"})


def test_the_page_names_what_there_is() -> None:
    """Each attribute and metric in the code has its place in a table, and the reverse."""
    source = Path(otel.__file__).read_text("utf-8")
    made = set(re.findall(r'"((?:messaging|bls|error)\.[a-z_.]+)"', source))
    tables = "".join(re.findall(r"^\|.*\|$", PAGE.read_text("utf-8"), re.MULTILINE))
    assert made == set(re.findall(r"`((?:messaging|bls|error)\.[a-z_.]+)`", tables))
