"""Six kinds of work, each a function of its own, and the time that each took by the thread's own clocks.

The kinds take turns of some milliseconds at random, more often those with less time so far: otherwise nearly all
samples beside busy threads would be of the pipe, whose every step waits for the GIL.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

RNG = random.Random(1)
TEXT = ("GET /items/%d HTTP/1.1 200 %d\n" * 2000) % tuple(range(4000))  # a call must be shorter than the interval
NUMBERS = [RNG.random() for _ in range(25_000)]
BLOCK = bytes(6 << 20)
PATTERN = re.compile(r"(\w+) /(\w+)/(\d+) HTTP/[\d.]+ (5\d\d)")  # few: freeing many would count for the caller


def loops() -> int:
    value = 0
    for step in range(30_000):
        value = (value * 31 + step) % 1_000_003
    return value


def calls() -> int:
    return sum(map(one_more, range(60_000)))


def one_more(number: int) -> int:
    return number + 1


def holds_gil() -> float:
    return sorted(NUMBERS)[0]


def releases_gil() -> bytes:
    return hashlib.sha256(BLOCK).digest()


def regex() -> int:
    return len(PATTERN.findall(TEXT))


class Pipe:
    """A process that echoes its input."""

    def __init__(self) -> None:
        self._echo = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._echo.stdin is not None
        assert self._echo.stdout is not None
        self._to, self._from = self._echo.stdin.fileno(), self._echo.stdout.fileno()

    def talk(self) -> None:
        for _ in range(50):
            os.write(self._to, BLOCK[:16_384])
            left = 16_384
            while left:
                left -= len(os.read(self._from, left))

    def close(self) -> None:
        self._echo.communicate()


KINDS = (loops.__name__, calls.__name__, holds_gil.__name__, releases_gil.__name__, regex.__name__, Pipe.talk.__name__)


def work(seconds: float, span: Callable[[str], AbstractContextManager[Any]]) -> dict[str, dict[str, int]]:
    """Run the kinds of work, each turn in a ``span(kind)``; return function name → wall ns and CPU ns."""
    pipe = Pipe()
    kinds: list[Callable[[], Any]] = [loops, calls, holds_gil, releases_gil, regex, pipe.talk]
    spent = {kind: {"wall": 0, "cpu": 0} for kind in KINDS}
    until = time.monotonic() + seconds
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    while time.monotonic() < until:
        kind = min(RNG.sample(kinds, 3), key=lambda kind: spent[kind.__name__]["wall"])
        with span(kind.__name__):
            for _ in range(RNG.randrange(1, 4)):
                kind()
        now, used = time.monotonic_ns(), time.thread_time_ns()
        spent[kind.__name__]["wall"] += now - wall
        spent[kind.__name__]["cpu"] += used - cpu
        wall, cpu = now, used
    pipe.close()
    return spent
