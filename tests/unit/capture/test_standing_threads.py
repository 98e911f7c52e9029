"""Stacks of threads that have moved, or stand still, between two captures; the leaf is always the same."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("splunk_profiler._walker", reason="the native walker is not built for this interpreter")

from walker_factory import current, make, running

PLACES = ("red", "green", "blue")
THREADS = 6
Inbox = queue.SimpleQueue[str | None]


class Movers:
    """Threads that each wait in a function with the name of a place, which is also the value of their variable."""

    def __init__(self) -> None:
        self._inboxes: list[Inbox] = [queue.SimpleQueue() for _ in range(THREADS)]
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(inbox,)) for inbox in self._inboxes]
        self.places: dict[int, str] = {}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
            self._arrived.get()

    def move(self, number: int, place: str | None) -> None:
        """Have a thread wait in another place; None: it ends."""
        self._inboxes[number].put(place)
        self._arrived.get()
        self.places[self._threads[number].ident or 0] = place or ""

    def end(self) -> None:
        for number, thread in enumerate(self._threads):
            self.move(number, None)
            thread.join()

    def _work(self, inbox: Inbox) -> None:
        def wait() -> str | None:
            self._arrived.put(None)
            return inbox.get()

        def red() -> str | None:
            return wait()

        def green() -> str | None:
            return wait()

        def blue() -> str | None:
            return wait()

        place: str | None = PLACES[0]
        while place is not None:
            token = current.set(place)
            place = {"red": red, "green": green, "blue": blue}[place]()
            current.reset(token)
        self._arrived.put(None)


@contextmanager
def movers_at_work() -> Iterator[Movers]:
    movers = Movers()
    movers.start()
    try:
        yield movers
    finally:
        movers.end()


def test_each_capture_has_the_places_where_threads_have_moved_to() -> None:
    chance, ticker = random.Random(7), make()
    with movers_at_work() as movers:
        for number in range(THREADS):
            movers.move(number, PLACES[number % 3])
        for _ in range(300):
            for number in chance.sample(range(THREADS), chance.randrange(3)):
                movers.move(number, chance.choice(PLACES))
            ticker.capture()
            (snapshot,) = ticker.drain(0)
            seen = {raw.ident: set(raw.stack[0]) for raw in snapshot.threads if raw.ident in movers.places}
            assert {ident: frames & set(PLACES) for ident, frames in seen.items()} == {
                ident: {place} for ident, place in movers.places.items()
            }


def test_no_sample_joins_a_place_to_the_context_of_another() -> None:
    chance, ticker = random.Random(8), make(ring_size=4096)
    samples, wrong = 0, []
    with movers_at_work() as movers, running(ticker, 1_000_000):
        while samples < 2000:
            for _ in range(50):
                movers.move(chance.randrange(THREADS), chance.choice(PLACES))
            for snapshot in ticker.drain(0):
                for raw in snapshot.threads:
                    places = set(raw.stack[0]) & set(PLACES)
                    if raw.ident in movers.places and places:
                        samples += 1
                        wrong += [(places, raw.context)] if places != {raw.context} else []
    assert not wrong
