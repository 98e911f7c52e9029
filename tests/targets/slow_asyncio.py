"""A service that is profiled while it imports asyncio, slowly, as under the import hooks of other agents.

Says ``held FUNCTION`` and waits for a line of its standard input, inside that function, before `_asyncio` is executed,
while that imports its own modules, and in a task that blocks its loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import splunk_profiler


def before_asyncio_in_c() -> None:
    print("held before_asyncio_in_c", flush=True)
    sys.stdin.readline()


def within_asyncio_in_c() -> None:
    print("held within_asyncio_in_c", flush=True)
    sys.stdin.readline()


def block_loop() -> None:
    print("held block_loop", flush=True)
    sys.stdin.readline()


class SlowImport:
    """A finder that holds the imports, and a loader around that of `_asyncio`."""

    _loader: Any

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "asyncio.base_tasks":  # `_asyncio` imports it, and has a part of its names by then
            within_asyncio_in_c()
        if name != "_asyncio":
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(spec for spec in specs if spec is not None)
        self._loader, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)  # before CPython 3.12 this executes it, too
        return module

    def exec_module(self, module: ModuleType) -> None:
        before_asyncio_in_c()
        self._loader.exec_module(module)


def main() -> None:
    sys.meta_path.insert(0, SlowImport())
    assert splunk_profiler.start()
    assert "_asyncio" not in sys.modules
    import asyncio  # noqa: PLC0415  # the profiler runs by now

    async def render() -> None:
        block_loop()

    async def serve() -> None:
        await asyncio.create_task(render(), name="invoice")

    asyncio.run(serve())


main()
