"""Spans that are switched as fast as it goes, in all the ways in which contexts switch: ``span_switching.py SCENARIO``.

Prints ``ready`` and where the truth is (`native_marks.py`) once the load runs, ends it when a line arrives on standard
input, and then prints what the publisher has counted. Meanwhile all threads are audited about a thousand times a
second: what an audit repairs, no hook has seen. Publishing is started before the load, by the environment.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from _thread import allocate_lock, start_new_thread  # the real ones, also where gevent replaces them
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from derived_ids import WorkUnit
from derived_spans import begin, set_provider
from marked_work import InputLatch, say, wait_until_visible
from native_marks import Here, address, hold, let_go
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current  # imported before the profiler starts
from task_loops import task_scenarios

import splunk_profiler
from splunk_profiler import _context as native

_THREADS, _TASKS, _GREENLETS = 8, 200, 50
_AUDIT_EVERY_S = 0.001
_HERE = Here()


def spin() -> None:
    """Computes for some microseconds, about as long as a switch takes."""
    for _ in range(500):
        pass


class Load:
    """The load of every scenario, which runs until the test has seen enough."""

    def __init__(self) -> None:
        self.latch = InputLatch()
        self.facts: dict[str, Any] = {"audits": 0, "compared": 0, "traces": 0}

    def turns(self) -> Iterator[int]:
        """Sequence numbers of a worker, until the test has seen enough."""
        sequence = 0
        while self.latch.is_waiting:
            self.facts["traces"] += 1
            yield sequence
            sequence += 1

    @contextmanager
    def work(self, worker: int, sequence: int) -> Iterator[WorkUnit]:
        """A trace that is current inside the block, beside a label; no span is current outside."""
        piece = WorkUnit(worker, sequence)
        _HERE.slot.moving()
        hold(piece)
        with trace.use_span(begin(piece), end_on_exit=True), splunk_profiler.labels(route=piece.route):
            _HERE.slot.inside(piece)
            yield piece
            _HERE.slot.moving()
        let_go(piece)
        _HERE.slot.outside()

    @contextmanager
    def within(self, piece: WorkUnit) -> Iterator[WorkUnit]:
        """A child span of the piece that is current."""
        child = WorkUnit(piece.worker, piece.sequence, piece.depth + 1)
        _HERE.slot.moving()
        with trace.use_span(begin(child), end_on_exit=True):
            _HERE.slot.inside(child)
            yield child
            _HERE.slot.moving()
        _HERE.slot.inside(piece)

    def run(self, scenario: Callable[[Load], None]) -> None:
        """Run the scenario, with audits beside it."""
        over = allocate_lock()
        over.acquire()
        ended = allocate_lock()
        ended.acquire()

        def audit() -> None:
            while not over.acquire(timeout=_AUDIT_EVERY_S):
                self.facts["audits"] += 1
                self.facts["compared"] += native.audit()[0]
            ended.release()

        start_new_thread(audit, ())
        scenario(self)
        over.release()
        ended.acquire()
        say("done", {**self.facts, **native.counters()})

    def ready(self) -> None:
        say("ready", address())

    def in_threads(self, body: Callable[[int], None], workers: int = _THREADS) -> None:
        """Run `body(worker)` in threads and wait for them."""
        failures: list[BaseException] = []

        def guarded(worker: int) -> None:
            try:
                body(worker)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=guarded, args=(worker,)) for worker in range(1, workers + 1)]
        for thread in threads:
            thread.start()
        self.ready()
        for thread in threads:
            thread.join()
        assert not failures


def threads(load: Load) -> None:
    """Threads with traces, spans in spans, and a context that is attached and detached as fast as it goes."""

    def body(worker: int) -> None:
        slot = _HERE.slot
        nothing = Context()
        for sequence in load.turns():
            with load.work(worker, sequence) as piece:
                spin()
                with load.within(piece) as child:
                    spin()
                    with load.within(child):
                        spin()
                for _ in range(10):
                    slot.moving()
                    token = attach(nothing)
                    slot.outside()
                    spin()
                    slot.moving()
                    detach(token)
                    slot.inside(piece)
                    spin()
            spin()

    load.in_threads(body)


def generators(load: Load) -> None:
    """Generators that hold a span: it stays current in the code that drives them, until they are closed."""

    def pieces(worker: int, sequence: int) -> Generator[WorkUnit, None, None]:
        with load.work(worker, sequence) as piece:
            spin()
            yield piece
            with load.within(piece) as child:
                yield child
            spin()

    def body(worker: int) -> None:
        for sequence in load.turns():
            generator = pieces(worker, sequence)
            for _ in generator:
                spin()
            spin()
            abandoned = pieces(worker, sequence)
            next(abandoned)
            spin()
            _HERE.slot.moving()
            abandoned.close()
            let_go(WorkUnit(worker, sequence))
            _HERE.slot.outside()
            spin()

    load.in_threads(body)


def contexts(load: Load) -> None:
    """Spans attached in a `Context.run` and never detached: they end with the context."""

    def never_detaches(piece: WorkUnit) -> None:
        _HERE.slot.moving()
        attach(trace.set_span_in_context(begin(piece)))
        _HERE.slot.inside(piece)
        spin()
        _HERE.slot.moving()

    def again(piece: WorkUnit) -> None:
        _HERE.slot.inside(piece)
        spin()
        _HERE.slot.moving()

    def body(worker: int) -> None:
        slot = _HERE.slot
        for sequence in load.turns():
            piece = WorkUnit(worker, sequence)
            kept = contextvars.copy_context()
            slot.moving()
            hold(piece)
            kept.run(never_detaches, piece)
            slot.outside()
            spin()
            for _ in range(10):
                slot.moving()
                kept.run(again, piece)
                slot.outside()
                spin()
            slot.moving()
            let_go(piece)

    load.in_threads(body)


def executors(load: Load) -> None:
    """A thread pool that is given work with copies of contexts, and work without."""
    with ThreadPoolExecutor(_THREADS) as executor:

        def body(worker: int) -> None:
            for sequence in load.turns():
                with load.work(worker, sequence) as piece:
                    executor.submit(contextvars.copy_context().run, _elsewhere, piece).result()
                executor.submit(_elsewhere_outside).result()

        load.in_threads(body, 4)


def _elsewhere(piece: WorkUnit) -> None:
    """Runs in a thread of a pool, in a context with this span."""
    _HERE.slot.inside(piece)
    for _ in range(10):
        spin()
        detach(attach(get_current()))
    _HERE.slot.resting()


def _elsewhere_outside() -> None:
    _HERE.slot.outside()
    for _ in range(10):
        spin()
    _HERE.slot.resting()


async def _let_others(piece: WorkUnit | None) -> None:
    _HERE.slot.moving()
    await asyncio.sleep(0)
    _arrive(piece)


def _arrive(piece: WorkUnit | None) -> None:
    if piece is None:
        _HERE.slot.outside()
    else:
        _HERE.slot.inside(piece)


async def _tasks(load: Load) -> None:
    async def inherits(piece: WorkUnit) -> None:
        _HERE.slot.inside(piece)
        spin()
        await _let_others(piece)
        spin()
        _HERE.slot.moving()

    async def holds_a_span(worker: int) -> None:
        for sequence in load.turns():
            with load.work(worker, sequence) as piece:
                spin()
                await _let_others(piece)
                spin()
                with load.within(piece) as child:
                    await _let_others(child)
                    spin()
                task = asyncio.create_task(inherits(piece))
                _HERE.slot.moving()
                await task
                _HERE.slot.inside(piece)
                spin()
            await _let_others(None)
            spin()

    async def has_none() -> None:
        while load.latch.is_waiting:
            _HERE.slot.outside()
            spin()
            await _let_others(None)

    load.ready()
    with_spans = range(1, _TASKS * 3 // 4 + 1)
    without = range(_TASKS - len(with_spans))
    await asyncio.gather(*(holds_a_span(worker) for worker in with_spans), *(has_none() for _ in without))


def to_thread(load: Load) -> None:
    """`asyncio.to_thread`, which carries the task's span to a thread of a pool, beside work that carries none."""

    async def holds_a_span(worker: int) -> None:
        for sequence in load.turns():
            with load.work(worker, sequence) as piece:
                spin()
                _HERE.slot.moving()
                await asyncio.to_thread(_elsewhere, piece)
                _HERE.slot.inside(piece)
            _HERE.slot.moving()
            await asyncio.get_running_loop().run_in_executor(None, _elsewhere_outside)
            _HERE.slot.outside()

    async def main() -> None:
        load.ready()
        await asyncio.gather(*(holds_a_span(worker) for worker in range(1, _THREADS + 1)))

    asyncio.run(main())


