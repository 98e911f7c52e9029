"""Children of multiprocessing: all three ways of starting them, and lives too short for a regular export."""

from __future__ import annotations

import json

import pytest
from forking_target import assert_goes_on, forking, record_of
from receiver_process import Receiver

_CHILDREN = 2


# What a child does last is lost where nothing ends it and its own thread exports; an exporter process has most of it.
@pytest.mark.parametrize(
    ("how", "exporter"), [("fork", "process"), ("fork", "thread"), ("forkserver", "thread"), ("spawn", "thread")]
)
def test_parent_and_short_lived_children_deliver_under_their_own_pids(how: str, exporter: str) -> None:
    later_ms = "3000"  # than a child lives: it sends when it ends, or never
    started = {"SPLUNK_PROFILER_EXPORT_INTERVAL": later_ms, "SPLUNK_PROFILER_EXPORTER": exporter}
    with Receiver() as receiver, forking(receiver, how, _CHILDREN, 10, **started) as (target, pid):
        target.tell("fork")
        assert target.json("statuses") == [0] * _CHILDREN, target.output
        for line in target.lines(_CHILDREN, "child"):
            assert record_of(receiver, json.loads(line))["resource"]["set.in.code"] == "yes"
        assert_goes_on(receiver, pid)
        target.tell("stop")
        assert target.finish() == 0, target.output
        assert "Traceback" not in target.output, target.output
