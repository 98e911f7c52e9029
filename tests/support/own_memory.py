"""A reader of what this process publishes, through the libraries' exported objects.

The layouts are independent of the sources.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from splunk_profiler import _context

FOLDER = Path(_context.__file__).parent  # an editable installation has the libraries beside the extension
ELASTIC_PATH = FOLDER / f"elastic-jvmti-linux-{platform.machine()}.so"
LABELS_PATH = FOLDER / "libcustomlabels.so"
ATTRIBUTE = "_splunk_profiler_identity"
SPAN_KEY = "the-span"
Pointers = Any  # ctypes._Pointer[c_void_p], whose type has no public name


class Elastic(NamedTuple):
    """The record of 37 bytes, with ids as numbers."""

    minor: int
    valid: int
    present: int
    flags: int
    trace_id: int
    span_id: int
    transaction_id: int


def storage_of(*texts: str) -> bytes:
    """Pack a process storage with these strings."""
    return struct.pack("=H", 1) + b"".join(struct.pack("=I", len(text)) + text.encode() for text in texts)


class OwnMemory:
    """The exported objects of both libraries, which must be loaded."""

    def __init__(self) -> None:
        self._elastic, self._labels = ctypes.CDLL(str(ELASTIC_PATH)), ctypes.CDLL(str(LABELS_PATH))
        for accessor in (self._elastic.splunk_profiler_elastic_slot, self._labels.splunk_profiler_labels_slot):
            accessor.restype = ctypes.POINTER(ctypes.c_void_p)

    def elastic_slot(self) -> Pointers:
        """Return the calling thread's own pointer; other threads can read it while this one lives."""
        return self._elastic.splunk_profiler_elastic_slot()

    def labels_slot(self) -> Pointers:
        """Return the calling thread's pointer to its labels."""
        return self._labels.splunk_profiler_labels_slot()

    def elastic(self, slot: Pointers | None = None) -> Elastic | None:
        """Read the record of the calling thread, or of another `slot`; None for a null pointer."""
        address = (slot or self.elastic_slot())[0]
        if not address:
            return None
        minor, valid, present, flags, *ids = struct.unpack("=HBBB16s8s8s", ctypes.string_at(address, 37))
        return Elastic(minor, valid, present, flags, *(int.from_bytes(one, "big") for one in ids))

    def labels(self, slot: Pointers | None = None) -> list[tuple[bytes, bytes]] | None:
        """Read the label set like `elastic`, in its order."""
        address = (slot or self.labels_slot())[0]
        if not address:
            return None
        storage, count, capacity = struct.unpack("=QQQ", ctypes.string_at(address, 24))
        assert count <= capacity
        found = []
        for index in range(count):
            parts = struct.unpack("=QQQQ", ctypes.string_at(storage + 32 * index, 32))
            found.append((ctypes.string_at(parts[1], parts[0]), ctypes.string_at(parts[3], parts[2])))
        return found

    def storage(self, size: int) -> bytes | None:
        """Read the first bytes of the process storage; None for a null pointer."""
        pointer = ctypes.c_void_p.in_dll(self._elastic, "elastic_apm_profiling_correlation_process_storage_v1")
        return ctypes.string_at(pointer.value, size) if pointer.value else None


class Context(dict[str, Any]):
    """The fixed parts of a span context."""


class SpanContext(NamedTuple):
    """A SpanContext like OpenTelemetry's."""

    trace_id: int
    span_id: int
    is_remote: bool = False
    trace_flags: int = 1


class Span:
    """A span as the publisher needs it: a SpanContext and attributes."""

    def __init__(self, trace_id: int, span_id: int, is_remote: bool = False) -> None:
        self._context = SpanContext(trace_id, span_id, is_remote)

    def get_span_context(self) -> SpanContext:
        return self._context


@dataclass
class InstalledPublisher:
    """An installed publisher with its own context variables."""

    variable: ContextVar[Any] = field(default_factory=lambda: ContextVar("current_context"))
    labels: ContextVar[Any] = field(default_factory=lambda: ContextVar("labels"))
    span_key: str = SPAN_KEY
    asked: list[Any] = field(default_factory=list)  # arguments of `identify`
    answer: Callable[[Any], Any] | None = None

    def identify(self, span: Any) -> Any:
        """Return the result of `answer`, or the span as its own root."""
        self.asked.append(span)
        if self.answer is not None:
            return self.answer(span)
        found = span.get_span_context()
        return _context.Identity(found.trace_id, found.span_id, found.span_id, found.trace_flags)

    def install(self) -> None:
        """Install the publisher and begin; may be called again."""
        self.install_hooks()
        _context.load_labels_library(LABELS_PATH)
        _context.load_elastic_library(ELASTIC_PATH, storage_of("service", "test", "/nowhere"))
        _context.begin()

    def install_hooks(self) -> None:
        """Install the hooks, without beginning."""
        _context.install(self.variable, self.span_key, self.labels, ATTRIBUTE, self.identify, Context)

    def publish(self) -> None:
        """Publish the calling thread's context."""
        _context.publish()

    def uninstall(self) -> None:
        """Uninstall the publisher; may be called twice."""
        _context.uninstall()
        _context.clear_storage()

    def attach(self, span: Any) -> Any:
        """Make `span` current and return the token for `_context.detach`."""
        return _context.attach(Context({self.span_key: span}))
