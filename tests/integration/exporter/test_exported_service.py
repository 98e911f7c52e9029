"""A service and its exporter process, up to a receiver: what each has, and what is left when one of them is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from certificates import CertificateFiles
from exporter_processes import exporters_with_variable, find_exporters, wait_for_end
from free_ports import find_free_ports
from pid_namespace import NAMESPACE, process_1, skip_without_namespace
from receiver_process import Receiver
from target_process import TESTS, Target, profiling_settings

pytestmark = pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")

_SERVICE = str(TESTS / "targets" / "exported_service.py")
_IN_THREADS = "records are made and exported by threads of this process: "
_AGAIN = "the exporter process ended and was started again"
_MAX_AGE_NS = 20_000_000_000


def _service(receiver_url: str, *arguments: str, **settings: str) -> Target:
    return Target("exported_service.py", *arguments, env=profiling_settings(receiver_url, 10, **settings))


@contextmanager
def _exported() -> Iterator[tuple[Receiver, Target, int]]:
    """Run a service until the block ends, from its first records on; the number is its exporter's process id."""
    with Receiver() as receiver, _service(receiver.url) as target:
        receiver.record(_is_of_cart)
        (exporter,) = find_exporters(target.pid)
        yield receiver, target, exporter
        target.tell("stop")
        assert target.finish() == 0, target.output


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _is_of_cart(record: dict[str, Any]) -> bool:
    return ".price_items(" in record["body"] and bool(record["span_id"])


@pytest.mark.parametrize("data_format", ["text", "pprof-gzip-base64"])
def test_service_has_no_exporter_in_it_and_its_records_are_its_own(data_format: str) -> None:
    with Receiver() as receiver:
        settings = {
            "SPLUNK_PROFILER_DATA_FORMAT": data_format,
            "SPLUNK_PROFILER_EXPORT_INTERVAL": "200",
        }
        with _service(receiver.url, **settings) as target:
            records = receiver.records(3)
            (exporter,) = find_exporters(target.pid)
            target.tell("modules")
            loaded = target.json("modules")
            target.tell("stop")
            assert target.finish() == 0, target.output
        wait_for_end(exporter)
    assert loaded["needless"] == []
    assert loaded["threads"] == [f"splunk-profiler-{name}" for name in ("sampler", "ticker")]
    for record in records:
        assert (record["resource"]["service.name"], record["resource"]["process.pid"]) == ("exported", target.pid)


def test_exporter_starts_before_the_first_samples_of_a_long_interval() -> None:
    with Receiver() as receiver, _service(receiver.url, SPLUNK_PROFILER_CALL_STACK_INTERVAL="60000") as target:
        target.line("ready")
        deadline_s = time.monotonic() + 30
        while not (exporters := find_exporters(target.pid)):
            assert time.monotonic() < deadline_s, target.output
        target.tell("stop")
        assert target.finish() == 0, target.output
        wait_for_end(*exporters)


def test_exporter_that_works_goes_last_and_has_loaded_only_what_it_uses() -> None:
    with _exported() as (_, _target, exporter):
        ranks = set()
        for path in Path(f"/proc/{exporter}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended
                ranks.add((os.getpriority(os.PRIO_PROCESS, int(path.name)), os.sched_getscheduler(int(path.name))))
        assert ranks == {(os.nice(0) + 5, os.SCHED_BATCH)}
        loaded = Path(f"/proc/{exporter}/maps").read_text("utf-8")
        assert "cygrpc" in loaded
        assert not [name for name in ("_asyncio.", "_ssl.", "_hashlib.", "libcrypto") if name in loaded]


def test_exporter_that_writes_a_log_line_loads_nothing_for_it() -> None:
    (port,) = find_free_ports(1)
    with _service(f"http://127.0.0.1:{port}") as target:
        target.line("profiling records are not delivered")
        (exporter,) = find_exporters(target.pid)
        assert "_asyncio." not in Path(f"/proc/{exporter}/maps").read_text("utf-8")
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_killed_exporter_is_started_again_and_records_go_on() -> None:
    with _exported() as (receiver, target, first):
        os.kill(first, signal.SIGSTOP)
        target.tell("modules")
        assert target.json("modules")  # the service goes on
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        target.line(_AGAIN)
        killed_ns = max(record["time_ns"] for record in receiver.records(1))
        receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > killed_ns)
        assert first not in find_exporters(target.pid)
        target.tell("wait")
        assert target.json("waited") == 1  # a child of its own: none of both exporters


