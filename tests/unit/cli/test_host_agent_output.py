"""Tests of the host agent's output and of its page in the documentation."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from splunk_profiler.cli.host_agent import event_to_dict, format_event, host_agent, totals_to_dict
from splunk_profiler.inspector.code_locations import CodeLocation
from splunk_profiler.inspector.events import (
    Busy,
    Ended,
    Event,
    Followed,
    NotReady,
    Registered,
    Reported,
    Sample,
    Skipped,
    Totals,
)
from splunk_profiler.inspector.messages import LossReason, Registration
from splunk_profiler.inspector.model import Interface, Level, ProcessStorage, Reason

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "host-profilers" / "host-agent.md").read_text("utf-8")
REASON = Reason("socket-refused", Level.LOSES, Interface.ELASTIC, "no process receives", "restart it")
SAMPLE = Sample("11" * 16, "33" * 8, CodeLocation("/usr/lib/libpython3.so", 0x2000))
REGISTRATION = Registration(100, None, 1)
EVENTS: dict[str, Event] = {
    "followed": Followed(7, "shop", ProcessStorage(1, "shop", "test", "/s"), (REASON,)),
    "unseen": NotReady(7, "shop", (REASON,)),
    "registered": Registered(7, "/s", REGISTRATION, None),
    "registration-lost": Registered(7, "/s", REGISTRATION, LossReason.QUEUE_FULL),
    "sent": Reported(7, "/s", SAMPLE, 3, None),
    "lost": Reported(7, "/s", SAMPLE, 3, LossReason.SOCKET_GONE),
    "busy": Busy(7, "traced"),
    "skipped": Skipped(7, "no Python"),
    "ended": Ended(7, "gone"),
}


def documentation_row(first: str) -> str:
    """Return the row of the page's tables that begins with `first`."""
    return next(row for row in PAGE.splitlines() if row.startswith("|") and f"`{first}`" in row.split("|")[1])


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_an_object_of_its_name_whose_fields_are_documented(name: str) -> None:
    found = event_to_dict(EVENTS[name], 5)
    assert json.loads(json.dumps(found)) == found
    assert (found["event"], found["time_unix_nano"], found["pid"]) == (name, 5, 7)
    assert {field for field in found if f"`{field}`" not in documentation_row(name)} <= {
        "event",
        "time_unix_nano",
        "pid",
    }


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_a_line_that_begins_with_time_process_and_name(name: str) -> None:
    text = format_event(EVENTS[name], time.struct_time((2026, 1, 2, 3, 4, 5, 0, 2, 0))).plain
    assert re.match(rf"03:04:05       7 {name} +\S", text)
    assert "\n" not in text


def test_a_message_is_printed_with_its_ids_its_count_and_its_outcome() -> None:
    found = event_to_dict(EVENTS["lost"], 5)
    assert found["trace_id"] == "11" * 16
    assert found["transaction_id"] == "33" * 8
    assert found["stack_trace_id"] == SAMPLE.location.stack_trace_id
    assert (found["count"], found["reason"]) == (3, "socket-gone")
    assert found["place"] == "/usr/lib/libpython3.so+0x2000"


def test_the_totals_are_sums_over_all_reasons_and_documented() -> None:
    totals = Totals(lost_messages=Counter({LossReason.QUEUE_FULL: 2, LossReason.REFUSED: 1}))
    totals.lost_samples.update({LossReason.QUEUE_FULL: 20, LossReason.REFUSED: 10})
    found = totals_to_dict(totals, 5)
    assert (found["lost_messages"], found["lost_samples"]) == (3, 30)
    assert found["lost_samples_by_reason"] == {"queue-full": 20, "refused": 10}
    assert {field for field in found if f"`{field}`" not in documentation_row("totals")} == {"event", "time_unix_nano"}


def test_every_reason_for_a_loss_and_every_option_is_documented() -> None:
    assert all(documentation_row(loss.value) for loss in LossReason)
    options = {option for parameter in host_agent.params for option in parameter.opts if option.startswith("--")}
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M))
