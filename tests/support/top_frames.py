"""What the interpreter says of the stacks of other threads; shared by tests."""

from __future__ import annotations

import sys
from types import FrameType

from splunk_profiler.capture.portable import gc_disabled


def top_frame(ident: int) -> FrameType:
    """The frame that a thread is in."""
    with gc_disabled():
        return sys._current_frames()[ident]
