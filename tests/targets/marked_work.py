"""Work whose function names say which span they must be sampled in, and a ledger of the spans there were.

Shared by the target programs. `work(7)` runs a function called ``work_in_span_07``, `outside` one called
``work_outside_spans``; a target calls the first inside a span that `Ledger.span(7)` made and the other where
no span is active. Runs on any thread, in any task or greenlet. Imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import sys
import time
from _thread import allocate_lock, start_new_thread  # the real ones, also where gevent replaces them later
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from opentelemetry import trace

MARKS = 96
Work = Callable[[], None]


def _body() -> None:
    total = 0
    for number in range(30_000):  # long enough that the interpreter hands over within it now and then
        total += number * number


def _waiting_body() -> None:
    time.sleep(0.002)


def _named(name: str, body: Callable[[], None]) -> Work:
    code = body.__code__.replace(co_name=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    return FunctionType(code, globals(), name)


_WORK = [_named(f"work_in_span_{number:02}", _body) for number in range(MARKS)]
_WAIT = [_named(f"work_in_span_{number:02}", _waiting_body) for number in range(MARKS)]
_outside = [_named("work_outside_spans", body) for body in (_body, _waiting_body)]


def work(number: int) -> None:
    """Computes in a function called ``work_in_span_<number>``."""
    assert_in(number)
    _WORK[number]()


def wait(number: int) -> None:
    """Blocks for a moment in a function called ``work_in_span_<number>``."""
    assert_in(number)
    _WAIT[number]()


def outside() -> None:
    """Computes, then blocks for a moment, in functions called ``work_outside_spans``."""
    assert not trace.get_current_span().get_span_context().is_valid
    for body in _outside:
        body()


def assert_in(number: int) -> None:
    """OpenTelemetry itself must say that this span is the current one, or the target would prove nothing."""
    current = trace.get_current_span().get_span_context().span_id
    assert LEDGER.name_of(current) == f"span_{number:02}", (number, current)


def say(word: str, facts: Any = None) -> None:
    """Write the line ``word {facts}`` to standard output in one piece, also where several processes share it."""
    os.write(1, f"{word} {json.dumps(facts) if facts is not None else ''}".rstrip().encode() + b"\n")


class Ledger:
    """All spans of the target: span id → name, trace id and flags."""

    def __init__(self) -> None:
        self._spans: dict[int, tuple[str, int, int]] = {}
        self._tracer = trace.get_tracer(__name__)  # asked for once: the SDK makes each with a lock held

    def begin(self, number: int) -> trace.Span:
        """A started span called ``span_<number>``, not made current."""
        name = f"span_{number:02}"
        span = self._tracer.start_span(name)
        context = span.get_span_context()
        self._spans[context.span_id] = (name, context.trace_id, int(context.trace_flags))
        return span

    @contextmanager
    def span(self, number: int) -> Iterator[trace.Span]:
        """A span called ``span_<number>`` that is current inside the block."""
        span = self.begin(number)
        with trace.use_span(span, end_on_exit=True):
            yield span

    def name_of(self, span_id: int) -> str:
        """The span's name, empty if it is not one of the target's."""
        return self._spans.get(span_id, ("",))[0]

    def dump(self, **facts: Any) -> None:
        """Print the spans, and what else the test wants to know, as the line ``ledger {…}``."""
        spans = {
            f"{span_id:016x}": {"name": name, "trace_id": f"{trace_id:032x}", "flags": flags}
            for span_id, (name, trace_id, flags) in self._spans.items()
        }
        say("ledger", {"spans": spans, **facts})


LEDGER = Ledger()


class InputLatch:
    """A latch that a line on standard input opens, or its end. `is_waiting` is true before."""

    def __init__(self) -> None:
        self.is_waiting = True
        self._lock = allocate_lock()
        self._lock.acquire()
        start_new_thread(self._listen, ())

    def wait(self) -> None:
        """Block the calling thread until the latch opens."""
        with self._lock:
            pass

    def _listen(self) -> None:
        # Not sys.stdin: its buffer's lock would still be held by this thread when the interpreter ends.
        open(0, "rb", buffering=0, closefd=False).readline()  # noqa: SIM115
        self.is_waiting = False
        self._lock.release()


def load_exporter() -> None:
    """Load what threads of this process export with: beside busy threads each import waits for the GIL."""
    if os.environ.get("SPLUNK_PROFILER_EXPORTER") == "thread" or os.environ.get("SPLUNK_PROFILER_WALKER") == "portable":
        import_module("splunk_profiler.export.otlp.exporter")
        import_module("splunk_profiler.export.resource")


def wait_until_visible() -> None:
    """Return once a thread of the profiler has loaded the last of what host profilers look for."""
    deadline = time.monotonic() + 60
    while "/elastic-jvmti-" not in Path("/proc/self/maps").read_text("utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.001)
