"""``go tool pprof``, the format's own tool, reads what is written, and says nothing on stderr.

The first call on a machine compiles the tool, which takes a minute where others want the processors too.
"""

from __future__ import annotations

import gzip
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_events import KIND
from pprof_tool import pprof_top, run_pprof
from profile_factory import large_profile, message, origin_in_shop, small_profile
from profile_schema import decode
from target_process import Target, profiling_settings

from splunk_profiler.formats.pprof import parts
from splunk_profiler.model import DataType, Frame, Stack
from splunk_profiler.samples import Aggregate, CodeOrigin, OriginKind, Profile
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.trees import top_table

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")


def written(folder: Path, profile: Profile, **options: Any) -> list[str]:
    """The names of the files that hold `profile`, one for each part."""
    names = []
    for number, part in enumerate(parts(profile, **options)):
        names.append(f"{number}.pprof")
        (folder / names[-1]).write_bytes(part.gzipped)
    return names


def test_pprof_shows_the_hottest_functions_by_cpu_by_default(tmp_path: Path) -> None:
    printed = run_pprof(tmp_path, "-top", "-unit=ns", *written(tmp_path, small_profile()))
    assert pprof_top(printed) == {
        "shop.cart.Cart.checkout.<locals>.<lambda>": (2_500_000_000, 2_500_000_000),
        "shop.cart.Cart.checkout": (500_000_000, 3_000_000_000),
        "shop.app.serve": (0, 3_000_000_000),
    }
    assert "Type: cpu" in printed
    assert "Duration: 10s" in printed


def test_page_of_view_has_the_same_numbers(tmp_path: Path) -> None:
    names = written(tmp_path, large_profile(200))
    files = LiveFiles(tmp_path)
    files.refresh()
    recording = files.recording
    for value in ("cpu", "wall"):
        shown = {
            recording.functions[row.function].name: (row.own, row.total)
            for row in top_table(recording.stacks, recording.weights(Selection(value)))
        }
        assert shown == pprof_top(
            run_pprof(tmp_path, "-top", "-unit=ns", "-nodecount=0", "-nodefraction=0", f"-sample_index={value}", *names)
        )


def test_pprof_shows_amounts_first_for_another_data_type(tmp_path: Path) -> None:
    allocated = tuple(
        Aggregate(one.stack, one.labels, 0, 0, 0, KIND, 3, 4096 * number)
        for number, one in enumerate(small_profile().aggregates, 1)
    )
    profile = replace(small_profile(), aggregates=allocated, data_type=DataType.ALLOCATION, kinds=(KIND,))
    printed = run_pprof(tmp_path, "-top", "-unit=B", *written(tmp_path, profile))
    assert "Type: space" in printed
    assert re.search(r"^ *24576B 60.00% +60.00% +28672B +70.00%  shop.cart.Cart.checkout$", printed, re.M), printed
    printed = run_pprof(tmp_path, "-top", "-sample_index=objects", "0.pprof")
    assert "Total samples = 12" in printed


def test_pprof_shows_all_of_a_services_time_with_its_work_and_waits(tmp_path: Path) -> None:
    env = {
        **profiling_settings("http://127.0.0.1:9", 10),
        "SPLUNK_PROFILER_OUTPUT": f"file:{tmp_path}",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "400",
    }
    with Target("accounted_work.py", "waiting", "1.2", env=env) as target:
        assert target.finish() == 0, target.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) > 1
    profiles = [decode(gzip.decompress((tmp_path / name).read_bytes())) for name in names]
    everything = ("-top", "-unit=ns", "-nodefraction=0", "-edgefraction=0", "-nodecount=0")
    for index, (kind, function) in enumerate([("wall", "threading.Event.wait"), ("cpu", "__main__.compute")], 1):
        shown = pprof_top(run_pprof(tmp_path, *everything, f"-sample_index={kind}", *names))
        whole = sum(flat for flat, _ in shown.values())
        assert whole == sum(sample.value[index] for profile in profiles for sample in profile.sample)
        assert shown[function][1] > whole / 2


def test_the_hottest_functions_are_shown_by_wall_time_too(tmp_path: Path) -> None:
    printed = run_pprof(tmp_path, "-top", "-unit=ns", "-sample_index=wall", *written(tmp_path, small_profile()))
    assert pprof_top(printed)["threading.Condition.wait"] == (5_999_600_000, 5_999_600_000)
    assert pprof_top(printed)["shop.app.serve"] == (0, 4_000_400_000)


def test_traces_have_their_labels(tmp_path: Path) -> None:
    printed = run_pprof(tmp_path, "-traces", *written(tmp_path, small_profile()))
    assert "trace_id:  4bf92f3577b34da6a3ce929d0e0e4736" in printed
    assert "source.event.period:  10ms" in printed
    assert "source.event.time:  1780000000010" in printed
    assert "thread.stack.truncated:  true" in printed


def test_samples_are_selected_by_a_label(tmp_path: Path) -> None:
    printed = run_pprof(
        tmp_path, "-top", "-unit=ns", "-tagfocus=span_id=00f067aa0ba902b7", "-sample_index=wall",
        *written(tmp_path, small_profile()),
    )  # fmt: skip
    assert "threading.Condition.wait" not in pprof_top(printed)
    assert pprof_top(printed)["shop.app.serve"] == (0, 4_000_400_000)


def test_the_raw_form_has_units_files_and_first_lines(tmp_path: Path) -> None:
    printed = run_pprof(tmp_path, "-raw", *written(tmp_path, small_profile()))
    assert "samples/count wall/nanoseconds cpu/nanoseconds[dflt]" in printed
    assert re.search(r"shop\.cart\.Cart\.checkout /srv/shop/cart\.py:41(:0)? s=30", printed)
    assert re.search(r"^1: \S+ python +\[FN\]\[FL\]\[LN\]$", printed, re.M)


