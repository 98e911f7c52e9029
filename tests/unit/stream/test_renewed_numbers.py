"""Numbers of definitions begin anew before their fields of 32 bits are full, and readers notice nothing."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
from written_snapshots import Crew, crew_at_work

from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.capture.walker import choose_walker, make_ticker
from splunk_profiler.model import SpanRef, Stack
from splunk_profiler.stream import writer
from splunk_profiler.stream.captured import CapturedSnapshot, ProcessStarted, ThreadState
from splunk_profiler.stream.codec import RecordDecoder
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import LabelsRecord, SpanRecord, StackRecord

_CONTEXT: ContextVar[SpanRef] = ContextVar("span")
_LABELS: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("labels")
_LIMIT = 20
_BUSY, _IDLE = 1, 2


def _enter(number: int) -> None:
    _CONTEXT.set(SpanRef(number, number, 1))
    _LABELS.set((("number", str(number)),))


def _lines(stack: Stack) -> list[tuple[str, int | None]]:
    return [(frame.function, frame.line) for frame in stack.frames]


class _Stream:
    """A recorder of this process, and what a reader of its stream knows of each thread."""

    def __init__(self) -> None:
        choice = choose_walker()
        self._ticker = make_ticker(choice, _CONTEXT, lambda _: None, 200, labels_var=_LABELS)
        contexts = ContextReader(lambda context: context, lambda labels: labels)
        self._recorder = StreamRecorder(contexts, is_native=choice.name == "native")
        self._recorder.record_start({})
        self._decoder, self._reader = RecordDecoder(), StreamReader()
        self._states: dict[int, ThreadState] = {}
        self.starts = 0
        self.numbers: dict[type[Any], set[int]] = {StackRecord: set(), SpanRecord: set(), LabelsRecord: set()}

    def pass_on(self) -> None:
        """Capture and read all threads, which must be read as they were captured."""
        self._ticker.capture()
        (raw,) = self._ticker.drain(0)
        self._recorder.record_snapshot(raw)
        data = self._recorder.take()
        for record in self._decoder.feed(data):
            self.numbers.get(type(record), set()).add(getattr(record, "id", 0))
        for item in self._reader.feed(data):
            self.starts += isinstance(item, ProcessStarted)
            if isinstance(item, CapturedSnapshot):
                self._states |= {state.info.thread.ident: state for state in item.threads}
        for thread in raw.threads:
            state = self._states[thread.ident]
            assert _lines(state.stack) == _lines(thread.stack)
            assert (state.span, state.labels) == (thread.context, thread.labels or ())


def _work(crew: Crew, number: int) -> None:
    """Give a member a new stack, a new span and new labels."""
    crew.tell(_BUSY, lambda: _enter(number))
    crew.tell(_BUSY, lambda: "deeper")


def test_numbers_begin_anew_and_threads_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RENEWED_AFTER", _LIMIT)
    stream = _Stream()
    with crew_at_work() as crew:
        crew.tell(_IDLE, lambda: _enter(1000))
        for number in range(1, 3 * _LIMIT):
            _work(crew, number)
            stream.pass_on()
            if number % _LIMIT == _LIMIT // 2:
                crew.tell(_IDLE, lambda: None)  # it has used CPU time: its old numbers are looked at
    assert stream.starts == 1
    for numbers in stream.numbers.values():
        assert 0 < max(numbers) < _LIMIT + 10
