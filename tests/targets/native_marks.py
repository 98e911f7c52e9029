"""Current work of each thread in native memory, written by the work itself: the truth for published ids.

One table of 64-bit words that a test reads while it has a thread stopped (`host_reading.py` has the other end):

    SLOTS words    the native ids of threads
    SLOTS words    current work of the thread in the same place, written in one store:
                   the key of a piece       that span is current until the next word is written
                   OUTSIDE                  no span is current until then
                   MOVING | key             it is leaving that piece (or none, 0) and may show any piece that is held
                   RESTING | key            the same, but most likely it has long arrived and waits for work
    WORKERS words  the pieces that are held: for each worker, the key of the local root that it has open, or 0

Words are written before a switch begins and after it has ended, so that a thread that is stopped anywhere in between is
known to be in the middle of it. Imports nothing of the package.
"""

from __future__ import annotations

import ctypes
from _thread import _local, allocate_lock, get_native_id  # the real ones, also where gevent replaces them
from typing import Any

from derived_ids import KEY_BITS, WorkUnit

SLOTS, WORKERS = 64, 448
MOVING, OUTSIDE = 1 << KEY_BITS, 1 << KEY_BITS + 1
RESTING = MOVING | OUTSIDE

_slots = allocate_lock()
_words = (ctypes.c_uint64 * (2 * SLOTS + WORKERS))()


class Slot:
    """The slot of one thread for its current work. Used by that thread only.

    Attributes:
        place: its number among the slots.
    """

    def __init__(self) -> None:
        tid = get_native_id()
        with _slots:
            taken = [*_words[:SLOTS]]
            self.place = taken.index(tid) if tid in taken else taken.index(0)
            self._at = SLOTS + self.place
            _words[self._at] = MOVING
            _words[self.place] = tid

    def moving(self) -> None:
        """A switch of context begins."""
        _words[self._at] = MOVING | (_words[self._at] & (MOVING - 1))

    def resting(self) -> None:
        """A switch begins, and after it there is nothing to do until the next word."""
        _words[self._at] = RESTING | (_words[self._at] & (MOVING - 1))

    def inside(self, piece: WorkUnit) -> None:
        """A switch is over: this span is current."""
        _words[self._at] = piece.key

    def outside(self) -> None:
        """A switch is over: no span is current."""
        _words[self._at] = OUTSIDE

    def leave(self) -> None:
        """The thread is about to end."""
        _words[self.place] = 0


class Here(_local):
    """`slot`: the calling thread's, made at its first use."""

    slot: Slot

    def __getattr__(self, name: str) -> Any:
        if name != "slot":
            raise AttributeError(name)
        self.slot = Slot()
        return self.slot


def hold(piece: WorkUnit) -> None:
    """The piece's trace is open from now on."""
    _words[2 * SLOTS + piece.worker] = piece.root.key


def let_go(piece: WorkUnit) -> None:
    """Its trace is over, and current nowhere."""
    _words[2 * SLOTS + piece.worker] = 0


def address() -> int:
    """Return the address of the table."""
    return ctypes.addressof(_words)
