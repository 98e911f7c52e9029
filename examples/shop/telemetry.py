"""Tracing as a service sets it up in its own code: where spans go is said by the OTEL_* variables."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def configure() -> TracerProvider:
    """Make every tracer of this process send its spans over OTLP/gRPC."""
    resource = Resource.create({"service.name": "shop", "deployment.environment.name": "demo"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)
    return provider
