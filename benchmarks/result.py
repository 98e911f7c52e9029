"""One line of JSON for each thing measured, with its target beside it, and the command line of every measure."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One measured value.

    Attributes:
        name: name of the measure.
        value: measured value.
        unit: unit of the value.
        limit: target; None if there is none.
        at_least: True if the value has to reach the limit, False if it has to stay below.
        details: medians, spreads, counts.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """True if the target is met; None without one."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        """Return the result as JSON."""
        target = None if self.limit is None else f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}"
        shown = {"measure": self.name, "value": significant(self.value), "unit": self.unit, "target": target}
        return json.dumps({**shown, "met": self.is_met, **self.details})


def significant(value: float, digits: int = 3) -> float:
    """Round `value` to the significant digits of a measurement on a shared machine."""
    return float(f"{value:.{digits}g}")


def median(values: Iterable[float], digits: int = 3) -> float:
    """Return the rounded median; a ratio near 1 needs more digits."""
    return significant(statistics.median(values), digits)


def middle_half(values: Sequence[float], digits: int = 3) -> list[float]:
    """Return the first and third quartile."""
    if len(values) < 2:
        return [significant(value, digits) for value in values]
    low, _, high = statistics.quantiles(values, n=4)
    return [significant(low, digits), significant(high, digits)]


def main(measure: Callable[[bool], Iterable[Result]], description: str | None) -> None:
    """Run one measure from the command line; ``--quick`` only shows that it works."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke run: seconds, and figures that mean nothing")
    quick = parser.parse_args().quick
    os.environ.setdefault("OTEL_SERVICE_NAME", "benchmark")  # an unnamed service would delay the first records
    for result in measure(quick):
        print(result.line(), flush=True)
    sys.stdout.flush()
