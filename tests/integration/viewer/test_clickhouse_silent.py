"""The viewer on a database that no longer answers."""

from __future__ import annotations

import http.client
import signal
import subprocess
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from clickhouse_tables import Database
from command_line import COMMAND, DEADLINE_S, ROOT, clean_environment
from faulty_relay import FAULTS, Fault, run_relay
from saved_samples import TRACE, sample_line

from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.model import Selection
from splunk_profiler.viewer.otlp_files import SourceError

_HOUR_NS = 3600 * 10**9


@pytest.fixture
def filled(database: Database) -> Database:
    """Return a database with a sample."""
    database.make_tables("by_timestamp_time")
    database.insert([sample_line(time_ns=time.time_ns() - 600 * 10**9)])
    return database


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_page_while_a_question_has_no_answer(filled: Database, number: int) -> None:
    asked, released = threading.Event(), threading.Event()

    def wait(answer: bytes) -> bytes:
        asked.set()
        released.wait()
        return FAULTS["nothing"].spoil(answer)

    with run_relay(filled.port) as (relay, port):
        command = [*COMMAND, "view", f"clickhouse://127.0.0.1:{port}/{filled.name}"]
        env = clean_environment(filled.environment)
        with subprocess.Popen(
            command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as view:
            try:
                assert view.stdout is not None
                assert view.stderr is not None
                address = urlsplit(view.stdout.readline().split()[-1]).netloc
                relay.fault, relay.spoil_at = Fault(wait, ""), 0
                with closing(http.client.HTTPConnection(address, timeout=DEADLINE_S)) as page:
                    page.request("GET", f"/api/trace?value=samples&trace={TRACE}")
                    assert asked.wait(DEADLINE_S)
                    view.send_signal(number)
                    assert (view.wait(DEADLINE_S), view.stderr.read()) == (0, "")
            finally:
                released.set()
                view.kill()


def test_failed_question_is_the_answer_until_the_next_one_is_due(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def let_pass(hours: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + hours * _HOUR_NS)

    now_ns = time.time_ns
    with run_relay(filled.port) as (relay, port):
        shown = ClickHouse(f"clickhouse://127.0.0.1:{port}/{filled.name}", filled.environment, refresh_ns=_HOUR_NS)
        let_pass(2)
        relay.questions, relay.spoil_at, relay.fault = 0, 0, FAULTS["nothing"]
        for _ in range(3):
            with pytest.raises(SourceError, match="cannot be reached"):
                shown.refresh()
        assert relay.questions == 1
        let_pass(4)
        shown.refresh()
        assert shown.recording.weights(Selection("samples")).sum() == 1
