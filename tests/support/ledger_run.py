"""Runs a target that prints a ledger, with a receiver."""

from __future__ import annotations

from typing import Any, NamedTuple

from receiver_process import Receiver
from target_process import Target, profiling_settings


class LedgerRun(NamedTuple):
    """The records received, and the ledger and the output of the target."""

    records: list[dict[str, Any]]
    ledger: Any
    output: str


def run_target(program: str, *arguments: str, walker: str = "auto", **settings: str) -> LedgerRun:
    """Run a target to its end, sampled every 10 ms."""
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, walker, **settings)
        with Target(program, *arguments, env=env) as target:
            ledger = target.json("ledger")
            assert target.finish() == 0, target.output
            output = target.output
        return LedgerRun(receiver.records(1), ledger, output)
