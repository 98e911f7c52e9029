"""Sums of profiles in pprof's format, as log records carry them, for each endpoint.

Runs on the main thread of `report`; draws nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from splunk_profiler.pipeline import gil_waits
from splunk_profiler.pipeline.gil_waits import GilWaits
from splunk_profiler.pipeline.waits import GIL_WAIT, find_wait
from splunk_profiler.viewer.profile_messages import (
    APPLICATION,
    Aggregate,
    Place,
    ProfileError,
    decode_body,
    endpoint_name,
    iter_aggregates,
)

VALUES = ("cpu", "wall")


@dataclass(slots=True)
class TimeTotals:
    """Nanoseconds of CPU and wall time, under `VALUES`."""

    cpu: int = 0
    wall: int = 0

    def add(self, cpu: int, wall: int) -> None:
        """Add nanoseconds of CPU and wall time."""
        self.cpu += cpu
        self.wall += wall


@dataclass(slots=True)
class FunctionTimes:
    """The times of one function in one endpoint.

    Attributes:
        place: its line in the first sample.
        own: time at the leaf of the stack.
        direct: time as the application's function nearest to the leaf.
        total: time anywhere on the stack.
    """

    place: Place
    own: TimeTotals = field(default_factory=TimeTotals)
    direct: TimeTotals = field(default_factory=TimeTotals)
    total: TimeTotals = field(default_factory=TimeTotals)


@dataclass(slots=True)
class EndpointTimes:
    """The times of all samples with one endpoint, and of their functions by name."""

    spent: TimeTotals = field(default_factory=TimeTotals)
    samples: int = 0
    functions: dict[str, FunctionTimes] = field(default_factory=dict)

    def add(self, stack: list[Place], samples: int, cpu: int, wall: int) -> None:
        """Add one aggregate; the frames of `stack` are leaf first."""
        self.samples += samples
        self.spent.add(cpu, wall)
        seen: set[str] = set()
        is_nearest = True
        for depth, place in enumerate(stack):
            if place.function in seen:  # recursion counts once
                continue
            seen.add(place.function)
            function = self.functions.get(place.function)
            if function is None:
                function = self.functions[place.function] = FunctionTimes(place)
            function.total.add(cpu, wall)
            if depth == 0:
                function.own.add(cpu, wall)
            if is_nearest and place.kind == APPLICATION:
                is_nearest = False
                function.direct.add(cpu, wall)


class WaitPlace(NamedTuple):
    """A kind of wait, the line of the function that called what waits, and the application's nearest function."""

    kind: str
    function: str
    line: int
    caller: str


class LoopBlockPlace(NamedTuple):
    """The application's function nearest to the leaf, with endpoint and the task's name, as far as known."""

    function: str
    endpoint: str
    task: str


class TaskPlace(NamedTuple):
    """A line of the application in which tasks wait.

    Attributes:
        awaits: the innermost function that it calls; empty if that is itself.
        kind: the kind of lock-like thing that they wait for; empty for anything else.
    """

    function: str
    file: str
    line: int
    awaits: str
    kind: str


class HoldPlace(NamedTuple):
    """The application's nearest line of a thread that held a lock, and the innermost function; empty if it is there."""

    function: str
    file: str
    line: int
    inside: str


@dataclass(slots=True)
class EventTotals:
    """The events of one place: their number (of waiting threads and tasks at each look, added up), and their time."""

    count: int = 0
    time_ns: int = 0

    def add(self, count: int, time_ns: int) -> None:
        """Add further events."""
        self.count += count
        self.time_ns += time_ns


