"""The doctor's checks of settings, interpreter and filters.

Each check yields findings in reading order and raises for none of them. Runs on the main thread of `doctor`.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import NamedTuple

from splunk_profiler.capture.walker import choose_walker
from splunk_profiler.cli.run import AUTOSTART
from splunk_profiler.config import Config, Resolved, preload, tree
from splunk_profiler.config.parsers import Collector, NoDestination
from splunk_profiler.config.settings import SETTINGS

REBUILD = "install a C compiler and Python.h (python3-dev), then reinstall with pip's --no-cache-dir"

_PACKAGES = ("splunk-profiler", "opentelemetry-sdk", "opentelemetry-api", "grpcio", "protobuf")
_MIN_SDK_VERSION = (1, 38)


class Verdict(Enum):
    """The effect of a finding on the samples."""

    GOOD = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"
    """No samples arrive until it is remedied."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `remedy` is empty if there is nothing to do."""

    verdict: Verdict
    subject: str
    fact: str
    remedy: str = ""


good = partial(Finding, Verdict.GOOD)
note = partial(Finding, Verdict.NOTE)
warning = partial(Finding, Verdict.WARNING)
failure = partial(Finding, Verdict.FAILURE)


class EffectiveSetting(NamedTuple):
    """A setting, its value in effect and the origin of that."""

    name: str
    value: str
    origin: str


def check_switches(resolved: Resolved) -> Iterator[Finding]:
    """Check that the profiler is on and that every value can be used."""
    if resolved.config.enabled:
        yield good("switched on", "SPLUNK_PROFILER_ENABLED is true")
    elif resolved.config.snapshot_enabled:
        fact = "SPLUNK_SNAPSHOT_PROFILER_ENABLED is true: selected traces are profiled, and nothing else"
        yield good("switched on", fact)
    else:
        state = "false" if resolved.origins.get("enabled") else "not set, which means false"
        remedy = "set SPLUNK_PROFILER_ENABLED=true, or start the service by: splunk-profiler run -- COMMAND"
        yield failure("switched off", f"SPLUNK_PROFILER_ENABLED is {state}", remedy)
    reported_elsewhere = resolved.destination.reason if isinstance(resolved.destination, NoDestination) else ""
    yield from (warning("setting", line) for line in resolved.warnings if line not in reported_elsewhere)
    if resolved.sdk_disabled:
        fact = "OTEL_SDK_DISABLED=true switches the profiler off as well"
        yield failure("switched off", fact, "unset OTEL_SDK_DISABLED")


def check_names(env: Mapping[str, str]) -> Iterator[Finding]:
    """Warn of variables that are named like a setting and are none, such as mistyped ones."""
    names = {setting.name for setting in SETTINGS}
    parts = {name.removeprefix("SPLUNK_").removeprefix("PROFILER_"): name for name in names}  # which tell them apart
    for name in sorted(env.keys() - names - {preload.RUN_PID, tree.TREE}):
        if name.startswith(("SPLUNK_PROFILER_", "SPLUNK_SNAPSHOT_")):
            part = name.removeprefix("SPLUNK_").removeprefix("PROFILER_")
            similar = " or ".join(parts[each] for each in get_close_matches(part, parts, cutoff=0.55))
            fact = f"{name} is no setting of the profiler"
            yield warning("setting", fact, similar and f"perhaps {similar} is meant")


def settings(resolved: Resolved) -> list[EffectiveSetting]:
    """Return every setting with its value in effect."""
    defaults = Config()
    rows = []
    for setting in SETTINGS:
        value = getattr(resolved.config, setting.field)
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else setting.redact(value)
        is_default = value == getattr(defaults, setting.field)
        origin = resolved.origins.get(setting.field, "default" if is_default else "Config")
        rows.append(EffectiveSetting(setting.name, text, "environment" if origin == setting.name else origin))
    return rows


