"""A profile with Datadog's names of labels and values, and its form of identifiers.

Pure: imports `model` and `samples`. Runs on the exporting thread. The backend finds the samples of a span by the
numbers ``span id`` and ``local root span id`` (64 bits, signed in pprof, unsigned in the backend), and
those of an endpoint by ``trace endpoint``. Other labels keep their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.model import EventKind, ValueType
from splunk_profiler.samples import Profile

VALUE_TYPES = ("wall-samples", "wall-time", "cpu-time")

_LABEL_NAMES = {
    "thread.id": "thread id",
    "thread.os.id": "thread native id",
    "thread.name": "thread name",
    "endpoint": "trace endpoint",
    "exception.type": "exception type",
}
_VALUE_NAMES = {
    "alloc_samples": "alloc-samples",
    "alloc_space": "alloc-space",
    "inuse_objects": "heap-live-samples",
    "inuse_space": "heap-space",
    "exceptions": "exception-samples",
}
_SPAN_ID_NAMES = {"span_id": "span id", "local_root_span_id": "local root span id"}
_DROPPED_LABELS = {"source.event.time", "source.event.period"}  # facts of single samples, not of aggregates


def translate_profile(profile: Profile, pause: Callable[[], None] | None = None) -> Profile:
    """Return `profile` with the backend's names of labels and values; `pause` lets other threads run."""
    translate, translate_kind = cache(_translate_label), cache(_translate_kind)
    aggregates = []
    for aggregate in iter_with_pauses(profile.aggregates, pause):
        labels = tuple(label for key, value in aggregate.labels if (label := translate(key, value)) is not None)
        kind = None if aggregate.kind is None else translate_kind(aggregate.kind)
        aggregates.append(replace(aggregate, labels=labels, kind=kind))
    return replace(profile, aggregates=tuple(aggregates), kinds=tuple(map(translate_kind, profile.kinds)))


def _translate_kind(kind: EventKind) -> EventKind:
    amount = None if kind.amount is None else _translate_value(kind.amount)
    return replace(kind, count=_translate_value(kind.count), amount=amount)


def _translate_value(value: ValueType) -> ValueType:
    return value._replace(name=_VALUE_NAMES.get(value.name, value.name))


def _translate_label(key: str, value: str | int) -> tuple[str, str | int] | None:
    if key in _DROPPED_LABELS:
        return None
    if key in _SPAN_ID_NAMES and isinstance(value, str):
        span_id = int(value, 16)
        return _SPAN_ID_NAMES[key], span_id - (1 << 64) if span_id >> 63 else span_id
    return _LABEL_NAMES.get(key, key), value
