"""The host agent inside a test, on a fake clock; and a second decoder of its messages.

    pace = Pace(turns=5)
    with agent(pace, target.pid, period_s=0.5) as running:
        running.run()               # five turns of the loop, in no time
    pace.events(Reported)

Imports nothing of the package but the inspector's agent.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from splunk_profiler.inspector.agent import HostAgent
from splunk_profiler.inspector.events import Event
from splunk_profiler.inspector.followed_process import Settings

_E = TypeVar("_E")
_REGISTRATION = struct.pack("<HHI", 2, 1, 100)


class CorrelationMessage(NamedTuple):
    """A correlation message without its count."""

    trace_id: str
    transaction_id: str
    stack_trace_id: str


class FakeLoop:
    """The clock, the wait and the event listener of an agent.

    Args:
        turns: number of waits before it ends.
        on_wait: called during each wait with its number, from 1.
    """

    def __init__(self, turns: int, on_wait: Callable[[int], None] = lambda _: None) -> None:
        self.now = 1000.0
        self.recorded: list[Event] = []
        self._remaining_turns = turns
        self._turns = turns
        self._on_wait = on_wait

    def clock(self) -> float:
        return self.now

    def wait(self, deadline: float, detach_pending: Callable[[], bool]) -> bool:
        assert deadline > self.now, "a turn without progress"
        self.now = deadline
        detach_pending()
        self._remaining_turns -= 1
        self._on_wait(self._turns - self._remaining_turns)
        return self._remaining_turns == 0

    def events(self, kind: type[_E]) -> list[_E]:
        """Return the events of that kind."""
        return [event for event in self.recorded if isinstance(event, kind)]


@contextmanager
def agent(fake_loop: FakeLoop, *pids: int, period_s: float = 0.5, **settings: Any) -> Iterator[HostAgent]:
    """Return an agent for `pids` that has sent nothing yet."""
    made = HostAgent(
        pids,
        Settings(period_s, **settings),
        on_event=fake_loop.recorded.append,
        clock=fake_loop.clock,
        wait=fake_loop.wait,
    )
    with made:
        yield made


class DatagramReceiver:
    """A bound socket at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(self.path)

    def messages(self) -> list[bytes]:
        """Return all messages in the queue."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096))
            except BlockingIOError:
                return found

    def fill(self, room: int) -> None:
        """Fill the queue with registrations, with room for so many messages."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            while True:
                try:
                    sender.sendto(_REGISTRATION, self.path)
                except BlockingIOError:
                    break
        for _ in range(room):
            self._socket.recv(4096)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> DatagramReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_registration(message: bytes) -> bool:
    """Return True for a whole registration message."""
    return message[:2] == b"\x02\x00" and len(message) >= 8


def decode_correlations(messages: Sequence[bytes]) -> Counter[CorrelationMessage]:
    """Return the counts of correlation messages; every other message must be a registration."""
    found: Counter[CorrelationMessage] = Counter()
    for message in messages:
        if not is_registration(message):
            kind, minor, trace, transaction, stack, count = struct.unpack("<HH16s8s16sH", message)
            assert (kind, minor) == (1, 1)
            assert count > 0
            found[CorrelationMessage(trace.hex(), transaction.hex(), stack.hex())] += count
    return found