def test_killed_service_leaves_no_exporter() -> None:
    with Receiver() as receiver:
        with _service(receiver.url) as target:
            receiver.record(_is_of_cart)
            (exporter,) = find_exporters(target.pid)
            target.signal(signal.SIGKILL)
            assert target.finish() == -signal.SIGKILL
        wait_for_end(exporter)


def test_service_killed_with_its_exporter_leaves_the_next_one_alone() -> None:
    with Receiver() as receiver:
        with _service(receiver.url) as target:
            receiver.record(_is_of_cart)
            (exporter,) = find_exporters(target.pid)
            os.kill(exporter, signal.SIGKILL)
            target.signal(signal.SIGKILL)
            assert target.finish() == -signal.SIGKILL
            wait_for_end(exporter)
            assert find_exporters(target.pid) == []
        with _service(receiver.url) as following:
            receiver.record(lambda record: _is_of_cart(record) and record["resource"]["process.pid"] == following.pid)
            following.tell("stop")
            assert following.finish() == 0, following.output


def test_service_that_becomes_another_user_goes_on_being_exported() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with _exported() as (receiver, target, exporter):
        target.tell("another user")
        target.line("another user")
        changed_ns = time.time_ns()
        receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > changed_ns)
        assert find_exporters(target.pid) == [exporter]


def test_relative_settings_hold_for_an_exporter_and_a_daemon(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    certificates = {
        "OTEL_EXPORTER_OTLP_INSECURE": "false",  # TLS for a Unix socket, too
        "OTEL_EXPORTER_OTLP_CERTIFICATE": files.authority.name,
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": files.client_cert.name,
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": files.client_key.name,
    }
    socket = tmp_path / "collector.socket"
    with Receiver(path=socket, cert=files.cert, key=files.key, client_ca=files.authority) as receiver:
        env = profiling_settings(f"unix:{socket.name}", 10, **certificates)
        with Target("exported_service.py", env=env, cwd=tmp_path) as target:
            receiver.record(_is_of_cart)
            (exporter,) = find_exporters(target.pid)
            assert Path(f"/proc/{exporter}/cwd").readlink() == Path("/")
            target.tell("daemon")
            pid = target.json("daemon")
            receiver.record(lambda record: _is_of_cart(record) and record["resource"]["process.pid"] == pid)
            target.tell("stop")
            assert target.finish() == 0, target.output
            wait_for_end(pid)


def test_failed_delivery_is_logged_by_the_service() -> None:
    with _service("http://127.0.0.1:9") as target:
        assert "no collector can be reached" in target.line("profiling records are not delivered:")
        target.tell("stop")
        assert target.finish() == 0, target.output


@pytest.mark.parametrize(
    ("condition", "exporter", "reason"),
    [
        ("crowded", "auto", "Resource temporarily unavailable"),
        ("no exec", "auto", "Operation not permitted"),
        ("no threads there", "auto", "can't start new thread"),
        ("frozen", "process", "the application is frozen"),
        ("subreaper", "process", "this process adopts orphans"),
        ("no interpreter", "process", "no Python 3."),
        ("", "thread", ""),
    ],
)
def test_service_without_an_exporter_process_exports_by_itself(condition: str, exporter: str, reason: str) -> None:
    with Receiver() as receiver, _service(receiver.url, condition, SPLUNK_PROFILER_EXPORTER=exporter) as target:
        record = receiver.record(_is_of_cart)
        # Its serving thread, if not crowded, is busy from the start, and takes turns with the one that loads gRPC.
        assert time.time_ns() - record["time_ns"] < _MAX_AGE_NS
        assert find_exporters(target.pid) == []
        target.tell("modules")
        assert "splunk-profiler-exporter" in target.json("modules")["threads"]
        target.tell("wait")
        assert target.json("waited") == (2 if condition == "subreaper" else 1)  # its child, and orphans that it adopts
        target.tell("stop")
        assert target.finish() == 0, target.output
        assert not reason or reason in target.output


def test_service_below_a_subreaper_of_its_program_exports_by_itself() -> None:
    with Receiver() as receiver, _service(receiver.url, "below a subreaper") as target:
        reason = target.line(_IN_THREADS)
        assert f"process {target.pid} adopts orphans" in reason
        receiver.record(_is_of_cart)
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_service_as_process_1_exports_by_itself_and_ends_as_ever() -> None:
    skip_without_namespace()
    command = [*NAMESPACE, sys.executable, _SERVICE]
    with Receiver() as receiver, Target(*command, env=profiling_settings(receiver.url, 10)) as outer:
        assert "`splunk-profiler run`" in outer.line(_IN_THREADS)
        assert receiver.record(_is_of_cart)["resource"]["process.pid"] == 1
        assert exporters_with_variable(f"={receiver.url}") == []
        outer.tell("wait")
        assert outer.json("waited") == 2
        os.kill(process_1(outer.pid), signal.SIGTERM)  # the kernel ignores it where process 1 has no handler
        outer.tell("modules")
        assert "splunk-profiler-sampler" in outer.json("modules")["threads"]
        terminated_ns = time.time_ns()
        receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > terminated_ns)
        os.kill(process_1(outer.pid), signal.SIGINT)
        assert outer.finish() == 128 + signal.SIGINT  # Python's own: a signal with its default action does not end it
        assert "KeyboardInterrupt" in outer.output


