"""Publishes and samples, and does so again in a second initialization of the interpreter.

Says in each whether what is published is right and a snapshot has threads. REINITIALIZER is the library of
`second_initialization.c`.
Uses as few modules as it can: not all of CPython's own work in a second initialization.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from own_memory import InstalledPublisher, OwnMemory, Span

from splunk_profiler import _walker


def _named(*given: Any) -> Any:
    return given


library = ctypes.CDLL(os.environ["REINITIALIZER"])
library.begin(os.fsencode(sys.executable), os.fsencode(__file__))

publishing = InstalledPublisher()
publishing.install()
publishing.attach(Span(7, 8))
shown = OwnMemory().elastic()
ticker: _walker.Ticker[Any, Any] = _walker.Ticker(
    context_var=publishing.variable, labels_var=None, max_depth=8, make_frame=_named, make_stack=_named, ring_size=2
)
ticker.capture()
(snapshot,) = ticker.drain(0)
right = shown is not None and (shown.trace_id, shown.span_id) == (7, 8)
print("right" if right and snapshot.threads[0].context is not None else "wrong", flush=True)
