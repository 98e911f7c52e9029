"""Every way in which Python code runs inside spans, as real load: ``association.py SCENARIO...``.

Starts the profiler, which is told where to send by the environment. Then runs one scenario after the other: each begins
when a line arrives on standard input, prints ``ready`` and the time once its load runs, and ends at the next line. At
last it prints the ledger of its spans.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marked_work import LEDGER, InputLatch, load_exporter, outside, say, wait, work
from opentelemetry import trace
from opentelemetry.context import attach, detach  # as applications do: imported before the profiler starts
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from task_loops import task_scenarios

import splunk_profiler

_WORKERS = 12
_EACH = 6  # numbers a worker uses in turn, so that a span left over from its turn before is seen as wrong


class Load:
    """The load of every scenario, which runs until the test has seen enough."""

    latch: InputLatch

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def run(self, scenario: str) -> None:
        """Run a scenario from the next line of input to the one after it."""
        InputLatch().wait()
        self.latch = InputLatch()
        _SCENARIOS[scenario](self)

    def turns(self, worker: int) -> Iterator[int]:
        """Span numbers of a worker, one for each turn, until the test has seen enough."""
        turn = 0
        while self.latch.is_waiting:
            yield worker * _EACH + turn % _EACH
            turn += 1

    def ready(self) -> None:
        say("ready", time.time_ns())

    def in_threads(self, body: Callable[[int], None], workers: int = _WORKERS) -> None:
        """Run `body(worker)` in threads and wait for them."""
        failures: list[BaseException] = []

        def guarded(worker: int) -> None:
            try:
                body(worker)
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=guarded, args=(worker,)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        self.ready()
        for thread in threads:
            thread.join()
        assert not failures


def threads(load: Load) -> None:
    """Threads that compute and wait, inside spans and outside, with spans inside spans."""

    def body(worker: int) -> None:
        for number in load.turns(worker):
            with LEDGER.span(number):
                work(number)
                wait(number)
                inner = worker * _EACH + (number + 1) % _EACH
                with LEDGER.span(inner):
                    work(inner)
                work(number)
            outside()

    load.in_threads(body)


def by_hand(load: Load) -> None:
    """`attach` and `detach` called by hand, with the functions that were imported before the profiler started."""

    def body(worker: int) -> None:
        for number in load.turns(worker):
            token = attach(trace.set_span_in_context(LEDGER.begin(number)))
            work(number)
            wait(number)
            detach(token)
            outside()

    load.in_threads(body)


def pool(load: Load) -> None:
    """A thread pool whose threads serve work with spans and work without in turn."""

    def task(number: int | None) -> None:
        if number is None:
            outside()
            return
        with LEDGER.span(number):
            work(number)
            wait(number)

    with ThreadPoolExecutor(6) as executor:

        def feed(worker: int) -> None:
            for number in load.turns(worker):
                executor.submit(task, number).result()
                executor.submit(task, None).result()

        load.in_threads(feed)


async def _tasks(load: Load) -> None:
    async def holds_a_span(worker: int) -> None:
        for number in load.turns(worker):
            with LEDGER.span(number):
                work(number)
                wait(number)  # the portable walker gets the GIL there
                await asyncio.sleep(0)
                work(number)
                await asyncio.create_task(inherits(number))
                work(number)
            await asyncio.sleep(0)

    async def inherits(number: int) -> None:
        work(number)
        await asyncio.sleep(0)
        work(number)

    async def has_none() -> None:
        while load.latch.is_waiting:
            outside()
            await asyncio.sleep(0)

    load.ready()
    await asyncio.gather(*(holds_a_span(worker) for worker in range(4)), *(has_none() for _ in range(4)))


def to_thread(load: Load) -> None:
    """`asyncio.to_thread`, which carries the task's span to a thread of a pool."""

    async def holds_a_span(worker: int) -> None:
        for number in load.turns(worker):
            with LEDGER.span(number):
                await asyncio.to_thread(work, number)
                await asyncio.to_thread(wait, number)
            await asyncio.to_thread(outside)

    async def main() -> None:
        load.ready()
        await asyncio.gather(*(holds_a_span(worker) for worker in range(8)))

    asyncio.run(main())


