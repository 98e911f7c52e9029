"""Reads what this process publishes as a host profiler would, from inside: through the libraries' own objects.

The layouts are written out anew here, apart from the sources.
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
    """The 37 bytes that a reader takes, ids as numbers."""

    minor: int
    valid: int
    present: int
    flags: int
    trace_id: int
    span_id: int
    transaction_id: int


def storage_of(*texts: str) -> bytes:
    """A process storage with these strings."""
    return struct.pack("=H", 1) + b"".join(struct.pack("=I", len(text)) + text.encode() for text in texts)


class OwnMemory:
    """The exported objects of both libraries, which must be loaded."""

    def __init__(self) -> None:
        self._elastic, self._labels = ctypes.CDLL(str(ELASTIC_PATH)), ctypes.CDLL(str(LABELS_PATH))
        for accessor in (self._elastic.splunk_profiler_elastic_slot, self._labels.splunk_profiler_labels_slot):
            accessor.restype = ctypes.POINTER(ctypes.c_void_p)

    def elastic_slot(self) -> Pointers:
        """The calling thread's own pointer; it can be followed from other threads while this one lives."""
        return self._elastic.splunk_profiler_elastic_slot()

    def labels_slot(self) -> Pointers:
        """The same of the labels."""
        return self._labels.splunk_profiler_labels_slot()

    def elastic(self, slot: Pointers | None = None) -> Elastic | None:
        """What stands behind the calling thread's pointer, or another's; None where it is null."""
        address = (slot or self.elastic_slot())[0]
        if not address:
            return None
        minor, valid, present, flags, *ids = struct.unpack("=HBBB16s8s8s", ctypes.string_at(address, 37))
        return Elastic(minor, valid, present, flags, *(int.from_bytes(one, "big") for one in ids))

    def labels(self, slot: Pointers | None = None) -> list[tuple[bytes, bytes]] | None:
        """The same of the label set, in its order."""
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
        """The first bytes of the process storage; None where its pointer is null."""
        pointer = ctypes.c_void_p.in_dll(self._elastic, "elastic_apm_profiling_correlation_process_storage_v1")
        return ctypes.string_at(pointer.value, size) if pointer.value else None


class Context(dict[str, Any]):
    """What never changes, as the publisher is told."""


class SpanContext(NamedTuple):
    """As OpenTelemetry has it."""

    trace_id: int
    span_id: int
    is_remote: bool = False
    trace_flags: int = 1


class Span:
    """What the publisher knows of a span: where its SpanContext is, and that it takes attributes."""

    def __init__(self, trace_id: int, span_id: int, is_remote: bool = False) -> None:
        self._context = SpanContext(trace_id, span_id, is_remote)

    def get_span_context(self) -> SpanContext:
        return self._context


@dataclass
class InstalledPublisher:
    """The publisher, installed with variables of its own."""

    variable: ContextVar[Any] = field(default_factory=lambda: ContextVar("current_context"))
    labels: ContextVar[Any] = field(default_factory=lambda: ContextVar("labels"))
    span_key: str = SPAN_KEY
    asked: list[Any] = field(default_factory=list)  # spans that `identify` was called with
    answer: Callable[[Any], Any] | None = None

    def identify(self, span: Any) -> Any:
        """Own root, as a span without a parent, unless there is an `answer`."""
        self.asked.append(span)
        if self.answer is not None:
            return self.answer(span)
        found = span.get_span_context()
        return _context.Identity(found.trace_id, found.span_id, found.span_id, found.trace_flags)

    def install(self) -> None:
        """Also again."""
        _context.install(self.variable, self.span_key, self.labels, ATTRIBUTE, self.identify, Context)
        _context.load_labels_library(LABELS_PATH)
        _context.load_elastic_library(ELASTIC_PATH, storage_of("service", "test", "/nowhere"))
        self.publish()

    def publish(self) -> None:
        """The calling thread's context as it is now."""
        _context.publish()

    def uninstall(self) -> None:
        """Also twice."""
        _context.uninstall()
        _context.clear_storage()

    def attach(self, span: Any) -> Any:
        """`span` is current from now on: a token for `_context.detach`."""
        return _context.attach(Context({self.span_key: span}))
