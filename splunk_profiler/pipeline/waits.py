"""The kind of lock-like thing that a waiting thread waits for, as far as the names on its stack tell.

Pure. A primitive in Python has frames: the kind is that of the outermost of them, so that a pool which waits
on a condition is a pool. A lock in C has none: there `Frame.call` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from splunk_profiler.model import Stack

IDLE = "idle"  # waits for work, as a thread of a pool does between two tasks
GIL_WAIT = "gil"  # could run, and waits for the GIL; no stack shows that

_KINDS = {
    ("threading.Condition", "wait"): "condition",
    ("threading.Condition", "wait_for"): "condition",
    ("threading.Condition", "__enter__"): "lock",
    ("threading.Event", "wait"): "event",
    ("threading.Semaphore", "acquire"): "semaphore",
    ("threading.Barrier", "wait"): "barrier",
    ("threading.Barrier", "_wait"): "barrier",
    ("threading.Barrier", "_enter"): "barrier",
    ("threading._RLock", "acquire"): "lock",
    ("threading.Thread", "join"): "thread",
    ("threading.Thread", "_wait_for_tstate_lock"): "thread",
    ("threading", "_shutdown"): "thread",
    ("queue.Queue", "get"): "queue",
    ("queue.Queue", "put"): "queue",
    ("queue.Queue", "join"): "queue",
    ("concurrent.futures._base.Future", "result"): "future",
    ("concurrent.futures._base.Future", "exception"): "future",
    ("concurrent.futures._base", "wait"): "future",
    ("concurrent.futures._base", "as_completed"): "future",
    ("concurrent.futures.thread", "_worker"): IDLE,
    ("concurrent.futures.process", "_process_worker"): IDLE,
    ("multiprocessing.pool", "worker"): IDLE,
    ("multiprocessing.synchronize.Condition", "wait"): "condition",
    ("multiprocessing.synchronize.Event", "wait"): "event",
    ("multiprocessing.synchronize.SemLock", "__enter__"): "lock",
    ("multiprocessing.queues.Queue", "get"): "queue",
    ("multiprocessing.queues.Queue", "put"): "queue",
    ("multiprocessing.queues.JoinableQueue", "join"): "queue",
    ("multiprocessing.queues.SimpleQueue", "get"): "queue",
    ("asyncio.locks.Lock", "acquire"): "lock",
    ("asyncio.locks.Condition", "wait"): "condition",
    ("asyncio.locks.Event", "wait"): "event",
    ("asyncio.locks.Semaphore", "acquire"): "semaphore",
    ("asyncio.locks.Barrier", "wait"): "barrier",
    ("asyncio.queues.Queue", "get"): "queue",
    ("asyncio.queues.Queue", "put"): "queue",
    ("asyncio.queues.Queue", "join"): "queue",
    ("sqlalchemy.pool.impl.QueuePool", "_do_get"): "pool",
    ("psycopg_pool.pool.ConnectionPool", "getconn"): "pool",
    ("psycopg_pool.pool_async.AsyncConnectionPool", "getconn"): "pool",
    ("redis.connection.BlockingConnectionPool", "get_connection"): "pool",
    ("redis.asyncio.connection.BlockingConnectionPool", "get_connection"): "pool",
    ("pymongo.pool.Pool", "_get_conn"): "pool",
    ("pymongo.synchronous.pool.Pool", "_get_conn"): "pool",
    ("pymongo.asynchronous.pool.Pool", "_get_conn"): "pool",
    ("asyncpg.pool.Pool", "_acquire"): "pool",
    ("asyncpg.pool.Pool._acquire.<locals>", "_acquire_impl"): "pool",  # in a task of its own if there is a time limit
    ("aiomysql.pool.Pool", "_acquire"): "pool",
    ("aiopg.pool.Pool", "_acquire"): "pool",
    ("dbutils.pooled_db.PooledDB", "connection"): "pool",
    ("urllib3.connectionpool.HTTPConnectionPool", "_get_conn"): "pool",
}
# SQLAlchemy's pool waits for a queue of asyncio. Its frames are in a greenlet, and what that awaits is here.
_GREENLETS = {
    ("sqlalchemy.util._concurrency_py3k", "greenlet_spawn"),
    ("sqlalchemy.util.concurrency", "greenlet_spawn"),
}
# Between the frames of a primitive and those of one that uses it.
_MODULES = (
    *("threading", "queue", "concurrent.futures", "multiprocessing.synchronize", "multiprocessing.queues"),
    *("multiprocessing.connection", "multiprocessing.pool", "selectors", "logging.handlers"),
    *("asyncio.locks", "asyncio.queues", "asyncio.mixins", "asyncio.tasks", "sqlalchemy", "psycopg_pool"),
    *("redis.connection", "redis.asyncio.connection", "pymongo.pool", "pymongo.synchronous.pool"),
    *("pymongo.asynchronous.pool", "pymongo.lock", "asyncpg.pool", "asyncpg.compat", "asyncpg._asyncio_compat"),
    *("aiomysql.pool", "aiopg.pool", "dbutils.pooled_db", "urllib3.connectionpool"),
)
_CALL_KINDS = {"with": "lock", "acquire": "lock", "get": "queue"}  # of `Frame.call`
_BOOTSTRAP_FUNCTIONS = {"_bootstrap", "_bootstrap_inner", "run"}
# Kind and function. A thread that puts into a full queue waits for room, not for work.
_WAITS_FOR_WORK = {("queue", "get"), ("condition", "wait"), ("condition", "wait_for"), ("event", "wait")}


class Wait(NamedTuple):
    """The kind of what a thread waits for; `depth` is the index of the frame that called the primitive."""

    kind: str
    depth: int


def find_wait(places: Sequence[tuple[str, str]], leaf_call: str = "") -> Wait | None:
    """Return the wait of a stack of namespaces and functions, leaf first; None for any other wait.

    `leaf_call` is `Frame.call` of the leaf.
    """
    kind, function, depth = "", "", 0
    for place in places:
        if not _is_primitive(place[0]) or place[1] in _BOOTSTRAP_FUNCTIONS:
            break
        if place in _KINDS:
            kind, function = _KINDS[place], place[1]
        elif kind == "queue" and place in _GREENLETS:
            kind = "pool"
        depth += 1
    if not kind:
        kind, function = call_kind(leaf_call), leaf_call
    if (kind, function) in _WAITS_FOR_WORK and _is_main_function(places, depth):
        kind = IDLE
    return Wait(kind, min(depth, len(places) - 1)) if kind else None


def call_kind(call: str) -> str:
    """Return the kind of wait of a frame with this `Frame.call`; empty for none."""
    return _CALL_KINDS.get(call, "")


def wait_kind(stack: Stack) -> str:
    """Return the kind of what a waiting thread waits for; empty if it is not known, or nothing like a lock."""
    call = stack.frames[0].call if stack.frames else ""
    wait = find_wait([(frame.namespace, frame.function) for frame in stack.frames], call)
    return "" if wait is None else wait.kind


def _is_primitive(namespace: str) -> bool:
    return any(namespace == module or namespace.startswith(module + ".") for module in _MODULES)


def _is_main_function(places: Sequence[tuple[str, str]], depth: int) -> bool:
    """Return True for the function that a thread was started with: what it waits for is work."""
    callers = places[depth + 1 :]
    return bool(callers) and all(is_bootstrap(*each) for each in callers)


def is_bootstrap(namespace: str, function: str) -> bool:
    """Return True for functions of `threading` in which a thread begins."""
    return function in _BOOTSTRAP_FUNCTIONS and namespace.startswith("threading.")
