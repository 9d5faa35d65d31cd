"""Traces and metrics of commands, by OpenTelemetry (extra ``otel``).

Names follow the semantic conventions for messaging. The program must set up an SDK of
OpenTelemetry. ``docs/tracing.md`` lists spans, attributes and metrics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import bls_agent
from bls_agent.agent import ProjectAgent
from bls_agent.console import Console
from bls_agent.core.codec import JSONObject, cut_text
from bls_agent.core.errors import ConfigurationError, MissingExtraError
from bls_agent.core.keys import CONTROL
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands.observer import OnEnd, TakenCommand
from bls_agent.project.console.tracing import tracing_of, untraced
from bls_agent.project.messages import Command, Level, Outcome
from bls_agent.sync_console import SyncConsole

try:
    from opentelemetry import context as contexts, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
    )
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
    )
    from opentelemetry.trace.propagation.tracecontext import (
        TraceContextTextMapPropagator,
    )
    from opentelemetry.util.types import AnyValue
except ModuleNotFoundError:
    raise MissingExtraError("otel", "tracing") from None

__all__ = ["instrument"]

SCOPE: Final = "bls_agent"
UNREGISTERED: Final = "_unknown"  # senders can invent any number of names
LONGEST_TEXT: Final = 200  # bytes of an id or a name in an attribute
LONGEST_FIELD: Final = 512  # characters of traceparent or tracestate
# Boundaries of histogram buckets in seconds, as in the semantic conventions.
BOUNDARIES: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)

_W3C: Final = TraceContextTextMapPropagator()
_NOTHING: Final = Context()


def instrument(
    target: ProjectAgent | Console | SyncConsole,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace the commands that an agent runs, or the commands that a console sends.

    A console sends its span's context in the fields ``traceparent`` and ``tracestate``
    of the command. An agent runs each command in a span, and adds ``trace_id`` and
    ``span_id`` to the log records that are written in a span. No argument, result or
    error message of a command becomes an attribute.

    Call this function once for each agent and each console, before or after it is
    opened. Global providers may also be set after this call.

    Args:
        target: The agent or the console.
        tracer_provider: Makes the spans. Default: the global provider.
        meter_provider: Makes the metrics. Default: the global provider.

    Raises:
        ConfigurationError: ``target`` is neither an agent nor a console, or it is
            instrumented already.
    """
    if isinstance(target, ProjectAgent):
        state = state_of(target)
        if any(isinstance(one, _CommandObserver) for one in state.observers.all):
            raise _instrumented(target)
        instruments = _Instruments(tracer_provider, meter_provider)
        state.observers.add(_CommandObserver(target.project, instruments))
        state.stream.trace_of_caller = _trace_of_caller
        return
    if not isinstance(target, Console | SyncConsole):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's
        rule = "a ProjectAgent, a Console or a SyncConsole"  # type: ignore[unreachable]  # a user's
        raise ConfigurationError("target", target, rule)
    tracing = tracing_of(target)
    if tracing.tracer is not untraced:
        raise _instrumented(target)
    instruments = _Instruments(tracer_provider, meter_provider)
    tracing.tracer = partial(_sending, instruments)


def _instrumented(target: object) -> ConfigurationError:
    rule, remedy = "it is instrumented already", "Call instrument() once for each."
    return ConfigurationError("target", target, rule, remedy)


