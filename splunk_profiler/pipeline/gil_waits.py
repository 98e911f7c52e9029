"""The waits of snapshots for the GIL, as a profile's comment says them and `report` reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

LONG_WAIT_NS = 5_000_000  # CPython's switch interval, after which Python code is asked to release the GIL
_NUMBER, _MS = "([0-9]{1,9})", r"([0-9]{1,9}\.[0-9]{3}) ms"
_COMMENT = re.compile(f"gil\\.wait: mean {_MS}, max {_MS}, {_NUMBER} of {_NUMBER} over ")


class GilWaits(NamedTuple):
    """The waits of some snapshots: their number, sum and maximum, and the number of those over `LONG_WAIT_NS`."""

    snapshot_count: int = 0
    sum_ns: int = 0
    max_ns: int = 0
    long_count: int = 0

    def plus(self, other: GilWaits) -> GilWaits:
        """Return the waits of both."""
        return GilWaits(
            self.snapshot_count + other.snapshot_count,
            self.sum_ns + other.sum_ns,
            max(self.max_ns, other.max_ns),
            self.long_count + other.long_count,
        )

    def describe(self) -> str:
        """Return the comment of a profile; empty without snapshots."""
        if not self.snapshot_count:
            return ""
        mean_ms, max_ms = self.sum_ns / self.snapshot_count / 1e6, self.max_ns / 1e6
        return (
            f"gil.wait: mean {mean_ms:.3f} ms, max {max_ms:.3f} ms,"
            f" {self.long_count} of {self.snapshot_count} over {LONG_WAIT_NS // 1_000_000} ms"
        )


def gil_wait(wait_ns: int, count: int) -> GilWaits:
    """Return the wait of snapshots that waited equally."""
    return GilWaits(count, wait_ns * count, wait_ns, count if wait_ns > LONG_WAIT_NS else 0)


def parse(comment: str) -> GilWaits:
    """Return the waits that a comment describes; none if it describes something else."""
    found = _COMMENT.match(comment)
    if found is None:
        return GilWaits()
    mean_ms, max_ms, long_count, count = map(float, found.groups())
    return GilWaits(int(count), round(mean_ms * count * 1e6), round(max_ms * 1e6), int(long_count))


def parse_all(comments: Iterable[str]) -> GilWaits:
    """Return the waits that comments describe together."""
    whole = GilWaits()
    for comment in comments:
        whole = whole.plus(parse(comment))
    return whole
