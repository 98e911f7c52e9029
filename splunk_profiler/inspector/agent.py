"""A small host profiler that samples what processes publish and sends correlation messages.

Runs on the thread that calls `HostAgent.run`, because the kernel ties stopped threads to their tracer.
Waits only in the callable `wait`. Specification: Elastic universal profiling integration, "Messaging Socket".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path

from splunk_profiler.inspector.errors import InspectorError, NoSuchProcessError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.events import Ended, Skipped, Totals
from splunk_profiler.inspector.followed_process import EventSink, FollowedProcess, Settings
from splunk_profiler.inspector.messages import DatagramSender
from splunk_profiler.inspector.proc_files import find_descendants

REFRESH_PERIOD_S = 1.0
"""Period of the refresh of each process, and of the search for children."""


class Deadlines:
    """Absolute deadlines every `period_s` seconds: no drift from slow work, no burst after a stall.

    The first one is `now`.

    Attributes:
        missed: number of deadlines that passed while earlier work took too long.
    """

    def __init__(self, period_s: float, now: float) -> None:
        self._period_s = period_s
        self._start = now
        self._next_index = 0
        self.missed = 0

    @property
    def next_deadline_s(self) -> float:
        """The next deadline, on the clock of `now`."""
        return self._start + self._next_index * self._period_s

    def advance_if_due(self, now: float) -> bool:
        """Return True if the deadline has come; the next one is then the first after `now`."""
        if now < self.next_deadline_s:
            return False
        # Deadlines are multiples of the period, because sums would gather rounding errors.
        latest_index = max(int((now - self._start) / self._period_s), self._next_index)
        if self._start + (latest_index + 1) * self._period_s <= now:
            latest_index += 1  # the division was rounded to the wrong side
        self.missed += latest_index - self._next_index
        self._next_index = latest_index + 1
        return True


class HostAgent:
    """A host agent that follows `pids` until all have ended or it is stopped.

        with HostAgent(pids, settings, on_event=print, clock=time.monotonic, wait=wait) as agent:
            totals = agent.run()

    Args:
        on_event: receives each event.
        clock: monotonic clock in seconds.
        wait: waits for a deadline of `clock`; meanwhile polls the callable until it returns True,
            so that threads that stopped late are released; returns True to end the agent.

    Raises:
        InspectorError: one of `pids` cannot be read (see `errors`).
    """

    def __init__(
        self,
        pids: Collection[int],
        settings: Settings,
        *,
        on_event: EventSink,
        clock: Callable[[], float],
        wait: Callable[[float, Callable[[], bool]], bool],
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._clock = clock
        self._wait = wait
        self._root_pids = set(pids)
        self._processes: dict[int, FollowedProcess] = {}
        self._refreshed_at: dict[int, float] = {}  # clock time of each process's last refresh
        self._skipped_programs: dict[int, str] = {}  # what each skipped process executes
        self._totals = Totals()
        self._sender = DatagramSender()
        try:
            for pid in dict.fromkeys(pids):
                self._follow_root(pid)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> HostAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything, without events and messages."""
        for process in self._processes.values():
            process.reader.close()
        self._sender.close()

    def run(self) -> Totals:
        """Run until all processes end, the time is up, or `wait` ends it; then report the rest."""
        start = self._clock()
        sample_deadlines = Deadlines(self._settings.period_s, start)
        refresh_deadlines = Deadlines(REFRESH_PERIOD_S, start)
        report_s = self._settings.report_period_s or REFRESH_PERIOD_S
        report_deadlines = Deadlines(report_s, start + report_s)
        end = math.inf if self._settings.duration_s is None else start + self._settings.duration_s
        while self._processes or self._may_find_children():
            now = self._clock()
            if now >= end:
                break
            if refresh_deadlines.advance_if_due(now) and self._settings.children:
                self._find_children()
            if sample_deadlines.advance_if_due(now):
                self._sample(now)
            if report_deadlines.advance_if_due(now):
                self._report()
            all_deadlines = (sample_deadlines, refresh_deadlines, report_deadlines)
            if self._wait(min(end, *(one.next_deadline_s for one in all_deadlines)), self.detach_pending):
                break
        self._report()
        self._totals.missed = sample_deadlines.missed
        return self._totals

    def detach_pending(self) -> bool:
        """Release threads that stopped late; return True if none are left."""
        return sum(not process.reader.detach_pending() for process in self._processes.values()) == 0

    def _sample(self, now: float) -> None:
        self._refresh_oldest(now)
        for process in list(self._processes.values()):
            try:
                process.sample()
            except InspectorError as error:
                self._drop(process, error)

    def _refresh_oldest(self, now: float) -> None:
        """Refresh only as many as keep every process in time; this spreads the cost."""
        refresh_count = math.ceil(len(self._processes) * self._settings.period_s / REFRESH_PERIOD_S)
        oldest_first = sorted(self._processes, key=self._refreshed_at.__getitem__)
        for pid in [pid for pid in oldest_first[:refresh_count] if now - self._refreshed_at[pid] >= REFRESH_PERIOD_S]:
            self._refreshed_at[pid] = now
            try:
                self._processes[pid].refresh()
            except InspectorError as error:
                self._drop(self._processes[pid], error)

    def _report(self) -> None:
        for process in self._processes.values():
            process.report()

    def _drop(self, process: FollowedProcess, error: InspectorError) -> None:
        process.report()
        process.reader.close()
        del self._processes[process.pid], self._refreshed_at[process.pid]
        if isinstance(error, ProcessEndedError):
            self._root_pids.discard(process.pid)  # the kernel may reuse the id
        else:
            self._skipped_programs[process.pid] = _program_path(process.pid)
            self._totals.given_up += process.is_counted
        self._on_event(Ended(process.pid, str(error)))

    def _follow_root(self, pid: int) -> None:
        try:
            self._follow(pid)
        except NotPythonError as error:
            if not self._settings.children:
                raise
            self._skipped_programs[pid] = _program_path(pid)  # a shell may have Python children
            self._on_event(Skipped(pid, str(error)))

    def _find_children(self) -> None:
        """Follow new children, and skipped processes that execute another program now."""
        self._root_pids = {pid for pid in self._root_pids if _program_path(pid)}
        known = self._root_pids | self._processes.keys()
        candidates = (known | find_descendants(known)) - self._processes.keys() - {os.getpid()}
        self._skipped_programs = {pid: program for pid, program in self._skipped_programs.items() if pid in candidates}
        for pid in sorted(candidates):
            program = _program_path(pid)
            if not program or self._skipped_programs.get(pid) == program:
                continue
            try:
                self._follow(pid)
            except (ProcessEndedError, NoSuchProcessError):
                continue
            except NotPythonError:
                self._skipped_programs[pid] = program
            except InspectorError as error:
                self._skipped_programs[pid] = program
                self._on_event(Skipped(pid, str(error)))

    def _follow(self, pid: int) -> None:
        self._processes[pid] = FollowedProcess(pid, self._settings, self._sender, self._totals, self._on_event)
        self._refreshed_at[pid] = self._clock()

    def _may_find_children(self) -> bool:
        """Return True if a skipped process lives, because it may have children to follow."""
        return self._settings.children and any(_program_path(pid) for pid in self._skipped_programs)


def _program_path(pid: int) -> str:
    """Return the path of the program that the process executes; empty if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
