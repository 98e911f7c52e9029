"""The inspector on real processes: values, every reason, and threads that go on as if nothing had been."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspected_process import (
    ELASTIC_NAME,
    LABELS_NAME,
    MACHINE,
    InspectedProcess,
    TargetBuilder,
    datagram_socket,
    labels,
    record_bytes,
    run_inspected,
    storage,
)
from inspector_reports import first_thread, read, reason_codes
from target_process import Target

from splunk_profiler.inspector import Reader
from splunk_profiler.inspector.model import Interface, Label, Level, TlsKind

ELASTIC, LABELS = Interface.ELASTIC, Interface.LABELS
HIDDEN_SYMBOLS_OPTION = ['-DVISIBILITY="hidden"']
OTHER_DIALECT = "-mtls-dialect=gnu" if MACHINE == "x86_64" else "-mtls-dialect=trad"


@pytest.fixture
def socket_path(tmp_path: Path) -> Iterator[str]:
    with datagram_socket(tmp_path) as path:
        yield path


def test_what_a_thread_publishes_is_read_back(workshop: TargetBuilder, socket_path: str) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels(), socket_path=socket_path)
        target.do("record " + record_bytes(flags=3).hex())
        target.do(labels((b"route", b"/checkout"), (b"tier", "gold ✓".encode())))
        report = read(target.pid)
    assert [(library.interface, library.variable.tls, Path(library.path).name) for library in report.libraries] == [
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
    assert thread.correlation.is_usable
    assert thread.correlation.trace_flags == 3
    assert thread.correlation.trace_id == "11" * 16
    assert thread.correlation.span_id == "22" * 8
    assert thread.correlation.transaction_id == "33" * 8
    assert thread.labels == (Label(b"route", b"/checkout"), Label(b"tier", "gold ✓".encode()))


def test_threads_made_before_and_after_the_libraries_have_their_own_values(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
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
            assert by_name["inspected"].correlation is None
            assert by_name["inspected"].labels is None


def test_libraries_that_are_preloaded_are_read(workshop: TargetBuilder) -> None:
    preload = f"{workshop.elastic()} {workshop.labels()}"
    with run_inspected(workshop, env={"LD_PRELOAD": preload}) as target:
        target.publish()
        target.do("hold 1", "started")
        report = read(target.pid)
    assert {library.variable.tls for library in report.libraries} == {TlsKind.STATIC}
    assert sum(thread.correlation is not None for thread in report.threads) == 1
    assert sum(thread.labels is not None for thread in report.threads) == 1


def test_a_program_may_publish_labels_itself(workshop: TargetBuilder) -> None:
    with run_inspected(workshop, "-DLABELS", "-rdynamic") as target:
        target.do(labels((b"own", b"program")))
        report = read(target.pid)
    assert [(library.interface, library.variable.tls) for library in report.libraries] == [(LABELS, TlsKind.STATIC)]
    assert first_thread(report).labels == (Label(b"own", b"program"),)


def test_dynamic_tls_is_read_and_reported_and_a_host_profiler_sees_nothing(
    workshop: TargetBuilder, socket_path: str
) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic("-DPADDING=65536"), workshop.labels("-DPADDING=65536"), socket_path=socket_path)
        target.do("hold 2", "started")
        lenient, strict = read(target.pid), read(target.pid, strict_host=True)
    assert {library.variable.tls for library in lenient.libraries} == {TlsKind.DYNAMIC}
    assert reason_codes(lenient) == {(ELASTIC, "tls-dynamic"), (LABELS, "tls-dynamic")} == reason_codes(strict)
    assert sum(thread.correlation is not None for thread in lenient.threads) == 2
    assert sum(thread.labels is not None for thread in lenient.threads) == 2
    assert first_thread(lenient).correlation is None, "its block of the library is not allocated"
    assert not any(thread.correlation or thread.labels for thread in strict.threads)


def test_a_python_process_without_the_libraries_is_reported() -> None:
    with Target(sys.executable, "-c", "print('ready'); input()") as target:
        target.line("ready")
        report = read(target.pid)
    assert reason_codes(report) == {(ELASTIC, "library-not-loaded"), (LABELS, "library-not-loaded")}
    assert not report.is_visible(ELASTIC)
    assert not report.is_visible(LABELS)


UNUSABLE_LIBRARIES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "another name": ("library-name", {"name": "libcorrelation.so"}, "library-name", {"name": "labels.so"}),
    "hidden": (
        "symbol-hidden",
        {"options": HIDDEN_SYMBOLS_OPTION},
        "symbol-hidden",
        {"options": HIDDEN_SYMBOLS_OPTION},
    ),
    "the usual dialect": ("tls-dialect", {"dialect": OTHER_DIALECT}, "tls-dialect", {"dialect": OTHER_DIALECT}),
    "wrong values": ("symbol-size", {"options": ["-DPOINTERS=2"]}, "abi-version", {"options": ["-DVERSION=2"]}),
}


@pytest.mark.parametrize("wrong", UNUSABLE_LIBRARIES)
def test_a_library_that_host_profilers_cannot_use_is_recognised(
    workshop: TargetBuilder, wrong: str, socket_path: str
) -> None:
    elastic_code, elastic, labels_code, label = UNUSABLE_LIBRARIES[wrong]
    with run_inspected(workshop) as target:
        libraries = [
            workshop.elastic(*elastic.get("options", ()), **_without_options(elastic)),
            workshop.labels(*label.get("options", ()), **_without_options(label)),
        ]
        target.publish(*libraries, socket_path=socket_path)
        target.do("record " + record_bytes().hex())
        report = read(target.pid, strict_host=True)
    assert {(ELASTIC, elastic_code), (LABELS, labels_code)} <= reason_codes(report)
    assert first_thread(report).correlation is None
    assert first_thread(report).labels is None


def _without_options(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "options"}


def test_one_library_for_both_interfaces_is_reported_to_lose_one(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic("-DLABELS"))
        assert (ELASTIC, "both-interfaces") in reason_codes(read(target.pid), Level.LOSES)


def test_a_library_whose_file_is_gone_is_read_or_reported_as_gone(workshop: TargetBuilder, tmp_path: Path) -> None:
    copy = tmp_path / LABELS_NAME
    shutil.copy(workshop.labels(), copy)
    with run_inspected(workshop) as target:
        target.publish(copy)
        target.do(labels((b"still", b"there")))
        copy.unlink()
        report = read(target.pid)
    if os.geteuid() == 0:  # the kernel lets only the privileged open mapped files that are gone
        assert first_thread(report).labels == (Label(b"still", b"there"),)
    else:
        assert (LABELS, "file-gone") in reason_codes(report)


def test_a_library_without_section_headers_is_recognised(workshop: TargetBuilder, tmp_path: Path) -> None:
    stripped = tmp_path / LABELS_NAME
    data = bytearray(workshop.labels().read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    stripped.write_bytes(data)
    with run_inspected(workshop) as target:
        target.publish(stripped)
        assert (LABELS, "no-section-headers") in reason_codes(read(target.pid))


def test_a_storage_that_is_not_there_yet_is_missed(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.do(f"load {workshop.elastic()}", "loaded")
        report = read(target.pid)
    assert report.storage is None
    assert report.socket_accepted is None
    assert (ELASTIC, "storage-null") in reason_codes(report)


REFUSED_STORAGES = {
    "service-name-too-long": ("n" * 129, "e", "/s"),
    "environment-too-long": ("n", "e" * 129, "/s"),
    "storage-path-too-long": ("n", "e", "/" + "s" * 1024),
    "socket-path-empty": ("n", "e", ""),
    "socket-path-relative": ("n", "e", "run/s"),
    "socket-path-dots": ("n", "e", "/run/../s"),
    "socket-path-not-text": ("n", "e", "/run/s\0"),
    "socket-absent": ("n", "e", "/nowhere/s"),
    "socket-not-socket": ("n", "e", "/etc/passwd"),
}


@pytest.mark.parametrize("code", REFUSED_STORAGES)
def test_a_storage_that_host_profilers_refuse_is_recognised(workshop: TargetBuilder, code: str) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do(storage(*REFUSED_STORAGES[code]))
        lenient, strict = read(target.pid), read(target.pid, strict_host=True)
    assert (ELASTIC, code) in reason_codes(lenient)
    assert lenient.storage is not None
    assert lenient.storage.socket_path == REFUSED_STORAGES[code][2]
    assert strict.storage is None


def test_the_longest_texts_that_host_profilers_accept_are_accepted(workshop: TargetBuilder, socket_path: str) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do(storage("n" * 128, "e" * 128, socket_path))
        report = read(target.pid, strict_host=True)
    assert report.storage is not None
    assert report.storage.service_name == "n" * 128
    assert report.is_visible(ELASTIC)


def test_a_socket_path_of_89_bytes_is_the_longest_that_is_reached(workshop: TargetBuilder) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s") as folder, run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        max_name_bytes = 89 - len(folder) - 1
        for length, accepted in ((max_name_bytes, True), (max_name_bytes + 1, False)):
            with datagram_socket(Path(folder), "s" * length) as path:
                target.do(storage("n", "e", path))
                report = read(target.pid)
                assert report.socket_accepted is accepted
                assert ((ELASTIC, "socket-path-too-long") in reason_codes(report, Level.LOSES)) is not accepted


def test_a_socket_without_a_receiver_or_of_another_kind_is_recognised(workshop: TargetBuilder, tmp_path: Path) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        with datagram_socket(tmp_path, "left") as path:
            target.do(storage("n", "e", path))
        assert (ELASTIC, "socket-refused") in reason_codes(read(target.pid), Level.LOSES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.bind(str(tmp_path / "stream"))
            stream.listen()
            target.do(storage("n", "e", str(tmp_path / "stream")))
            assert (ELASTIC, "socket-not-datagram") in reason_codes(read(target.pid), Level.LOSES)


def test_bytes_that_are_no_storage_are_recognised(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic())
        target.do("storage " + (b"\1\0" + b"\xff" * 4).hex())
        report = read(target.pid)
    assert (ELASTIC, "storage-unreadable") in reason_codes(report)
    assert report.storage is None


DROPPED_RECORDS = {
    "record-not-valid": record_bytes(valid=0),
    "trace-id-zero": record_bytes(trace=bytes(16)),
    "transaction-id-zero": record_bytes(transaction=bytes(8)),
}


@pytest.mark.parametrize("code", DROPPED_RECORDS)
def test_a_record_that_host_profilers_drop_is_shown_only_in_spec_mode(
    workshop: TargetBuilder, code: str, socket_path: str
) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), socket_path=socket_path)
        target.do("record " + DROPPED_RECORDS[code].hex())
        lenient, strict = read(target.pid), read(target.pid, strict_host=True)
    assert (ELASTIC, code) in reason_codes(lenient, Level.LOSES) & reason_codes(strict, Level.LOSES)
    assert [reason.tids for reason in lenient.reasons if reason.code == code] == [(lenient.pid,)]
    assert first_thread(lenient).correlation is not None
    assert first_thread(strict).correlation is None


def test_a_record_without_a_trace_is_no_problem(workshop: TargetBuilder, socket_path: str) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), socket_path=socket_path)
        target.do("record " + record_bytes(bytes(16), bytes(8), bytes(8), present=0).hex())
        report = read(target.pid, strict_host=True)
    found = first_thread(report).correlation
    assert found is not None
    assert not found.is_usable
    assert not reason_codes(report, Level.LOSES)


def test_host_profilers_cut_labels_and_the_specification_does_not(workshop: TargetBuilder) -> None:
    long_key, long_value = b"k" * 26, b"v" * 54
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (long_key, b"1"),
        (b"long", long_value),
        (b"nul", b"a\0b"),
        (b"twice", b"first"),
        (b"twice", b"last"),
        (None, b"ignored"),
        (b"\xff", b"no text"),
        (b"", b"no key"),
        (b"novalue", None),
        (b"tenth", b"10"),
        (b"eleventh", b"11"),
    ]
    with run_inspected(workshop) as target:
        target.publish(workshop.labels())
        target.do(labels(*pairs))
        lenient, strict = read(target.pid), read(target.pid, strict_host=True)
    assert {label.key: label.value for label in first_thread(lenient).labels or ()} == {
        long_key: b"1",
        b"long": long_value,
        b"nul": b"a\0b",
        b"twice": b"first",
        b"\xff": b"no text",
        b"": b"no key",
        b"tenth": b"10",
        b"eleventh": b"11",
    }
    assert {label.key: label.value for label in first_thread(strict).labels or ()} == {
        b"k" * 25: b"1",
        b"long": b"v" * 53,
        b"nul": b"a",
        b"twice": b"last",
        b"": b"no key",
        b"tenth": b"10",
    }
    lost = {
        "labels-too-many",
        "label-key-cut",
        "label-value-cut",
        "labels-duplicate",
        "label-key-not-text",
        "label-without-value",
    }
    assert reason_codes(strict, Level.LOSES) == {(LABELS, code) for code in lost} == reason_codes(lenient, Level.LOSES)


def test_invalid_pointers_are_reported_and_do_not_end_the_read(workshop: TargetBuilder) -> None:
    with run_inspected(workshop) as target:
        target.publish(workshop.elastic(), workshop.labels())
        target.do("record wild")
        target.do("labels wild")
        report = read(target.pid)
        assert reason_codes(report, Level.LOSES) == {(ELASTIC, "record-unreadable"), (LABELS, "labels-unreadable")}
        target.do("record null")
        target.do("labels count 18446744073709551615")
        report = read(target.pid)
        assert reason_codes(report, Level.LOSES) == {(LABELS, "labels-unreadable")}
        assert first_thread(report).labels is None


def _can_unshare_mounts() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _can_unshare_mounts(), reason="mount namespaces are not permitted here")
def test_files_and_sockets_in_a_mount_namespace_of_the_process_are_found(
    workshop: TargetBuilder, tmp_path: Path
) -> None:
    script = 'mount -t tmpfs none "$1" && cp "$2" "$3" "$1" && echo mounted && exec "$4"'
    arguments = [str(tmp_path), str(workshop.elastic()), str(workshop.labels()), str(workshop.program())]
    with InspectedProcess("unshare", "--mount", "sh", "-c", script, "sh", *arguments) as target:
        target.line("ready")
        target.tell(f"load {tmp_path / ELASTIC_NAME}")
        target.tell(f"load {tmp_path / LABELS_NAME}")
        target.tell(f"socket {tmp_path}/s")
        target.tell(storage("inside", "test", f"{tmp_path}/s"))
        target.tell(labels((b"where", b"inside")))
        target.lines(2, "set")
        assert not list(tmp_path.iterdir()), "they are not to be seen from here"
        report = read(target.pid)
    assert first_thread(report).labels == (Label(b"where", b"inside"),)
    assert report.socket_accepted
    assert not reason_codes(report)
