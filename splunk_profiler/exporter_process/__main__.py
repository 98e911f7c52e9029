"""The program of the exporter process: ``python -I -S …/__main__.py TITLE``, started by `launch`.

Its descriptor 3 is the socket on which hosts connect. Runs without `site`, so that no ``sitecustomize`` instruments it,
and imports what it needs from the host's path. Standard error is ``/dev/null``: what keeps it from serving is sent to
the first host that connects.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splunk_profiler.exporter_process.server import Session

VARIABLE = "_SPLUNK_PROFILER_EXPORTER"  # JSON that `launch` makes
COMMAND_NAME = "splunk-exporter"  # the kernel keeps 15 characters
_LISTENER = 3
_MAX_START_S = 120  # in which SIGALRM ends it: an import that hangs would leave it behind, and its host has given it up
_GC_THRESHOLD = 50_000  # records that wait are no garbage: by default, to visit them took a sixth of the CPU for text
# What gRPC, protobuf, `dataclasses`, `urllib` and the reading of errors and packages import, and hardly ever use here:
# a quarter of the CPU time of a start, and a megabyte.
_POSTPONED = (
    *("asyncio", "calendar", "grpc.aio", "google.protobuf.internal.python_message", "inspect", "ipaddress", "ssl"),
    "zipfile",
)
_REPLACING = allocate_lock()


class PostponedModule(ModuleType):
    """A module that is not loaded before something of it is used.

    One of `importlib.util.LazyLoader` is loaded by the next ``import`` statement.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # without one, `find_spec` raises `ValueError`

    def __getattr__(self, name: str) -> Any:
        with _REPLACING:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def postpone_modules() -> None:
    """Keep modules that are hardly used from being loaded before they are."""
    sys.modules.update({name: PostponedModule(name) for name in _POSTPONED})
    # All that `dataclasses` asks of it, from CPython 3.14 on, for each class with slots: half a megabyte.
    vars(sys.modules["inspect"])["unwrap"] = _unwrap


def _unwrap(function: Any, *, stop: Callable[[Any], bool] = lambda _: False) -> Any:
    while hasattr(function, "__wrapped__") and not stop(function):
        function = function.__wrapped__
    return function


def main() -> None:
    """Serve hosts until the last one has ended."""
    settings: dict[str, Any] = json.loads(os.environ.pop(VARIABLE))
    with suppress(OSError):  # where /proc is not mounted
        Path("/proc/self/comm").write_text(COMMAND_NAME, "utf-8")
    gc.set_threshold(_GC_THRESHOLD)
    # The standard library's first: modules of the application may have the same names.
    own = sys.path if sys.flags.isolated else sys.path[1:]  # without the directory of this program
    sys.path[:] = dict.fromkeys([*own, *settings["path"]])
    if settings.get("leaves_directory"):  # not of an older version of the package
        os.chdir("/")
    import signal  # noqa: PLC0415  # `launch` imports this module in the host, which may not have loaded these

    signal.alarm(_MAX_START_S)
    import socket  # noqa: PLC0415

    listener = socket.socket(fileno=_LISTENER)
    listener.set_inheritable(False)
    logging.logAsyncioTasks = False  # type: ignore[attr-defined]  # from 3.12 on; a line would load asyncio
    postpone_modules()
    from splunk_profiler.exporter_process.server import Server  # noqa: PLC0415  # the path was not there before

    sys.modules["splunk_profiler"].__path__[:] = settings["package"]  # an import hook may have spread it
    server = Server(listener, _load_factory(settings), settings["token"])
    signal.alarm(0)
    server.run()
    os._exit(0)  # all is sent or given up: a detector of the resource may wait for a network on a thread of the SDK's


def _load_factory(settings: dict[str, Any]) -> Callable[[int], Session]:
    module, _, function = settings["factory"].partition(":")
    try:
        if sys.implementation.cache_tag != settings["cache_tag"]:
            raise ImportError(f"{sys.executable} is {sys.implementation.cache_tag}, not {settings['cache_tag']}")
        if os.getppid() in settings.get("ancestors", ()):
            raise ChildProcessError(f"process {os.getppid()} adopts orphans and runs the application's program")
        factory: Callable[[int], Session] = getattr(import_module(module), function)
    except Exception as error:
        reason = f"the exporter process cannot work: {type(error).__name__}: {error}"
        return lambda _: _FailedSession(reason)
    return factory


class _FailedSession:
    """A session that only gives its host the reason why there is no other."""

    is_done = True
    has_failed = False
    end_timeout_s = 0.0

    def __init__(self, reason: str) -> None:
        self._messages = [reason.encode("utf-8", "replace")]

    def feed(self, _: bytes) -> None:
        raise RuntimeError("no session")

    def tick(self) -> None:
        """Do nothing."""

    def messages(self) -> list[bytes]:
        messages, self._messages = self._messages, []
        return messages

    def status(self) -> bytes:
        return b""

    def log_lines(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    main()