@dataclass(slots=True)
class Profiles:
    """The sums of profiles.

    Attributes:
        samples: samples in all records; `spent` is their time.
        services: records by service.
        first_ns, last_ns: start of the first and end of the last profile, nanoseconds since the epoch.
        periods_ms: records by sampling period.
        endpoints: times by endpoint, `OUTSIDE`, `UNNAMED` and `NOT_SAMPLED` included.
        gil_waits: waits of the snapshots for the GIL.
        loop_blocks: blocks of event loops, by what blocked.
        task_waits: waiting tasks, by place: those that its captures stand for, and their time.
        exceptions: numbers of raised exceptions, by type and place: the line of the application nearest to the leaf.
        waits: wall time of waits for locks and the like.
        lock_holds: waits for locks by the place of the thread that held them, as far as it is known.
    """

    records: int = 0
    samples: int = 0
    spent: TimeTotals = field(default_factory=TimeTotals)
    services: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0
    periods_ms: Counter[int] = field(default_factory=Counter)
    endpoints: dict[str, EndpointTimes] = field(default_factory=dict)
    gil_waits: GilWaits = field(default_factory=GilWaits)
    loop_blocks: dict[LoopBlockPlace, EventTotals] = field(default_factory=dict)
    task_waits: dict[TaskPlace, EventTotals] = field(default_factory=dict)
    exceptions: Counter[tuple[str, Place]] = field(default_factory=Counter)
    waits: Counter[WaitPlace] = field(default_factory=Counter)
    lock_holds: dict[HoldPlace, EventTotals] = field(default_factory=dict)

    def add(self, body: str, service: str) -> None:
        """Add the profile that is the body of a log record.

        Raises:
            ProfileError: the body is not a profile; nothing was added.
        """
        message = decode_body(body)
        try:
            aggregates = list(iter_aggregates(message))
            comments = [message.string_table[index] for index in message.comment]
        except (IndexError, KeyError, ValueError) as error:
            raise ProfileError(f"the profile is not consistent: {type(error).__name__} {error}") from None
        self.records += 1
        self.services[service] += 1
        self.first_ns = min(self.first_ns or message.time_nanos, message.time_nanos)
        self.last_ns = max(self.last_ns, message.time_nanos + message.duration_nanos)
        self.periods_ms[message.period // 1_000_000] += 1
        self.gil_waits = self.gil_waits.plus(gil_waits.parse_all(comments))
        for each in aggregates:
            name = endpoint_name(each.stack, each.labels)
            if each.stack and each.loop_blocked:
                self._add_loop_blocks(each, name)
            elif each.stack and each.exceptions:
                self.exceptions[each.labels.get("exception.type", ""), each.nearest] += each.exceptions
            elif each.stack and each.task_wait:
                self._add_task_waits(each)
            elif each.stack and each.lock_delay:
                self._add_lock_holds(each)
            else:
                self.samples += each.samples
                self.spent.add(each.cpu, each.wall)
                if each.wall and each.stack and (kind := each.labels.get("wait.kind")):
                    self.waits[_wait_place(kind, each)] += each.wall
                self.endpoints.setdefault(name, EndpointTimes()).add(each.stack, each.samples, each.cpu, each.wall)

    def _add_task_waits(self, aggregate: Aggregate) -> None:
        nearest, leaf = aggregate.nearest, aggregate.stack[0]
        awaits = "" if nearest is leaf else leaf.function
        place = TaskPlace(nearest.function, nearest.file, nearest.line, awaits, aggregate.labels.get("wait.kind", ""))
        self.task_waits.setdefault(place, EventTotals()).add(aggregate.tasks, aggregate.task_wait)

    def _add_lock_holds(self, aggregate: Aggregate) -> None:
        nearest, leaf = aggregate.nearest, aggregate.stack[0]
        place = HoldPlace(nearest.function, nearest.file, nearest.line, "" if nearest is leaf else leaf.function)
        self.lock_holds.setdefault(place, EventTotals()).add(aggregate.lock_waiters, aggregate.lock_delay)

    def _add_loop_blocks(self, aggregate: Aggregate, endpoint: str) -> None:
        blocker = LoopBlockPlace(aggregate.nearest.function, endpoint, aggregate.labels.get("task.name", ""))
        self.loop_blocks.setdefault(blocker, EventTotals()).add(aggregate.loop_blocks, aggregate.loop_blocked)


def _wait_place(kind: str, aggregate: Aggregate) -> WaitPlace:
    names = [place.function.rpartition(".") for place in aggregate.stack]
    wait = None if kind == GIL_WAIT else find_wait([(namespace, function) for namespace, _, function in names])
    place = aggregate.stack[0 if wait is None else wait.depth]
    return WaitPlace(kind, place.function, place.line, aggregate.nearest.function)
