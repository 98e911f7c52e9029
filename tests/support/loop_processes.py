"""The sides of the correlation loop as processes: the service, the host agents beside it, and the clients' load.

Every wait has a deadline and fails with what was said until then. Imports nothing of the package.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any

from loop_judge import Answer, Key
from target_process import Target

_COUNTS = re.compile(r"(\w+)=(\d+)")
_DEADLINE_S = 60
_UNSAMPLED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


class Service:
    """What the service process, or its workers, say of the correlation.

    Args:
        target: the process.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def heard(self, processes: int) -> dict[int, int]:
        """When each process has heard of a profiler, in nanoseconds since the epoch, once so many have."""
        return {pid: at for _, at, pid in self._said("a host profiler ", processes)}

    def counts(self, processes: int) -> dict[int, dict[str, int]]:
        """What each process has counted, once so many have ended their publishing."""
        return {
            pid: {name: int(value) for name, value in _COUNTS.findall(text)}
            for text, _, pid in self._said("from host profilers: ", processes)
        }

    def _said(self, start: str, processes: int) -> list[tuple[str, int, int]]:
        lines = self._target.lines(processes, start, _DEADLINE_S)
        return [(text, *map(int, stamp.split())) for text, _, stamp in (line.rpartition(" @ ") for line in lines)]  # type: ignore[misc]


class Agent(Target):
    """``splunk-profiler host-agent --json`` for `pid`."""

    def __init__(self, pid: int, *options: str) -> None:
        super().__init__(sys.executable, "-m", "splunk_profiler", "host-agent", str(pid), "--json", *options)

    def wait_for(self, event: str, count: int = 1) -> None:
        """Until it has told of so many such events."""
        self.lines(count, f'{{"event": "{event}"', _DEADLINE_S)

    def end(self) -> dict[str, Any]:
        """Have it end in order; its totals."""
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
        """All that it has told. After its end."""
        return [json.loads(line) for line in self.last_words().splitlines()]


class Load:
    """Clients that ask for `paths` again and again, and remember who has served them.

    Every fifth request comes from a caller that does not sample its trace.
    """

    def __init__(self, url: str, paths: Sequence[str], clients: int = 4) -> None:
        self._url = url
        self._plan = itertools.cycle(paths)
        self._least = len(paths)
        self._numbers = itertools.count()
        self._stopping = False
        self._answered = threading.Condition()
        self._answers: list[Answer] = []
        self._failures: list[Exception] = []
        self._clients = [threading.Thread(target=self._ask_on, name=f"client-{number}") for number in range(clients)]
        self._once: list[threading.Thread] = []

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for client in self._clients + self._once:
            client.join()

    def also(self, path: str, times: int = 1) -> None:
        """Some requests more, whose transactions are sampled, and whose end is waited for with the others'."""
        for _ in range(times):
            self._once.append(threading.Thread(target=self._ask, args=(path, {})))
            self._once[-1].start()

    def everything_was_asked_for(self) -> None:
        """Wait until each path has been answered once since now."""
        with self._answered:
            most = len(self._answers) + self._least + len(self._clients)
            assert self._answered.wait_for(lambda: self._failures or len(self._answers) >= most, _DEADLINE_S)

    def answered_by(self, processes: int) -> None:
        """Wait until so many processes have answered."""

        def enough() -> bool:
            return bool(self._failures) or len({answer.pid for answer in self._answers}) >= processes

        with self._answered:
            assert self._answered.wait_for(enough, _DEADLINE_S)

    def answers(self) -> list[Answer]:
        """Who served them. After the load's end."""
        assert not self._failures, self._failures
        return self._answers

    def _ask_on(self) -> None:
        while not self._stopping and not self._failures:
            with self._answered:
                path, number = next(self._plan), next(self._numbers)
            self._ask(path, _UNSAMPLED if number % 5 == 4 else {})

    def _ask(self, path: str, headers: dict[str, str]) -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url + path, headers=headers), timeout=30) as said:
                facts = json.load(said)
        except Exception as error:
            with self._answered:
                self._failures.append(error)
                self._answered.notify_all()
            return
        answer = Answer(Key(facts["trace_id"], facts["span_id"]), facts["sampled"], facts["pid"])
        with self._answered:
            self._answers.append(answer)
            self._answered.notify_all()
