"""Records as a collector written by others understands them: rotel, from its wheel, prints each one it takes."""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting_process import ExportingProcess
from free_ports import find_free_ports


def _program() -> Path | None:
    found = importlib.util.find_spec("rotel")
    return None if found is None or found.origin is None else Path(found.origin).parent / "rotel-agent"


def _why_not() -> str:
    """Why rotel cannot be run here; empty if it can."""
    program = _program()
    if program is None:
        assert platform.machine() != "x86_64" or sys.version_info >= (3, 14), "the test requirements are not installed"
        return "there is no wheel of rotel for this interpreter"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return f"rotel does not load here: {done.stderr.strip()}" if done.returncode else ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class Rotel:
    """A running rotel; `output` is what it has printed so far."""

    def __init__(self, program: Path) -> None:
        self.port, http_port = find_free_ports(2)
        self.output = ""
        self._arrived = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [
                program,
                "start",
                *("--exporter", "blackhole"),
                *("--debug-log", "logs", "--debug-log-verbosity", "detailed"),
                *("--otlp-grpc-endpoint", f"127.0.0.1:{self.port}"),
                *("--otlp-http-endpoint", f"127.0.0.1:{http_port}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._arrived:
                self.output += line
                self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def wait_for(self, text: str, timeout_s: float = 60) -> str:
        """Its output once that contains `text`."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while text not in self.output:
                left = deadline - time.monotonic()
                assert left > 0, f"rotel did not print {text!r} but:\n{self.output}"
                assert not self._ended, f"rotel ended:\n{self.output}"
                self._arrived.wait(left)
            return self.output

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture
def rotel() -> Iterator[Rotel]:
    program = _program()
    assert program is not None
    running = Rotel(program)
    yield running
    running.stop()


def test_another_collector_sees_every_field_of_a_record(rotel: Rotel) -> None:
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=f"http://127.0.0.1:{rotel.port}") as exporter:
        exporter.ask("record 27 2")
        rotel.wait_for(
            "Trace ID       : 0000000000000000000000000000001b\n    Span ID        : 000000000000001b\nFlags: 1"
        )
        assert exporter.ask("flush 10")
        assert exporter.ask("counters")["delivered"] == 27
    head, *records = re.split(r"^LogRecord #\d+\n", rotel.output, flags=re.MULTILINE)
    assert len(records) == 27
    for line in (
        "     -> service.name: Str(exporting)\n",
        "     -> process.pid: Int(",
        "InstrumentationScope otel.profiling 0.1.0\n",
    ):
        assert line in head
    observed, rest = records[26].split("\n", 1)
    assert re.fullmatch(r"ObservedTimestamp: [1-9][0-9]{18}", observed)
    assert rest.startswith("Timestamp: 27\n")
    assert rest[rest.index("EventName") :].startswith(
        """\
EventName: otel.profiling
Body: Str("worker" #1 prio=0 os_prio=0 cpu=0.00ms elapsed=0.00s tid=0x1 nid=0x1 running
   python.Thread.State: RUNNABLE
\tat shop.cart.Cart.total_______________(shop/cart.py:1)
\tat shop.cart.Cart.total_______________(shop/cart.py:2)
)
Attributes:
     -> com.splunk.sourcetype: Str(otel.profiling)
     -> profiling.data.type: Str(cpu)
     -> profiling.data.format: Str(text)
     -> source.event.period: Int(1000)
    Trace ID       : 0000000000000000000000000000001b
    Span ID        : 000000000000001b
Flags: 1
"""
    )


def test_another_collector_takes_compressed_requests(rotel: Rotel) -> None:
    settings = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    with ExportingProcess(settings, SPLUNK_PROFILER_LOGS_ENDPOINT=f"http://127.0.0.1:{rotel.port}") as exporter:
        exporter.ask("record 3")
        rotel.wait_for("Trace ID       : 00000000000000000000000000000003")


def test_rotel_without_tls_behind_an_https_endpoint_is_recognised(rotel: Rotel) -> None:
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=f"http://127.0.0.1:{rotel.port}") as exporter:
        exporter.ask("record 1")
        rotel.wait_for("Trace ID       : 00000000000000000000000000000001")  # so it listens
    with ExportingProcess(SPLUNK_PROFILER_LOGS_ENDPOINT=f"https://127.0.0.1:{rotel.port}") as exporter:
        exporter.ask("record 3")
        line = exporter.log(lambda text: "are not delivered" in text)
        assert f"set SPLUNK_PROFILER_LOGS_ENDPOINT=http://127.0.0.1:{rotel.port}" in line
