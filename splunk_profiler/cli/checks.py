"""What can keep samples from arriving, looked at one by one: settings, interpreter, way to the collector.

Each check returns findings, in the order in which they are to be read; none of them raises for what it
finds. Runs on the main thread of `doctor`. Loads gRPC and OpenTelemetry only to make the test export.
"""

from __future__ import annotations

import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from splunk_profiler.cli.run import AUTOSTART
from splunk_profiler.config import DEFAULT_ENDPOINT, SETTINGS, Config, Resolved

_CONNECT_SECONDS = 5.0
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_PACKAGES = ("splunk-profiler", "opentelemetry-sdk", "opentelemetry-api", "grpcio", "protobuf")
_OLDEST_SDK = (1, 38)


class Verdict(Enum):
    """How a finding bears on the samples."""

    GOOD = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        verdict: FAILURE means that no samples arrive until it is remedied.
        subject: what was looked at.
        fact: what was found.
        remedy: what to do; empty where nothing is to be done.
    """

    verdict: Verdict
    subject: str
    fact: str
    remedy: str = ""


def switches(resolved: Resolved) -> list[Finding]:
    """Is the profiler on, and can every value be used?"""
    found = [Finding(Verdict.WARNING, "setting", warning) for warning in resolved.warnings]
    if resolved.config.enabled:
        found.insert(0, Finding(Verdict.GOOD, "switched on", "SPLUNK_PROFILER_ENABLED is true"))
    elif resolved.config.snapshot_enabled:
        fact = "SPLUNK_SNAPSHOT_PROFILER_ENABLED is true: selected traces are profiled, and nothing else"
        found.insert(0, Finding(Verdict.GOOD, "switched on", fact))
    else:
        origin = resolved.origins.get("enabled")
        fact = "SPLUNK_PROFILER_ENABLED is false" if origin else "SPLUNK_PROFILER_ENABLED is not set, which means false"
        remedy = "set SPLUNK_PROFILER_ENABLED=true, or start the service by: splunk-profiler run -- COMMAND"
        found.insert(0, Finding(Verdict.FAILURE, "switched off", fact, remedy))
    if resolved.sdk_disabled:
        fact = "OTEL_SDK_DISABLED=true switches the profiler off as well"
        found.append(Finding(Verdict.FAILURE, "switched off", fact, "unset OTEL_SDK_DISABLED"))
    return found


def settings(resolved: Resolved) -> list[tuple[str, str, str]]:
    """Name, value in effect and origin of every setting."""
    defaults = Config()
    rows = []
    for setting in SETTINGS:
        value = getattr(resolved.config, setting.field)
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        usual = value == getattr(defaults, setting.field)
        origin = resolved.origins.get(setting.field, "default" if usual else "Config")
        rows.append((setting.name, text, "environment" if origin == setting.name else origin))
    return rows


def activation(env: Mapping[str, str]) -> list[Finding]:
    """By which route would a process with this environment start the profiler?"""
    routes = []
    if str(AUTOSTART) in env.get("PYTHONPATH", "").split(":"):
        routes.append("splunk-profiler run (PYTHONPATH leads to its sitecustomize)")
    if any(point.value.startswith("splunk_profiler") for point in entry_points(group="opentelemetry_post_instrument")):
        routes.append("opentelemetry-instrument (its entry point is installed)")
    routes.append("splunk_profiler.start() in the application")
    return [Finding(Verdict.NOTE, "started by", "; or ".join(routes))]


def interpreter(resolved: Resolved) -> list[Finding]:
    """Do this Python and what is installed in it serve?"""
    from splunk_profiler.capture import choose_walker  # noqa: PLC0415  # not needed to examine another process
    from splunk_profiler.spans import context_variable  # noqa: PLC0415  # loads OpenTelemetry's API

    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    python = f"{sys.implementation.name} {sys.version.split()[0]}{', free-threaded' if free_threaded else ''}"
    found = [Finding(Verdict.GOOD, "Python", f"{python} at {sys.executable}")]
    versions = {name: _version(name) for name in _PACKAGES}
    found.append(Finding(Verdict.GOOD, "packages", ", ".join(f"{name} {text}" for name, text in versions.items())))
    sdk = versions["opentelemetry-sdk"]
    if not sdk[0].isdigit() or tuple(int(part) for part in sdk.split(".")[:2]) < _OLDEST_SDK:
        fact = f"opentelemetry-sdk {sdk}; 1.38 or newer is needed"
        found.append(Finding(Verdict.FAILURE, "packages", fact, "pip install -U 'opentelemetry-sdk>=1.38,<2'"))
    if versions["grpcio"] == "missing":
        remedy = "pip install grpcio" + (" (there are no wheels for free-threaded builds)" if free_threaded else "")
        found.append(Finding(Verdict.FAILURE, "packages", "without grpcio nothing can be sent", remedy))
    choice = choose_walker(resolved.config.walker)
    if choice.name == "native":
        found.append(Finding(Verdict.GOOD, "walker", f"native: {choice.reason}"))
    else:
        fact = f"portable: {choice.reason}; it costs more, and spans of asyncio tasks are found approximately"
        remedy = (
            "" if resolved.config.walker == "portable" else "reinstall with a C compiler and Python.h (python3-dev)"
        )
        found.append(Finding(Verdict.WARNING, "walker", fact, remedy))
    if context_variable() is None:
        fact = "OTEL_PYTHON_CONTEXT replaces the context that spans are read from: they are found approximately"
        found.append(Finding(Verdict.WARNING, "spans", fact, "unset OTEL_PYTHON_CONTEXT"))
    return found


def filters(resolved: Resolved) -> list[Finding]:
    """Which samples are left out on purpose?"""
    config = resolved.config
    found = []
    if config.include_internal_stacks:
        found.append(Finding(Verdict.NOTE, "left out", "no threads"))
    else:
        fact = "threads of the profiler, the OpenTelemetry SDK and gRPC, and threads that run no Python code"
        found.append(Finding(Verdict.NOTE, "left out", fact))
    if config.tracing_stacks_only:
        fact = "samples outside of spans: without a TracerProvider and active spans, nothing is sent"
        remedy = "unset SPLUNK_PROFILER_TRACING_STACKS_ONLY to see them"
        found.append(Finding(Verdict.WARNING, "left out", fact, remedy))
    found.append(Finding(Verdict.NOTE, "left out", f"frames more than {config.max_stack_depth} calls from the leaf"))
    return found


def endpoint(resolved: Resolved, env: Mapping[str, str]) -> list[Finding]:
    """Where do records go, and is anybody there?"""
    target = resolved.endpoint
    origin = "by default" if target.setting == "default" else f"from {target.setting}"
    tls = "TLS" if target.secure else "no TLS"
    found = [Finding(Verdict.GOOD, "endpoint", f"{target.url} {origin}: {target.target}, {tls}")]
    if target.url == DEFAULT_ENDPOINT and target.setting == "default":
        fact = "no endpoint is set; the default expects a collector with TLS on this machine"
        remedy = "set OTEL_EXPORTER_OTLP_ENDPOINT, such as http://localhost:4317 for a collector without TLS"
        found.append(Finding(Verdict.WARNING, "endpoint", fact, remedy))
    if env.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "").strip():
        fact = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT is for application logs; profiles do not follow it"
        found.append(Finding(Verdict.NOTE, "endpoint", fact, "set SPLUNK_PROFILER_LOGS_ENDPOINT"))
    if env.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().startswith("http"):
        fact = "OTEL_EXPORTER_OTLP_PROTOCOL asks for HTTP; profiles always travel over gRPC"
        remedy = "name the collector's gRPC port (4317) in SPLUNK_PROFILER_LOGS_ENDPOINT"
        found.append(Finding(Verdict.WARNING, "endpoint", fact, remedy))
    for name in _PROXY_VARIABLES:
        if env.get(name, "").strip():
            fact = f"{name} is set, so gRPC goes through that proxy unless no_proxy names the collector"
            found.append(Finding(Verdict.NOTE, "proxy", fact))
    return found + _reach(target.target)


def _reach(target: str) -> list[Finding]:
    host, _, port = target.rpartition(":")
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fact = f"{host} has no address: {getattr(error, 'strerror', error)}"
        return [Finding(Verdict.FAILURE, "name look-up", fact, "correct the host, or the name service of this machine")]
    numbers = list(dict.fromkeys(str(address[4][0]) for address in addresses))
    found = [Finding(Verdict.GOOD, "name look-up", f"{host} is {', '.join(numbers)}")]
    problems = []
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(address)
        except OSError as error:
            problems.append(f"{address[0]}: {error.strerror or error}")
            continue
        return [*found, Finding(Verdict.GOOD, "connection", f"{address[0]} port {port} accepts connections")]
    remedy = "start a collector there (to try: splunk-profiler collect), open the way to it, or correct the endpoint"
    return [*found, Finding(Verdict.FAILURE, "connection", f"port {port} is not open: {'; '.join(problems)}", remedy)]


def export(resolved: Resolved) -> list[Finding]:
    """Capture the threads of this process once and send them, as the profiler would."""
    from splunk_profiler import capture, spans  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.model import Batch, Delivery  # noqa: PLC0415

    try:
        from splunk_profiler.formats.text import body  # noqa: PLC0415
        from splunk_profiler.sinks.encoding import Encoder  # noqa: PLC0415
        from splunk_profiler.sinks.otlp import OtlpSink  # noqa: PLC0415  # loads gRPC
        from splunk_profiler.sinks.resource import current_resource  # noqa: PLC0415
    except ImportError as error:
        return [Finding(Verdict.FAILURE, "test export", f"what sends cannot be loaded: {error}")]
    choice = capture.choose_walker(resolved.config.walker)
    variable = spans.context_variable()
    if variable is None:
        choice = capture.Choice("portable", "")
    ticker = capture.make_ticker(choice, variable, lambda _ident: None, resolved.config.max_stack_depth)
    ticker.capture()
    raw = ticker.drain(0)
    ticker.stop()
    reader = capture.Capture(
        spans.span_ref, capture.thread_clocks(choice), resolved.config.period_ns, include_internal=True
    )
    samples = reader.snapshot(raw[0]).samples
    found = [Finding(Verdict.GOOD, "test sample", f"{len(samples)} threads read by the {choice.name} walker")]
    start = time.monotonic()
    sink = OtlpSink(resolved.endpoint, Encoder(current_resource, body).encode, resolved.transport)
    try:
        outcome = sink.export(Batch(samples, 0))
    finally:
        sink.shutdown()
    took = f"after {(time.monotonic() - start) * 1000:.0f} ms"
    if outcome.delivery is not Delivery.DELIVERED:
        return [*found, Finding(Verdict.FAILURE, "test export", f"not delivered {took}: {outcome.detail}")]
    if outcome.rejected:
        fact = f"the collector took the request {took} but refused {outcome.rejected} records: {outcome.detail}"
        return [*found, Finding(Verdict.FAILURE, "test export", fact, "look at the collector's configuration")]
    return [*found, Finding(Verdict.GOOD, "test export", f"{len(samples)} records delivered {took}")]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        sources = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return "from sources" if package == "splunk-profiler" and sources.exists() else "missing"
