"""Tests of the report on aggregated profiles."""

from __future__ import annotations

import base64
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_factory import large_profile, message, origin_in_shop, small_profile

from splunk_profiler.capture.events.blocked_loops import LOOP_BLOCKED
from splunk_profiler.capture.events.exceptions import EXCEPTION_KIND
from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.capture.events.lock_holders import LOCK_KIND
from splunk_profiler.capture.events.waiting_tasks import TASK_KIND
from splunk_profiler.cli.analysis import Analysis, analyse
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.profiles import Profiles
from splunk_profiler.cli.report import draw, to_dict
from splunk_profiler.cli.terminal import Terminal
from splunk_profiler.formats.pprof import body, parts
from splunk_profiler.model import Frame, Stack
from splunk_profiler.pipeline.gil_waits import GilWaits
from splunk_profiler.samples import Aggregate, Profile
from splunk_profiler.viewer.profile_messages import NOT_SAMPLED, OUTSIDE, UNNAMED, ProfileError

SEARCH = Frame("shop.app", "search", "/srv/shop/app.py", 4)
RANK = Frame("shop.pricing", "rank", "/srv/shop/pricing.py", 9)
GET = Frame("requests.api", "get", "/venv/lib/python3.12/site-packages/requests/api.py", 60)
WAIT = Frame("threading.Condition", "wait", "/usr/lib/python3.12/threading.py", 355)
INTERNAL = Frame("[process]", "internal", "unknown", None)
SECOND = 1_000_000_000


def aggregate(*frames: Frame, cpu_s: int = 1, wall_s: int = 1, **labels: str | int) -> Aggregate:
    stack = Stack(frames, truncated=False)
    return Aggregate(stack, tuple(labels.items()), cpu_s * 10, wall_s * SECOND, cpu_s * SECOND)


def profile(*aggregates: Aggregate) -> Profile:
    return Profile(1_700_000_000 * SECOND, 10 * SECOND, 10_000_000, aggregates)


def bodies(*profiles: Profile) -> list[str]:
    return [body(part).decode() for each in profiles for part in parts(each, origin_of=origin_in_shop)]


def added(*profiles: Profile) -> Profiles:
    result = Profiles()
    for text in bodies(*profiles):
        result.add(text, "shop")
    return result


def saved(directory: Path, *texts: str) -> Analysis:
    attribute = {"key": "profiling.data.format", "value": {"stringValue": "pprof-gzip-base64"}}
    records = [
        {"timeUnixNano": "1700000000000000000", "body": {"stringValue": text}, "attributes": [attribute]}
        for text in texts
    ]
    scopes = [{"scope": {"name": "otel.profiling"}, "logRecords": records}]
    (directory / "logs.jsonl").write_text(json.dumps({"resourceLogs": [{"resource": {}, "scopeLogs": scopes}]}) + "\n")
    return analyse(directory)


def drawn(analysis: Analysis, width: int = 100, **options: int) -> str:
    output = io.StringIO()
    console = Terminal(file=output, width=width)
    draw(analysis, Path("profiles"), console=console, **options)
    return output.getvalue()


def test_times_of_equal_endpoints_add_up_over_all_profiles() -> None:
    found = added(
        profile(aggregate(RANK, SEARCH, cpu_s=2, wall_s=3, endpoint="GET /search")),
        profile(
            aggregate(SEARCH, cpu_s=1, wall_s=4, endpoint="GET /search"),
            aggregate(WAIT, cpu_s=0, wall_s=9),
            aggregate(SEARCH, span_id="00000000000000aa"),
            aggregate(INTERNAL, cpu_s=1, wall_s=0),
        ),
    )
    assert (found.records, found.samples, found.spent.cpu, found.spent.wall) == (2, 50, 5 * SECOND, 17 * SECOND)
    assert set(found.endpoints) == {"GET /search", OUTSIDE, UNNAMED, NOT_SAMPLED}
    spent = found.endpoints["GET /search"].spent
    assert (spent.cpu, spent.wall) == (3 * SECOND, 7 * SECOND)
    assert found.last_ns - found.first_ns == 10 * SECOND


