"""The publisher in processes of its own: libraries that come late, forks, ends, and the long run."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from c_library import NEEDS_COMPILER, compile_library
from publishing_target import publishing_target
from target_process import Target

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")


def output_of(*scene: str, env: dict[str, str] | None = None, timeout_s: float = 60) -> list[str]:
    with Target("publishing.py", *scene, env=env) as target:
        assert target.finish(timeout_s) == 0
        target.line("end")
        return target.output.splitlines()[:-1]


def test_readers_can_follow_the_pointers_of_libraries_that_are_loaded_late() -> None:
    assert output_of("tls") == ["labels static", "elastic static", "shown 7"]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Calls of `call_logger.c` that a process makes which starts to publish: name, argument, thread."""
    shim = compile_library("call_logger.c", tmp_path_factory.mktemp("shim"))
    with publishing_target("published_processes.py", "visible", LD_PRELOAD=str(shim)) as target:
        target.find("(opendir .* other)")  # for the sockets of killed processes, which comes last
        target.tell("end")
        assert target.finish() == 0
    lines = target.output.splitlines()
    assert lines[-1] == "end"
    return [line.split() for line in lines[lines.index("starts") :]]


@NEEDS_COMPILER
def test_each_library_that_is_loaded_late_is_announced_to_readers(calls: list[list[str]]) -> None:
    names = [Path(call[1]).name for call in calls if call[0] in ("prctl", "dlopen")]
    found = [name for name in names if name == "OTEL_CTX" or name.startswith(("libcustomlabels", "elastic-jvmti-"))]
    assert found == ["OTEL_CTX", "libcustomlabels.so", "OTEL_CTX", f"elastic-jvmti-linux-{platform.machine()}.so"]


@NEEDS_COMPILER
def test_starting_thread_only_creates_threads_which_do_the_rest(calls: list[list[str]]) -> None:
    made = [(name, thread) for name, _, thread in (call for call in calls if len(call) == 3)]
    own = [name for name, thread in made if thread == "main"]
    assert own == ["pthread_create", "pthread_create"], "the auditor's thread, and one that waits for SIGTERM"
    assert {"prctl", "dlopen", "bind", "opendir", "pthread_create"} <= {n for n, thread in made if thread == "other"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no surplus of static TLS")
def test_libraries_report_dynamic_tls_once_the_static_surplus_is_used_up() -> None:
    exhausted = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=0"}
    assert output_of("tls", env=exhausted) == ["labels dynamic", "elastic dynamic", "shown 7"]


def test_threads_inside_a_span_publish_as_soon_as_a_library_is_loaded() -> None:
    assert output_of("late") == [
        "problem the library of the storage is not loaded",
        "labels True",
        "span 7",
        "the one that waits 5",
        "next 8 True",
    ]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no surplus of static TLS")
def test_where_its_memory_is_not_static_they_do_so_from_their_next_span_on() -> None:
    assert output_of("late", env={"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=0"}) == [
        "problem the library of the storage is not loaded",
        "labels False",
        "span 0",
        "the one that waits 0",
        "next 8 True",
    ]


def test_memory_of_a_thread_not_started_by_python_is_freed_with_it() -> None:
    assert output_of("thread_end") == ["before 0", "inside 1 7", "after 0"]


def test_forked_child_shows_what_its_thread_showed_and_no_other_thread() -> None:
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # newer versions warn of forks beside threads
    assert output_of("forks", env=quiet) == [
        "without a span 0 0",
        "its thread 1 9 (1, 0)",
        "hidden 0",
        "with a span 1 7",
        "its thread 2 9 (2, 0)",
        "hidden 0",
        "in the parent 4 (4, 0)",
    ]


@pytest.mark.takes_long
def test_no_wrong_span_is_shown_while_threads_and_publisher_come_and_go() -> None:
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    assert output_of("storm", "1000", env=quiet, timeout_s=180) == ["wrong [] repaired 0 failed 0", "published True"]


@pytest.mark.parametrize("how", ["plain", "reimported"])
def test_a_process_ends_quietly_while_its_threads_publish(how: str) -> None:
    with Target("publishing.py", "ending", how) as target:
        target.line("ready")
        assert target.finish() == 0
        target.line("end")
        assert "rror" not in target.output


def test_first_labels_of_a_process_are_shown_in_a_context_cached_before() -> None:
    assert output_of("first_labels") == ["0 [(b'route', b'/checkout')] []"] * 4


@pytest.mark.takes_long
def test_many_threads_and_spans_leave_no_memory_behind() -> None:
    lines = output_of("memory", "10000", "100000", timeout_s=300)
    kept = {name: int(kib) for name, kib in (line.split() for line in lines)}
    assert kept.pop("threads") == 1
    assert kept.keys() == {"many_threads", "many_spans", "many_labels", "many_cached_contexts", "many_installs"}
    assert max(kept.values()) < 128, kept  # 13 bytes of a thread, where nothing leaks 16 KiB of all
