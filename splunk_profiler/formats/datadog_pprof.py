"""A profile with Datadog's names of labels and values, and its form of identifiers.

Pure: imports the model. Runs on the exporting thread. The backend finds the samples of a span by the
numbers ``span id`` and ``local root span id`` (64 bits, signed in pprof, unsigned in the backend), and
those of an endpoint by ``trace endpoint``. Other labels keep their names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.model import Profile

VALUE_TYPES = ("wall-samples", "wall-time", "cpu-time")

_LABEL_NAMES = {
    "thread.id": "thread id",
    "thread.os.id": "thread native id",
    "thread.name": "thread name",
    "endpoint": "trace endpoint",
}
_SPAN_ID_NAMES = {"span_id": "span id", "local_root_span_id": "local root span id"}
_DROPPED_LABELS = {"source.event.time", "source.event.period"}  # facts of single samples, not of aggregates


def translate_profile(profile: Profile, pause: Callable[[], None] | None = None) -> Profile:
    """Return `profile` with the backend's names of labels; `pause` lets other threads run."""
    translate = cache(_translate_label)
    aggregates = []
    for aggregate in iter_with_pauses(profile.aggregates, pause):
        labels = tuple(label for key, value in aggregate.labels if (label := translate(key, value)) is not None)
        aggregates.append(replace(aggregate, labels=labels))
    return replace(profile, aggregates=tuple(aggregates))


def _translate_label(key: str, value: str | int) -> tuple[str, str | int] | None:
    if key in _DROPPED_LABELS:
        return None
    if key in _SPAN_ID_NAMES and isinstance(value, str):
        span_id = int(value, 16)
        return _SPAN_ID_NAMES[key], span_id - (1 << 64) if span_id >> 63 else span_id
    return _LABEL_NAMES.get(key, key), value