def context_run(load: Load) -> None:
    """Spans attached in a `Context.run` and never detached: they end with the context."""

    def never_detaches(number: int) -> None:
        attach(trace.set_span_in_context(LEDGER.begin(number)))
        work(number)

    def body(worker: int) -> None:
        for number in load.turns(worker):
            contextvars.copy_context().run(never_detaches, number)
            outside()
            kept = contextvars.copy_context()
            kept.run(never_detaches, number)
            outside()
            kept.run(work, number)
            kept.run(wait, number)

    load.in_threads(body)


def generators(load: Load) -> None:
    """Generators that hold a span: it stays current in the code that drives them, until they are closed."""

    def spans(number: int) -> Iterator[None]:
        with LEDGER.span(number):
            work(number)
            yield
            work(number)

    def body(worker: int) -> None:
        for number in load.turns(worker):
            outside()
            generator = spans(number)
            next(generator)
            work(number)
            wait(number)
            for _ in generator:
                pass
            outside()

    load.in_threads(body)


def reused_idents(load: Load) -> None:
    """Threads that end inside a span, followed by threads that get the same ident."""
    idents: set[int] = set()
    reused = 0

    def dies_in_a_span(number: int) -> None:
        nonlocal reused
        reused += threading.get_ident() in idents
        idents.add(threading.get_ident())
        attach(trace.set_span_in_context(LEDGER.begin(number)))
        for _ in range(20):
            work(number)

    def has_none() -> None:
        nonlocal reused
        reused += threading.get_ident() in idents
        for _ in range(20):
            outside()

    load.ready()
    for number in load.turns(0):
        for thread in (threading.Thread(target=dies_in_a_span, args=(number,)), threading.Thread(target=has_none)):
            thread.start()
            thread.join()
    load.facts["reused"] = reused


def greenlets(load: Load) -> None:
    """Greenlets of gevent that hold spans while others run, in a process that is patched throughout."""
    import gevent  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415
    from gevent import monkey  # noqa: PLC0415

    load.facts["patched"] = monkey.is_module_patched("threading")

    def holds_a_span(worker: int) -> None:
        for number in load.turns(worker):
            with LEDGER.span(number):
                work(number)
                gevent.sleep(0)
                work(number)
                gevent.sleep(0.001)
                work(number)
            gevent.sleep(0)

    def has_none() -> None:
        while load.latch.is_waiting:
            outside()
            gevent.sleep(0)

    started = [gevent.spawn(holds_a_span, worker) for worker in range(4)] + [gevent.spawn(has_none) for _ in range(4)]
    load.ready()
    gevent.joinall(started, raise_error=True)


class SomeNames(Sampler):
    """Samples all spans, or those with an even number."""

    drops_odd = False

    def should_sample(self, *parent_and_trace: Any, **span: Any) -> SamplingResult:
        name = span.get("name") or parent_and_trace[2]
        is_dropped = self.drops_odd and int(name[-2:]) % 2
        return SamplingResult(Decision.DROP if is_dropped else Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "SomeNames"


_SAMPLER = SomeNames()


def unsampled(load: Load) -> None:
    """Spans of which every second one is not sampled."""

    def body(worker: int) -> None:
        for number in load.turns(worker):
            with LEDGER.span(number):
                work(number)
                wait(number)

    _SAMPLER.drops_odd = True
    load.in_threads(body)
    _SAMPLER.drops_odd = False


_SCENARIOS: dict[str, Callable[[Load], None]] = {
    function.__name__: function
    for function in (
        threads, by_hand, pool, to_thread, context_run, generators,
        reused_idents, greenlets, unsampled,
    )
} | task_scenarios(_tasks)  # fmt: skip


def main(*scenarios: str) -> None:
    if "greenlets" in scenarios:
        from gevent import monkey  # noqa: PLC0415  # only where this scenario runs

        monkey.patch_all()
    sys.setswitchinterval(0.0005)  # each snapshot waits for the GIL
    load_exporter()
    trace.set_tracer_provider(TracerProvider(sampler=_SAMPLER))
    assert splunk_profiler.start()
    load = Load()
    for scenario in scenarios:
        load.run(scenario)
    LEDGER.dump(**load.facts)


if __name__ == "__main__":
    main(*sys.argv[1:])
