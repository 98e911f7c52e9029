"""Running destinations of profiles, and the functions that they have received of each process.

Tests get them by the fixture `destination`. Imports nothing of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datadog_agent import DatadogAgent, install_agent
from profile_schema import function_names
from received_profiles import read
from receiver_process import Receiver
from target_process import profiling_settings

_FRAME = re.compile(r"^\s+at (\S+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Destination:
    """A running destination.

    Attributes:
        settings: settings of a process that exports there once, at its end.
        functions: process id → qualified names of its functions.
    """

    settings: dict[str, str]
    functions: Callable[[int], set[str]]


def _settings(url: str, **more: str) -> dict[str, str]:
    return {
        **profiling_settings(url, 10),
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "600000",
        "OTEL_SERVICE_NAME": "shop",
        **more,
    }


@contextmanager
def text(_: Path) -> Iterator[Destination]:
    """Run a collector of text records."""
    with Receiver() as receiver:

        def functions(pid: int) -> set[str]:
            return {name for record in _records_of(receiver, pid) for name in _FRAME.findall(record["body"])}

        yield Destination(_settings(receiver.url), functions)


@contextmanager
def pprof(_: Path) -> Iterator[Destination]:
    """Run a collector of profiles in pprof's format."""
    with Receiver() as receiver:

        def functions(pid: int) -> set[str]:
            samples = (sample for record in _records_of(receiver, pid) for sample in read(record).samples)
            return {name for sample in samples for name in sample.functions}

        yield Destination(_settings(receiver.url, SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64"), functions)


@contextmanager
def datadog(folder: Path) -> Iterator[Destination]:
    """Run a Datadog agent.

    Raises:
        NotInstallableError: the agent cannot be installed here.
    """
    with DatadogAgent(install_agent(), folder) as agent:

        def functions(pid: int) -> set[str]:
            profiles = [form.profile for form in agent.forms(0) if form.tags["process_id"] == str(pid)]
            return set().union(*map(function_names, profiles))

        yield Destination(_settings("http://127.0.0.1:9", SPLUNK_PROFILER_OUTPUT=f"datadog:{agent.url}"), functions)


def _records_of(receiver: Receiver, pid: int) -> list[dict[str, Any]]:
    return receiver.records(0, lambda record: record["resource"]["process.pid"] == pid)
