"""Received profiles, with names and labels in place of numbers. Imports nothing of the package."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Any

from profile_schema import decode

Label = str | int
_EVENT_VALUES = {  # field of a sample → type and unit; a profile lacks those that are off
    "collections": ("collections", "count"),
    "gc_ns": ("gc", "nanoseconds"),
    "tasks": ("tasks", "count"),
    "task_wait_ns": ("task_wait", "nanoseconds"),
    "exceptions": ("exceptions", "count"),
    "lock_waiters": ("lock_waiters", "count"),
    "lock_delay_ns": ("lock_delay", "nanoseconds"),
    "loop_blocks": ("loop_blocks", "count"),
    "loop_blocked_ns": ("loop_blocked", "nanoseconds"),
}


@dataclass(frozen=True)
class ProfileSample:
    """One sample of a profile: functions leaf first, values, labels."""

    functions: tuple[str, ...]
    count: int
    wall_ns: int
    cpu_ns: int
    labels: dict[str, Label]
    collections: int = 0
    gc_ns: int = 0
    tasks: int = 0
    task_wait_ns: int = 0
    exceptions: int = 0
    loop_blocks: int = 0
    loop_blocked_ns: int = 0
    lock_waiters: int = 0
    lock_delay_ns: int = 0


@dataclass(frozen=True)
class ReceivedProfile:
    """A profile and the record that it came in."""

    record: dict[str, Any]
    period_ns: int
    samples: tuple[ProfileSample, ...]
    comments: tuple[str, ...]

    @property
    def pid(self) -> int:
        """Id of the sending process."""
        return int(self.record["resource"]["process.pid"])


def read(record: dict[str, Any]) -> ReceivedProfile:
    """Parse the profile in a log record."""
    message = decode(gzip.decompress(base64.b64decode(record["body"], validate=True)))
    texts = list(message.string_table)
    types = [(texts[kind.type], texts[kind.unit]) for kind in message.sample_type]
    assert types[:3] == [("samples", "count"), ("wall", "nanoseconds"), ("cpu", "nanoseconds")]
    fields = {types.index(value): name for name, value in _EVENT_VALUES.items() if value in types}
    assert len(types) == 3 + len(fields)
    functions = {function.id: texts[function.name] for function in message.function}
    places = {place.id: functions[place.line[0].function_id] for place in message.location}
    samples = tuple(
        ProfileSample(
            tuple(places[place] for place in sample.location_id),
            sample.value[0],
            sample.value[1],
            sample.value[2],
            {texts[label.key]: texts[label.str] if label.str else label.num for label in sample.label},
            **{
                name if unit == "count" else f"{name}_ns": value
                for (name, unit), value in zip(types[3:], sample.value[3:], strict=True)
            },
        )
        for sample in message.sample
    )
    return ReceivedProfile(record, message.period, samples, tuple(texts[comment] for comment in message.comment))


def all_samples(profiles: list[ReceivedProfile]) -> list[ProfileSample]:
    """Return the samples of all profiles."""
    return [sample for profile in profiles for sample in profile.samples]


def blocks_loop(record: dict[str, Any], function: str) -> bool:
    """Return True if the profile in a log record has a block of an event loop inside a function."""
    return any(sample.loop_blocks and function in sample.functions for sample in read(record).samples)
