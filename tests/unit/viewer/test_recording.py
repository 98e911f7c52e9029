"""Tests of what a selection takes of recorded samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splunk_profiler.viewer.model import DAY_NS, MINUTE_NS, NEVER_NS, Facets, Sample, Selection
from splunk_profiler.viewer.parts import by_minute, joined, pack, rows_of, unpack
from splunk_profiler.viewer.recording import OTHER, Recording

TRACES = [letter * 32 for letter in "abc"]


def recording(*samples: tuple[int, str, str, dict[str, int]]) -> Recording:
    found = Recording()
    found.units.update(cpu="nanoseconds", inuse_space="bytes")
    stack = found.stacks.index(np.array([found.function_id("main", "main.py", "application"), 1], np.int32).tobytes())
    for time_ns, process, endpoint, weights in samples:
        facets = Facets("shop", "", process, endpoint, "main", "application", "running")
        if "inuse_space" in weights:
            found.note_heap(process, time_ns)
        found.add(Sample(time_ns, stack, found.facets_id(facets), weights))
    return found


def total(found: Recording, selection: Selection) -> int:
    return int(found.weights(selection).sum())


def test_what_is_in_use_is_not_scaled_by_time() -> None:
    found = recording((100, "7", "", {"cpu": 1}), (300, "7", "", {"inuse_space": 1}))
    assert found.duration_ns(Selection("cpu")) == 201
    assert found.duration_ns(Selection("cpu", 150, 250)) == 100
    assert found.duration_ns(Selection("inuse_space", 150, 250)) == 1


def test_the_time_of_a_selection_ends_with_its_last_profile() -> None:
    found = recording()
    found.units["cpu"] = "nanoseconds"
    for place in range(6):
        found.add(Sample(1000 + 10 * place, 0, 0, {"cpu": 10}, duration_ns=10))
    assert found.ends_ns(Selection("cpu")) == (1000, 1060)
    assert [found.duration_ns(Selection("cpu", since_ns)) for since_ns in (None, 1030)] == [60, 30]
    assert found.duration_ns(Selection("cpu", None, 1030)) == 30
    found.add(Sample(1050, 0, 0, {"cpu": 10}, duration_ns=1 << 62))
    assert found.duration_ns(Selection("cpu")) == 50 + DAY_NS  # no profile is longer
    found.add(Sample(1300, 0, 0, {"wall": 10}))
    assert found.duration_ns(Selection("wall")) == 301


def test_a_long_profile_that_is_not_the_last_one_does_not_prolong_the_time() -> None:
    found = recording()
    found.units["cpu"] = "nanoseconds"
    for time_ns, duration_ns in ((0, 10), (10, 500), (20, 10), (600, 10), (300, 200)):
        found.add(Sample(DAY_NS + time_ns, 0, 0, {"cpu": 10}, duration_ns=duration_ns))
    columns = found.columns()[0]
    halves = [rows_of(columns, slice(0, 3)), rows_of(columns, slice(3, None))]
    assert [half.end_ns - DAY_NS for half in halves] == [520, 610]  # the first as if its last were its longest
    for kept in (columns, unpack(pack(columns), ["cpu"]), joined(halves)):
        found.loaded = [kept]
        found.clear_added()
        assert found.duration_ns(Selection("cpu")) == 610
    minutes = by_minute(columns, np.zeros(len(columns), int))
    assert [each.end_ns for each in minutes] == [DAY_NS + MINUTE_NS]


def test_the_time_of_one_profile_is_its_duration() -> None:
    found = recording()
    found.add(Sample(DAY_NS, 0, 0, {"cpu": 10}, duration_ns=10_000))
    assert found.ends_ns(Selection("cpu")) == (DAY_NS, DAY_NS + 10_000)


def test_a_selection_is_by_time_and_by_any_of_the_values_of_each_facet() -> None:
    found = recording((10, "1", "a", {"cpu": 1}), (20, "1", "b", {"cpu": 2}), (30, "1", "c", {"cpu": 4}))
    assert total(found, Selection("cpu")) == 7
    assert total(found, Selection("cpu", 10, 30)) == 3
    chosen = Selection("cpu", filters={"endpoint": frozenset({"a", "c"})})
    assert total(found, chosen) == 5
    assert dict(found.facet_values(chosen)["endpoint"].values) == {"a": 1, "b": 2, "c": 4}
    assert dict(found.facet_values(chosen)["process"].values) == {"1": 5}
    with pytest.raises(ValueError, match="no facet colour"):
        found.weights(Selection("cpu", filters={"colour": frozenset()}))


def test_of_what_is_in_use_the_last_profile_of_each_process_counts() -> None:
    found = recording(
        (10, "1", "a", {"inuse_space": 100}),
        (20, "1", "a", {"inuse_space": 7}),
        (20, "1", "b", {"inuse_space": 1}),
        (10, "2", "a", {"inuse_space": 30}),
    )
    assert total(found, Selection("inuse_space")) == 38
    assert total(found, Selection("inuse_space", 0, 15)) == 130
    assert found.timeline(Selection("inuse_space"), "process", 2).series == [("1", [100, 8]), ("2", [30, 0])]


def test_a_timeline_shows_the_heaviest_values_and_sums_up_the_others() -> None:
    found = recording(*((10 + place, "1", f"endpoint {place}", {"cpu": 100 - place}) for place in range(10)))
    start_ns, step_ns, series = found.timeline(Selection("cpu"), "endpoint", 5)
    assert (start_ns, step_ns) == (10, 2)
    assert [each.value for each in series] == [*(f"endpoint {place}" for place in range(8)), OTHER]
    assert series[-1].weights == [0, 0, 0, 0, 92 + 91]


def test_a_timeline_of_a_stretch_has_its_steps_there() -> None:
    found = recording(*((time_ns, "1", "a", {"cpu": 1}) for time_ns in range(10, 110)))
    found.add(Sample(200, 0, 0, {"wall": 1}, duration_ns=50))  # not at the time of the first stretch
    assert found.timeline(Selection("cpu", 40, 60), "endpoint", 4) == (40, 5, [("a", [5, 5, 5, 5])])
    assert found.timeline(Selection("cpu", 105), "endpoint", 2) == (105, 50, [("a", [5, 0])])
    assert found.timeline(Selection("cpu", 60, 40), "endpoint", 4) == (60, 1, [])
    assert found.timeline(Selection("cpu", 0, NEVER_NS), "endpoint", 2).series == [("a", [100, 0])]


def test_each_step_of_a_timeline_has_as_many_profiles_as_the_others() -> None:
    found = recording((1000, "1", "a", {"cpu": 4}))
    for place in range(1, 30):
        found.add(Sample(1000 + 10 * place, 0, 0, {"cpu": 4}, duration_ns=10))
    assert found.timeline(Selection("cpu"), "process", 20) == (1000, 20, [("1", [8] * 15)])


def test_memory_in_use_is_by_steps_of_the_stretch() -> None:
    found = recording(*((time_ns, "1", "a", {"inuse_space": time_ns}) for time_ns in (10, 12, 13)))
    stretch = Selection("inuse_space", 11, 15)
    assert found.timeline(stretch, "endpoint", 2) == (11, 2, [("a", [12, 13])])


def test_answers_are_about_the_samples_that_there_are_now() -> None:
    found = recording((10, "1", "a", {"cpu": 1}), (20, "2", "b", {"cpu": 2}))
    chosen = Selection("cpu", filters={"endpoint": frozenset({"a"})})

    def answers() -> tuple[int, int, list[int]]:
        assert len(found.weights(chosen)) == len(found.stacks)
        return (
            total(found, Selection("cpu")),
            total(found, chosen),
            found.timeline(chosen, "process", 1).series[0].weights,
        )

    assert answers() == answers() == (3, 1, [1])
    place = found.add(Sample(30, 0, 0, {"cpu": 4}))
    assert answers() == answers() == (7, 5, [5])
    found.stacks.index(b"12345678")  # of no sample
    assert answers() == (7, 5, [5])
    found.name_span(place, "SELECT")
    assert total(found, Selection("cpu", filters={"span": frozenset({"SELECT"})})) == 4
    found.loaded = found.columns()
    found.clear_added()
    assert answers() == (7, 5, [5])
    found.loaded = []
    assert total(found, Selection("cpu")) == total(found, chosen) == 0


def test_no_step_of_a_timeline_is_shorter_than_a_profile() -> None:
    found = recording((0, "1", "a", {"cpu": 1}), (100, "1", "a", {"cpu": 2}))
    found.add(Sample(250, 0, 0, {"cpu": 4}, duration_ns=101))
    assert found.timeline(Selection("cpu"), "endpoint", 50) == (0, 101, [("a", [3, 0, 4])])
    assert found.timeline(Selection("cpu"), "endpoint", 2) == (0, 202, [("a", [3, 4])])


def test_one_profile_that_is_too_long_leaves_the_timeline_its_steps() -> None:
    found = recording((0, "1", "a", {"cpu": 1}), (DAY_NS - 1, "1", "a", {"cpu": 2}))
    assert not found.remarks()
    found.add(Sample(250, 0, 0, {"cpu": 8}, duration_ns=DAY_NS // 50))
    found.add(Sample(250, 0, 0, {"cpu": 8}, duration_ns=MINUTE_NS))
    for kept in (found.columns()[0], unpack(pack(found.columns()[0]), ["cpu"]), joined(found.columns())):
        found.loaded = [rows_of(kept, slice(None))]
        found.clear_added()
        assert len(found.timeline(Selection("cpu"), "endpoint", 120).series[0].weights) == 120
        assert len(found.timeline(Selection("cpu"), "endpoint", 10_000).series[0].weights) == 24 * 60
    assert found.remarks() == ["A profile is as long as 28 minutes: all its samples are at its start."]


def test_nothing_recorded_has_an_empty_timeline() -> None:
    assert not Recording().timeline(Selection("cpu"), "service", 10).series


def test_memory_that_the_last_profile_lacks_is_freed_whatever_is_chosen() -> None:
    found = recording((10, "1", "a", {"inuse_space": 100}), (20, "1", "b", {"inuse_space": 7}))
    assert total(found, Selection("inuse_space", filters={"endpoint": frozenset("a")})) == 0
    assert total(found, Selection("inuse_space")) == 7
    found.note_heap("1", 30)  # a profile without any
    assert total(found, Selection("inuse_space")) == 0
    assert total(found, Selection("inuse_space", until_ns=20)) == 100
    assert found.timeline(Selection("inuse_space"), "endpoint", 3).series == [("a", [100, 0, 0]), ("b", [0, 7, 0])]


def test_memory_of_processes_that_ended_is_not_in_use() -> None:
    found = recording(*((10 * number, str(number), "a", {"inuse_space": 1 << number}) for number in range(6)))
    whole = Selection("inuse_space")
    assert total(found, whole) == 63  # how long a profile is is not known
    found.note_heap("5", 50, duration_ns=10)
    assert total(found, whole) == 8 + 16 + 32
    assert total(found, replace(whole, until_ns=45)) == 4 + 8 + 16
    assert found.timeline(whole, "endpoint", 2).series == [("a", [1 + 2 + 4, 8 + 16 + 32])]
    found.note_heap("5", 45, duration_ns=DAY_NS)  # it was stopped meanwhile
    assert total(found, whole) == 8 + 16 + 32


def test_samples_are_by_time_whatever_order_they_came_in() -> None:
    found = recording((30, "1", "a", {"cpu": 4}), (10, "1", "a", {"cpu": 1}), (20, "1", "a", {"cpu": 2}))
    assert found.period_ns() == (10, 31)
    assert total(found, Selection("cpu", 10, 30)) == 3
    assert found.timeline(Selection("cpu"), "endpoint", 3).series == [("a", [1, 2, 4])]


def test_traces_with_ids_of_opentelemetry_are_chosen_and_ranked() -> None:
    found = recording()
    found.units.update(cpu="nanoseconds")
    stack = found.stacks.index(b"")
    for place, trace in enumerate([TRACES[0], TRACES[1], TRACES[1], "hostile" * 1000, "ü" * 32, ""]):
        facets = found.facets_id(Facets("shop", "", "1", f"endpoint {place}", "main", "", ""))
        found.add(Sample(10 + place, stack, facets, {"cpu": 1 << place}, (trace, f"{place:016x}")))
    whole = Selection("cpu")
    assert found.facet_values(whole)["trace"].values == [("", 8 + 16 + 32), (TRACES[1], 6), (TRACES[0], 1)]
    chosen = Selection("cpu", filters={"trace": frozenset({TRACES[1], "\udcff"})})
    assert total(found, chosen) == 6
    assert found.facet_values(chosen)["trace"].values == found.facet_values(whole)["trace"].values
    assert found.facet_values(chosen)["endpoint"].values == [("endpoint 2", 4), ("endpoint 1", 2)]
    assert found.span_weights(chosen) == {f"{1:016x}": 2, f"{2:016x}": 4}
    assert total(found, Selection("cpu", filters={"span_id": frozenset({f"{2:016x}"})})) == 4
    assert found.timeline(whole, "trace", 3).series == [
        ("", [0, 8, 48]),
        (TRACES[1], [2, 4, 0]),
        (TRACES[0], [1, 0, 0]),
    ]


def test_a_span_can_be_named_after_its_sample() -> None:
    found = recording((10, "1", "a", {"cpu": 1}))
    place = found.add(Sample(20, 0, 0, {"cpu": 2}))
    found.name_span(place, "SELECT")
    weights = found.facet_values(Selection("cpu"))
    assert dict(weights["span"].values) == {"": 1, "SELECT": 2}
    assert dict(weights["endpoint"].values) == {"a": 3}


def test_values_beyond_the_heaviest_are_counted_and_found_by_their_text() -> None:
    found = recording(*((10, "1", f"GET /{place:03}", {"cpu": 1 + place}) for place in range(250)))
    for place in range(1000):
        found.add(Sample(10, 0, 0, {"cpu": 1 + place}, (f"{place:032x}", "1" * 16)))
    whole = Selection("cpu")
    values = found.facet_values(whole)
    assert (values["endpoint"].values[0], len(values["endpoint"].values), values["endpoint"].more) == (
        ("GET /000", 1 + 500_500),
        100,
        150,
    )
    assert (values["trace"].values[1], len(values["trace"].values)) == ((f"{999:032x}", 1000), 100)
    assert values["trace"].more == 1001 - 100  # samples without a trace are a value too
    assert values["service"].more == 0
    assert found.facet_values(whole, ["endpoint"], "get /1")["endpoint"].more == 0
    assert found.facet_values(whole, ["endpoint"], "Get /0")["endpoint"].values[-1] == ("GET /001", 2)
    assert found.facet_values(whole, ["trace"], f"0000{0x3E7:X}") == {"trace": ([(f"{999:032x}", 1000)], 0)}
    assert found.facet_values(whole, ["trace"], "\udcff") == {"trace": ([], 0)}
    for name in ("colour", "span_id"):
        with pytest.raises(ValueError, match=f"no facet {name}"):
            found.facet_values(whole, [name])
        with pytest.raises(ValueError, match=f"no facet {name}"):
            found.timeline(whole, name, 1)


def test_labels_of_most_samples_are_shown_those_of_the_service_first() -> None:
    found = recording((10, "1", "a", {"cpu": 1}))
    assert (found.facet_names()[-1], found.remarks()) == ("trace", [])
    own, others = [f"own{place:02}" for place in range(18)], ["wait.kind", "task.name", "gc.generation", "thread.x"]
    for count, name in enumerate([*own, *others], 1):
        place = found.facets_id(Facets("shop", "", "1", "", "main", "", "", ((name, "x"), ("tenant", "7"))))
        for _ in range(count):
            found.add(Sample(10, 0, place, {"cpu": 1}))
    heaviest = ["tenant", *reversed(own), "thread.x"]
    assert found.facet_names()[9:] == [f"label:{name}" for name in heaviest]
    assert found.remarks() == ["3 labels are not among the filters: they are on the fewest samples."]
    assert dict(found.facet_values(Selection("cpu"), ["label:wait.kind"])["label:wait.kind"].values) == {
        "": 235,
        "x": 19,
    }
    found.facets_id(Facets("shop", "", "1", "", "main", "", "", (("of no sample", "x"),)))
    assert len(found.facet_names()) == 9 + 20


def test_labels_are_counted_again_when_samples_come() -> None:
    found = recording()
    found.units["cpu"] = "nanoseconds"
    one, other = (found.facets_id(Facets(labels=((name, "x"),))) for name in ("one", "two"))
    found.add(Sample(10, 0, other, {"cpu": 1}))
    assert found.facet_names()[9:] == ["label:two"]
    for _ in range(2):
        found.add(Sample(10, 0, one, {"cpu": 1}))
    assert found.facet_names()[9:] == ["label:one", "label:two"]
