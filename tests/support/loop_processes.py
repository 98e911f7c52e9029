"""The sides of the correlation loop as processes: the service, the host agents beside it, and a service's clients.

Every wait has a deadline and fails with what was said until then. Imports nothing of the package.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from loop_judge import Answer, Key
from target_process import Target

_COUNTS = re.compile(r"(\w+)=(\d+)")
_DEADLINE_S = 60
_UNSAMPLED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


class Service:
    """The events of the correlation in the service process and its workers.

    Args:
        target: the process.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def registration_times(self, processes: int) -> dict[int, int]:
        """Wait for the registrations of so many processes; return their times in ns since the epoch."""
        return {pid: at for _, at, pid in self._timed_lines("a host profiler ", processes)}

    def counts(self, processes: int) -> dict[int, dict[str, int]]:
        """Wait until so many processes have ended their publishing, and return their counters."""
        return {
            pid: {name: int(value) for name, value in _COUNTS.findall(text)}
            for text, _, pid in self._timed_lines("from host profilers: ", processes)
        }

    def _timed_lines(self, start: str, processes: int) -> list[tuple[str, int, int]]:
        lines = self._target.lines(processes, start, _DEADLINE_S)
        return [(text, *map(int, stamp.split())) for text, _, stamp in (line.rpartition(" @ ") for line in lines)]  # type: ignore[misc]


class HostAgentProcess(Target):
    """``splunk-profiler host-agent --json`` for `pid`."""

    def __init__(self, pid: int, *options: str) -> None:
        super().__init__(sys.executable, "-m", "splunk_profiler", "host-agent", str(pid), "--json", *options)

    def wait_for(self, event: str, count: int = 1) -> None:
        """Wait for so many such events."""
        self.lines(count, f'{{"event": "{event}"', _DEADLINE_S)

    def end(self) -> dict[str, Any]:
        """End it in order and return its totals."""
        self.signal(signal.SIGTERM)
        assert self.finish(_DEADLINE_S) == 0, self.output
        totals = self.events()[-1]
        assert totals["event"] == "totals"
        return totals

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        assert self.finish(_DEADLINE_S) == -signal.SIGKILL

    def events(self) -> list[dict[str, Any]]:
        """Return all its events; call it after the end."""
        return [json.loads(line) for line in self.final_output().splitlines()]


def accepts(url: str) -> bool:
    """Return True if a server takes connections there."""
    address = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((address.hostname, address.port)) == 0


class Load:
    """Clients that request `paths` in a loop and keep the transactions that answered.

    Every fifth request has a remote parent that is not sampled.
    """

    def __init__(self, url: str, paths: Sequence[str], clients: int = 4) -> None:
        self._url = url
        self._plan = itertools.cycle(paths)
        self._path_count = len(paths)
        self._numbers = itertools.count()
        self._stopping = False
        self._answered = threading.Condition()
        self._answers: list[Answer] = []
        self._failures: list[Exception] = []
        self._clients = [
            threading.Thread(target=self._request_loop, name=f"client-{number}") for number in range(clients)
        ]
        self._extra_requests: list[threading.Thread] = []

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for client in self._clients + self._extra_requests:
            client.join()

    def request_extra(self, path: str, times: int = 1) -> None:
        """Send more requests, with sampled transactions; the load waits for them at its end."""
        for _ in range(times):
            self._extra_requests.append(threading.Thread(target=self._request, args=(path, {})))
            self._extra_requests[-1].start()

    def wait_for_all_paths(self) -> None:
        """Wait for a new answer from each path."""
        with self._answered:
            expected_count = len(self._answers) + self._path_count + len(self._clients)
            assert self._answered.wait_for(lambda: self._failures or len(self._answers) >= expected_count, _DEADLINE_S)

    def wait_for_processes(self, processes: int) -> None:
        """Wait until so many processes have answered."""

        def enough() -> bool:
            return bool(self._failures) or len({answer.pid for answer in self._answers}) >= processes

        with self._answered:
            assert self._answered.wait_for(enough, _DEADLINE_S)

    def answers(self) -> list[Answer]:
        """Return the transactions that have answered; after the end, all of them."""
        with self._answered:
            assert not self._failures, self._failures
            return [*self._answers]

    def _request_loop(self) -> None:
        while not self._stopping and not self._failures:
            with self._answered:
                path, number = next(self._plan), next(self._numbers)
            self._request(path, _UNSAMPLED if number % 5 == 4 else {})

    def _request(self, path: str, headers: dict[str, str]) -> None:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self._url + path, headers=headers), timeout=30
            ) as response:
                facts = json.load(response)
        except Exception as error:
            with self._answered:
                self._failures.append(error)
                self._answered.notify_all()
            return
        answer = Answer(Key(facts["trace_id"], facts["span_id"]), facts["sampled"], facts["pid"])
        with self._answered:
            self._answers.append(answer)
            self._answered.notify_all()
