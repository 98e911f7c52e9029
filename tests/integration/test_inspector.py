"""The inspector on real processes: values, every reason, and threads that go on as if nothing had been."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspected_process import (
    ELASTIC_NAME,
    LABELS_NAME,
    MACHINE,
    Workshop,
    inspected,
    labels,
    receiving,
    record_bytes,
    storage,
)
from target_process import Target

from splunk_profiler.inspector import Reader, Report, read
from splunk_profiler.inspector.errors import NoSuchProcessError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.model import Interface, Label, Level, ThreadReading, TlsKind

ELASTIC, LABELS = Interface.ELASTIC, Interface.LABELS
OTHER_DIALECT = "-mtls-dialect=gnu" if MACHINE == "x86_64" else "-mtls-dialect=trad"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[str]:
    with receiving(tmp_path) as path:
        yield path


def codes(report: Report, level: Level = Level.BLOCKS) -> set[tuple[Interface, str]]:
    return {(reason.interface, reason.code) for reason in report.reasons if reason.level is level}


def first_thread(report: Report) -> ThreadReading:
    return next(thread for thread in report.threads if thread.tid == report.pid)


def test_what_a_thread_publishes_is_read_back(workshop: Workshop, socket_path: str) -> None:
    with inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels(), socket_path=socket_path)
        target.do("record " + record_bytes(flags=3).hex())
        target.do(labels((b"route", b"/checkout"), (b"tier", "gold ✓".encode())))
        report = read(target.pid)
    assert [(library.interface, library.tls, Path(library.path).name) for library in report.libraries] == [
        (ELASTIC, TlsKind.STATIC, ELASTIC_NAME),
        (LABELS, TlsKind.STATIC, LABELS_NAME),
    ]
    assert report.storage is not None
    assert (report.storage.service_name, report.storage.service_environment) == ("shop", "production")
    assert report.storage.socket_path == socket_path
    assert report.socket_accepted
    assert report.reasons == ()
    (thread,) = report.threads
    assert thread.name == "inspected"
    assert thread.correlation is not None
    assert thread.correlation.usable
    assert thread.correlation.trace_flags == 3
    assert thread.correlation.trace_id == "11" * 16
    assert thread.correlation.span_id == "22" * 8
    assert thread.correlation.transaction_id == "33" * 8
    assert thread.labels == (Label(b"route", b"/checkout"), Label(b"tier", "gold ✓".encode()))


def test_every_thread_has_its_own_values_whether_made_before_or_after_the_libraries(workshop: Workshop) -> None:
    with inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do("hold 4", "started")
        with Reader(target.pid) as reader:
            by_name = {thread.name: thread for thread in reader.sample()}
            assert by_name.keys() == {"inspected", "worker-0", "worker-1", "worker-2", "worker-3"}
            for number in range(4):
                thread = by_name[f"worker-{number}"]
                assert thread.correlation is not None
                assert thread.correlation.trace_id == f"{1 + 2 * number:02x}" * 16
                assert thread.labels == (Label(b"mark", bytes([ord("A") + 1 + 2 * number]) * 32),)
                assert reader.sample_one(thread.tid) == thread
            assert by_name["inspected"].correlation is None
            assert by_name["inspected"].labels is None


def test_libraries_that_are_preloaded_are_read(workshop: Workshop) -> None:
    preload = f"{workshop.elastic()} {workshop.labels()}"
    with inspected(workshop, env={"LD_PRELOAD": preload}) as target:
        target.publish()
        target.do("hold 1", "started")
        report = read(target.pid)
    assert {library.tls for library in report.libraries} == {TlsKind.STATIC}
    assert sum(thread.correlation is not None for thread in report.threads) == 1
    assert sum(thread.labels is not None for thread in report.threads) == 1


def test_a_program_may_publish_labels_itself(workshop: Workshop) -> None:
    with inspected(workshop, "-DLABELS", "-rdynamic") as target:
        target.do(labels((b"own", b"program")))
        report = read(target.pid)
    assert [(library.interface, library.tls) for library in report.libraries] == [(LABELS, TlsKind.STATIC)]
    assert first_thread(report).labels == (Label(b"own", b"program"),)


def test_dynamic_tls_is_read_and_reported_and_a_host_profiler_sees_nothing(workshop: Workshop, socket_path: str) -> None:
    with inspected(workshop) as target:
        target.publish(workshop.elastic("-DPADDING=65536"), workshop.labels("-DPADDING=65536"), socket_path=socket_path)
        target.do("hold 2", "started")
        lenient, strict = read(target.pid), read(target.pid, strict_host=True)
    assert {library.tls for library in lenient.libraries} == {TlsKind.DYNAMIC}
    assert codes(lenient) == {(ELASTIC, "tls-dynamic"), (LABELS, "tls-dynamic")} == codes(strict)
    assert sum(thread.correlation is not None for thread in lenient.threads) == 2
    assert sum(thread.labels is not None for thread in lenient.threads) == 2
    assert first_thread(lenient).correlation is None, "its block of the library is not allocated"
    assert not any(thread.correlation or thread.labels for thread in strict.threads)


def test_nothing_loaded_in_a_python_process_is_said(workshop: Workshop) -> None:
    with Target(sys.executable, "-c", "print('ready'); input()") as target:
        target.line("ready")
        report = read(target.pid)
    assert codes(report) == {(ELASTIC, "library-not-loaded"), (LABELS, "library-not-loaded")}
    assert not report.visible(ELASTIC)
    assert not report.visible(LABELS)


WRONG_LIBRARIES = {
    "another name": ({"name": "libcorrelation.so"}, {"name": "labels.so"}, "library-name", "library-name"),
    "hidden symbols": (
        {"options": ("-DVISIBILITY=\"hidden\"",)},
        {"options": ("-DVISIBILITY=\"hidden\"",)},
        "symbol-hidden",
        "symbol-hidden",
    ),
    "the usual dialect": ({"dialect": OTHER_DIALECT}, {"dialect": OTHER_DIALECT}, "tls-dialect", "tls-dialect"),
    "wrong values": ({"options": ("-DPOINTERS=2",)}, {"options": ("-DVERSION=2",)}, "symbol-size", "abi-version"),
}
