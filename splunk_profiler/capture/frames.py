"""Safe reads of the frame objects of other threads, for the portable walker.

Imports nothing of ours. Versions of CPython differ in what is safe here; each function names its hazard.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate, chain, islice, repeat
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, NamedTuple

CodeLocation = tuple[CodeType, int, dict[str, Any]]
_LOCATION = attrgetter("f_code", "f_lasti", "f_globals")
_LOCATION_AND_CALLER = attrgetter("f_code", "f_lasti", "f_globals", "f_back")
_gc_pauses: list[bool] = []  # not empty while a walk keeps the collector off


class TopFrame(NamedTuple):
    """The frame a thread runs in. `frame` is only compared: it must not outlive the walk (`top_frames`)."""

    frame: FrameType
    location: CodeLocation
    caller: FrameType | None

    def is_at_same_location(self, other: TopFrame | None) -> bool:
        """Return True if both are the same frame at the same instruction."""
        return other is not None and self.frame is other.frame and self.location[1] == other.location[1]


class ThreadWalk(NamedTuple):
    """The code locations and the context of one thread, before symbolization."""

    ident: int
    locations: list[CodeLocation]
    truncated: bool
    context: Any | None
    labels: Any | None


def has_other_interpreters() -> bool:
    """Return True if other interpreters may run without our GIL (CPython 3.12); then capture nothing.

    `sys._current_frames` also makes frame objects for their threads while these run, which crashes.
    Interpreters made by C programs do not load the module checked here; most of them share our GIL.
    """
    if sys.version_info < (3, 12):
        return False
    module: Any = sys.modules.get("_interpreters") or sys.modules.get("_xxsubinterpreters")
    return module is not None and len(module.list_all()) > 1


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Keep the collector off while CPython 3.11 makes frame objects, during which it may collect.

    A finaliser could let the frame's thread run until the frame is gone: a crash. It could also
    destroy a `threading.local`, which takes the lock that is held for the frames of all threads: a
    deadlock. Later versions collect between two instructions only; earlier ones make no object here.
    """
    must_disable = sys.version_info[:2] == (3, 11) and gc.isenabled()
    if must_disable:
        _gc_pauses.append(True)
        gc.disable()
    try:
        yield
    finally:
        if must_disable:
            gc.enable()
            _gc_pauses.clear()


def enable_gc_in_child() -> None:
    """Turn the collector on again in a child that was forked during a walk of another thread."""
    if _gc_pauses:
        gc.enable()
        _gc_pauses.clear()


class TopFrames(dict[int, TopFrame]):
    """The top frames of all threads by ident, for a ``with`` block, which lets them go at its end.

    The calling thread's own frames are among them, and hold them in turn: such a cycle would keep the local
    variables of all threads until a garbage collection. A file that a function had opened would stay open.
    """

    def __enter__(self) -> TopFrames:
        """Return the frames."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let them go."""
        self.clear()


def top_frames() -> TopFrames:
    """Return each thread's top frame and its location.

    CPython 3.11 makes a frame object even for a frame that is being left, and does not update it.
    To read it after its thread has run is to read freed memory. So frames are made and read in one
    call into C, during which no other thread runs. Other versions are safe.
    """
    kept: dict[str, dict[int, FrameType]] = {}
    frame_maps = map(kept.setdefault, ["frames"], iter(sys._current_frames, None))
    rows = list(map(_LOCATION_AND_CALLER, chain.from_iterable(map(dict.values, frame_maps))))
    try:
        return TopFrames(
            (ident, TopFrame(frame, (code, lasti, module_globals), caller))
            for (ident, frame), (code, lasti, module_globals, caller) in zip(kept["frames"].items(), rows, strict=True)
        )
    finally:
        kept.clear()  # the frame of this function is in it
        rows.clear()


def collect_locations(frame: FrameType | None, limit: int) -> list[CodeLocation]:
    """Return the locations of `frame` and its callers, at most `limit`, in one uninterrupted C call."""
    locations: list[CodeLocation] = []
    callers: Iterator[Any] = accumulate(repeat("f_back"), getattr, initial=frame)
    with suppress(AttributeError):  # the first frame's caller is None
        locations.extend(islice(map(_LOCATION, callers), limit))
    return locations
