"""Commands as traces: OpenTelemetry spans and metrics, sent to a collector over OTLP.

Shows: one call that instruments an agent, a span of the program inside a command, and
the ids of the trace in the console list.
Needs: ``pip install '.[otel]' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http``
and a Redis at ``BLS_REDIS_URL`` (default redis://127.0.0.1:6379/0). A collector that
listens at ``OTEL_EXPORTER_OTLP_ENDPOINT`` (default http://localhost:4318).
Run:   ``python examples/tracing.py [project]``, Ctrl-C ends it in order, and sends the
last spans. Send ``reload`` with ``bls-agent call 订单系统 reload``.
"""

from __future__ import annotations

import sys

import anyio
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from bls_agent import ProjectAgent
from bls_agent.integrations.otel import instrument

agent = ProjectAgent(sys.argv[1] if len(sys.argv) > 1 else "订单系统")
tracer = trace.get_tracer("订单系统")


@agent.command
def reload() -> dict[str, int]:
    with tracer.start_as_current_span("read rules"):  # a child of `process reload`
        agent.log.info("configuration reloaded")  # has trace_id and span_id
        return {"rules": 42}


def set_up() -> None:
    resource = Resource.create({"service.name": agent.project})
    spans = TracerProvider(resource=resource)
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(spans)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=resource))


if __name__ == "__main__":
    set_up()
    instrument(agent)
    anyio.run(agent.run)
