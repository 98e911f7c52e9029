"""Everything that makes frames come and go, under a walker at 2 kHz: a stack that is not a possible one ends it.

    walker_storm.py CAPTURES THREADS        prints "ready", then "ok" and the counters as JSON

Each worker calls `link_0`, which calls `link_1` and so on, up and down. So from the root on, the links of a true stack
count up without a gap, whatever else lies on top of them. `check` sees every distinct stack there was.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from types import CodeType
from typing import Any, ClassVar

from splunk_profiler import _walker as walker
from splunk_profiler.raw import RawThread

LINKS = 24
DEEP = 100_000
MAX_DEPTH = 128
PERIOD_NS = 500_000
ROOTS = {"_bootstrap", "<module>", "_remove"}  # the last: a weak reference to what a thread's end frees
current: ContextVar[Tag] = ContextVar("current")
labels: ContextVar[Tag] = ContextVar("labels")
links: list[Callable[[random.Random], object]] = []
wrong: list[str] = []


class Tag:
    """A value in a thread's context, with its own identity; `alive` lists those not yet freed."""

    alive: ClassVar[weakref.WeakSet[Tag]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)


def name(code: CodeType, offset: int, namespace: dict[str, Any]) -> str:
    if not -1 <= offset < max(len(code.co_code), 1) or "__builtins__" not in namespace:
        wrong.append(f"{code.co_name} at {offset}")
    return code.co_name


def check(frames: tuple[str, ...], truncated: bool) -> tuple[str, ...]:
    below = [int(frame[5:]) for frame in reversed(frames) if frame.startswith("link_")]
    first = below[0] if "<module>" in frames and below else 0  # exec'd code enters the chain anywhere
    if below != list(range(first, first + len(below))):
        wrong.append(" ".join(frames))
    whole = bool(frames) and frames[-1] in ROOTS
    if len(frames) != MAX_DEPTH if truncated else len(frames) > MAX_DEPTH or not whole:
        wrong.append(f"{len(frames)} frames, truncated {truncated}: {frames[-3:]}")
    return frames


def make_link(number: int) -> Callable[[random.Random], object]:
    """A function of its own code object that calls the next one, in one of the ways in which Python calls."""
    call = {
        0: "result = links[{next}](chance)",
        1: "result = list(map(links[{next}], [chance]))",
        2: "result = sorted([chance], key=links[{next}])",
        3: "result = [links[{next}](chance) for _ in (1,)]",
        4: "result = copy_context().run(links[{next}], chance)",
        5: "result = next(flow(chance, links[{next}]))",
    }[number % 6].format(next=number + 1)
    source = (
        f"def link_{number}(chance):\n  for _ in range(1 + (chance.random() < 0.1)):\n    {call}\n  return id(result)\n"
    )
    namespace: dict[str, Any] = {"links": links, "copy_context": copy_context, "flow": flow}
    exec(compile(source, f"<link {number}>", "exec"), namespace)  # noqa: S102
    made: Callable[[random.Random], object] = namespace[f"link_{number}"]
    return made


def flow(chance: random.Random, then: Callable[[random.Random], object]) -> Iterator[object]:
    yield then(chance)


def last(chance: random.Random) -> object:
    current.set(Tag())
    return chance.random()


def work(chance: random.Random) -> None:
    current.set(Tag())
    labels.set(Tag())
    links[0](chance)


def forever(over: threading.Event, step: Callable[[random.Random], object], seed: int) -> None:
    chance = random.Random(seed)
    while not over.is_set():
        step(chance)
        time.sleep(0.005)  # lets the short threads come and go as well


def dying_code(chance: random.Random) -> None:
    number = chance.randrange(LINKS - 2)
    source = compile(f"links[{number}](chance)", f"<gone {chance.random()}>", "exec")
    exec(source, {"links": [*links], "chance": chance})  # noqa: S102


def collect(chance: random.Random) -> None:
    loop: list[object] = [chance.random(), Tag()]
    loop.append(loop)
    del loop
    gc.collect(chance.choice((0, 0, 0, 1, 1, 2)))


