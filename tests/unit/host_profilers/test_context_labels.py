"""Tests of the user's labels beside those of the trace, within the limits of readers."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")

from own_memory import InstalledPublisher, OwnMemory, Span

from splunk_profiler import _context

TRACE, ROOT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACE_LABELS = [
    (b"trace_id", f"{TRACE:032x}".encode()),
    (b"span_id", f"{ROOT:016x}".encode()),
    (b"local_root_span_id", f"{ROOT:016x}".encode()),
]
PAIRS = ((b"route", b"/checkout"), ("Gebühr".encode(), b""))
MOST = tuple((bytes([65 + index]) * 25, bytes([97 + index]) * 53) for index in range(7))


def set_labels(publishing: InstalledPublisher, value: Any) -> contextvars.Token[Any]:
    token = publishing.labels.set(value)
    _context.publish()
    return token


def test_labels_are_shown_after_those_of_the_trace(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    labels = set_labels(publishing, _context.UserLabels(PAIRS))
    assert memory.labels() == [*TRACE_LABELS, *PAIRS]
    publishing.labels.reset(labels)
    _context.publish()
    assert memory.labels() == TRACE_LABELS
    _context.detach(token)


def test_labels_are_shown_without_a_span(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = set_labels(publishing, _context.UserLabels(PAIRS))
    shown = memory.elastic()
    assert shown is not None
    assert not shown.present
    assert memory.labels() == list(PAIRS)
    publishing.labels.reset(token)
    _context.publish()
    assert memory.labels() == []


def test_labels_are_set_and_shown_in_one_call(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    _context.set_labels(publishing.labels, _context.UserLabels(PAIRS))
    assert memory.labels() == list(PAIRS)
    _context.set_labels(publishing.labels, None)
    assert memory.labels() == []
    with pytest.raises(TypeError):
        _context.set_labels("labels", None)  # type: ignore[arg-type]


def test_as_many_and_as_long_labels_as_readers_take_are_shown_whole(
    publishing: InstalledPublisher, memory: OwnMemory
) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    labels = set_labels(publishing, _context.UserLabels(MOST))
    assert memory.labels() == [*TRACE_LABELS, *MOST]
    publishing.labels.reset(labels)
    _context.detach(token)


def test_labels_switch_with_the_context_they_were_set_in(publishing: InstalledPublisher, memory: OwnMemory) -> None:
    token = publishing.attach(Span(TRACE, ROOT))
    copied = contextvars.copy_context()
    copied.run(set_labels, publishing, _context.UserLabels(PAIRS))
    assert memory.labels() == TRACE_LABELS
    assert copied.run(memory.labels) == [*TRACE_LABELS, *PAIRS]
    assert memory.labels() == TRACE_LABELS
    _context.detach(token)


@pytest.mark.parametrize("nothing", [None, "text", {}, _context.UserLabels(())])
def test_anything_else_in_the_variable_is_no_labels(
    publishing: InstalledPublisher, memory: OwnMemory, nothing: Any
) -> None:
    outer = set_labels(publishing, _context.UserLabels(PAIRS))
    token = set_labels(publishing, nothing)
    assert memory.labels() == []
    publishing.labels.reset(token)
    publishing.labels.reset(outer)
    _context.publish()


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ((*MOST, (b"k", b"v")), "at most 7"),
        (((b"k" * 26, b"v"),), "the key of a label has 26 bytes, readers take 25"),
        (((b"k", b"v" * 54),), "the value of a label has 54 bytes, readers take 53"),
    ],
)
def test_labels_that_no_record_has_room_for_are_refused(pairs: tuple[tuple[bytes, bytes], ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _context.UserLabels(pairs)


@pytest.mark.parametrize("pairs", [[], None, ((b"k",),), (("k", "v"),), ((b"k", b"v", b"w"),)])
def test_labels_of_the_wrong_type_are_refused(pairs: Any) -> None:
    with pytest.raises(TypeError):
        _context.UserLabels(pairs)