def raised(count: int, error: str, *frames: Frame) -> Aggregate:
    labels = (("source.event.name", "exception"), ("exception.type", error), ("endpoint", "GET /search"))
    return Aggregate(Stack(frames, truncated=False), labels, 0, 0, 0, EXCEPTION_KIND, event_count=count)


def test_exceptions_add_up_by_type_and_nearest_line_of_the_application(tmp_path: Path) -> None:
    aggregates = (
        raised(3, "shop.NoStock", RANK, SEARCH),
        raised(4, "requests.ConnectTimeout", GET, RANK, SEARCH),
        raised(1, "requests.ConnectTimeout", WAIT, GET, RANK),
        raised(2, "KeyError", WAIT),
        aggregate(SEARCH, cpu_s=2, endpoint="GET /search"),
    )
    found = added(*[replace(profile(*aggregates), kinds=(GC_KIND, EXCEPTION_KIND))] * 2)
    counted = [(name, place.function, place.line, count) for (name, place), count in found.exceptions.most_common()]
    assert counted == [
        ("requests.ConnectTimeout", "shop.pricing.rank", 9, 10),
        ("shop.NoStock", "shop.pricing.rank", 9, 6),
        ("KeyError", "threading.Condition.wait", 355, 4),
    ]
    assert found.endpoints["GET /search"].spent.cpu == 4 * SECOND
    analysis = saved(tmp_path, *bodies(replace(profile(*aggregates), kinds=(GC_KIND, EXCEPTION_KIND))))
    text = drawn(analysis)
    assert "requests.ConnectTimeout in shop.pricing.rank" in text
    assert text.index("requests.ConnectTimeout in") < text.index("shop.NoStock in") < text.index("KeyError in")
    first, *_ = to_dict(analysis, tmp_path)["profiles"]["exceptions"]
    assert (first["type"], first["count"], first["line"]) == ("requests.ConnectTimeout", 5, 9)


def test_where_nothing_was_raised_the_report_does_not_speak_of_it(tmp_path: Path) -> None:
    assert "exception" not in drawn(saved(tmp_path, *bodies(profile(aggregate(SEARCH)))))