def greenlets(load: Load) -> None:
    """Greenlets of gevent that hold spans while others run, in a process that is patched throughout."""
    import gevent  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
    from gevent import monkey  # noqa: PLC0415

    load.facts["patched"] = monkey.is_module_patched("threading")

    def let_others(piece: WorkUnit | None) -> None:
        _HERE.slot.moving()
        gevent.sleep(0)
        _arrive(piece)

    def holds_a_span(worker: int) -> None:
        for sequence in load.turns():
            with load.work(worker, sequence) as piece:
                spin()
                let_others(piece)
                spin()
                with load.within(piece) as child:
                    let_others(child)
                    spin()
            let_others(None)
            spin()

    def has_none() -> None:
        while load.latch.is_waiting:
            _HERE.slot.outside()
            spin()
            let_others(None)

    started = [gevent.spawn(holds_a_span, worker) for worker in range(1, _GREENLETS + 1)]
    started += [gevent.spawn(has_none) for _ in range(_GREENLETS // 5)]
    load.ready()
    gevent.joinall(started, raise_error=True)


_SCENARIOS: dict[str, Callable[[Load], None]] = {
    function.__name__: function
    for function in (
        threads, generators, contexts, executors, to_thread, greenlets,
    )
} | task_scenarios(_tasks)  # fmt: skip


def main(scenario: str) -> None:
    load = Load()
    if scenario == "greenlets":
        from gevent import monkey  # noqa: PLC0415  # only where this scenario runs

        monkey.patch_all()
    set_provider()
    assert splunk_profiler.start()
    wait_until_visible()
    load.run(_SCENARIOS[scenario])


if __name__ == "__main__":
    main(sys.argv[1])
