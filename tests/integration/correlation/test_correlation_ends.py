"""The end of a service whose transactions wait, and what interrupts it: everything is exported once, an exporter that
hangs delays nobody, and nothing that an application does in a signal handler or a greenlet hangs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from signal import SIGTERM

import pytest
from command_line import COMMAND
from correlation_target import by_process, correlation_settings, ids_of, names, register, report_to, socket_of, stack_of
from host_profiler import HostProfiler
from publishing_target import socket_folder
from target_process import TESTS, Target

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

_LOST = "spans that waited for the host profiler were not sent: their exporter takes too long"
_INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
_INSTALLED = any(point.name == "splunk_profiler" for point in entry_points(group="opentelemetry_post_instrument"))
_ROOTS = [f"{number}" for number in range(10)]
_ENDS_S = 25  # an end that waits for a hanging exporter, as in the SDK, would take 30


@contextmanager
def told(*command: str, mode: str = "true", delay_ms: int = 60_000) -> Iterator[Target]:
    """Yield a target that is registered and has received the reports on its transaction."""
    with (
        socket_folder() as folder,
        socket_folder() as profiles,
        Target(*command, env=correlation_settings(folder, profiles, mode)) as target,
    ):
        process = target.json("ready")
        with HostProfiler(socket_of(target.pid)) as host:
            register(target, host, delay_ms)
            report_to(host, process, stack_of(process["pid"]))
        target.tell("on")
        yield target
        assert not list(folder.iterdir()), "a socket was left behind"


@pytest.mark.parametrize(
    ("first", "way", "code"),
    [
        ("provider", "return", 0),
        ("profiler", "return", 0),
        ("provider", "exit", 3),
        ("profiler", "uncaught", 1),
        ("provider", "terminated", 3),
    ],
)
def test_what_waits_is_exported_when_the_process_ends(first: str, way: str, code: int) -> None:
    with told("correlated_ends.py", "order", first, way) as target:
        assert target.finish() == code, target.output
        for exporter in ("simple", "batch"):
            assert by_process(target, "own", exporter) == {target.pid: ids_of(target.pid)}
        assert ("Traceback" in target.output) == (way == "uncaught"), target.output


@pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")
def test_what_waits_is_exported_before_sigterm_ends_the_process() -> None:
    with told("correlated_ends.py", "order", "provider", "killed") as target:
        assert target.finish() == -SIGTERM, target.output
        assert by_process(target, "own") == {target.pid: ids_of(target.pid)}


@pytest.mark.parametrize("first", ["provider", "profiler"])
@pytest.mark.parametrize("delay_ms", [0, 60_000], ids=["while it runs", "when it ends"])
def test_hanging_exporter_delays_neither_exit_nor_other_exporters(first: str, delay_ms: int) -> None:
    with told("correlated_ends.py", "hanging", first, "simple", delay_ms=delay_ms) as target:
        assert target.finish(_ENDS_S) == 0, target.output
        assert target.json("hangs") == "own"
        assert names(target, "dead") == []
        assert sorted(names(target)) == sorted(["own", *_ROOTS])
        assert target.output.count(_LOST) == 1, target.output
        assert f"{len(_ROOTS) + 1} {_LOST}" in target.output


@pytest.mark.parametrize("first", ["provider", "profiler"])
def test_a_full_exporter_that_hangs_is_not_waited_for_at_the_end(first: str) -> None:
    with told("correlated_ends.py", "hanging", first, "batch") as target:
        assert target.finish(_ENDS_S) == 0, target.output
        assert names(target) == ["own", *_ROOTS]
        assert "Queue full, dropping Span" in target.output, "what was lost has not been said"


def test_a_signal_handler_may_flush_while_its_thread_is_in_a_flush() -> None:
    with told("correlated_ends.py", "terminated", "flush") as target:
        target.line("exporting")
        target.signal(SIGTERM)
        assert target.finish() == 0, target.output
        assert target.json("flushed") is False, "the exporter does not go on before it has returned"
        assert target.json("result") is True
        for exporter in ("standing", "batch"):
            assert sorted(names(target, exporter)) == ["first", "own", "slow"]


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_a_signal_handler_may_shut_down_while_its_thread_is_in_a_flush(how: str) -> None:
    with told("correlated_ends.py", "terminated", how) as target:
        target.line("exporting")
        target.signal(SIGTERM)
        assert target.finish() == (3 if how == "exit" else 0), target.output
        assert sorted(names(target, "batch")) == ["first", "own", "slow"]


def test_flushes_in_alarm_handlers_neither_lose_nor_duplicate_spans() -> None:
    with told("correlated_ends.py", "alarmed") as target:
        ended = target.json("ended")
        assert target.finish() == 0, target.output
        expected = [f"{kind} {number + 1}" for kind, count in ended.items() for number in range(count)]
        assert sorted(names(target)) == sorted(["own", *expected])


@pytest.mark.parametrize(
    ("when", "kind", "delay_ms", "library"),  # of gevent's each two values together once
    [
        ("before", "simple", 0, "gevent"),
        ("before", "batch", 60_000, "gevent"),
        ("after", "simple", 60_000, "gevent"),
        ("after", "batch", 0, "gevent"),
        ("before", "batch", 0, "eventlet"),
    ],
)
def test_transactions_of_greenlets_are_exported_once_in_a_patched_process(
    when: str, kind: str, delay_ms: int, library: str
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not there for this interpreter")
    with told("correlated_ends.py", "green", when, kind, library, delay_ms=delay_ms) as target:
        assert target.finish() == 0, target.output
        assert target.json("flushed") is True
        expected = [f"{number}.{turn}" for number in range(20) for turn in range(10)]
        assert sorted(names(target)) == sorted(["own", *expected])
        # What exports at once must not do so on another thread, nor may that wake greenlets of eventlet.
        ids = ids_of(target.pid) if (kind, library) == ("batch", "gevent") else None
        assert by_process(target, "own") == {target.pid: ids}
        assert "Traceback" not in target.output, target.output


def test_self_configured_application_under_run_is_correlated() -> None:
    application = str(TESTS / "targets" / "correlated_application.py")
    with told(*COMMAND, "run", "--", sys.executable, application) as target:
        assert target.finish() == 0, target.output
        for exporter in ("simple", "batch"):
            assert by_process(target, "own", exporter) == {target.pid: ids_of(target.pid)}


@pytest.mark.skipif(not _INSTRUMENT.exists(), reason="opentelemetry-instrument is not there")
@pytest.mark.skipif(not _INSTALLED, reason="the package is not installed, so it has no entry point")
def test_self_configured_application_under_instrument_is_correlated() -> None:
    application = str(TESTS / "targets" / "correlated_application.py")
    words = [str(_INSTRUMENT), "--traces_exporter", "none", sys.executable, application]
    with told(*words, mode="auto") as target:
        assert target.finish() == 0, target.output
        for exporter in ("simple", "batch"):
            assert by_process(target, "own", exporter) == {target.pid: ids_of(target.pid)}