def test_library_time_counts_for_the_application_function_that_called_it() -> None:
    found = added(
        profile(
            aggregate(GET, RANK, SEARCH, cpu_s=3),
            aggregate(RANK, RANK, SEARCH, cpu_s=2),
            aggregate(WAIT, GET, cpu_s=1),
        )
    )
    functions = found.endpoints[OUTSIDE].functions
    cpu = {
        name: tuple(each.cpu // SECOND for each in (times.own, times.direct, times.total))
        for name, times in functions.items()
    }
    assert cpu == {
        "requests.api.get": (3, 0, 4),
        "shop.pricing.rank": (2, 5, 5),
        "shop.app.search": (0, 0, 5),
        "threading.Condition.wait": (1, 0, 1),
    }
    place = functions["requests.api.get"].place
    assert (place.kind, place.distribution, place.line) == ("library", "requests==2.32", 60)


def test_code_of_senders_that_do_not_say_whose_it_is_is_known_by_its_path() -> None:
    found = Profiles()
    found.add(body(parts(profile(aggregate(GET, RANK, INTERNAL)))[0]).decode(), "shop")
    kinds = {name: each.place.kind for name, each in found.endpoints[OUTSIDE].functions.items()}
    assert kinds == {"requests.api.get": "library", "shop.pricing.rank": "application", "[process].internal": ""}


def test_a_split_profile_is_read_as_what_it_was() -> None:
    whole = large_profile(300)
    split, one = Profiles(), Profiles()
    texts = [body(part).decode() for part in parts(whole, max_body_bytes=20_000, origin_of=origin_in_shop)]
    assert len(texts) > 1
    for text in texts:
        split.add(text, "shop")
    one.add(body(parts(whole, origin_of=origin_in_shop)[0]).decode(), "shop")
    assert split.endpoints == one.endpoints
    assert split.spent == one.spent


def test_waits_for_the_gil_of_all_profiles_are_in_the_report(tmp_path: Path) -> None:
    waits = GilWaits(10, 13_000_000, 8_000_000, 1), GilWaits(30, 6_000_000, 2_000_000, 0)
    profiles = [replace(small_profile(), comments=("other", each.describe())) for each in waits]
    analysis = saved(tmp_path, *bodies(*profiles))
    assert analysis.profiles.gil_waits == GilWaits(40, 19_000_000, 8_000_000, 1)
    assert "wait for the GIL  0.47 ms on average, 8.0 ms at most, over 5 ms in 2.5 %" in drawn(analysis)
    assert to_dict(analysis, tmp_path)["profiles"]["gil_waits"]["max_ns"] == 8_000_000


def test_functions_that_blocked_the_loop_are_listed_by_their_time(tmp_path: Path) -> None:
    def blocked(*frames: Frame, count: int, ms: int, **labels: str) -> Aggregate:
        stack = Stack(frames, truncated=False)
        return Aggregate(stack, tuple(labels.items()), 0, 0, 0, LOOP_BLOCKED, count, ms * 1_000_000)

    blocks = (
        blocked(WAIT, RANK, SEARCH, count=2, ms=700, endpoint="GET /search"),
        blocked(SEARCH, count=1, ms=900, **{"task.name": "nightly"}),
        blocked(RANK, count=1, ms=300, endpoint="GET /search"),
    )
    analysis = saved(tmp_path, *bodies(replace(profile(aggregate(SEARCH), *blocks), kinds=(LOOP_BLOCKED,))))
    assert [line.split() for line in section(drawn(analysis), "Functions that blocked the event loop")] == [
        ["shop.pricing.rank", "1.00", "s", "3", "0.33", "s", "GET", "/search"],
        ["shop.app.search", "0.90", "s", "1", "0.90", "s", "nightly", "(outside", "of", "spans)"],
    ]
    (first, second) = to_dict(analysis, tmp_path)["profiles"]["loop_blocks"]
    assert (first["task"], second["task"]) == ("", "nightly")
    assert (first["function"], first["count"], first["blocked_ns"]) == ("shop.pricing.rank", 3, SECOND)
    assert analysis.profiles.samples == 10


def test_waiting_tasks_are_listed_by_the_line_of_the_application(tmp_path: Path) -> None:
    def waiting(*frames: Frame, count: int, seconds: int, kind: str = "") -> Aggregate:
        labels = (("thread.state", "waiting task"), *((("wait.kind", kind),) if kind else ()))
        return Aggregate(Stack(frames, truncated=False), labels, 0, 0, 0, TASK_KIND, count, seconds * SECOND)

    waits = (
        waiting(WAIT, GET, RANK, count=20, seconds=20, kind="queue"),
        waiting(WAIT, RANK, SEARCH, count=10, seconds=10, kind="queue"),
        waiting(SEARCH, count=9, seconds=10),
    )
    analysis = saved(tmp_path, *bodies(replace(profile(aggregate(SEARCH), *waits), kinds=(TASK_KIND,))))
    assert [line.split() for line in section(drawn(analysis), "Waiting tasks, by the nearest line")] == [
        ["shop.pricing.rank", "queue", "30.00", "s", "75", "%", "3.0", "threading.Condition.wait", "pricing.py:9"],
        ["shop.app.search", "10.00", "s", "25", "%", "1.0", "app.py:4"],
    ]
    (first, _) = to_dict(analysis, tmp_path)["profiles"]["task_waits"]
    assert (first["function"], first["line"], first["awaits"]) == ("shop.pricing.rank", 9, "threading.Condition.wait")
    assert first["kind"] == "queue"
    assert (first["count"], first["wait_ns"]) == (30, 30 * SECOND)
    assert analysis.profiles.samples == 10, "their time is no time of threads"


def test_waits_for_locks_are_listed_without_those_for_work(tmp_path: Path) -> None:
    waits = profile(
        aggregate(WAIT, GET, RANK, cpu_s=0, wall_s=3, **{"wait.kind": "condition"}),
        aggregate(SEARCH, cpu_s=0, wall_s=1, **{"wait.kind": "lock"}),
        aggregate(WAIT, cpu_s=0, wall_s=9, **{"wait.kind": "idle"}),
        aggregate(SEARCH),
    )
    analysis = saved(tmp_path, *bodies(waits))
    assert [line.split() for line in section(drawn(analysis), "Waits for locks and the like")] == [
        ["requests.api.get", "60", "condition", "3.00", "s", "75", "%", "shop.pricing.rank"],
        ["shop.app.search", "4", "lock", "1.00", "s", "25", "%"],
    ]
    (idle, _, _) = to_dict(analysis, tmp_path)["profiles"]["waits"]
    assert (idle["kind"], idle["wall_ns"]) == ("idle", 9 * SECOND)


def test_holders_of_locks_are_listed_by_the_line_of_the_application(tmp_path: Path) -> None:
    def held(*frames: Frame, waiters: int, seconds: int) -> Aggregate:
        return Aggregate(Stack(frames, truncated=False), (), 0, 0, 0, LOCK_KIND, waiters, seconds * SECOND)

    holds = (
        held(WAIT, GET, RANK, SEARCH, waiters=6, seconds=2),
        held(WAIT, RANK, waiters=3, seconds=1),
        held(SEARCH, waiters=2, seconds=1),
    )
    analysis = saved(tmp_path, *bodies(replace(profile(aggregate(SEARCH), *holds), kinds=(LOCK_KIND,))))
    assert [line.split() for line in section(drawn(analysis), "Held a lock that others waited for")] == [
        ["shop.pricing.rank", "3.00", "s", "75", "%", "threading.Condition.wait", "pricing.py:9"],
        ["shop.app.search", "1.00", "s", "25", "%", "app.py:4"],
    ]
    (first, _) = to_dict(analysis, tmp_path)["profiles"]["lock_holds"]
    assert (first["function"], first["line"], first["inside"]) == ("shop.pricing.rank", 9, "threading.Condition.wait")
    assert (first["waiters"], first["delay_ns"]) == (9, 3 * SECOND)
    assert analysis.profiles.samples == 10, "their time is no time of the holder"


def packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        "aGVsbG8=",
        packed(b"\xff\xff\xff"),
        packed(b""),
        base64.b64encode(gzip.compress(message(small_profile()), mtime=0)[:-20]).decode(),
        packed(message(small_profile()).replace(b"wall", b"ball")),
        packed(message(small_profile()) + b"\x12\x03\x0a\x01\x7f"),
    ],
    ids=["empty", "no base64", "no gzip", "no message", "no fields", "cut off", "no wall time", "a place not there"],
)
def test_what_is_no_profile_is_refused_and_adds_nothing(text: str) -> None:
    found = Profiles()
    with pytest.raises(ProfileError):
        found.add(text, "shop")
    assert found == Profiles()


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_no_bytes_make_it_fail_in_another_way(content: bytes, cut: int) -> None:
    encoded = message(small_profile())
    for candidate in (content, encoded[:cut] + content, encoded[:cut] + content + encoded[cut:]):
        try:
            Profiles().add(packed(candidate), "shop")
        except ProfileError:
            continue


