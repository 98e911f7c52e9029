"""Code objects → frames: namespace, function, file and line.

Pure apart from a cache that belongs to one `Symbolizer`; runs on the sampling worker's thread; imports
nothing but the model and what makes text printable. Reads objects of the application without ever running
its code: no attribute access that could reach a property or a `__getattr__`.

Specification: Splunk profiling conventions, "Call Stack Format".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import CO_NEWLOCALS
from types import CodeType, FunctionType
from typing import Any

from splunk_profiler.model import Frame
from splunk_profiler.system.printable import printable

UNKNOWN = "unknown"
_INDEXED_MODULES = 4096
_KNOWN_FRAMES = 16_384


class Symbolizer:
    """Makes `Frame`s. One for each walker: its cache lives and dies with it."""

    def __init__(self) -> None:
        self._qualified: dict[str, tuple[int, dict[CodeType, str]]] = {}
        self._frames: dict[tuple[str, str, str, int | None, int], Frame] = {}

    def frame(self, code: CodeType, lasti: int, module_globals: dict[str, Any]) -> Frame:
        """The frame that runs `code` at byte offset `lasti` with these globals; -1 is "not begun".

        The places of one line give the same frame: nobody could tell stacks apart by them.
        """
        module = dict.get(module_globals, "__name__")
        if type(module) is not str or not module:
            module = UNKNOWN
        scope, _, function = self._qualified_name(code, module, module_globals).rpartition(".")
        namespace = f"{module}.{scope}" if scope else module
        file, line, first_line = code.co_filename or UNKNOWN, _line(code, lasti), max(code.co_firstlineno, 0)
        names = (printable(namespace), printable(function), printable(file), line, first_line)
        known = self._frames.get(names)
        if known is None:
            if len(self._frames) >= _KNOWN_FRAMES:
                self._frames.clear()
            known = self._frames[names] = Frame(*names)
        return known

    def _qualified_name(self, code: CodeType, module: str, module_globals: dict[str, Any]) -> str:
        if sys.version_info >= (3, 11):
            return code.co_qualname or code.co_name
        defined = dict.__len__(module_globals)
        names_then, index = self._qualified.get(module, (-1, {}))
        if code not in index and names_then != defined:  # look again only if the module has grown
            if len(self._qualified) >= _INDEXED_MODULES:
                self._qualified.clear()
            index = dict(_index_module(module_globals, module))
            self._qualified[module] = (defined, index)
        return index.setdefault(code, code.co_name)


def _line(code: CodeType, lasti: int) -> int | None:
    if lasti < 0:
        return code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or None  # 0 is how CPython 3.11 and later mark the entry of a module: no line either
    return None


def _index_module(module_globals: dict[str, Any], module: str) -> Iterator[tuple[CodeType, str]]:
    """(code, qualified name) of what a module defines. CPython 3.10 keeps the name on the function only."""
    seen: set[int] = set()
    pending: list[Any] = list(dict.values(module_globals))  # copied at once: other threads may define more
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        kind = type(item)  # not isinstance: a proxy answers that with code of its own
        if kind is staticmethod or kind is classmethod:
            pending.append(item.__func__)
        elif kind is property:
            pending += [item.fget, item.fset, item.fdel]
        elif kind is FunctionType:
            if item.__qualname__.rpartition(".")[2] == item.__code__.co_name:  # else `functools.wraps` has set it
                yield from _index_code(item.__code__, item.__qualname__)
            pending.append(item.__dict__.get("__wrapped__"))
            pending += _cells(item)
        elif issubclass(kind, type):
            attributes = type.__dict__["__dict__"].__get__(item)
            if attributes.get("__module__") == module:
                pending += list(attributes.values())


def _cells(function: FunctionType) -> list[Any]:
    contents: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            continue  # a cell that is not filled yet
    return [item for item in contents if type(item) is FunctionType]


def _index_code(code: CodeType, name: str) -> Iterator[tuple[CodeType, str]]:
    yield code, name
    scope = f"{name}.<locals>" if code.co_flags & CO_NEWLOCALS else name  # the body of a class has no such flag
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _index_code(constant, f"{scope}.{constant.co_name}")
