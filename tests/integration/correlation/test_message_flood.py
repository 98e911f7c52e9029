"""Many processes that send to a service as fast as they can, all that can be sent: nothing is lost, nothing grows."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from host_profiler import HostProfiler
from publishing_target import publishing_settings, socket_folder
from target_process import Target

pytest.importorskip("splunk_profiler._context")

_SENDERS = 8
_ATTEMPTS = 40_000  # of each
_ROUNDS = 2
_MAX_GROWTH_KIB = 16 * 1024
_STACKS = 16


def flood(path: str, live: str) -> Counter[str]:
    """Send from all senders and return the counts by kind, with "refused" for those not accepted."""
    with ExitStack() as stack:
        senders = [stack.enter_context(Target("flood_sender.py", path, str(_ATTEMPTS), live)) for _ in range(_SENDERS)]
        for sender in senders:
            sender.line("ready")
        for sender in senders:
            sender.tell("go")
        sent: Counter[str] = Counter()
        for sender in senders:
            sent.update(sender.json("sent", timeout_s=120))
            assert sender.finish() == 0
    return sent


def test_flood_of_messages_is_counted_or_refused_in_bounded_memory() -> None:
    with socket_folder() as folder, Target("flood_receiver.py", env=publishing_settings(folder)) as service:
        path, live = service.json("ready")
        service.tell("memory")
        before, _ = service.json("memory")
        sent: Counter[str] = Counter()
        for number in range(_ROUNDS):
            sent += flood(path, live)
            with HostProfiler(path) as host:
                host.register(100, f"end-{number}", minor=2)  # comes after everything else
            service.find(rf"(has registered \(host\.id end-{number}\))")
        service.tell("memory")
        _, most = _numbers(service.lines(2, "memory")[1])
        service.close_stdin()
        found = service.json("ids")
        counts = _counts(service.find(r"from host profilers: CorrelationCounters\((.*)\)"))
        assert service.finish() == 0
        assert not list(Path(folder).iterdir())
    refused = sent.pop("refused", 0)
    assert refused + sent.total() == _ROUNDS * _SENDERS * _ATTEMPTS
    assert refused > 0
    assert counts["received"] == sent.total() + _ROUNDS
    assert counts["too_long"] == sent["too_long"]
    assert counts["malformed"] == sent["cut"] + sent["empty"]
    assert counts["unknown"] == sent["unknown"]
    assert counts["unmatched"] == sent["unmatched"] * 65535
    assert counts["matched"] == sent["matched"]
    assert found == [sent["matched"], _STACKS]
    assert most - before < _MAX_GROWTH_KIB
    assert "Traceback" not in service.output
    assert service.output.count("a message of a host profiler was ignored") <= 65


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _counts(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}