def test_a_report_of_profiles_alone_is_a_report(tmp_path: Path) -> None:
    analysis = saved(tmp_path, *bodies(small_profile()))
    assert (analysis.samples, analysis.profiles.records, analysis.unread) == (0, 1, 0)
    text = drawn(analysis)
    for absent in ("Hottest functions", "Threads", "One record as received", "samples received"):
        assert absent not in text
    assert "1,000 more samples in 1 profiles of 10.0 s" in text
    assert "unknown service (1) records" in text
    data = json.loads(json.dumps(to_dict(analysis, tmp_path)))
    assert data["profiles"]["cpu_ns"] == 3 * SECOND
    (wait, _) = data["profiles"]["endpoints"][OUTSIDE]["functions"]
    assert (wait["function"], wait["own_wall_ns"], wait["kind"]) == (
        "threading.Condition.wait",
        5_999_600_000,
        "standard-library",
    )


def section(text: str, title: str) -> list[str]:
    """Return the lines of a table without its head."""
    lines = text.partition(title)[2].partition("\n\n")[0].splitlines()
    return [line.rstrip() for line in lines[3:]]


def test_text_report_lists_each_endpoint_by_cpu_and_wall_own_code_first(tmp_path: Path) -> None:
    one = profile(
        aggregate(GET, RANK, SEARCH, cpu_s=1, wall_s=8, endpoint="GET /search"),
        aggregate(SEARCH, cpu_s=3, wall_s=3, endpoint="GET /search"),
        aggregate(RANK, cpu_s=5, wall_s=5, endpoint="GET /rank"),
        aggregate(WAIT, cpu_s=0, wall_s=90),
        aggregate(INTERNAL, cpu_s=1, wall_s=0),
    )
    text = drawn(saved(tmp_path, *bodies(one)))
    assert [" ".join(line.split()) for line in section(text, "by CPU time")] == [
        "GET /rank 5.00 s 50 %",
        "shop.pricing.rank 5.00 s 100 % 100 % shop 1.4",
        "GET /search 4.00 s 40 %",
        "shop.app.search 3.00 s 75 % 100 % shop 1.4",
        "shop.pricing.rank 1.00 s 25 % 25 % shop 1.4",
        "requests.api.get 1.00 s 25 % 25 % requests 2.32",
        "(not sampled) 1.00 s 10 %",
        "[process].internal 1.00 s 100 % 100 %",
    ]
    assert [" ".join(line.split()) for line in section(text, "by wall time")] == [
        "GET /search 11.00 s 10 %",
        "shop.pricing.rank 8.00 s 73 % 73 % shop 1.4",
        "shop.app.search 3.00 s 27 % 100 % shop 1.4",
        "requests.api.get 8.00 s 73 % 73 % requests 2.32",
        "GET /rank 5.00 s 4.7 %",
        "shop.pricing.rank 5.00 s 100 % 100 % shop 1.4",
        "(outside of spans) 90.00 s 85 %",
        "threading.Condition.wait 90.00 s 100 % 100 % python 3.12.1",
    ]


