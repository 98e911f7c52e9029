"""Spans, and the hooks that publish them, for the tests of context switches.

Import it after `pytest.importorskip("splunk_profiler._context")`. What tells right from wrong is the audit: it compares
what is published of every thread with the context CPython has for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import count
from typing import Any

from opentelemetry.context import Context

from splunk_profiler import _context as native

SPAN_KEY = "span of the test"
current: ContextVar[Context] = ContextVar("current", default=Context())  # noqa: B039  # nobody can change it
labels: ContextVar[Any] = ContextVar("labels")
_numbers = count(1)


class Span:
    """What the hooks need of a span: its numbers, and room for an attribute."""

    def __init__(self) -> None:
        self.number = next(_numbers)


def identify(span: Span) -> native.Identity:
    return native.Identity(span.number << 64 | 1, span.number, span.number, 1)


def install() -> list[tuple[str, str]]:
    return native.install(current, SPAN_KEY, labels, "_splunk_profiler_identity", identify, Context)


@contextmanager
def hooks() -> Iterator[list[tuple[str, str]]]:
    """Installed for the block; gives what could not be."""
    try:
        yield install()
    finally:
        native.uninstall()


def context_with_span(span: Span | None = None) -> Context:
    """A context with this span, or a new one."""
    return Context({SPAN_KEY: span or Span()})


def attach(span: Span | None = None) -> Token[Any]:
    return native.attach(context_with_span(span))


def audit_passes() -> bool:
    """Whether every thread's span is published, the calling one's at least."""
    compared, repaired = native.audit()
    assert compared, "nothing is published of any thread"
    return repaired == 0


def count_switches() -> int:
    """How many switches there have been."""
    counters = native.counters()
    return counters.published + counters.unchanged
