"""Threads that do what they are told, and numbers for writers of snapshots."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from splunk_profiler.raw import RawThread
from splunk_profiler.stream.codec import RecordDecoder
from splunk_profiler.stream.records import HEADER, SnapshotRecord


def decode(encoded: bytes) -> SnapshotRecord:
    (record,) = RecordDecoder().feed(HEADER + encoded)
    assert isinstance(record, SnapshotRecord)
    return record


class Numbers:
    """Numbers of objects in the order in which they are asked for, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._objects: list[Any] = []  # compared by identity; threads by their keys

    def callables(self) -> dict[str, Any]:
        return {f"{kind}_number": self._number_of(kind) for kind in ("thread", "stack", "span", "labels")}

    def _number_of(self, kind: str) -> Callable[[Any], int]:
        def number(value: Any) -> int:
            self.asked.append((kind, value))
            if isinstance(value, RawThread):
                return value.key
            found = [one for one, known in enumerate(self._objects, 1) if known is value]
            if not found:
                self._objects.append(value)
            return found[0] if found else len(self._objects)

        return number


class Crew:
    """Threads that do what they are told, and wait."""

    def __init__(self) -> None:
        self._inboxes: dict[int, queue.SimpleQueue[Any]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def tell(self, member: int, order: Callable[[], object] | None) -> None:
        """Have a member run `order` and wait again; None: it ends. One that does not live yet starts."""
        if member not in self._threads:
            self._inboxes[member] = queue.SimpleQueue()
            self._threads[member] = threading.Thread(target=self._work, args=(member, 0), name=f"member {member}")
            self._threads[member].start()
            self._done.get()
        if order is None:
            self._inboxes.pop(member).put(None)
            self._threads.pop(member).join()
        else:
            self._inboxes[member].put(order)
            self._done.get()

    def end(self) -> None:
        for member in list(self._threads):
            self.tell(member, None)

    def _work(self, member: int, depth: int) -> None:
        inbox = self._inboxes[member]
        self._done.put(None)
        while (order := inbox.get()) is not None:
            if order() == "deeper":
                self._work(member, depth + 1)
                return
            self._done.put(None)


@contextmanager
def crew_at_work() -> Iterator[Crew]:
    crew = Crew()
    try:
        yield crew
    finally:
        crew.end()
