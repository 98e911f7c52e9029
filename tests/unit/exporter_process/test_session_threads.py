"""Sessions in a process that can make no more threads; CPython keeps a thread state for ever where a start fails."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("splunk_profiler._walker")

from short_programs import run_code

_START = """
import sys, threading
sys.path[:0] = %r
import scripted_sink
from splunk_profiler.capture.recorder import ContextReader, StreamRecorder
from splunk_profiler.config import from_env
from splunk_profiler.config.handover import to_values
from splunk_profiler.export.deferred_sink import DeferredSink
from splunk_profiler.exporter_process import session

session.DeferredSink = lambda _open_sink, is_known: DeferredSink(scripted_sink.ScriptedSink, is_known)
recorder = StreamRecorder(ContextReader(lambda _context: None), is_native=True)
recorder.record_start(to_values(from_env()))
accounting = session.SessionAccounting(lambda: None)
fed = session.StreamSession(1, accounting)

def without_threads(call, *arguments):
    usual_bytes = threading.stack_size(1 << 60)  # no address space has room for it
    try:
        call(*arguments)
    except RuntimeError as error:
        print(error)
    threading.stack_size(usual_bytes)
"""
_NEVER_STARTED = """
without_threads(fed.feed, recorder.take())
fed.tick()
fed.close()
print(fed.is_done, fed.messages())
"""
_NEVER_CLOSED = """
fed.feed(recorder.take())
without_threads(fed.close)
print(fed.is_done, accounting.sessions())
"""


@pytest.mark.parametrize("program", [_NEVER_STARTED, _NEVER_CLOSED], ids=["start", "close"])
def test_session_that_gets_no_thread_is_done_and_reports_nothing(program: str) -> None:
    said = run_code(_START % sys.path + program)
    assert said.splitlines() == ["can't start new thread", "True []"]
