"""A small stand-in for a host profiler: samples what processes publish, and sends them correlation messages.

Everything runs on the thread that calls `HostAgent.run` (the kernel wants that of a tracer); it waits only in the
callable that it is given. Must not import anything of the package but the inspector's own modules.

Specification: Elastic universal profiling integration, "Messaging Socket".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from splunk_profiler.inspector.datagram_sender import DatagramSender
from splunk_profiler.inspector.deadlines import Deadlines
from splunk_profiler.inspector.descendants import descendants
from splunk_profiler.inspector.errors import InspectorError, NoSuchProcessError, NotPythonError, ProcessEndedError
from splunk_profiler.inspector.events import Ended, Skipped, Totals
from splunk_profiler.inspector.followed_process import EventSink, FollowedProcess, FollowOptions
from splunk_profiler.inspector.messages import Registration

REFRESH_PERIOD_S = 1.0
"""How often it is looked whether a process publishes something else, and whether it has forked."""

_DEFAULT_DELAY_MS = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What the stand-in does.

    Attributes:
        period_s: time between two samples.
        report_period_s: how long samples are gathered before they are reported; None reports each one at once.
        samples_delay_ms: what it promises in the registration; None promises what it keeps.
        duration_s: how long it works; None means until it is stopped.
        off_cpu: take threads that sleep as well.
        children: also follow processes that the given ones fork.
        send_registrations: send registrations.
        host_id: for the registration; None leaves it out.
        registration_minor: minor version of the registration.
    """

    period_s: float
    report_period_s: float | None = None
    samples_delay_ms: int | None = None
    duration_s: float | None = None
    off_cpu: bool = False
    children: bool = False
    send_registrations: bool = True
    host_id: str | None = None
    registration_minor: int = 1

    def registration(self) -> Registration | None:
        """What is said to a process first; None if nothing is."""
        delay_ms = self.samples_delay_ms
        if delay_ms is None:
            # It reports as soon as a sample is taken, or at the end of the period in which samples are gathered.
            delay_ms = _DEFAULT_DELAY_MS + math.ceil(1000 * (self.report_period_s or 0.0))
        return Registration(delay_ms, self.host_id, self.registration_minor) if self.send_registrations else None


class HostAgent:
    """Follows `pids` until all have ended or it is stopped.

        with HostAgent(pids, settings, tell=print, clock=time.monotonic, wait=wait) as agent:
            totals = agent.run()

    Args:
        pids: the processes.
        settings: what to do.
        on_event: called with each event, when it has happened.
        clock: seconds that only grow.
        wait: called with an instant of `clock` and a callable; waits until then and calls the callable as often as that
            returns False, to let threads go that stopped late. Returns True if it is time to end.

    Raises:
        InspectorError: what keeps one of `pids` from being read (see `errors`).
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
        self._options = FollowOptions(settings.off_cpu, settings.registration(), settings.report_period_s is not None)
        self._on_event = on_event
        self._clock = clock
        self._wait = wait
        self._root_pids = set(pids)
        self._own_pid = os.getpid()
        self._processes: dict[int, FollowedProcess] = {}
        self._refreshed_at: dict[int, float] = {}  # pid → when it was looked at
        self._skipped_programs: dict[int, str] = {}  # what cannot be followed → the program that it ran then
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
        """Let go of everything; says nothing and sends nothing."""
        for process in self._processes.values():
            process.close()
        self._sender.close()

    def run(self) -> Totals:
        """Work until all processes have ended, the duration has passed, or `wait` says so. Nothing stays unreported."""
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
            if self._wait(
                min(
                    sample_deadlines.next_deadline_s,
                    refresh_deadlines.next_deadline_s,
                    report_deadlines.next_deadline_s,
                    end,
                ),
                self.detach_pending,
            ):
                break
        self._report()
        self._totals.missed = sample_deadlines.missed
        return self._totals

    def detach_pending(self) -> bool:
        """Let go of threads that stopped late; True if there are none left."""
        return sum(not process.detach_pending() for process in self._processes.values()) == 0

    def _sample(self, now: float) -> None:
        for process in self._refresh_oldest(now):
            try:
                process.sample()
            except InspectorError as error:
                self._drop(process, error)

    def _refresh_oldest(self, now: float) -> Iterator[FollowedProcess]:
        """All processes; some were looked at just now: as many as it takes for each one's turn to come in time."""
        refresh_count = math.ceil(len(self._processes) * self._settings.period_s / REFRESH_PERIOD_S)
        oldest_first = sorted(self._processes, key=self._refreshed_at.__getitem__)
        for pid in [pid for pid in oldest_first[:refresh_count] if now - self._refreshed_at[pid] >= REFRESH_PERIOD_S]:
            self._refreshed_at[pid] = now
            try:
                self._processes[pid].refresh()
            except InspectorError as error:
                self._drop(self._processes[pid], error)
        yield from list(self._processes.values())

    def _report(self) -> None:
        for process in self._processes.values():
            process.report()

    def _drop(self, process: FollowedProcess, error: InspectorError) -> None:
        process.report()
        process.close()
        del self._processes[process.pid], self._refreshed_at[process.pid]
        if isinstance(error, ProcessEndedError):
            self._root_pids.discard(process.pid)  # the number may be another's soon
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
            self._skipped_programs[pid] = _program_path(pid)  # a shell, a supervisor: it may have children that do
            self._on_event(Skipped(pid, str(error)))

    def _find_children(self) -> None:
        """Follow what was forked since, and what has become another program since it was refused."""
        self._root_pids = {pid for pid in self._root_pids if _program_path(pid)}
        known = self._root_pids | self._processes.keys()
        candidates = (known | descendants(known)) - self._processes.keys() - {self._own_pid}
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
        self._processes[pid] = FollowedProcess(pid, self._options, self._sender, self._totals, self._on_event)
        self._refreshed_at[pid] = self._clock()

    def _may_find_children(self) -> bool:
        """Whether a process that is not followed itself may still have children that could be."""
        return self._settings.children and any(_program_path(pid) for pid in self._skipped_programs)


def _program_path(pid: int) -> str:
    """What the process runs; empty if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
