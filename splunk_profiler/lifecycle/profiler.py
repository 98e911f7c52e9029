"""One run of the profiler, from start to stop: sampling, publishing to host profilers, or both.

The only module that knows both. It gives sampling the calls of publishing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from splunk_profiler.system import clocks
from splunk_profiler.system.guard import is_interrupt, logger

if TYPE_CHECKING:
    from splunk_profiler.config import Resolved
    from splunk_profiler.lifecycle.publishing import Publishing
    from splunk_profiler.lifecycle.sampling import Sampling
    from splunk_profiler.otel.runtime_id import RuntimeId

_PUBLISHING_STOP_SHARE = 0.25  # of the time that stopping may take; sampling gets the rest


class ForkParticipant(Protocol):
    """A part that no fork may interrupt."""

    def hold_for_fork(self, timeout_s: float, /) -> object:
        """Wait for what is under way, and start nothing until `release_after_fork`."""

    def release_after_fork(self) -> None:
        """Continue in the parent; does nothing on a thread without the hold."""


class Profiler:
    """One run of the profiler, from start to stop.

    Args:
        on_fork_in_child: called in a forked child where Python's fork hooks have not run.
        look_for_sigterm: called by sampling, if `looks_for_sigterm`, which SIGTERM wakes for that.
        parent: the parent's profiler in a forked child, whose resources must not be used; else None.
        is_forked_child: True for the first run in a forked child, which continues the publishing of `parent`.
        has_lost_threads: True in a child that C code has forked; the interpreter lists threads that do not exist.
    """

    def __init__(
        self,
        resolved: Resolved,
        on_fork_in_child: Callable[[], None],
        look_for_sigterm: Callable[[], None],
        runtime_id: RuntimeId,
        *,
        parent: Profiler | None,
        is_forked_child: bool,
        has_lost_threads: bool,
    ) -> None:
        self.resolved = resolved
        self._has_lost_threads = has_lost_threads
        self._on_fork_in_child = on_fork_in_child
        self._look_for_sigterm = look_for_sigterm
        self._runtime_id = runtime_id
        continued = parent if is_forked_child else None
        self._continues_publishing = continued is not None
        self._publishing: Publishing | None = self._make_publishing() if continued is None else continued._publishing
        self._sampling: Sampling | None = self._make_sampling(parent) if resolved.samples else None
        if self._publishing is not None:
            self._publishing.is_audited_by_sampling = self._sampling is not None

    @property
    def looks_for_sigterm(self) -> bool:
        """True if a thread calls `look_for_sigterm`."""
        return self._sampling is not None and self._sampling.is_native

    def start(self) -> bool:
        """Start sampling and publishing; return True if at least one of them runs.

        Raises:
            RuntimeError: the process can make no more threads; `stop` ends those that run.
        """
        self._set_fork_callback(self._on_fork_in_child)  # first: it loads the walker, where our threads register
        if self._publishing is not None:
            self._start_publishing(self._publishing)
        if self._sampling is not None:
            self._sampling.start()
        runs = self._sampling is not None or self._publishing is not None
        if not runs:
            self._set_fork_callback(None)
        return runs

    def stop(self, timeout_s: float) -> None:
        """Stop and send what is gathered, within about `timeout_s` seconds. May be called again.

        Takes up to 5 seconds longer while exporters of the application take the waiting spans
        (`SpanForwarder.drain_spans`).
        """
        deadline_s = clocks.monotonic() + timeout_s
        publishing, sampling = self._publishing, self._sampling
        with ExitStack() as steps:  # the last one first
            steps.callback(self._set_fork_callback, None)  # until then a fork may find the GIL with one of our threads
            if publishing is not None:
                steps.callback(publishing.remove_patch)  # sampling may have patched the same methods later
            if sampling is not None:
                min_s = timeout_s * (1 - _PUBLISHING_STOP_SHARE)
                steps.callback(lambda: sampling.stop(max(deadline_s - clocks.monotonic(), min_s)))
            if publishing is not None:
                publishing.stop(timeout_s * _PUBLISHING_STOP_SHARE)

    def hold_for_fork(self, timeout_s: float) -> None:
        """Let no import, export or publication be under way while the process forks.

        Waits for our imports as long as they progress, for an export as `BatchExporter` says, and up to `timeout_s`
        seconds for each of the others.
        """
        for participant in self._fork_participants():
            participant.hold_for_fork(timeout_s)

    def release_after_fork(self) -> None:
        """Go on in the parent, in the reverse order of `hold_for_fork`."""
        with ExitStack() as releases:
            for participant in self._fork_participants():
                releases.callback(participant.release_after_fork)

    def can_restart_in_child(self) -> bool:
        """Return True if a forked child can start another profiler; log the reason if it cannot."""
        if self._sampling is None or self._sampling.output.abandon():
            return True
        logger.warning(
            "this process was forked while the profiler of its parent was loading its exporter, or while C code"
            " forked, and is not profiled; fork outside of imports, or later"
        )
        return False

    def _fork_participants(self) -> list[ForkParticipant]:
        """Return the parts that a fork holds, in this order, and releases in reverse."""
        participants: list[ForkParticipant] = []
        if self._sampling is not None:
            participants += self._sampling.output.fork_participants()
        if self._publishing is not None:
            participants += [self._publishing.publisher, self._publishing.correlator]
        return participants

    def _start_publishing(self, publishing: Publishing) -> None:
        try:
            if self._continues_publishing:
                publishing.reset_after_fork()
            else:
                publishing.start()
        except Exception as error:  # sampling does not depend on it
            if is_interrupt(error):
                raise
            self._publishing = None
            logger.warning("nothing is published to host profilers: %s", error, exc_info=True)

    def _make_publishing(self) -> Publishing | None:
        from splunk_profiler.lifecycle.publishing import make_publishing  # noqa: PLC0415  # loaded when switched on

        return make_publishing(self.resolved)

    def _make_sampling(self, parent: Profiler | None) -> Sampling | None:
        from splunk_profiler.lifecycle import sampling  # noqa: PLC0415  # loaded when switched on
        from splunk_profiler.otel.runtime_id import ResourceTagger  # noqa: PLC0415

        choice = sampling.choose_sampling_walker(self.resolved.config.walker, has_lost_threads=self._has_lost_threads)
        if choice is None:
            return None
        publishing, calls = self._publishing, sampling.PublishingCalls()
        if publishing is not None:
            calls = sampling.PublishingCalls(publishing.audit, publishing.correlator.resource, publishing.local_root_of)
        parent_sampling = None if parent is None else parent._sampling
        tagger = ResourceTagger(
            self._runtime_id,
            on_spans=self.resolved.config.adds_span_runtime_id,
            parent=None if parent_sampling is None or self._has_lost_threads else parent_sampling.resource_tagger,
        )
        return sampling.Sampling(
            self.resolved,
            self._on_fork_in_child,
            calls,
            tagger,
            choice=choice,
            look_for_sigterm=self._look_for_sigterm,
            parent=parent_sampling,
        )

    def _set_fork_callback(self, on_fork_in_child: Callable[[], None] | None) -> None:
        try:
            from splunk_profiler import _walker  # noqa: PLC0415  # missing on some systems
        except ImportError:
            return
        _walker.set_after_fork_in_child(on_fork_in_child)