def tasks(_chance: random.Random) -> None:
    async def task(depth: int) -> None:
        current.set(Tag())
        if depth:
            await asyncio.gather(task(depth - 1), task(depth - 1))
        await asyncio.sleep(0)

    asyncio.run(task(4))


def deeper(depth: int) -> int:
    return deeper(depth - 1) + 1 if depth else 0


def at_the_limit(chance: random.Random) -> None:
    def again() -> None:
        current.set(Tag())
        again()

    try:
        again()
    except RecursionError:
        chance.random()


def churn(threads: int) -> None:
    for first in range(0, threads, 50):
        short = [threading.Thread(target=work, args=(random.Random(first + i),)) for i in range(50)]
        for thread in short:
            thread.start()
        for thread in short:
            thread.join()


def has_tags(thread: RawThread) -> bool:
    return all(isinstance(value, (Tag, type(None))) for value in (thread.context, thread.labels))


def check_drained(ticker: walker.Ticker[str, tuple[str, ...]]) -> tuple[int, int]:
    """Check what there is to drain; return the numbers of snapshots and of collections."""
    snapshots = ticker.drain(100_000_000)
    for snapshot in snapshots:
        keys = [thread.key for thread in snapshot.threads]
        if keys != sorted(set(keys)) or not all(has_tags(thread) for thread in snapshot.threads):
            wrong.append(f"threads {keys}")
    collections = ticker.drain_collections()
    for collection in collections:
        if not has_tags(collection.thread) or not collection.thread.stack:
            wrong.append(f"collection {collection}")
    return len(snapshots), sum(collection.event_count for collection in collections)


def main(captures: int, threads: int) -> None:
    links.extend(make_link(number) for number in range(LINKS))
    links.append(last)
    ticker = walker.Ticker(
        context_var=current,
        labels_var=labels,
        max_depth=MAX_DEPTH,
        make_frame=name,
        make_stack=check,
        ring_size=64,
        min_collection_interval_ns=0,
    )
    gc.callbacks.append(ticker.on_gc_event)
    over = threading.Event()
    run = threading.Thread(target=ticker.run, args=(PERIOD_NS,), daemon=True)
    steps = (work, work, dying_code, collect, tasks)
    busy = [threading.Thread(target=forever, args=(over, step, seed)) for seed, step in enumerate(steps)]
    threading.stack_size(512 << 20)  # 3.10 uses the C stack for Python calls
    deep = threading.Thread(target=lambda: [deeper(DEEP) for _ in range(3)])
    sys.setrecursionlimit(DEEP + 1000)
    sys.setswitchinterval(1e-5)
    print("ready", flush=True)
    run.start()
    deep.start()
    threading.stack_size(0)
    churning = threading.Thread(target=churn, args=(threads,))
    for thread in (*busy, churning):
        thread.start()
    drained = collections = 0
    while drained < captures or churning.is_alive() or deep.is_alive():
        more_drained, more_collections = check_drained(ticker)
        drained += more_drained
        collections += more_collections
        if drained > captures // 2 and not tracemalloc.is_tracing() and not deep.is_alive():
            sys.setrecursionlimit(400)
            tracemalloc.start(1)
            busy.append(threading.Thread(target=forever, args=(over, at_the_limit, 0)))
            busy[-1].start()
        if wrong:
            break
        time.sleep(0.005)  # not against the others for the GIL: the ring holds six times as much
    over.set()
    for thread in (*busy, churning, deep):
        thread.join()
    gc.callbacks.remove(ticker.on_gc_event)
    ticker.stop()
    run.join()
    ticker.drain(0)
    if not collections:
        wrong.append("no collection was noticed")
    counters = ticker.counters()
    del ticker, busy, churning, deep, thread  # since 3.14 a Thread keeps its context
    gc.collect()
    if len(Tag.alive) > 1:
        wrong.append(f"{len(Tag.alive)} contexts are kept alive")
    print(json.dumps({"wrong": wrong[:5], "drained": drained, **counters._asdict()}))
    print("failed" if wrong else "ok", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
