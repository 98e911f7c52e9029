"""A sample as the text of a Java-style thread dump.

Pure: data in, text out. Imports nothing but `model` and `samples`.

Specification: Splunk profiling conventions, "Call Stack Format".
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar
from weakref import WeakSet

from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import Sample, ThreadSample

_STATE_PREFIX = "   python.Thread.State: "
_MAX_HEADS = 4096
_MAX_TEXTS, _MAX_TEXTS_BYTES = 1024, 4 << 20  # of a service; each keeps its stack alive, too
_ALL_TEXTS_BYTES = 32 << 20
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class BodyFormatter:
    """Makes the bodies of the records of one service.

    It keeps the texts of stacks in use. They are not kept in the stacks: thousands may be in use, at 3 kB each.
    Each has an equal part of 32 MiB, so that services with ever new stacks do not cost others their texts. As parts get
    smaller with more services, a formatter keeps to its own from its next new stack on; until then the sum is larger.
    """

    _all: ClassVar[WeakSet[BodyFormatter]] = WeakSet()

    def __init__(self) -> None:
        self._texts: dict[Stack, bytes] = {}
        self._size = 0
        self._heads: dict[int, tuple[ThreadSample, str, str]] = {}  # by thread: what stands around its age
        self._all.add(self)

    def parts(self, sample: Sample) -> tuple[bytes, bytes]:
        """Return the body of a record in UTF-8: metadata and state line, then frames leaf first, a newline after each.

        In two parts, since the second is long, and the same for many records: to join them took as long as the first.
        """
        seen = sample.thread
        head = self._heads.get(seen.thread.index)
        if head is None or head[0] is not seen:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            head = self._heads[seen.thread.index] = (seen, *_format_around_age(seen))
        _, before, after = head
        age_ns = 0 if seen.start_ns is None else max(sample.instant_ns - seen.start_ns, 1)
        return _encode(f"{before}{age_ns / 1e9:.2f}{after}"), self.encode_stack(seen.stack)

    def encode_stack(self, stack: Stack) -> bytes:
        """Return the lines of the frames, leaf first, in UTF-8."""
        text = self._texts.get(stack)
        if text is None:
            text = _encode("".join(map(format_frame, stack.frames)))
            max_size = min(_MAX_TEXTS_BYTES, _ALL_TEXTS_BYTES // len(self._all))
            if len(self._texts) >= _MAX_TEXTS or self._size + len(text) > max_size:
                self._texts.clear()
                self._size = 0
            self._texts[stack] = text
            self._size += len(text)
        return text


def _format_around_age(seen: ThreadSample) -> tuple[str, str]:
    """Return the metadata line and the state line, in what stands before and after the thread's age in seconds."""
    thread = seen.thread
    ids = (thread.index, thread.ident, thread.native_id)
    before, after = _format_constant(thread.name, ids, seen.os_priority, seen.running, seen.waiting_on)
    return f"{before}{seen.cpu_ns / 1e6:.2f}ms elapsed=", after


@lru_cache(maxsize=16_384)
def _format_constant(
    name: str, ids: tuple[int, int, int], os_priority: int, running: bool, waiting_on: str
) -> tuple[str, str]:
    """Return what stands before the CPU time of a thread and after its age, which change all the time."""
    index, ident, native_id = ids
    before = f'"{escape_name(name)}" #{index} prio=0 os_prio={os_priority} cpu='
    return before, f"s tid=0x{ident:x} nid=0x{native_id:x} {_state(running, waiting_on)}\n"


def _state(running: bool, waiting_on: str) -> str:
    if running:
        return f"running\n{_STATE_PREFIX}RUNNABLE"
    if waiting_on:
        return f"waiting on {waiting_on}\n{_STATE_PREFIX}WAITING (on {waiting_on})"
    return f"waiting\n{_STATE_PREFIX}WAITING"


@lru_cache(maxsize=16_384)
def format_frame(frame: Frame) -> str:
    """Return a tab and ``at namespace.function(file:line)``, with a newline; without a line number no ``:line``."""
    line = "" if frame.line is None else f":{frame.line}"
    return f"\tat {frame.namespace}.{frame.function}({frame.file}{line})\n"


def escape_name(name: str) -> str:
    """Return a thread's name, escaped for double quotes on one line of UTF-8 text."""
    return "".join(_ESCAPES.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in name)


def _encode(text: str) -> bytes:
    """Encode in UTF-8; lone surrogates, which stand for undecodable bytes of a file name, are escaped."""
    return text.encode("utf-8", "backslashreplace")
