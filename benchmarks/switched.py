"""The requests that a saturated service loses while its profiler is on, by switching it on and off in one process.

Two processes that do the same differ by some ten percent. So here each stretch with the profiler is compared with those
right before and after it. A start loads nothing from the second on, and the exporter is given time to begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from counting_sink import CountingSink
from measured_service import MeasuredService
from result import Result, main, median, middle_half
from saturated import TARGETS, Case

CASE = Case("text", 10)


class Plan(NamedTuple):
    """The times of a measurement."""

    rounds: int = 36
    windows: int = 5
    window_s: float = 0.5
    settle_s: float = 2.5


QUICK = Plan(1, 1, 0.05, 0.3)


class Stretch(NamedTuple):
    """Requests per second, and CPU seconds of the process for each; medians of windows."""

    rate: float
    cpu_s: float


def take_stretch(service: MeasuredService, plan: Plan, settle_s: float) -> Stretch:
    """Let the service work, first for a time that is not counted."""
    service.ask(f"run {settle_s}")
    answers = [service.ask(f"run {plan.window_s}") for _ in range(plan.windows)]
    return Stretch(
        median((answer["served"] / answer["wall_s"] for answer in answers), 6),
        median((answer["cpu_s"] / answer["served"] for answer in answers), 6),
    )


def measure(quick: bool) -> Iterator[Result]:
    """Yield what is lost of the requests, and what each takes more."""
    plan = QUICK if quick else Plan()
    lost, added = [], []
    with (
        CountingSink() as sink,
        MeasuredService(CASE.python, CASE.shape, CASE.profiler, CASE.settings(sink)) as service,
    ):
        before = take_stretch(service, plan, plan.settle_s)
        for _ in range(plan.rounds):
            service.ask("start")
            on = take_stretch(service, plan, plan.settle_s)
            service.ask("stop")
            after = take_stretch(service, plan, plan.window_s)
            lost.append(100 * (1 - 2 * on.rate / (before.rate + after.rate)))
            added.append(100 * (2 * on.cpu_s / (before.cpu_s + after.cpu_s) - 1))
            before = after
    where = f"switched on and off, {CASE.name}"
    details = {"middle_half": middle_half(lost), "rounds": plan.rounds}
    yield Result(f"throughput lost, {where}", median(lost), "%", TARGETS["throughput lost"][0], details=details)
    details = {"middle_half": middle_half(added)}
    yield Result(f"CPU of the service per request added, {where}", median(added), "%", details=details)


if __name__ == "__main__":
    main(measure, __doc__)
