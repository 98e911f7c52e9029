"""The kind of a wait, by the names on a stack."""

from __future__ import annotations

import pytest

from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.waits import Wait, find_wait, wait_kind

BOOTSTRAP = ["threading.Thread:run", "threading.Thread:_bootstrap_inner", "threading.Thread:_bootstrap"]
SHOP = ["shop:pay", "shop:serve"]
PROCESS = ["multiprocessing.process.BaseProcess:run", "multiprocessing.process.BaseProcess:_bootstrap"]
RECEIVE = [f"multiprocessing.connection.{each}" for each in ("Connection:_recv", "Connection:_recv_bytes")]
RECEIVE.append("multiprocessing.connection._ConnectionBase:recv_bytes")
POLL = ["selectors._PollLikeSelector:select", "multiprocessing.connection:wait"]
POLL += [f"multiprocessing.connection.{each}" for each in ("Connection:_poll", "_ConnectionBase:poll")]
RESULT = ["multiprocessing.pool.ApplyResult:wait", "multiprocessing.pool.ApplyResult:get"]
CONDITION = "threading.Condition:wait"


def places(*calls: str) -> list[tuple[str, str]]:
    return [(namespace, function) for namespace, _, function in (call.partition(":") for call in calls)]


@pytest.mark.parametrize(
    ("calls", "kind", "depth"),
    [
        ([CONDITION, *SHOP], "condition", 1),
        ([CONDITION, "threading.Event:wait", *SHOP], "event", 2),
        ([CONDITION, "threading.Semaphore:acquire", *SHOP], "semaphore", 2),
        ([CONDITION, "threading.Condition:wait_for", "threading.Barrier:_wait", *SHOP], "barrier", 3),
        (["threading.Condition:__enter__", *SHOP], "lock", 1),
        (["threading.Thread:_wait_for_tstate_lock", "threading.Thread:join", *SHOP], "thread", 2),
        ([CONDITION, "queue.Queue:put", *SHOP], "queue", 2),
        ([CONDITION, "concurrent.futures._base.Future:result", *SHOP], "future", 2),
        (
            [CONDITION, "sqlalchemy.util.queue.Queue:get", "sqlalchemy.pool.impl.QueuePool:_do_get", *SHOP],
            "pool",
            3,
        ),
        (
            [
                *(CONDITION, "sqlalchemy.util.queue.Queue:get", "sqlalchemy.pool.impl.QueuePool:_do_get"),
                *("sqlalchemy.pool.base._ConnectionFairy:_checkout", "sqlalchemy.pool.base.Pool:connect"),
                *("sqlalchemy.engine.base.Engine:raw_connection", "sqlalchemy.engine.base.Engine:connect"),
                *SHOP,
            ],
            "pool",
            7,
        ),
        (
            [
                *("asyncio.queues.Queue:get", "asyncpg.pool.Pool._acquire.<locals>:_acquire_impl"),
                *("asyncio.tasks:wait_for", "asyncpg.compat:wait_for", "asyncpg.pool.Pool:_acquire"),
                *("asyncpg.pool.PoolAcquireContext:__aenter__", *SHOP),
            ],
            "pool",
            6,
        ),
        (["asyncio.queues.Queue:get", "asyncpg.pool.Pool._acquire.<locals>:_acquire_impl"], "pool", 1),
        (
            [
                *("asyncio.queues.Queue:get", "asyncio.tasks:wait_for", "sqlalchemy.util.concurrency:greenlet_spawn"),
                *("sqlalchemy.ext.asyncio.engine.AsyncConnection:start", *SHOP),
            ],
            "pool",
            4,
        ),
        (["asyncio.locks.Lock:acquire", "sqlalchemy.util._concurrency_py3k:greenlet_spawn", *SHOP], "lock", 2),
        (["asyncio.locks.Condition:wait", "aiomysql.pool.Pool:_acquire", *SHOP], "pool", 2),
        (
            [
                *("asyncio.locks.Condition:wait", "asyncio.tasks:wait_for", "pymongo.lock:_async_cond_wait"),
                *("pymongo.asynchronous.pool.Pool:_get_conn", *SHOP),
            ],
            "pool",
            4,
        ),
        ([CONDITION, "pymongo.lock:_cond_wait", "pymongo.synchronous.pool.Pool:_get_conn", *SHOP], "pool", 3),
        ([CONDITION, "dbutils.pooled_db.PooledDB:_wait_lock", "dbutils.pooled_db.PooledDB:connection"], "pool", 2),
        ([*RECEIVE, "multiprocessing.queues.Queue:get", *SHOP], "queue", 4),
        ([*POLL, "multiprocessing.queues.Queue:get", *SHOP], "queue", 5),
        ([*RECEIVE, "multiprocessing.queues.SimpleQueue:get", "multiprocessing.pool:worker", *PROCESS], "idle", 5),
        ([*RECEIVE, "multiprocessing.queues.Queue:get", "concurrent.futures.process:_process_worker"], "idle", 4),
        (["multiprocessing.pool:worker", *BOOTSTRAP], "idle", 1),
        ([CONDITION, "threading.Event:wait", *RESULT, *SHOP], "event", 4),
        (["asyncio.locks.Lock:acquire", "asyncio.locks.Lock:__aenter__", *SHOP], "lock", 2),
        ([CONDITION, "queue.Queue:get", "shop:worker", *BOOTSTRAP], "idle", 2),
        ([CONDITION, "queue.Queue:get", "shop:next_item", "shop:worker", *BOOTSTRAP], "queue", 2),
        ([CONDITION, "queue.Queue:get", "shop:<module>"], "queue", 2),
        ([CONDITION, "threading.Event:wait", "threading.Timer:run", *BOOTSTRAP[1:]], "idle", 2),
        ([CONDITION, "threading.Event:wait", "shop.Worker:run", *BOOTSTRAP[1:]], "idle", 2),
        ([CONDITION, "queue.Queue:put", "shop:producer", *BOOTSTRAP], "queue", 2),
        ([CONDITION, "queue.Queue:join", "shop:producer", *BOOTSTRAP], "queue", 2),
        (
            [
                *(CONDITION, "queue.Queue:get", "logging.handlers.QueueListener:dequeue"),
                *("logging.handlers.QueueListener:_monitor", *BOOTSTRAP),
            ],
            "idle",
            4,
        ),
        ([CONDITION, "multiprocessing.queues.JoinableQueue:join", *SHOP], "queue", 2),
        (["multiprocessing.queues.Queue:put", *SHOP], "queue", 1),
        ([CONDITION, "multiprocessing.queues.Queue:_feed", *BOOTSTRAP], "idle", 2),
        (["threading.Condition:__enter__", "shop:worker", *BOOTSTRAP], "lock", 1),
        (["concurrent.futures.thread:_worker", *BOOTSTRAP], "idle", 1),
        ([CONDITION], "condition", 0),
    ],
)
def test_find_wait_has_the_outermost_primitive_and_its_caller(calls: list[str], kind: str, depth: int) -> None:
    assert find_wait(places(*calls)) == Wait(kind, depth)


