"""Code objects to frames: namespace, function, file and line.

Pure apart from the cache of each `Symbolizer`; runs on the sampler thread. Imports only
the model, `lock_calls`, `loop_calls` and `printable`. Reads objects of the application without running
its code: no attribute access may reach a property or a `__getattr__`.

Specification: Splunk profiling conventions, "Call Stack Format".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from splunk_profiler.capture.lock_calls import lock_call
from splunk_profiler.capture.loop_calls import loop_call
from splunk_profiler.model import Frame
from splunk_profiler.system.printable import printable, shortened

UNKNOWN = "unknown"
_CO_NEWLOCALS = 2  # `inspect` has its name, and half a megabyte
_MAX_INDEXED_MODULES = 4096
_MAX_CACHED_FRAMES = 16_384


class Symbolizer:
    """A factory of `Frame`s with a cache, one for each walker."""

    def __init__(self) -> None:
        self._module_indexes: dict[str, tuple[int, dict[CodeType, str]]] = {}
        self._frames: dict[tuple[str, str, str, int | None, int, str], Frame] = {}

    def frame(self, code: CodeType, lasti: int, module_globals: dict[str, Any]) -> Frame:
        """Return the frame of `code` at byte offset `lasti` with these globals; -1 means "not started".

        Locations of one line share a frame, apart from those that may wait for a lock or run an event loop.
        """
        module = dict.get(module_globals, "__name__")
        if type(module) is not str or not module:
            module = UNKNOWN
        scope, _, function = self._qualified_name(code, module, module_globals).rpartition(".")
        namespace = f"{module}.{scope}" if scope else module
        file, line, first_line = code.co_filename or UNKNOWN, _line_number(code, lasti), max(code.co_firstlineno, 0)
        call = lock_call(code, lasti) or loop_call(code, lasti)
        namespace, function, file = (printable(shortened(text)) for text in (namespace, function, file))
        names = (namespace, function, file, line, first_line, call)
        cached = self._frames.get(names)
        if cached is None:
            if len(self._frames) >= _MAX_CACHED_FRAMES:
                self._frames.clear()
            cached = self._frames[names] = Frame(*names)
        return cached

    def _qualified_name(self, code: CodeType, module: str, module_globals: dict[str, Any]) -> str:
        if sys.version_info >= (3, 11):
            return code.co_qualname or code.co_name
        module_size = dict.__len__(module_globals)
        indexed_size, index = self._module_indexes.get(module, (-1, {}))
        if code not in index and indexed_size != module_size:  # index again only if the module has grown
            if len(self._module_indexes) >= _MAX_INDEXED_MODULES:
                self._module_indexes.clear()
            index = dict(_index_module(module_globals, module))
            self._module_indexes[module] = (module_size, index)
        return index.get(code, code.co_name)


def _line_number(code: CodeType, lasti: int) -> int | None:
    lines = (line for start, end, line in code.co_lines() if start <= lasti < end)
    line = code.co_firstlineno if lasti < 0 else next(lines, None)
    # CPython 3.11 marks the entry of a module with 0: no line. What code is compiled from may have negative ones.
    return line if line is not None and line > 0 else None


def _index_module(module_globals: dict[str, Any], module: str) -> Iterator[tuple[CodeType, str]]:
    """Yield (code, qualified name) of a module's functions; CPython 3.10 keeps it on the function only."""
    seen: set[int] = set()
    pending: list[Any] = list(dict.values(module_globals))  # one atomic copy: other threads may define more
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        kind = type(item)  # not isinstance: it runs the code of proxies
        if kind is staticmethod or kind is classmethod:
            pending.append(item.__func__)
        elif kind is property:
            pending += [item.fget, item.fset, item.fdel]
        elif kind is FunctionType:
            if item.__qualname__.rpartition(".")[2] == item.__code__.co_name:  # else `functools.wraps` has set it
                yield from _index_code(item.__code__, item.__qualname__)
            pending.append(item.__dict__.get("__wrapped__"))
            pending += _closure_functions(item)
        elif issubclass(kind, type):
            attributes = type.__dict__["__dict__"].__get__(item)  # None: a type of C code that nobody has used yet
            if attributes is not None and attributes.get("__module__") == module:
                pending += list(attributes.values())


def _closure_functions(function: FunctionType) -> list[Any]:
    contents: list[Any] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            contents.append(cell.cell_contents)
    return [item for item in contents if type(item) is FunctionType]


def _index_code(code: CodeType, name: str) -> Iterator[tuple[CodeType, str]]:
    yield code, name
    scope = f"{name}.<locals>" if code.co_flags & _CO_NEWLOCALS else name  # class bodies lack the flag
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _index_code(constant, f"{scope}.{constant.co_name}")
