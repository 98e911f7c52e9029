"""The doctor's checks of the destination, and its test export.

Each check returns findings in reading order and raises for none of them. Runs on the main thread of `doctor`. Only the
test export loads what a sink needs (gRPC, HTTP).
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from splunk_profiler.cli.checks import Finding, Verdict
from splunk_profiler.config import DEFAULT_ENDPOINT, Resolved
from splunk_profiler.config.parsers import Agent, Directory, Endpoint, NoDestination

_CONNECT_TIMEOUT_S = 5.0
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_LOW_DISK_BYTES = 64 << 20
_INTAKE_PATH = "/profiling/v1/input"


def destination(resolved: Resolved, env: Mapping[str, str]) -> list[Finding]:
    """Check the destination, and that something answers there."""
    place = resolved.destination
    if isinstance(place, NoDestination):
        return [Finding(Verdict.FAILURE, "destination", place.reason, "correct the setting")]
    if isinstance(place, Directory):
        return _check_directory(place.path, resolved)
    if isinstance(place, Agent):
        return _check_agent(place, resolved)
    assert resolved.endpoint is not None
    return _check_collector(resolved.endpoint, env)


def _format_finding(resolved: Resolved) -> Finding:
    seconds = resolved.config.export_interval_ns / 1e9
    return Finding(Verdict.NOTE, "format", f"profiles in pprof's format, one for each {seconds:g} s")


def _check_directory(path: str, resolved: Resolved) -> list[Finding]:
    findings = [
        Finding(Verdict.GOOD, "output", f"files in {path}, from SPLUNK_PROFILER_OUTPUT"),
        _format_finding(resolved),
    ]
    directory = Path(path)
    existing_directory = next(place for place in (directory, *directory.parents) if _path_exists(place))
    try:
        with tempfile.TemporaryFile(dir=existing_directory) as file:
            file.write(b"1")
            file.flush()
        free = shutil.disk_usage(existing_directory).free
    except OSError as error:
        fact = f"{existing_directory} cannot be written to: {error.strerror}"
        remedy = "make it a directory that the service may write to, or name another one"
        return [*findings, Finding(Verdict.FAILURE, "directory", fact, remedy)]
    state = "" if existing_directory == directory else f"will be made in {existing_directory}, which "
    findings.append(Finding(Verdict.GOOD, "directory", f"{state}can be written to by this user"))
    if free < _LOW_DISK_BYTES:
        fact = f"{free >> 20} MiB are left on its disk"
        findings.append(Finding(Verdict.WARNING, "directory", fact, "make room, or name another one"))
    return findings


def _path_exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # the name is too long, or the directory may not be searched
        return False


def _check_agent(agent: Agent, resolved: Resolved) -> list[Finding]:
    findings = [
        Finding(Verdict.GOOD, "output", f"the Datadog agent at {agent.url}, from SPLUNK_PROFILER_OUTPUT"),
        _format_finding(resolved),
        *_check_connection(agent.path or (agent.host, agent.port), "start the agent, with APM enabled"),
    ]
    if findings[-1].verdict is not Verdict.FAILURE:
        findings.append(_check_agent_info(agent))
    return findings


class _SocketConnection(HTTPConnection):
    """A connection to the agent's Unix socket."""

    def connect(self) -> None:
        """Connect; `host` is the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def _open_connection(agent: Agent) -> HTTPConnection:
    if agent.path:
        return _SocketConnection(agent.path, timeout=_CONNECT_TIMEOUT_S)
    kind = HTTPSConnection if agent.is_secure else HTTPConnection
    return kind(agent.host, agent.port, timeout=_CONNECT_TIMEOUT_S)


def _check_agent_info(agent: Agent) -> Finding:
    """Ask the agent for its version; without an answer warn only, as the test export may still succeed."""
    try:
        with closing(_open_connection(agent)) as connection:
            connection.request("GET", "/info", headers={"Host": agent.host})
            info: Any = json.loads(connection.getresponse().read())
        version, endpoints = info["version"], info["endpoints"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        fact = "what listens there does not say that it is a Datadog agent"
        remedy = "see whether SPLUNK_PROFILER_OUTPUT names the agent's trace port, 8126 by default"
        return Finding(Verdict.WARNING, "agent", fact, remedy)
    caveat = "" if _INTAKE_PATH in endpoints else "; it does not list profiles among what it takes"
    return Finding(Verdict.GOOD, "agent", f"a Datadog agent, version {version}{caveat}")


def _check_collector(target: Endpoint, env: Mapping[str, str]) -> list[Finding]:
    origin = "by default" if target.setting == "default" else f"from {target.setting}"
    tls = "TLS" if target.is_secure else "no TLS"
    findings = [Finding(Verdict.GOOD, "endpoint", f"{target.url} {origin}: {target.target}, {tls}")]
    if target.url == DEFAULT_ENDPOINT and target.setting == "default":
        fact = "no endpoint is set; the default expects a collector with TLS on this machine"
        remedy = "set OTEL_EXPORTER_OTLP_ENDPOINT, such as http://localhost:4317 for a collector without TLS"
        findings.append(Finding(Verdict.WARNING, "endpoint", fact, remedy))
    if env.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "").strip():
        fact = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT is for application logs; profiles do not follow it"
        findings.append(Finding(Verdict.NOTE, "endpoint", fact, "set SPLUNK_PROFILER_LOGS_ENDPOINT"))
    if env.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().startswith("http"):
        fact = "OTEL_EXPORTER_OTLP_PROTOCOL asks for HTTP; profiles always travel over gRPC"
        remedy = "name the collector's gRPC port (4317) in SPLUNK_PROFILER_LOGS_ENDPOINT"
        findings.append(Finding(Verdict.WARNING, "endpoint", fact, remedy))
    for name in _PROXY_VARIABLES:
        if env.get(name, "").strip():
            fact = f"{name} is set, so gRPC goes through that proxy unless no_proxy names the collector"
            findings.append(Finding(Verdict.NOTE, "proxy", fact))
    start = "start a collector there (to try: splunk-profiler collect)"
    return findings + _check_connection(target.path or target.address, start)


def _check_connection(place: tuple[str, int] | str, start: str) -> list[Finding]:
    remedy = f"{start}, open the way to it, or correct the setting"
    if isinstance(place, str):
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_TIMEOUT_S)
                connection.connect(place)
        except OSError as error:
            fact = f"the socket {place} accepts none: {error.strerror or error}"
            return [Finding(Verdict.FAILURE, "connection", fact, remedy)]
        return [Finding(Verdict.GOOD, "connection", f"the socket {place} accepts connections")]
    host, port = place
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fact = f"{host} has no address: {getattr(error, 'strerror', error)}"
        return [Finding(Verdict.FAILURE, "name look-up", fact, "correct the host, or the name service of this machine")]
    ip_addresses = list(dict.fromkeys(str(address[4][0]) for address in addresses))
    findings = [Finding(Verdict.GOOD, "name look-up", f"{host} is {', '.join(ip_addresses)}")]
    problems = []
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(_CONNECT_TIMEOUT_S)
                connection.connect(address)
        except OSError as error:
            problems.append(f"{address[0]}: {error.strerror or error}")
            continue
        return [*findings, Finding(Verdict.GOOD, "connection", f"{address[0]} port {port} accepts connections")]
    fact = f"port {port} is not open: {'; '.join(problems)}"
    return [*findings, Finding(Verdict.FAILURE, "connection", fact, remedy)]


def export(resolved: Resolved) -> list[Finding]:
    """Capture the threads of this process once and send the samples as the profiler would."""
    from splunk_profiler.capture import walker  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.model import Batch, ExportStatus  # noqa: PLC0415
    from splunk_profiler.otel import spans  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.pipeline.idle_threads import make_idle_tracker  # noqa: PLC0415
    from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder  # noqa: PLC0415

    try:
        from splunk_profiler.export.destinations import make_sink  # noqa: PLC0415
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        sink = make_sink(resolved, current_resource, share_connection=False)
    except ImportError as error:
        return [Finding(Verdict.FAILURE, "test export", f"what sends cannot be loaded: {error}")]
    choice = walker.choose_walker(resolved.config.walker)
    variable = spans.context_variable()
    if variable is None:
        choice = walker.WalkerChoice("portable", "")
    ticker = walker.make_ticker(choice, variable, lambda _ident: None, resolved.config.max_stack_depth)
    ticker.capture()
    raw = ticker.drain(0)
    ticker.stop()
    idle_tracker = make_idle_tracker(native=choice.name == "native")
    builder = SnapshotBuilder(spans.span_ref, idle_tracker, resolved.config.period_ns, include_internal=True)
    snapshot = builder.snapshot(raw[0])
    fact = f"{len(snapshot.samples)} threads read by the {choice.name} walker"
    findings = [Finding(Verdict.GOOD, "test sample", fact)]
    records, description = _make_records(snapshot, resolved)
    start = time.monotonic()
    try:
        outcome = sink.export(Batch(records, 0))
    finally:
        sink.shutdown()
    elapsed = f"after {(time.monotonic() - start) * 1000:.0f} ms"
    if outcome.export_status is not ExportStatus.DELIVERED:
        return [*findings, Finding(Verdict.FAILURE, "test export", f"not delivered {elapsed}: {outcome.detail}")]
    if outcome.rejected:
        fact = f"the collector took the request {elapsed} but refused {outcome.rejected} records: {outcome.detail}"
        return [*findings, Finding(Verdict.FAILURE, "test export", fact, "look at the collector's configuration")]
    return [*findings, Finding(Verdict.GOOD, "test export", f"{description} delivered {elapsed}")]


def _make_records(snapshot: Any, resolved: Resolved) -> tuple[tuple[Any, ...], str]:
    """Return the records of a snapshot in the configured format, and a description of them."""
    if not resolved.config.sends_profiles:
        return snapshot.samples, f"{len(snapshot.samples)} records"
    from splunk_profiler.capture.events import registered_kinds  # noqa: PLC0415
    from splunk_profiler.pipeline.aggregator import Aggregator  # noqa: PLC0415

    profiles: list[Any] = []
    aggregator = Aggregator(profiles.extend, interval_ns=resolved.config.export_interval_ns, kinds=registered_kinds())
    aggregator.take(snapshot)
    aggregator.close(snapshot.unattributed)
    return tuple(profiles), "a profile"
