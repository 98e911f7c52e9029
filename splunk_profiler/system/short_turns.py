"""Short turns of the GIL while something is loaded. Imports nothing of ours."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

_SHORT_US = 51  # an unusual value, by which we recognise our own setting


class ShortTurns:
    """A time in which threads take the GIL from each other after 51 µs, not 5 ms; at most about a second.

    An import gives the GIL up at each file. Beside eight busy threads, loading gRPC would take half a minute.
    Times may be within others, and on other threads: the last to end restores the length from before the first.
    """

    _active: ClassVar[dict[ShortTurns, int]] = {}  # with the process id: those of threads that a fork lost do not count
    _before_us: ClassVar[int] = 5000

    def __enter__(self) -> None:
        if _interval_us() != _SHORT_US:
            ShortTurns._before_us = _interval_us()
        self._active[self] = os.getpid()
        try:
            _set_interval_us(_SHORT_US)
        except BaseException:  # of a signal handler, after it
            self.end()
            raise

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Restore their length, unless the application has set another one, or nothing has begun."""
        has_begun = self._active.pop(self, 0) != 0
        if has_begun and os.getpid() not in [*self._active.values()] and _interval_us() == _SHORT_US:
            _set_interval_us(self._before_us)


def _interval_us() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set_interval_us(interval_us: int) -> None:
    sys.setswitchinterval((interval_us + 0.5) / 1e6)  # CPython cuts the fraction off