def test_pprof_shows_application_code_alone_with_time_of_called_libraries(tmp_path: Path) -> None:
    profile = small_profile()
    library = Frame("requests.api", "get", "/venv/lib/python3.12/site-packages/requests/api.py", 60)
    first, *others = profile.aggregates
    deeper = replace(first, stack=Stack((library, *first.stack.frames), truncated=False))
    names = written(tmp_path, replace(profile, aggregates=(deeper, *others)), origin_of=origin_in_shop)
    yours = pprof_top(run_pprof(tmp_path, "-top", "-unit=ns", "-show=^application", *names))
    assert yours == {
        "shop.cart.Cart.checkout.<locals>.<lambda>": (2_500_000_000, 2_500_000_000),
        "shop.cart.Cart.checkout": (500_000_000, 3_000_000_000),
        "shop.app.serve": (0, 3_000_000_000),
    }
    assert set(pprof_top(run_pprof(tmp_path, "-top", "-unit=ns", "-show=^library/", *names))) == {"requests.api.get"}


def test_pprof_keeps_distributions_apart_when_profiles_are_added_up(tmp_path: Path) -> None:
    profile = large_profile(200)

    def origin(file: str, _namespace: str) -> CodeOrigin:
        number = file.removeprefix("/srv/shop/part").removesuffix(".py")
        return CodeOrigin(OriginKind.LIBRARY, f"part{number}", "1.0")

    names = written(tmp_path, profile, max_body_bytes=20_000, origin_of=origin)
    assert len(names) > 1
    printed = run_pprof(tmp_path, "-raw", *names)
    mappings = re.findall(r"^\d+: \S+ (\S+) (\S*) *\[FN\]\[FL\]\[LN\]$", printed, re.M)
    assert sorted(mappings) == sorted([("python", ""), *((f"library/part{n}", f"part{n}==1.0") for n in range(30))])
    assert "File: python" in run_pprof(tmp_path, "-top", *names)


def test_names_that_look_like_c_plus_plus_are_shown_whole(tmp_path: Path) -> None:
    names = [("<frozen runpy>", "_run_code"), ("shop", "<lambda>"), ("shop.f.<locals>", "g"), ("shop.list[int]", "h")]
    frames = tuple(Frame(namespace, function, "f.py", 1) for namespace, function in names)
    profile = replace(small_profile(), aggregates=(Aggregate(Stack(frames, truncated=False), (), 1, 1, 10),))
    shown = pprof_top(run_pprof(tmp_path, "-top", "-unit=ns", *written(tmp_path, profile)))
    assert set(shown) == {f"{namespace}.{function}" for namespace, function in names}


def test_names_of_any_characters_are_read(tmp_path: Path) -> None:
    every = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0xD800, 0xDFFF, 0xFEFF, 0x1F600]))
    hostile = Aggregate(
        Stack((Frame(every, every, every, None, 0), Frame("", "", "", 1 << 31, 1 << 31)), truncated=False),
        (("thread.name", every), (every, every), ("", "no key"), ("empty", ""), ("none", 0), ("huge", 1 << 70)),
        1,
        2,
        3,
    )
    nothing_known = Aggregate(Stack((), truncated=False), (), 0, 0, 0)
    profile = replace(small_profile(), aggregates=(hostile, nothing_known))
    for report in ("-top", "-traces", "-raw"):
        assert "no report" not in run_pprof(tmp_path, report, *written(tmp_path, profile))


def test_parts_together_show_what_the_whole_does(tmp_path: Path) -> None:
    profile = large_profile(200)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    split = written(tmp_path / "parts", profile, max_body_bytes=20_000)
    assert len(split) > 1
    everything = ("-top", "-unit=ns", "-nodefraction=0", "-nodecount=0", "-sample_index=wall")
    whole = run_pprof(tmp_path / "whole", *everything, *written(tmp_path / "whole", profile))
    assert pprof_top(run_pprof(tmp_path / "parts", *everything, *split)) == pprof_top(whole)
    assert len(pprof_top(whole)) > 500


def test_the_schema_of_the_tests_is_the_tools_own(tmp_path: Path) -> None:
    (name,) = written(tmp_path, small_profile())
    run_pprof(tmp_path, "-proto", "-output=again.pprof", name, said="Generating report in again.pprof\n")
    theirs = decode(gzip.decompress((tmp_path / "again.pprof").read_bytes()))
    ours = decode(message(small_profile()))
    assert [list(sample.value) for sample in theirs.sample] == [list(sample.value) for sample in ours.sample]
    assert set(theirs.string_table) == set(ours.string_table)
    assert named(theirs) == named(ours)
    assert theirs.mapping[0].has_line_numbers
    assert (theirs.time_nanos, theirs.duration_nanos, theirs.period) == (
        ours.time_nanos,
        ours.duration_nanos,
        ours.period,
    )
    assert theirs.string_table[theirs.default_sample_type] == "cpu"


def named(decoded: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Functions, lines and labels of a message with their texts: what does not depend on the order of a table."""
    text = decoded.string_table
    functions = [(f.id, text[f.name], text[f.system_name], text[f.filename], f.start_line) for f in decoded.function]
    lines = [(row.id, row.mapping_id, row.line[0].function_id, row.line[0].line) for row in decoded.location]
    labels = [
        sorted((text[each.key], text[each.str], each.num, text[each.num_unit]) for each in sample.label)
        for sample in decoded.sample
    ]
    return functions, lines, labels
