"""What the interpreter says of the stacks of other threads; shared by tests."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def top_frame(ident: int) -> FrameType:
    """The frame that a thread is in.

    CPython 3.11 holds a lock while it makes that object. If it collects garbage meanwhile, and a `threading.local` is
    part of it, it waits for the same lock for ever.
    """
    wanted = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()[ident]
    finally:
        if wanted:
            gc.enable()