def test_only_so_many_endpoints_and_functions_are_shown(tmp_path: Path) -> None:
    places = [Frame("shop", f"f{n}", "/srv/shop/a.py", n + 1) for n in range(9)]
    many = [aggregate(place, endpoint=f"GET /{n}") for n in range(9) for place in places]
    rows = section(drawn(saved(tmp_path, *bodies(profile(*many))), top=2, spans=3), "by CPU time")
    assert len(rows) == 3 * (1 + 2) + 1
    assert "and 6 more" in rows[-1]


def test_tables_fit_into_100_columns_however_long_names_are(tmp_path: Path) -> None:
    long = Frame("package." + "module" * 30, "f" * 99, "/venv/site-packages/requests/" + "x" * 200, 1)
    analysis = saved(tmp_path, *bodies(profile(aggregate(long, endpoint="GET /" + "segment/" * 40))))
    for line in drawn(analysis).split("Saved")[0].splitlines():
        assert len(line) <= 100


def test_records_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    analysis = saved(tmp_path, *bodies(small_profile()), "broken")
    assert (analysis.profiles.records, analysis.unread) == (1, 1)
    assert "1 records whose body is no call stack and no profile" in drawn(analysis)
    with pytest.raises(CommandError, match=r"no samples in .*1 records that cannot be read.* splunk-profiler doctor"):
        saved(tmp_path, "broken")


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"endpoint": "GET /[red]x[/red] :smile:"}
    assert "GET /[red]x[/red] :smile:" in drawn(saved(tmp_path, *bodies(profile(aggregate(RANK, **odd)))))
