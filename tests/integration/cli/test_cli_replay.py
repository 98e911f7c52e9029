"""``splunk-profiler replay``: what a process has kept of itself, or as much of it as is left."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest
from command_line import COMMAND, DEADLINE_S, clean_environment, splunk_profiler
from target_process import Target, profiling_settings

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.view import KeptStreams, open_files
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import Selection


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of a service that has worked for a moment."""
    directory = tmp_path_factory.mktemp("kept")
    env = profiling_settings("http://127.0.0.1:9", 10, SPLUNK_PROFILER_OUTPUT=f"stream:{directory}")
    with Target("exported_service.py", env=env) as target:
        target.line("ready")
        while not any(file.stat().st_size > 20_000 for file in directory.iterdir()):
            assert target.is_running, target.output
        target.tell("stop")
        assert target.finish() == 0, target.output
    (file,) = directory.iterdir()
    return file


def test_report_of_a_stream_has_endpoints_and_functions(kept: Path) -> None:
    ended = splunk_profiler("replay", "--json", str(kept))
    assert ended.returncode == 0, ended.stderr
    assert "exported" in ended.stdout
    assert json.loads(ended.stdout)
    drawn = splunk_profiler("replay", str(kept))
    assert "GET /cart" in drawn.stdout
    assert "__main__.price_items" in drawn.stdout
    assert "more (--spans)" in splunk_profiler("replay", "--spans", "1", str(kept)).stdout
    assert kept.stat().st_mode & 0o077 == 0


def test_stream_that_was_cut_off_is_read_as_far_as_it_goes(kept: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.stream"
    cut.write_bytes(kept.read_bytes()[:-10])
    ended = splunk_profiler("replay", str(cut))
    assert ended.returncode == 0, ended.stderr
    assert "GET /cart" in ended.stdout
    assert "The stream was cut off" in ended.stdout


def test_the_page_of_a_stream_has_the_numbers_of_its_report(kept: Path, tmp_path: Path) -> None:
    report = json.loads(splunk_profiler("replay", "--json", str(kept)).stdout)["profiles"]
    shown = KeptStreams(kept)
    assert shown.recording.weights(Selection("samples")).sum() == report["samples"] > 0
    assert dict(shown.recording.facet_values(Selection("wall"))["endpoint"].values) == {
        name: each["wall_ns"] for name, each in report["endpoints"].items() if each["wall_ns"]
    }
    page = tmp_path / "page.html"
    assert splunk_profiler("view", str(kept), "--html", str(page)).returncode == 0
    assert "__main__.price_items" in page.read_text("utf-8")
    store = tmp_path / "store.db"
    assert splunk_profiler("view", str(kept), "--store", str(store)).stdout == f"saved in {store}\n"
    assert LiveStore(store).recording.facet_values(Selection("wall")) == shown.recording.facet_values(Selection("wall"))
    again = splunk_profiler("view", str(store), "--store", str(tmp_path / "other.db"))
    assert (again.returncode, again.stderr) == (1, f"splunk-profiler: error: {store} is a store already\n")
    cut = tmp_path / "cut.stream"
    cut.write_bytes(kept.read_bytes()[:-10])
    assert KeptStreams(cut).note.startswith("The stream was cut off")


def test_the_page_says_that_a_stream_is_read_once(kept: Path) -> None:
    command = [*COMMAND, "view", str(kept), "--no-open"]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{address}api/overview", timeout=DEADLINE_S) as answer:
                overview = json.loads(answer.read())
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
    assert (overview["source"], overview["follows"]) == (str(kept), False)


def test_the_streams_of_a_directory_are_shown_together(kept: Path, tmp_path: Path) -> None:
    content = kept.read_bytes()
    for name in ("1.stream", "2.stream"):
        (tmp_path / name).write_bytes(content)
    one, both = KeptStreams(kept).recording, open_files(tmp_path)
    assert both.recording.weights(Selection("samples")).sum() == 2 * one.weights(Selection("samples")).sum()
    assert both.note == ""
    (tmp_path / "3.stream").write_bytes(b"")
    (tmp_path / "4.stream").write_bytes(content[:-10])
    (tmp_path / "5.pprof").write_bytes(b"")
    note = open_files(tmp_path).note
    assert f"{tmp_path / '3.stream'} holds no captures." in note
    assert "4.stream: The stream was cut off" in note
    assert "Other files beside the streams are not shown." in note
    for name in ("1.stream", "2.stream", "4.stream"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CommandError, match=r"1\.stream holds no captures\..*4\.stream holds no captures\."):
        open_files(tmp_path)


def test_files_that_are_no_streams_are_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not a stream at all")
    ended = splunk_profiler("replay", str(other))
    assert ended.returncode == 1
    assert str(other) in ended.stderr
    assert "no stream of the profiler" in ended.stderr
    assert splunk_profiler("replay", str(tmp_path / "missing")).returncode == 1
