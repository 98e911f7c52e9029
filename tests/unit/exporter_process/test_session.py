"""The sessions of an exporter process, which share its memory."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler.exporter_process.session import Shares, StreamSession


def test_queues_of_many_sessions_share_a_bounded_memory() -> None:
    shares = Shares(lambda: None)
    limits = {}
    for count in range(1, 65):
        shares.begin(StreamSession(count, shares))
        limits[count] = shares.queue_bytes()
    assert limits[1] == limits[4] == 16 << 20
    assert limits[64] == 1 << 20
    assert max(count * limit for count, limit in limits.items()) == 64 << 20


def test_session_that_ended_while_its_exporter_was_loaded_does_not_count() -> None:
    shares = Shares(lambda: None)
    ended, other = StreamSession(1, shares), StreamSession(2, shares)
    shares.begin(other)
    ended.close()
    shares.end(ended)
    shares.begin(ended)
    assert shares.sessions() == [other]


def test_cpu_time_is_shared_while_sessions_come_and_go() -> None:
    shares = Shares(lambda: None)
    last, failures = StreamSession(0, shares), []
    shares.begin(last)

    def come_and_go(number: int) -> None:
        try:
            for _ in range(2000):
                session = StreamSession(number, shares)
                shares.begin(session)
                shares.take(last)
                shares.end(session)
        except Exception as error:  # for the main thread
            failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert shares.sessions() == [last]
