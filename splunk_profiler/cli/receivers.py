"""Where records would go, for ``splunk-profiler doctor``: whether anybody is there, and what a real export is answered.

Each check returns findings, in the order in which they are to be read; none of them raises for what it finds. Runs on
the main thread of `doctor`. What a sink needs (gRPC, HTTP) is loaded to make the test export only.
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
from splunk_profiler.config.parsers import Agent, Directory, Endpoint, Nowhere

_CONNECT_SECONDS = 5.0
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_LITTLE_BYTES = 64 << 20
_INTAKE = "/profiling/v1/input"


def destination(resolved: Resolved, env: Mapping[str, str]) -> list[Finding]:
    """Where do records go, and is anybody there?"""
    place = resolved.destination
    if isinstance(place, Nowhere):
        return [Finding(Verdict.FAILURE, "destination", place.reason, "correct the setting")]
    if isinstance(place, Directory):
        return _directory(place.path, resolved)
    if isinstance(place, Agent):
        return _agent(place, resolved)
    assert resolved.endpoint is not None
    return _collector(resolved.endpoint, env)


def lasting_connection(resolved: Resolved) -> str:
    """The ``host:port`` that a process which sends has a connection to; empty if it needs none, or a Unix socket's."""
    return resolved.endpoint.authority if resolved.endpoint is not None else ""


def _format(resolved: Resolved) -> Finding:
    seconds = resolved.config.export_interval_ns / 1e9
    return Finding(Verdict.NOTE, "format", f"profiles in pprof's format, one for each {seconds:g} s")


def _directory(path: str, resolved: Resolved) -> list[Finding]:
    found = [Finding(Verdict.GOOD, "output", f"files in {path}, from SPLUNK_PROFILER_OUTPUT"), _format(resolved)]
    directory = Path(path)
    there = next(place for place in (directory, *directory.parents) if _can_be_seen(place))
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"1")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        fact = f"{there} cannot be written to: {error.strerror}"
        remedy = "make it a directory that the service may write to, or name another one"
        return [*found, Finding(Verdict.FAILURE, "directory", fact, remedy)]
    state = "can be written to" if there == directory else f"will be made in {there}, which can be written to"
    found.append(Finding(Verdict.GOOD, "directory", f"{state} by this user"))
    if free < _LITTLE_BYTES:
        fact = f"{free >> 20} MiB are left on its disk"
        found.append(Finding(Verdict.WARNING, "directory", fact, "make room, or name another one"))
    return found


def _can_be_seen(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # its name is too long, or who asks may not look there
        return False


def _agent(agent: Agent, resolved: Resolved) -> list[Finding]:
    found = [
        Finding(Verdict.GOOD, "output", f"the Datadog agent at {agent.url}, from SPLUNK_PROFILER_OUTPUT"),
        _format(resolved),
        *_reach(agent.path or (agent.host, agent.port), "start the agent, with APM enabled"),
    ]
    if found[-1].verdict is not Verdict.FAILURE:
        found.append(_what_it_says(agent))
    return found


class _SocketConnection(HTTPConnection):
    """To the agent's Unix socket."""

    def connect(self) -> None:
        """As `HTTPConnection.connect`; `host` is the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def _connection(agent: Agent) -> HTTPConnection:
    if agent.path:
        return _SocketConnection(agent.path, timeout=_CONNECT_SECONDS)
    kind = HTTPSConnection if agent.secure else HTTPConnection
    return kind(agent.host, agent.port, timeout=_CONNECT_SECONDS)


def _what_it_says(agent: Agent) -> Finding:
    """What the agent tells of itself. A server that tells nothing may still take profiles: the test export shows it."""
    remedy = "see whether SPLUNK_PROFILER_OUTPUT names the agent's trace port, 8126 by default"
    try:
        with closing(_connection(agent)) as connection:
            connection.request("GET", "/info", headers={"Host": agent.host})
            said: Any = json.loads(connection.getresponse().read())
        version, endpoints = said["version"], said["endpoints"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        fact = "what listens there does not say that it is a Datadog agent"
        return Finding(Verdict.WARNING, "agent", fact, remedy)
    listed = "" if _INTAKE in endpoints else "; it does not list profiles among what it takes"
    return Finding(Verdict.GOOD, "agent", f"a Datadog agent, version {version}{listed}")


def _collector(target: Endpoint, env: Mapping[str, str]) -> list[Finding]:
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
    return found + _reach(target.path or target.address, "start a collector there (to try: splunk-profiler collect)")


def _reach(place: tuple[str, int] | str, start: str) -> list[Finding]:
    remedy = f"{start}, open the way to it, or correct the setting"
    if isinstance(place, str):
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_SECONDS)
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
    return [*found, Finding(Verdict.FAILURE, "connection", f"port {port} is not open: {'; '.join(problems)}", remedy)]


def export(resolved: Resolved) -> list[Finding]:
    """Capture the threads of this process once and send them, as the profiler would."""
    from splunk_profiler.capture import walker  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.model import Batch, ExportStatus  # noqa: PLC0415
    from splunk_profiler.otel import spans  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.pipeline.idle_threads import make_watch  # noqa: PLC0415
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
        choice = walker.Choice("portable", "")
    ticker = walker.make_ticker(choice, variable, lambda _ident: None, resolved.config.max_stack_depth)
    ticker.capture()
    raw = ticker.drain(0)
    ticker.stop()
    watch = make_watch(native=choice.name == "native")
    reader = SnapshotBuilder(spans.span_ref, watch, resolved.config.period_ns, include_internal=True)
    snapshot = reader.snapshot(raw[0])
    fact = f"{len(snapshot.samples)} threads read by the {choice.name} walker"
    found = [Finding(Verdict.GOOD, "test sample", fact)]
    records, what = _records(snapshot, resolved)
    start = time.monotonic()
    try:
        outcome = sink.export(Batch(records, 0))
    finally:
        sink.shutdown()
    took = f"after {(time.monotonic() - start) * 1000:.0f} ms"
    if outcome.delivery is not ExportStatus.DELIVERED:
        return [*found, Finding(Verdict.FAILURE, "test export", f"not delivered {took}: {outcome.detail}")]
    if outcome.rejected:
        fact = f"the collector took the request {took} but refused {outcome.rejected} records: {outcome.detail}"
        return [*found, Finding(Verdict.FAILURE, "test export", fact, "look at the collector's configuration")]
    return [*found, Finding(Verdict.GOOD, "test export", f"{what} delivered {took}")]


def _records(snapshot: Any, resolved: Resolved) -> tuple[tuple[Any, ...], str]:
    """What the profiler would make of a snapshot, and that in words."""
    if not resolved.config.aggregates:
        return snapshot.samples, f"{len(snapshot.samples)} records"
    from splunk_profiler.capture.events import registered_kinds  # noqa: PLC0415
    from splunk_profiler.pipeline.aggregator import Aggregator  # noqa: PLC0415

    profiles: list[Any] = []
    aggregator = Aggregator(profiles.extend, interval_ns=resolved.config.export_interval_ns, kinds=registered_kinds())
    aggregator.take(snapshot)
    aggregator.close(snapshot.remainders)
    return tuple(profiles), "a profile"