def test_service_in_a_chroot_without_an_interpreter_exports_by_itself(tmp_path: Path) -> None:
    programs = {Path(path).parent for path in (sys.executable, os.path.realpath(sys.executable))}
    hide = """
    mount --rbind / "$CHROOT" || exit 1
    for place in $PROGRAMS; do mount -t tmpfs none "$CHROOT$place" || exit 1; done
    exec "$@"
    """
    command = ["unshare", "--mount", "sh", "-c", hide, "sh"]
    places = {"CHROOT": str(tmp_path), "PROGRAMS": " ".join(map(str, programs))}
    if subprocess.run([*command, "true"], env={**os.environ, **places}, capture_output=True, check=False).returncode:
        pytest.skip("the kernel refuses to mount file systems for a chroot")
    with Receiver() as receiver:
        env = profiling_settings(receiver.url, 10, SPLUNK_PROFILER_EXPORTER="process", **places)
        with Target(*command, sys.executable, _SERVICE, "chroot", env=env) as target:
            receiver.record(_is_of_cart)
            assert exporters_with_variable(f"={receiver.url}") == []
            assert "no Python 3." in target.output
            target.tell("stop")
            assert target.finish() == 0, target.output


def test_service_whose_exporter_ends_at_once_exports_by_itself(tmp_path: Path) -> None:
    useless = tmp_path / f"python{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
    useless.symlink_to(shutil.which("false") or "")
    with Receiver() as receiver, _service(receiver.url, "other interpreter", INTERPRETER=str(useless)) as target:
        target.line(_IN_THREADS)
        receiver.record(_is_of_cart)
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_service_that_can_start_no_exporter_exports_by_itself() -> None:
    with Receiver() as receiver, _service(receiver.url, "confined") as target:
        target.line("ready")
        target.tell("full")
        target.line("full")
        target.line("an error in exporting in this process was caught")
        target.tell("room")
        target.line(_IN_THREADS)
        receiver.record(_is_of_cart)
        target.tell("modules")
        found = target.json("modules")
        assert "splunk-profiler-exporter" in found["threads"]
        assert found["importers"] == ["splunk-profiler-exporter"]
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_service_without_room_for_a_start_goes_on_and_may_start_later() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with Receiver() as receiver, _service(receiver.url, "no room") as target:
        target.line("an error in starting or stopping the profiler was caught")
        target.line("RuntimeError: can't start new thread")
        receiver.record(_is_of_cart)
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_service_of_another_user_than_its_dead_exporter_goes_on() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with _exported() as (receiver, target, first):
        target.tell("another user")
        target.line("another user")
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        if target.find(f"({_AGAIN}|no records are exported: )") == _AGAIN:  # else it may not read the package
            killed_ns = time.time_ns()
            receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > killed_ns)
        target.tell("modules")
        assert target.json("modules")  # the service goes on
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in find_exporters(target.pid)}
        assert owners <= {Path(f"/proc/{target.pid}").stat().st_uid}


