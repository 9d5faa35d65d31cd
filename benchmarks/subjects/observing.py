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

__all__ = ["observe"]


class _Nowhere(SpanExporter):
    """Drops the spans, because where they go is no part of what is measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


def observe(agent: ProjectAgent, what: str) -> None:
    """Observe an agent by ``metrics``, ``spans``, ``a tenth of the spans``, or not."""
    if "metrics" in what:
        REGISTRY.register(AgentCollector(agent))
    if "spans" in what:
        share = 0.1 if "tenth" in what else 1.0
        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
        provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
        instrument(agent, tracer_provider=provider)
