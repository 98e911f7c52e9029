"""Spans, and the hooks that publish them, for the tests of context switches.

Import it after `pytest.importorskip("splunk_profiler._context")`. The audit of the extension compares
the published span of every thread with its context in CPython.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import count
from typing import Any

from opentelemetry.context import Context

from splunk_profiler import _context

SPAN_KEY = "span of the test"
current: ContextVar[Context] = ContextVar("current", default=Context())  # noqa: B039  # immutable
labels: ContextVar[Any] = ContextVar("labels")
_numbers = count(1)


class Span:
    """A span as the hooks need it: ids, and an attribute."""

    def __init__(self) -> None:
        self.number = next(_numbers)


def identify(span: Span) -> _context.Identity:
    return _context.Identity(span.number << 64 | 1, span.number, span.number, 1)


def install() -> list[tuple[str, str]]:
    problems = _context.install(current, SPAN_KEY, labels, "_splunk_profiler_identity", identify, Context)
    _context.begin()
    return problems


@contextmanager
def hooks() -> Iterator[list[tuple[str, str]]]:
    """Install the hooks for the block; yield those that could not be installed."""
    try:
        yield install()
    finally:
        _context.uninstall()


def context_with_span(span: Span | None = None) -> Context:
    """Return a context with this span, or with a new one."""
    return Context({SPAN_KEY: span or Span()})


def attach(span: Span | None = None) -> Token[Any]:
    return _context.attach(context_with_span(span))


def audit_passes() -> bool:
    """Return True if the spans of all audited threads are published."""
    compared, repaired = _context.audit()
    assert compared, "nothing is published of any thread"
    return repaired == 0


def count_switches() -> int:
    """Return the number of context switches."""
    counters = _context.counters()
    return counters["published"] + counters["unchanged"]