def test_service_that_leaves_all_modules_is_told_that_nothing_is_exported() -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    with _service("http://127.0.0.1:9", "no program") as target:
        assert "local_export.py" in target.line("no records are exported: ")
        target.tell("stop")
        assert target.finish() == 0, target.output
        assert target.output.count("no records are exported") == 1
        assert "Traceback" not in target.output


@pytest.mark.parametrize(
    ("change", "reason"),
    [("no process", "Resource temporarily unavailable"), ("no program", "No such file or directory")],
)
def test_service_that_can_start_no_other_exporter_goes_on(change: str, reason: str) -> None:
    if change == "no program" and os.geteuid() != 0:
        pytest.skip("chroot needs root")
    with _exported() as (_, target, exporter):
        target.tell(change)
        target.line(change)
        os.kill(exporter, signal.SIGKILL)
        assert reason in target.line("the exporter process cannot be reached or started: ")
        assert find_exporters(target.pid) == []


@pytest.mark.takes_long
def test_service_beside_an_exporter_stopped_for_a_minute_stays_as_it_is() -> None:
    often = {"SPLUNK_PROFILER_CALL_STACK_INTERVAL": "5"}
    with Receiver() as receiver, _service(receiver.url, "deep stacks", **often) as target:
        receiver.record(_is_of_cart)
        (exporter,) = find_exporters(target.pid)
        target.tell("reported")  # else threads would take over
        target.line("reported")
        os.kill(exporter, signal.SIGSTOP)
        sizes, until_s = list[int](), time.monotonic() + 60
        while time.monotonic() < until_s:
            for order in ("refused 20", "price"):  # a request is answered after each
                target.tell(order)
                target.lines(len(sizes) + 1, order)
            sizes.append(_resident_bytes(target.pid))
        assert max(sizes[2:]) - sizes[2] < 3 << 20
        stopped_ns = time.time_ns()
        os.kill(exporter, signal.SIGCONT)
        receiver.record(lambda record: _is_of_cart(record) and record["time_ns"] > stopped_ns)
        assert int(target.find(r"^(\d+) snapshots were lost on the way")) >= 15
        assert find_exporters(target.pid) == [exporter]
        target.tell("stop")
        assert target.finish() == 0, target.output


def test_service_without_a_place_to_write_is_exported() -> None:
    lock = """
    for place in $(cut -d' ' -f2 /proc/self/mounts | grep -v '^/proc'); do mount -o remount,bind,ro "$place"; done
    exec "$@"
    """
    command = ["unshare", "--mount", "sh", "-c", lock, "sh", sys.executable]
    probe = "import tempfile\ntry: print(tempfile.gettempdir())\nexcept OSError: print('nowhere')"
    if b"nowhere" not in subprocess.run([*command, "-c", probe], capture_output=True, check=False).stdout:
        pytest.skip("the kernel refuses to make file systems read-only")
    with Receiver() as receiver:
        with Target(*command, _SERVICE, env=profiling_settings(receiver.url, 10)) as target:
            receiver.record(_is_of_cart)
            (exporter,) = find_exporters(target.pid)
            target.tell("stop")
            assert target.finish() == 0, target.output
        wait_for_end(exporter)
