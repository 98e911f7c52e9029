"""A parser of call stacks in the text format of the specification.

Pure. Imports nothing of ours: tests compare it with `formats.text`, which writes the format.

Specification: Splunk profiling conventions, "Call Stack Format".
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache


class DumpError(ValueError):
    """Error for a text that is not a call stack of the specification."""


@dataclass(frozen=True, slots=True)
class Call:
    """One line of a stack.

    Attributes:
        namespace: module and class, or ``unknown`` or ``global``.
        file: source file, or ``unknown``.
        line: 1-based; None if not known.
    """

    namespace: str
    function: str
    file: str
    line: int | None

    @property
    def name(self) -> str:
        """Namespace and function."""
        return f"{self.namespace}.{self.function}"


@dataclass(frozen=True, slots=True)
class Dump:
    """The parts of a call stack that the report counts.

    Attributes:
        thread_name: with the escapes of the text decoded.
        status: the free text at the end of the first line.
        calls: leaf first.
    """

    thread_name: str
    status: str
    calls: tuple[Call, ...]

    @property
    def running(self) -> bool:
        """True if the status says that the thread ran (``running``; ``runnable`` in Java's dumps)."""
        return self.status.startswith("runn")


_HEADER = re.compile(r'"((?:[^"\\]|\\.)*)"\s+#\d+(?:\s+(?:prio|os_prio|cpu|elapsed|tid|nid)=\S+)*(.*)')
_CALL = re.compile(r"(?:at\s+)?([^\s(][^(]*)\((.*)\)")  # of a line without spaces around it: takes linear time
_PLACE = re.compile(r"(.*?)(?::(\d+)(?::\d+)?(?: \d+(?::\d+)?)?)?")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def parse(text: str) -> Dump:
    """Parse the text of a call stack.

    Raises:
        DumpError: the first line is not a metadata line, or a line after the state is not a call.
    """
    header, _, rest = text.partition("\n")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise DumpError(f"not a metadata line: {header[:80]!r}")
    name, status = match.groups()
    return Dump(_ESCAPE.sub(_unescape, name), status.strip(), _parse_calls(rest))


def _unescape(match: re.Match[str]) -> str:
    if digits := match[1] or match[2] or match[3]:
        number = int(digits, 16)
        return chr(number) if number <= sys.maxunicode else match[0]
    return _LETTERS.get(match[4], match[4])


@lru_cache(maxsize=16_384)
def _parse_calls(text: str) -> tuple[Call, ...]:
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if lines and (":" in lines[0].partition("(")[0] or not _CALL.fullmatch(lines[0])):
        del lines[0]  # the state of the thread
    return tuple(_parse_call(line) for line in lines)


@lru_cache(maxsize=65_536)
def _parse_call(line: str) -> Call:
    match = _CALL.fullmatch(line)
    if match is None:
        raise DumpError(f"not a line of a call: {line[:80]!r}")
    namespace, _, function = match[1].strip().rpartition(".")
    place = _PLACE.fullmatch(match[2])
    assert place is not None  # its parts are all optional
    return Call(namespace or "unknown", function, place[1], int(place[2]) if place[2] else None)
