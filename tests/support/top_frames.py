"""Access to the frames of other threads; shared by tests."""

from __future__ import annotations

import sys
from types import FrameType

from splunk_profiler.capture.frames import gc_disabled


def top_frame(ident: int) -> FrameType:
    """Return the current frame of a thread."""
    with gc_disabled():
        return sys._current_frames()[ident]