class _Instruments:
    """The tracer and the meters of one agent or console."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        self.tracer = trace.get_tracer(SCOPE, bls_agent.__version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, bls_agent.__version__, meter_provider)
        seconds = partial(
            meter.create_histogram,
            unit="s",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self.process_duration = seconds(
            "messaging.process.duration", description="Duration of commands."
        )
        self.operation_duration = seconds(
            "messaging.client.operation.duration",
            description="Duration of sending and acknowledging commands.",
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Commands that were sent."
        )
        self.consumed = _consumed_of(meter_provider, meter)


_Consumed: TypeAlias = Counter[tuple[tuple[str, str], ...]]
# Maps a meter provider, or this module's ``metrics`` for the global one, to the counts.
_CONSUMED: Final[WeakKeyDictionary[object, _Consumed]] = WeakKeyDictionary()


def _consumed_of(given: MeterProvider | None, meter: Meter) -> _Consumed:
    """Return the counts of taken commands, which all agents of a provider share.

    The agents share them, because the SDK keeps only the first callback of a counter. A
    callback reads them, because recording a value for each command costs as much time as
    a span.
    """
    is_global = given is None or given is metrics.get_meter_provider()
    provider = metrics if is_global else given
    if provider not in _CONSUMED:
        counts: _Consumed = Counter()

        def observe(_: CallbackOptions) -> list[Observation]:
            return [Observation(n, dict(each)) for each, n in counts.copy().items()]

        meter.create_observable_counter(
            "messaging.client.consumed.messages",
            [observe],
            "{message}",
            "Commands that were taken.",
        )
        _CONSUMED[provider] = counts
    return _CONSUMED[provider]


def _operation(name: str, project: str) -> dict[str, str]:
    """Return the attributes that spans and metrics of an operation share."""
    return {
        "messaging.system": "redis",
        "messaging.operation.name": name,
        "messaging.operation.type": name,
        "messaging.destination.name": CONTROL.build(project=project),
    }


@contextmanager
def _sending(
    instruments: _Instruments,
    project: str,
    command: Command,
    payload: bytes,
    size_limit: int,
) -> Generator[bytes]:
    """Send a command in a span, without trace fields if they exceed the size limit."""
    shared = _operation("send", project)
    name = cut_text(command.command, LONGEST_TEXT)
    attributes: dict[str, AnyValue] = {
        **shared,
        "messaging.message.id": cut_text(command.id, LONGEST_TEXT),
        "messaging.message.body.size": len(payload),
        "bls.command.name": name,
    }
    began = time.perf_counter()
    span = instruments.tracer.start_span(
        f"send {name}", kind=SpanKind.PRODUCER, attributes=attributes
    )
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        fields: dict[str, str] = {}
        _W3C.inject(fields)
        traced = command.encode(fields)
        try:
            yield traced if len(traced) <= size_limit else payload
        except BaseException as error:
            shared["error.type"] = type(error).__name__
            _fail(span, shared["error.type"])
            raise
        finally:
            seconds = time.perf_counter() - began
            instruments.operation_duration.record(seconds, shared)
            instruments.sent.add(1, shared)


class _CommandObserver:
    """Makes the spans and metrics of the commands that an agent runs."""

    def __init__(self, project: str, instruments: _Instruments) -> None:
        self._instruments = instruments
        self._process = _operation("process", project)

    def begin(self, taken: TakenCommand) -> OnEnd:
        message = taken.message
        parent, links = _NOTHING, None
        if fields := _trace_fields(message.fields):
            parent = _W3C.extract(fields, _NOTHING)
            origin = trace.get_current_span(parent).get_span_context()
            links = [Link(origin)] if origin.is_valid else None
        span = self._instruments.tracer.start_span(
            f"process {taken.registered}" if taken.registered else "process",
            parent,
            SpanKind.CONSUMER,
            self._process,  # a sampler may read these; others are set at the end
            links,
        )
        contexts.attach(trace.set_span_in_context(span, parent))
        return partial(self._end, span, taken)

    def _end(
        self,
        span: Span,
        taken: TakenCommand,
        outcome: Outcome,
        _error: BaseException | None,
    ) -> None:
        kind, instruments = outcome.kind, self._instruments
        shared = {
            **self._process,
            "bls.command.name": taken.registered or UNREGISTERED,
            "bls.command.outcome": kind.value,
        }
        if kind.level is Level.ERROR:
            shared["error.type"] = str(outcome.error.get("type"))
            _fail(span, shared["error.type"])
        if span.is_recording():
            span.set_attributes(_describe(taken))
            span.set_attribute("bls.command.outcome", kind.value)
        instruments.process_duration.record(outcome.duration_ms / 1000, shared)
        instruments.consumed[tuple(shared.items())] += 1
        span.end()


def _describe(taken: TakenCommand) -> dict[str, AnyValue]:
    message = taken.message
    attributes: dict[str, AnyValue] = {
        "messaging.message.id": cut_text(taken.id, LONGEST_TEXT),
        "messaging.message.body.size": len(message.payload),
        "bls.command.name": cut_text(taken.command, LONGEST_TEXT),
        "bls.delivery": message.delivery,
    }
    if taken.waited is not None:
        attributes["bls.command.wait"] = taken.waited
    return attributes


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


def _trace_fields(fields: JSONObject) -> dict[str, str]:
    """Return the trace fields of a message, if they are texts and not too long."""
    return {
        name: value
        for name in ("traceparent", "tracestate")
        if isinstance(value := fields.get(name), str) and len(value) <= LONGEST_FIELD
    }


def _trace_of_caller() -> Mapping[str, str]:
    """Return the ids of the current span for log records, if the span is sampled."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }
