"""Switches on what observes an agent: metrics for Prometheus, spans of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from prometheus_client import REGISTRY

from bls_agent import ProjectAgent
from bls_agent.integrations.otel import instrument
from bls_agent.integrations.prometheus import AgentCollector
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands.observer import OnEnd, TakenCommand

__all__ = ["observe"]


class _Nowhere(SpanExporter):
    """Drops the spans, because where they go is no part of what is measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


class _BareSpans:
    """Makes and ends one span of the SDK for each command, and nothing else."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("bare")

    def begin(self, taken: TakenCommand) -> OnEnd:
        span = self._tracer.start_span(f"process {taken.command}")
        return lambda *_: span.end()


def observe(agent: ProjectAgent, what: str) -> None:
    """Observe an agent by ``metrics``, ``spans``, ``a tenth of the spans``, or not.

    ``bare spans`` are those that the SDK makes without attributes and without us.
    """
    if "metrics" in what:
        REGISTRY.register(AgentCollector(agent))
    if "spans" in what:
        share = 0.1 if "tenth" in what else 1.0
        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
        provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
        if "bare" in what:
            state_of(agent).observers.add(_BareSpans(provider))
        else:
            instrument(agent, tracer_provider=provider)
