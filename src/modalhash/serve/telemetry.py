"""Traces and metrics for OpenTelemetry, if its packages are installed and a standard variable asks for them.

Each request is a span, and so is each batch of searches that share an encoding or a scan. The metrics are those of
``/metrics``; of a histogram, the sum and the count. Without the packages, or without a variable, nothing is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from prometheus_client import Metric

SERVICE = "modalhash"
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")

span: Callable[[dict[str, Any]], AbstractContextManager[dict[str, Any]]] = nullcontext
"""Record a span with these attributes, of which ``name`` is its name, and with what the block adds to them."""


def start(collect: Callable[[], Iterable[Metric]]) -> bool:
    """Export spans, and the metrics that ``collect`` returns, to the endpoint in the variables; return whether."""
    if not any(map(os.environ.get, VARIABLES)) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return False
    start_with(BatchSpanProcessor(OTLPSpanExporter()), PeriodicExportingMetricReader(OTLPMetricExporter()), collect)
    return True


def start_with(processor: Any, reader: Any, collect: Callable[[], Iterable[Metric]]) -> None:
    """Send spans to a processor, and metrics to a reader."""
    global span
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE})
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(processor)
    span = partial(_recorded, traces.get_tracer(SERVICE))
    meter = MeterProvider([reader], resource=resource).get_meter(SERVICE)
    for metric in collect():
        make = meter.create_observable_gauge if metric.type == "gauge" else meter.create_observable_counter
        for name in [f"{metric.name}_sum", f"{metric.name}_count"] if metric.type == "histogram" else [metric.name]:
            make(name, callbacks=[partial(_observe, collect, name)], description=metric.documentation)


def _observe(collect: Callable[[], Iterable[Metric]], name: str, options: Any) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for metric in collect():
        for sample in metric.samples:
            if sample.name in (name, f"{name}_total"):
                yield Observation(sample.value, sample.labels)


@contextmanager
def _recorded(tracer: Any, attributes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with tracer.start_as_current_span(attributes.pop("name"), attributes=attributes) as own:
        try:
            yield attributes
        finally:
            own.set_attributes(attributes)
