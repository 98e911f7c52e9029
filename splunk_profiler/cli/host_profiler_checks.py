"""The doctor's checks of publishing to host profilers.

Runs on the main thread of `doctor`. Loads the libraries into the doctor itself: only the dynamic loader decides where
their thread-local storage is. Host profilers can read the doctor until the check is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from splunk_profiler.cli.checks import REBUILD, Finding, good, note, warning
from splunk_profiler.config import Resolved
from splunk_profiler.config.parsers import quote_redacted
from splunk_profiler.config.temporary import temporary_directory
from splunk_profiler.host_profilers.libraries import elastic_library, labels_library, remedy
from splunk_profiler.host_profilers.message_socket import MessageSocket, MessageSocketError, new_path
from splunk_profiler.host_profilers.process_storage import Service, encode, service_of

_CORRELATION = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED"
_SOCKET_DIRECTORY = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR"
_LABELS = "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED"


def check_host_profilers(resolved: Resolved, env: Mapping[str, str], uid: int) -> Iterator[Finding]:
    """Check what a process of `uid` publishes and if host profilers could read it; no finding here is a failure."""
    config = resolved.config
    yield _check_switch("correlation", _CORRELATION, config.correlation, config.publishes_correlation)
    yield _check_switch("custom labels", _LABELS, config.custom_labels, config.publishes_labels)
    if not config.publishes_correlation and not config.publishes_labels:
        return
    try:
        from splunk_profiler import _context  # noqa: PLC0415  # not there on every system
    except ImportError as error:
        fact = f"the C extension that publishes is not there: {error}"
        yield warning("extension", fact, REBUILD)
        return
    if config.publishes_labels:
        yield _check_library(labels_library(), _context.load_labels_library)
        preloaded = str(labels_library()) in env.get("LD_PRELOAD", "")
        fact = "is loaded at the start (LD_PRELOAD)" if preloaded else "is loaded when the profiler starts"
        advice = "" if preloaded else "splunk-profiler run loads it earlier, as the specification of the labels asks"
        yield note("custom labels", f"{labels_library().name} {fact}", advice)
    if config.publishes_correlation:
        yield _check_socket(config.socket_directory or temporary_directory(env), uid)
        yield from _check_correlation(resolved, _context)


def _check_switch(subject: str, setting: str, value: str, is_on: bool) -> Finding:
    why = f"{setting} is {value.lower()}" + (", as sampling is" if value.lower() == "auto" else "")
    return good(subject, f"on ({why})") if is_on else note(subject, f"off ({why})")


def _check_correlation(resolved: Resolved, extension: Any) -> Iterator[Finding]:
    storage = encode(Service("doctor", ""), b"")
    yield _check_library(elastic_library(), lambda path: extension.load_elastic_library(path, storage))
    extension.clear_storage()
    service = service_of(resolved.resource_attributes)
    if service is not None:
        yield good("service", f"{quote_redacted(service.name)}, from the environment")
    else:
        fact = "the environment gives it no name: host profilers are told one with the first span, if its provider has"
        yield note("service", fact, "set OTEL_SERVICE_NAME")


def _check_socket(directory: str, uid: int) -> Finding:
    """Make a socket in `directory` for a moment; never make the directory, which another user may have named."""
    if uid != os.geteuid():
        return note("socket", "not tried: the service makes it as another user", f"ask as user {uid}")
    try:
        new_path(directory)
        if not os.path.lexists(directory):
            return note("socket", f"{directory} is missing; the service makes it at its start")
        MessageSocket(directory).close()
    except MessageSocketError as error:
        return warning("socket", f"it cannot be made: {error}", f"set {_SOCKET_DIRECTORY}")
    return good("socket", f"it can be made in {directory}")


def _check_library(path: Path, load: Callable[[str], str]) -> Finding:
    try:
        tls = load(str(path))
    except OSError as error:
        return warning("library", f"{path.name} cannot be loaded: {error}", "reinstall the package")
    if tls == "dynamic":
        return warning("library", f"{path}: its thread-local pointer is where readers do not look", remedy(path))
    return good("library", f"{path}, thread-local storage: {tls}")