def check_activation(env: Mapping[str, str]) -> Iterator[Finding]:
    """List the ways in which a process with this environment would start the profiler."""
    routes = []
    if str(AUTOSTART) in env.get("PYTHONPATH", "").split(":"):
        routes.append("splunk-profiler run (PYTHONPATH leads to its sitecustomize)")
    if any(point.value.startswith("splunk_profiler") for point in entry_points(group="opentelemetry_post_instrument")):
        routes.append("opentelemetry-instrument (its entry point is installed)")
    routes.append("splunk_profiler.start() in the application")
    yield note("started by", "; or ".join(routes))


def needs_native_walker(resolved: Resolved) -> bool:
    """Return True if a process of this interpreter that samples with these settings loads the native walker."""
    samples = resolved.samples and not resolved.sdk_disabled
    return samples and choose_walker(resolved.config.walker).name == "native"


def check_second_profiler(resolved: Resolved) -> Iterator[Finding]:
    """Warn of Splunk's distribution of OpenTelemetry, whose own profiler has our two switches."""
    configurators = entry_points(group="opentelemetry_configurator")
    if resolved.config.samples and any(point.value.startswith("splunk_otel") for point in configurators):
        fact = (
            "splunk-opentelemetry is installed, whose profiler is switched on by the same variables: under"
            " opentelemetry-instrument each stack is sampled and sent twice"
        )
        remedy = "use opentelemetry-distro instead; or unset them, and call splunk_profiler.start(Config(enabled=True))"
        yield warning("second profiler", fact, remedy)


def check_interpreter(resolved: Resolved, *, of_another: bool) -> Iterator[Finding]:
    """Check this Python and its packages, for a process started from here or for another one that runs."""
    from splunk_profiler.otel.spans import context_variable  # noqa: PLC0415  # loads OpenTelemetry's API

    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    python = f"{sys.implementation.name} {sys.version.split()[0]}{', free-threaded' if free_threaded else ''}"
    yield good("Python", f"{python} at {sys.executable}")
    versions = {name: _package_version(name) for name in _PACKAGES}
    yield good("packages", ", ".join(f"{name} {text}" for name, text in versions.items()))
    sdk = versions["opentelemetry-sdk"]
    if not sdk[0].isdigit() or tuple(int(part) for part in sdk.split(".")[:2]) < _MIN_SDK_VERSION:
        fact = f"opentelemetry-sdk {sdk}; 1.38 or newer is needed"
        yield failure("packages", fact, "pip install -U 'opentelemetry-sdk>=1.38,<2'")
    if versions["grpcio"] == "missing" and isinstance(resolved.destination, Collector):
        remedy = "pip install grpcio" + (" (there are no wheels for free-threaded builds)" if free_threaded else "")
        yield failure("packages", "without grpcio nothing can be sent", remedy)
    choice = choose_walker(resolved.config.walker)
    if choice.name == "native":
        yield good("walker", f"native: {choice.reason}")
    elif choice.name == "none":
        yield failure("walker", f"none: {choice.reason}", "start it with PYTHON_GIL=1")
    else:
        fact = f"portable: {choice.reason}; it costs more, and may miss spans in copied contexts (asyncio.to_thread)"
        is_wanted = resolved.config.walker == "portable"
        yield warning("walker", fact, "" if is_wanted else REBUILD)
    if choice.name != "none" and not of_another:  # which knows it, and is asked
        yield _exporter_finding(resolved.config, is_native=choice.name == "native")
    if context_variable() is None:
        fact = "OTEL_PYTHON_CONTEXT replaces the context that spans are read from: they are found approximately"
        yield warning("spans", fact, "unset OTEL_PYTHON_CONTEXT")


def _exporter_finding(config: Config, *, is_native: bool) -> Finding:
    """Say where a service that is started from here has its samples made of captures, and why there."""
    from splunk_profiler.exporter_process.launch import LaunchError, choose_interpreter  # noqa: PLC0415  # as above

    try:
        interpreter = choose_interpreter(config.exporter, is_native=is_native)
    except LaunchError as error:
        fact = f"threads of a service started from here make records and send them: {error}"
        return note("exporter", fact) if config.exporter != "process" else warning("exporter", fact)
    passed_over = "".join(f"; {each}" for each in interpreter.rejected)
    return good(
        "exporter",
        "a process beside a service started from here makes records and sends them,"
        f" run by {interpreter.path} ({interpreter.origin}{passed_over})",
    )


