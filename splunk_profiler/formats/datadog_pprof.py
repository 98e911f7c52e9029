"""A profile in the words that Datadog's backend knows: names of labels and values, and its form for identifiers.

Pure: imports the model. Runs on the exporting thread. The backend finds the samples of a span by the numbers
``span id`` and ``local root span id`` (64 bits, which pprof calls signed and the backend reads as unsigned), and those
of an endpoint by ``trace endpoint``. Labels that it has no word for keep their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from splunk_profiler.model import Aggregate, Profile

VALUE_TYPES = ("wall-samples", "wall-time", "cpu-time")

Label = tuple[str, str | int]

_LABEL_NAMES = {
    "thread.id": "thread id",
    "thread.os.id": "thread native id",
    "thread.name": "thread name",
    "endpoint": "trace endpoint",
}
_SPAN_ID_NAMES = {"span_id": "span id", "local_root_span_id": "local root span id"}
_PAUSE_EVERY = 64  # aggregates between two calls of `pause`
_DROPPED_LABELS = {
    "source.event.time",
    "source.event.period",
}  # of the first of the samples that are one; of all of them


def translate_profile(profile: Profile, pause: Callable[[], None] = lambda: None) -> Profile:
    """`profile` with labels by the names that the backend knows.

    Args:
        profile: what to translate.
        pause: called again and again in between, so that other threads may run.
    """
    known: dict[Label, Label | None] = {}

    def label(found: Label) -> Label | None:
        if found not in known:
            known[found] = _translate_label(*found)
        return known[found]

    def aggregate(found: Aggregate) -> Aggregate:
        labels = tuple(translation for each in found.labels if (translation := label(each)) is not None)
        return replace(found, labels=labels)

    aggregates = []
    for number, each in enumerate(profile.aggregates, 1):
        if number % _PAUSE_EVERY == 0:
            pause()
        aggregates.append(aggregate(each))
    return replace(profile, aggregates=tuple(aggregates))


def _translate_label(key: str, value: str | int) -> Label | None:
    if key in _DROPPED_LABELS:
        return None
    if key in _SPAN_ID_NAMES and isinstance(value, str):
        return _SPAN_ID_NAMES[key], _to_signed(int(value, 16))
    return _LABEL_NAMES.get(key, key), value


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
