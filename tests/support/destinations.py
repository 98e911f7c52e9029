"""Destinations of profiles that are at work, and what has come to them from each process until now.

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
from received_profiles import read
from receiver_process import Receiver
from target_process import profiling_settings

_FRAME = re.compile(r"^\s+at (\S+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Destination:
    """One destination.

    Attributes:
        settings: with which a process sends there, once and at its end.
        functions: process id → what that process was seen in, with its module.
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
    """Text records to a collector."""
    with Receiver() as receiver:

        def functions(pid: int) -> set[str]:
            return {name for record in _records_of(receiver, pid) for name in _FRAME.findall(record["body"])}

        yield Destination(_settings(receiver.url), functions)


@contextmanager
def pprof(_: Path) -> Iterator[Destination]:
    """Profiles in pprof's format to a collector."""
    with Receiver() as receiver:

        def functions(pid: int) -> set[str]:
            samples = (sample for record in _records_of(receiver, pid) for sample in read(record).samples)
            return {name for sample in samples for name in sample.functions}

        yield Destination(_settings(receiver.url, SPLUNK_PROFILER_DATA_FORMAT="pprof-gzip-base64"), functions)


@contextmanager
def datadog(folder: Path) -> Iterator[Destination]:
    """Profiles to a Datadog agent.

    Raises:
        NotInstallableError: there is none to be had here.
    """
    with DatadogAgent(install_agent(), folder) as agent:

        def functions(pid: int) -> set[str]:
            profiles = [form.profile for form in agent.forms(0) if form.tags["process_id"] == str(pid)]
            return {profile.string_table[function.name] for profile in profiles for function in profile.function}

        yield Destination(_settings("http://127.0.0.1:9", SPLUNK_PROFILER_OUTPUT=f"datadog:{agent.url}"), functions)


def _records_of(receiver: Receiver, pid: int) -> list[dict[str, Any]]:
    return receiver.records(0, lambda record: record["resource"]["process.pid"] == pid)