def check_filters(config: Config) -> Iterator[Finding]:
    """List the samples that are left out on purpose."""
    threads = "threads of the profiler, the OpenTelemetry SDK and gRPC, and threads that run no Python code"
    yield note("left out", "no threads" if config.include_internal_stacks else threads)
    if config.tracing_stacks_only:
        fact = "samples outside of spans: without a TracerProvider and active spans, nothing is sent"
        yield warning("left out", fact, "unset SPLUNK_PROFILER_TRACING_STACKS_ONLY to see them")
    yield note("left out", f"frames more than {config.max_stack_depth} calls from the leaf")


def check_events(config: Config) -> Iterator[Finding]:
    """Say what is reported besides the stacks at intervals."""
    if config.enabled:
        yield from check_waits(config)
        yield from _check_exceptions(config)
        yield from _check_memory(config)
    else:
        verdict = warning if config.memory_enabled or config.exceptions_enabled else note
        yield verdict(
            "events", "no waits, exceptions and allocations are reported without SPLUNK_PROFILER_ENABLED=true"
        )


def _check_memory(config: Config) -> Iterator[Finding]:
    """Say if allocations are sampled."""
    if not config.memory_enabled:
        yield note("memory", "allocations are not sampled (SPLUNK_PROFILER_MEMORY_ENABLED)")
    elif (choice := choose_walker(config.walker)).name != "native":
        yield warning("memory", f"allocations are not sampled, which needs the native walker: {choice.reason}")
    else:
        content = "those in use and all" if config.sends_profiles else "all (only profiles have those in use)"
        yield good("memory", f"allocations are sampled, once in {config.memory_sample_bytes:,} bytes: {content}")


def check_waits(config: Config) -> Iterator[Finding]:
    """Say what is reported of waits for the GIL and of blocked event loops."""
    if not config.sends_profiles:
        fact = "waits for the GIL and blocked event loops are found in profiles only"
        yield note("waits", fact, "SPLUNK_PROFILER_DATA_FORMAT=pprof-gzip-base64 sends these")
        return
    yield note("GIL", "each profile says how long snapshots waited for it (comment gil.wait)")
    threshold_ms, interval_ms = config.loop_blocked_ms, config.call_stack_interval_ms
    if not threshold_ms:
        yield note("event loop", "SPLUNK_PROFILER_LOOP_BLOCKED_MS=0: callbacks that block it are not reported")
        return
    if (choice := choose_walker(config.walker)).name != "native":
        fact = f"callbacks that block it are not found, which needs the native walker: {choice.reason}"
        yield note("event loop", fact)
        return
    # A callback counts from the first look inside to the last. `native/walker/loop_watch.c` has these numbers.
    look_ms = min(interval_ms, max(threshold_ms * 0.35, 10))
    sure_ms = f"{threshold_ms + 2 * look_ms:.0f} ms and more, from {threshold_ms} ms on by chance"
    yield note("event loop", f"callbacks are reported that block it for {sure_ms}, with task and span")


def _check_exceptions(config: Config) -> Iterator[Finding]:
    """Check that raised exceptions can be sampled, if they are wanted."""
    from splunk_profiler.capture.events.exceptions import unavailable_reason  # noqa: PLC0415  # as above

    if config.samples_exceptions:
        reason = unavailable_reason(native=choose_walker(config.walker).name == "native")
        if reason:
            yield warning("exceptions", f"raised exceptions are not sampled: {reason}")
        else:
            yield good("exceptions", "raised exceptions are sampled")


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        sources = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return "from sources" if package == "splunk-profiler" and sources.exists() else "missing"
