"""Context switches that want a process of their own: ``switching.py SCENARIO [LIBRARY]``.

Prints a JSON object of facts: how often the published span was found right and wrong, and what else the scenario saw.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from importlib import import_module
from pathlib import Path
from typing import Any

from context_factory import attach, audit_passes, count_switches, hooks

from splunk_profiler import _context as native

facts: Counter[str] = Counter()


def look() -> bool:
    """Note whether the right span is published just now."""
    right = audit_passes()
    facts["right" if right else "wrong"] += 1
    return right


async def _task() -> None:
    attach()
    for _ in range(20):
        look()
        await asyncio.sleep(0)


async def _tasks() -> None:
    await asyncio.gather(*(_task() for _ in range(10)))


def _greenlet(gevent: Any) -> None:
    attach()
    for turn in range(20):
        look()
        gevent.sleep(0.001 if turn == 10 else 0)


def uvloop_imported_later() -> None:
    """A loop that enters contexts from C, in a module that comes long after the hooks."""
    with hooks():
        attach()
        loop = import_module("uvloop").new_event_loop()
        loop.run_until_complete(_tasks())
        look()
        loop.close()


def gevent_imported_later() -> None:
    """Greenlets of the main thread, of another thread and of gevent's pool of threads."""
    with hooks():
        attach()
        gevent = import_module("gevent")

        def in_any_thread() -> None:
            attach()
            gevent.joinall([gevent.spawn(_greenlet, gevent) for _ in range(5)], raise_error=True)
            look()

        in_any_thread()
        thread = threading.Thread(target=in_any_thread)
        thread.start()
        thread.join()
        for _ in range(3):
            gevent.get_hub().threadpool.apply(lambda: (attach(), look()))
            look()


def gevent_patched() -> None:
    """A process in which threads are greenlets."""
    import_module("gevent.monkey").patch_all()
    gevent = import_module("gevent")
    with hooks():
        attach()
        threads = [threading.Thread(target=_greenlet, args=(gevent,)) for _ in range(10)]
        for thread in threads:
            thread.start()
        look()
        for thread in threads:
            thread.join()
        look()


def subinterpreters() -> None:
    """Other interpreters, with this one's lock and with their own: their contexts are none of ours."""
    code = """
import asyncio, contextvars
variable = contextvars.ContextVar('variable')
def body(deep):
    variable.set(deep)
    if deep:
        contextvars.copy_context().run(body, deep - 1)
    assert variable.get() == deep
for _ in range(100):
    contextvars.copy_context().run(body, 20)
async def main():
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(20)))
"""
    module: Any = import_module("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
    ways = [{"isolated": True}, {"isolated": False}] if sys.version_info < (3, 13) else [{}]
    with hooks():
        attach()
        for way in ways * 2:
            before = count_switches()
            interpreter = module.create(**way)
            failure = module.run_string(interpreter, code)
            module.destroy(interpreter)
            facts["failed"] += failure is not None
            facts["noticed"] += count_switches() != before
            look()
    facts["ran"] = len(ways) * 2


def _in_context(library: ctypes.PyDLL, context: Context, body: Callable[[], object]) -> None:
    callback = ctypes.PYFUNCTYPE(ctypes.c_int)
    call = library.call_in_context
    call.argtypes = [ctypes.py_object, callback]
    assert call(context, callback(lambda: bool(body()))) in (0, 1)


def _protections(path: str) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [" ".join(line.split()[:2]) for line in lines if line.endswith(path)]


def c_code(path: str = "", loaded: str = "later") -> None:
    """A library in C that enters and leaves contexts, loaded before the hooks or later, unloaded before they go."""
    dynamic: Any = import_module("_ctypes")
    preloaded = loaded == "preloaded"
    before = None if loaded == "later" else ctypes.PyDLL(None if preloaded else path)
    protections = _protections(path)

    def body() -> bool:
        attach()
        return look()

    for _ in range(2):
        with hooks():
            attach()
            handle = 0 if before else dynamic.dlopen(path, os.RTLD_NOW)
            if handle:  # loaded anew, it has the same place among the linker's modules
                native.refresh()
                dynamic.dlclose(handle)
                handle = dynamic.dlopen(path, os.RTLD_NOW)
            library = before or ctypes.PyDLL(path, handle=handle)
            protections = protections or _protections(path)
            native.refresh()
            _in_context(library, Context(), body)
            look()
            _in_context(library, copy_context(), body)
            look()
            facts["protected as before"] += bool(protections) and _protections(path) == protections
            if before is None:
                dynamic.dlclose(handle)
                protections = []
        counters = count_switches()
        library = before or ctypes.PyDLL(path)
        _in_context(library, Context(), attach)
        if hasattr(library, "where_enter_is"):
            library.where_enter_is.restype = ctypes.c_void_p
            enter = ctypes.cast(ctypes.pythonapi.PyContext_Enter, ctypes.c_void_p).value
            facts["restored"] += library.where_enter_is() == enter
        facts["noticed without the hooks"] += count_switches() != counters


def half_loaded(path: str) -> None:
    """A library whose call sites are not write-protected yet is still being loaded: it is left alone until it is."""
    library = ctypes.PyDLL(path)
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path)]
    addresses, kind = next(line.split()[:2] for line in reversed(lines) if not line.split()[1].startswith("rw"))
    assert kind == "r--p"
    start, end = (int(address, 16) for address in addresses.split("-"))
    mprotect = ctypes.CDLL(None).mprotect

    def body() -> None:
        facts["right" if native.audit()[1] == 0 else "not noticed"] += 1

    assert mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3) == 0
    with hooks():
        native.detach(attach())
        in_span = copy_context()
        in_span.run(attach)
        _in_context(library, in_span, body)
        native.publish()
        assert mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 1) == 0
        native.refresh()
        _in_context(library, in_span, body)


def forked() -> None:
    """A child goes on with the hooks it was born with."""
    with hooks():
        attach()
        child = os.fork()
        asyncio.run(_tasks())
        copy_context().run(look)
        if child == 0:
            os._exit(min(facts["wrong"], 100))
        _, status = os.waitpid(child, 0)
        facts["wrong in the child"] = os.waitstatus_to_exitcode(status)


_SCENARIOS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        uvloop_imported_later,
        gevent_imported_later,
        gevent_patched,
        subinterpreters,
        c_code,
        half_loaded,
        forked,
    )
}

if __name__ == "__main__":
    _SCENARIOS[sys.argv[1]](*sys.argv[2:])
    print("facts", json.dumps(facts), flush=True)