@pytest.mark.parametrize(
    "calls",
    [
        *(SHOP, ["selectors.EpollSelector:select", *SHOP], ["threading.Condition:notify", *SHOP], []),
        *(["asyncio.tasks:sleep", *SHOP], ["sqlalchemy.util.concurrency:greenlet_spawn", *SHOP]),
        [*RECEIVE, *SHOP],
        [*POLL, "concurrent.futures.process._ExecutorManagerThread:run", *BOOTSTRAP],
        ["concurrent.futures.thread._WorkItem:run", "concurrent.futures.thread:_worker", *BOOTSTRAP],
    ],
)
def test_find_wait_knows_nothing_of_other_waits(calls: list[str]) -> None:
    assert find_wait(places(*calls)) is None


def test_wait_kind_of_a_lock_without_a_frame_is_told_by_the_call() -> None:
    gets = Frame("shop", "take", "shop.py", 9, 8, "get")
    started = [Frame(*place, "threading.py", 1, 1) for place in places(*BOOTSTRAP)]
    assert wait_kind(Stack((gets,), truncated=False)) == "queue"
    assert wait_kind(Stack((gets, *started), truncated=False)) == "idle"
    listens = Frame("logging.handlers.QueueListener", "dequeue", "handlers.py", 9, 8, "get")
    assert wait_kind(Stack((listens, *started), truncated=False)) == "idle"
    enters, waits = Frame("shop", "pay", "shop.py", 7, 5, "with"), Frame("threading.Condition", "wait", "t.py", 3, 1)
    assert wait_kind(Stack((enters,), truncated=False)) == "lock"
    assert wait_kind(Stack((waits, enters), truncated=False)) == "condition"
    assert wait_kind(Stack((), truncated=False)) == ""
