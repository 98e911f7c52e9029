"""A sample as the text of a Java-style thread dump.

Pure: data in, text out. Imports nothing but the model.

Specification: Splunk profiling conventions, "Call Stack Format".
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar
from weakref import WeakSet

from splunk_profiler.model import Frame, Sample, Stack, ThreadSample

_STATE_PREFIX = "   python.Thread.State: "
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
        self._all.add(self)

    def parts(self, sample: Sample) -> tuple[bytes, bytes]:
        """Return the body of a record in UTF-8: metadata and state line, then frames leaf first, a newline after each.

        In two parts, since the second is long, and the same for many records: to join them took as long as the first.
        """
        return _encode(format_head(sample.thread)), self.encode_stack(sample.thread.stack)

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


def format_head(seen: ThreadSample) -> str:
    """Return the metadata line and the state line."""
    thread = seen.thread
    ids = (thread.index, thread.ident, thread.native_id)
    before, after = _format_constant(thread.name, ids, seen.os_priority, _state(seen.running, seen.waiting_on))
    return f"{before}{seen.cpu_ns / 1e6:.2f}ms elapsed={seen.elapsed_ns / 1e9:.2f}s{after}"


@lru_cache(maxsize=16_384)
def _format_constant(name: str, ids: tuple[int, int, int], os_priority: int, state: str) -> tuple[str, str]:
    """Return what stands before and after the times of a thread, which alone change each time."""
    index, ident, native_id = ids
    before = f'"{escape_name(name)}" #{index} prio=0 os_prio={os_priority} cpu='
    return before, f" tid=0x{ident:x} nid=0x{native_id:x} {state}\n"


@lru_cache(maxsize=256)
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
