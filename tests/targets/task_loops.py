"""The scenarios of targets whose tasks run on each kind of event loop. Imports nothing of the package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Tasks = Callable[[Any], Coroutine[Any, Any, None]]


def task_scenarios(tasks: Tasks) -> dict[str, Callable[[Any], None]]:
    """Return the scenarios that run `tasks(load)` to its end, by name.

    ``eager_tasks`` run inside their creator's call until they first wait (3.12); uvloop enters contexts from C.
    """
    return {
        "asyncio_tasks": lambda load: asyncio.run(tasks(load)),
        "uvloop_tasks": lambda load: _run_on_uvloop(tasks, load),
        "eager_tasks": lambda load: asyncio.run(_make_eager(tasks, load)),
    }


def _run_on_uvloop(tasks: Tasks, load: Any) -> None:
    import uvloop  # noqa: PLC0415  # only where this scenario runs

    async def main() -> None:
        load.facts["loop"] = type(asyncio.get_running_loop()).__module__
        await tasks(load)

    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


async def _make_eager(tasks: Tasks, load: Any) -> None:
    factory = getattr(asyncio, "eager_task_factory")  # noqa: B009  # not there before 3.12
    asyncio.get_running_loop().set_task_factory(factory)
    await tasks(load)
