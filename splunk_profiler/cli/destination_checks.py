"""The doctor's checks of the destination, and its test export.

Each check yields findings in reading order and raises for none of them. Runs on the main thread of `doctor`. Only the
test export loads what a sink needs (gRPC, HTTP).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from splunk_profiler.cli.checks import Finding, Verdict, failure, good, note, warning
from splunk_profiler.config import Resolved
from splunk_profiler.config.otlp_transport import DEFAULT_ENDPOINT, explain_proxy
from splunk_profiler.config.parsers import Collector, DatadogAgent, Directory, Endpoint, NoDestination, StreamDirectory

_CONNECT_TIMEOUT_S = 5.0
_LOW_DISK_BYTES = 64 << 20
_MAX_INFO_BYTES = 1 << 20


def check_destination(resolved: Resolved, env: Mapping[str, str], uid: int) -> Iterator[Finding]:
    """Check the destination of a process of `uid`, and that something answers there."""
    match resolved.destination:
        case NoDestination(reason):
            yield failure("destination", reason, "correct the setting")
        case Directory(path):
            yield good("output", f"files in {path}, from SPLUNK_PROFILER_OUTPUT")
            yield _note_format(resolved)
            yield from _check_directory(Path(path), uid)
        case StreamDirectory(path):
            yield good("output", f"streams in {path}, from SPLUNK_PROFILER_OUTPUT; splunk-profiler replay reads them")
            yield from _check_directory(Path(path), uid)
        case DatadogAgent() as agent:
            yield good("output", f"the Datadog agent at {agent.url}, from SPLUNK_PROFILER_OUTPUT")
            yield _note_format(resolved)
            yield from _check_agent(agent)
        case Collector() if resolved.endpoint is not None:
            yield from _check_collector(resolved.endpoint, env)
        case other:
            yield warning("destination", f"the doctor knows no check of {other}; only the test export tries it")


def is_path(resolved: Resolved) -> bool:
    """Return True if the destination is a directory or a Unix socket, which no network leads to."""
    match resolved.destination:
        case Directory(path) | StreamDirectory(path) | DatadogAgent(path=path):
            return bool(path)
    return resolved.endpoint is not None and bool(resolved.endpoint.path)


def _note_format(resolved: Resolved) -> Finding:
    seconds = resolved.config.export_interval_ns / 1e9
    return note("format", f"profiles in pprof's format, one for each {seconds:g} s")


def _check_directory(directory: Path, uid: int) -> Iterator[Finding]:
    if uid != os.geteuid():
        fact = f"not tried: what user {uid} may write to is not what this user may"
        yield warning("directory", fact, f"ask as user {uid}")
        return
    existing_directory = next(place for place in (directory, *directory.parents) if _path_exists(place))
    try:
        with tempfile.TemporaryFile(dir=existing_directory) as file:
            file.write(b"1")
            file.flush()
        free = shutil.disk_usage(existing_directory).free
    except OSError as error:
        fact = f"{existing_directory} cannot be written to: {error.strerror}"
        yield failure("directory", fact, "make it a directory that the service may write to, or name another one")
        return
    state = "" if existing_directory == directory else f"will be made in {existing_directory}, which "
    yield good("directory", f"{state}can be written to by this user")
    if free < _LOW_DISK_BYTES:
        yield warning("directory", f"{free >> 20} MiB are left on its disk", "make room, or name another one")


def _path_exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # the name is too long, or the directory may not be searched
        return False


def _check_agent(agent: DatadogAgent) -> Iterator[Finding]:
    findings = [*_check_connection(agent.path or (agent.host, agent.port), "start the agent, with APM enabled")]
    yield from findings
    if findings[-1].verdict is not Verdict.FAILURE:
        yield _check_agent_info(agent)


def _open_connection(agent: DatadogAgent) -> HTTPConnection:
    kind = HTTPSConnection if agent.is_secure else HTTPConnection
    connection = kind(agent.host, agent.port, timeout=_CONNECT_TIMEOUT_S)
    if agent.path:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_CONNECT_TIMEOUT_S)
        connection.sock.connect(agent.path)
    return connection


def _check_agent_info(agent: DatadogAgent) -> Finding:
    """Ask the agent for its version; without an answer warn only, as the test export may still succeed."""
    info: Any = None
    with suppress(OSError, HTTPException, ValueError, RecursionError), closing(_open_connection(agent)) as connection:
        connection.request("GET", "/info", headers={"Host": agent.host})
        info = json.loads(connection.getresponse().read(_MAX_INFO_BYTES))
    match info:
        case {"version": str(version), "endpoints": [*endpoints]}:
            caveat = "" if DatadogAgent.INPUT_PATH in endpoints else "; it does not list profiles among what it takes"
            return good("agent", f"a Datadog agent, version {version}{caveat}")
    fact = "what listens there does not say that it is a Datadog agent"
    return warning("agent", fact, "see whether SPLUNK_PROFILER_OUTPUT names the agent's trace port, 8126 by default")


def _check_collector(target: Endpoint, env: Mapping[str, str]) -> Iterator[Finding]:
    origin = "by default" if target.setting == "default" else f"from {target.setting}"
    tls = "TLS" if target.is_secure else "no TLS"
    yield good("endpoint", f"{target.url} {origin}: {target.target}, {tls}")
    if target.url == DEFAULT_ENDPOINT and target.setting == "default":
        fact = "no endpoint is set; the default expects a collector with TLS on this machine"
        remedy = "set OTEL_EXPORTER_OTLP_ENDPOINT, such as http://localhost:4317 for a collector without TLS"
        yield warning("endpoint", fact, remedy)
    if env.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "").strip():
        fact = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT is for application logs; profiles do not follow it"
        yield note("endpoint", fact, "set SPLUNK_PROFILER_LOGS_ENDPOINT")
    if env.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().startswith("http"):
        fact = "OTEL_EXPORTER_OTLP_PROTOCOL asks for HTTP; profiles always travel over gRPC"
        yield warning("endpoint", fact, "name the collector's gRPC port (4317) in SPLUNK_PROFILER_LOGS_ENDPOINT")
    if proxy := explain_proxy(target, env):
        yield note("proxy", proxy)
    start = "start a collector there (to try: splunk-profiler collect)"
    yield from _check_connection(target.path or target.address, start)


def _check_connection(place: tuple[str, int] | str, start: str) -> Iterator[Finding]:
    remedy = f"{start}, open the way to it, or correct the setting"
    if isinstance(place, str):
        problem = _try_connection(socket.AF_UNIX, place)
        if problem is None:
            yield good("connection", f"the socket {place} accepts connections")
        else:
            yield failure("connection", f"the socket {place} accepts none: {problem}", remedy)
        return
    host, port = place
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fact = f"{host} has no address: {getattr(error, 'strerror', error)}"
        yield failure("name look-up", fact, "correct the host, or the name service of this machine")
        return
    ip_addresses = list(dict.fromkeys(str(address[4][0]) for address in addresses))
    yield good("name look-up", f"{host} is {', '.join(ip_addresses)}")
    problems = []
    for family, *_, address in addresses:
        problem = _try_connection(family, address)
        if problem is None:
            yield good("connection", f"{address[0]} port {port} accepts connections")
            return
        problems.append(f"{address[0]}: {problem}")
    yield failure("connection", f"port {port} is not open: {'; '.join(problems)}", remedy)


def _try_connection(family: int, address: Any) -> str | None:
    """Return why the address accepts no connection; None if it does."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def check_export(resolved: Resolved, uid: int) -> Iterator[Finding]:
    """Capture the threads of this process once and send the samples as the profiler would in a process of `uid`."""
    if isinstance(resolved.destination, Directory) and uid != os.geteuid():
        fact = "not tried: the service could not use a directory that is made here, nor remove the file"
        yield note("test export", fact, f"ask as user {uid}")
        return
    from splunk_profiler.capture import walker  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.otel import spans  # noqa: PLC0415  # not needed to examine settings alone
    from splunk_profiler.samples import Batch, ExportStatus  # noqa: PLC0415

    try:
        from splunk_profiler.export.destinations import make_sink  # noqa: PLC0415
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415
        from splunk_profiler.export.sink_context import SinkContext  # noqa: PLC0415

        context = SinkContext(
            resolved, lambda: current_resource(resolved.resource_attributes), None, share_connection=False
        )
        sink = make_sink(context)
    except ImportError as error:
        yield failure("test export", f"what sends cannot be loaded: {error}")
        return
    choice = walker.choose_walker(resolved.config.walker)
    variable = spans.context_variable()
    if variable is None and choice.name == "native":
        choice = walker.WalkerChoice("portable", "")
    ticker = walker.make_ticker(choice, variable, lambda _ident: None, resolved.config.max_stack_depth)
    ticker.capture()
    captured = ticker.drain(0)
    ticker.stop()
    if not captured:
        yield failure("test sample", "the threads of this process cannot be read")
        sink.shutdown()
        return
    snapshot = _sample(captured[0], resolved.config.period_ns, is_native=choice.name == "native")
    yield good("test sample", f"{len(snapshot.samples)} threads read by the {choice.name} walker")
    records, description = _make_records(snapshot, resolved)
    start = time.monotonic()
    try:
        outcome = sink.export(Batch(records))
    except Exception as error:
        yield failure("test export", f"the records cannot be encoded or sent: {type(error).__name__}: {error}")
        return
    finally:
        sink.shutdown()
    elapsed = f"after {(time.monotonic() - start) * 1000:.0f} ms"
    if outcome.export_status is not ExportStatus.DELIVERED:
        yield failure("test export", f"not delivered {elapsed}: {outcome.detail}")
    elif outcome.rejected:
        fact = f"the collector took the request {elapsed} but refused {outcome.rejected} records: {outcome.detail}"
        yield failure("test export", fact, "look at the collector's configuration")
    else:
        yield good("test export", f"{description} delivered {elapsed}")


