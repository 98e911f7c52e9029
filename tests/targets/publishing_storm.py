"""Publishing comes and goes in several threads, and children are forked, while others switch spans:
``publishing_storm.py ROUNDS``.

Prints ``ready``, and ``done`` with what the publisher has counted once each thread has started and stopped so often.
A child stops and starts as well, works in spans, and has to end well. What is shown meanwhile is for others to look at;
all spans are pieces of work (`derived_ids.py`). At last publishing is on for good, and the process stands still.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count

from derived_ids import WorkUnit
from derived_spans import begin, set_provider
from marked_work import say
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import use_span

import splunk_profiler
from splunk_profiler import _context as native

_SWITCHING, _TOGGLING, _CHILDREN = 8, 8, 10
_CHILD_S = 60
_STUCK_S = 220


def turn(worker: int, sequence: int) -> None:
    """A trace, with a child, a label, contexts that are left and entered.

    Only sampled ones: another that is open when publishing starts does not know what it is a child of.
    """
    piece = WorkUnit(worker, sequence)
    if not piece.sampled:
        return
    with use_span(begin(piece), end_on_exit=True), splunk_profiler.labels(route=piece.route):
        detach(attach(Context()))
        with use_span(begin(WorkUnit(worker, sequence, 1)), end_on_exit=True):
            contextvars.copy_context().run(lambda: detach(attach(Context())))


class Storm:
    """All of it.

    Args:
        rounds: how often each of the toggling threads starts and stops.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._over = threading.Event()
        self._failures: list[BaseException] = []

    def run(self) -> None:
        switching = [threading.Thread(target=self._guarded, args=(self._switch, 1 + n)) for n in range(_SWITCHING)]
        switching.append(threading.Thread(target=self._guarded, args=(self._switch_tasks, 1 + _SWITCHING)))
        toggling = [threading.Thread(target=self._guarded, args=(self._toggle, n)) for n in range(_TOGGLING)]
        toggling.append(threading.Thread(target=self._guarded, args=(self._fork, _CHILDREN)))
        for thread in (*switching, *toggling):
            thread.start()
        for thread in toggling:
            thread.join()
        self._over.set()
        for thread in switching:
            thread.join()
        assert not self._failures, self._failures

    def _guarded(self, body: Callable[[int], None], number: int) -> None:
        try:
            body(number)
        except BaseException as error:
            self._failures.append(error)
            raise

    def _switch(self, worker: int) -> None:
        for sequence in count():
            turn(worker, sequence)
            if self._over.is_set():
                break

    def _switch_tasks(self, first_worker: int) -> None:
        async def task(worker: int) -> None:
            sequence = 0
            while not self._over.is_set():
                turn(worker, sequence)
                await asyncio.sleep(0)
                sequence += 1

        async def main() -> None:
            await asyncio.gather(*(task(first_worker + n) for n in range(10)))

        asyncio.run(main())

    def _toggle(self, _number: int) -> None:
        for _ in range(self._rounds):
            splunk_profiler.start()
            native.audit()
            splunk_profiler.stop()

    def _fork(self, children: int) -> None:
        for number in range(children):
            child = os.fork()
            if child == 0:
                self._child(1000 + number)
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise AssertionError(f"a child has ended with {status}")

    def _child(self, worker: int) -> None:
        signal.alarm(_CHILD_S)
        status = 1
        try:
            for sequence in range(20):
                turn(worker, sequence)
                splunk_profiler.start()
                turn(worker, sequence)
                assert native.audit() == (1, 0)
                splunk_profiler.stop()
            status = 0
        finally:
            os._exit(status)


def main(rounds: int) -> None:
    faulthandler.dump_traceback_later(_STUCK_S, exit=True)
    sys.setswitchinterval(1e-4)  # a start is many steps, each of which waits for its turn
    set_provider()
    assert splunk_profiler.start()
    say("ready")
    Storm(rounds).run()
    splunk_profiler.start()
    with use_span(begin(WorkUnit(1, 0)), end_on_exit=True):
        say("done", native.counters())
        sys.stdin.readline()
    splunk_profiler.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]))
