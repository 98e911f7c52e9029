"""Threads and tasks that wait for a connection of a pool that has none left, or for a primitive of asyncio.

``exhausted_pools.py DATABASE``, profiled as the environment says. Each has the name of what it waits for. No server is
needed: SQLite has none, and others wait before they connect, or are connected to a port at which nobody answers.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import psycopg_pool
import redis.asyncio
import sqlalchemy
import urllib3
from dbutils.pooled_db import PooledDB
from marked_work import load_exporter, say
from sqlalchemy.ext.asyncio import create_async_engine

import splunk_profiler

WAIT_S = 4.0  # tasks are captured once a second
ONE: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": WAIT_S}


def attempt(work: Callable[[], object]) -> None:
    with suppress(Exception):  # each pool has an error of its own for a wait that was too long
        work()


def wait_in_threads(database: str, port: int) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{database}", poolclass=sqlalchemy.QueuePool, **ONE)
    dbutils = PooledDB(sqlite3, maxconnections=1, blocking=True, database=database, check_same_thread=False)
    make_cache: Any = redis.BlockingConnectionPool
    cache = make_cache(1, WAIT_S, host="127.0.0.1", port=port, protocol=2, driver_info=None)
    http = urllib3.HTTPConnectionPool("127.0.0.1", port, timeout=WAIT_S, maxsize=1, block=True, retries=False)
    postgres = psycopg_pool.ConnectionPool(f"host=127.0.0.1 port={port}", min_size=0, max_size=1, open=True)
    taken = [engine.connect(), dbutils.connection(), cache.get_connection()]
    waits: list[tuple[str, Callable[[], object]]] = [
        ("sqlalchemy", engine.connect),
        ("dbutils", dbutils.connection),
        ("redis", cache.get_connection),
        ("urllib3", lambda: http.request("GET", "/")),
        ("urllib3", lambda: http.request("GET", "/")),  # one of them has the connection
        ("psycopg", lambda: postgres.getconn(WAIT_S)),
    ]
    threads = [threading.Thread(target=attempt, args=(wait,), name=name) for name, wait in waits]
    for thread in threads:
        thread.start()
    for thread in threads[2:]:
        thread.join()
    taken.clear()  # DBUtils waits without a limit
    threads[1].join()
    postgres.close(0)


async def wait_in_tasks(database: str, port: int) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}", **ONE)
    cache: Any = redis.asyncio.BlockingConnectionPool(max_connections=1, timeout=int(WAIT_S) + 1)
    postgres: Any = psycopg_pool.AsyncConnectionPool(f"host=127.0.0.1 port={port}", min_size=0, max_size=1, open=False)
    await postgres.open()
    lock, semaphore, taken = asyncio.Lock(), asyncio.Semaphore(0), await engine.connect()
    await lock.acquire()
    cache.get_available_connection()
    waits: dict[str, Coroutine[Any, Any, object]] = {
        "asyncio.Lock": lock.acquire(),
        "asyncio.Queue": asyncio.Queue[None]().get(),
        "asyncio.Semaphore": semaphore.acquire(),
        "sqlalchemy.asyncio": engine.connect().start(),
        "redis.asyncio": cache.get_connection(),
        "psycopg.asyncio": postgres.getconn(WAIT_S),
    }

    tasks = [asyncio.create_task(waiting, name=name) for name, waiting in waits.items()]
    await asyncio.wait(tasks, timeout=WAIT_S + 0.5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await taken.close()
    await engine.dispose()
    await postgres.close(0)


def main(database: str) -> None:
    load_exporter()
    assert splunk_profiler.start()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        wait_in_threads(database, port)
        asyncio.run(wait_in_tasks(database, port))
        splunk_profiler.stop(10)
    say("ledger", True)


if __name__ == "__main__":
    main(sys.argv[1])