def _sample(raw: Any, period_ns: int, *, is_native: bool) -> Any:
    """Return the samples of a capture, by way of a stream."""
    from splunk_profiler.capture.recorder import ContextReader, StreamRecorder  # noqa: PLC0415
    from splunk_profiler.otel import spans  # noqa: PLC0415
    from splunk_profiler.pipeline.snapshot_builder import SnapshotBuilder  # noqa: PLC0415
    from splunk_profiler.stream.reader import StreamReader  # noqa: PLC0415

    recorder = StreamRecorder(ContextReader(spans.span_ref), is_native=is_native, reads_nice=True)
    recorder.record_snapshot(raw)
    captured: Any
    (captured,) = StreamReader().feed(recorder.take())
    return SnapshotBuilder(period_ns, skips_idle=False, include_internal=True).snapshot(captured)


def _make_records(snapshot: Any, resolved: Resolved) -> tuple[tuple[Any, ...], str]:
    """Return the records of a snapshot in the configured format, and a description of them."""
    config = resolved.config
    if not config.sends_profiles:
        return snapshot.samples, f"{len(snapshot.samples)} records"
    from splunk_profiler.capture.events import registered_kinds  # noqa: PLC0415
    from splunk_profiler.pipeline.aggregator import Aggregator  # noqa: PLC0415

    profiles: list[Any] = []
    aggregator = Aggregator(profiles.extend, interval_ns=config.export_interval_ns, kinds=registered_kinds(config))
    aggregator.take(snapshot)
    aggregator.close(snapshot.unattributed)
    return tuple(profiles), "a profile"
