"""Builds what runs between a start and a stop: sampling, publishing to host profilers, or both.

The one place that knows both, and hands each the callables with which it serves the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from splunk_profiler.system.guard import logger

if TYPE_CHECKING:
    from splunk_profiler.config import Resolved
    from splunk_profiler.lifecycle.publishing import Publishing
    from splunk_profiler.lifecycle.sampling import Sampling
    from splunk_profiler.otel.runtime_id import RuntimeId

_PUBLISHING_STOP_SHARE = 0.25  # of the time that stopping may take; what it does not need is the sampling's


class Profiler:
    """One life of the profiler, from start to stop: sampling, publishing to host profilers, or both.

    Args:
        resolved: the settings.
        on_fork_in_child: called in a forked child when no fork hook of Python's has run there.
        runtime_id: the process's.
        parent: in a forked child, what its parent had opened, which must not be used; else None.
        is_forked_child: this is the first life in a forked child; what `parent` published goes on here.
        has_lost_threads: this is a child that C code has forked; the interpreter lists threads that are not there.
    """

    def __init__(
        self,
        resolved: Resolved,
        on_fork_in_child: Callable[[], None],
        runtime_id: RuntimeId,
        *,
        parent: Profiler | None,
        is_forked_child: bool,
        has_lost_threads: bool,
    ) -> None:
        self.resolved = resolved
        self._has_lost_threads = has_lost_threads
        self._on_fork_in_child = on_fork_in_child
        self._runtime_id = runtime_id
        self._continues_publishing = is_forked_child and parent is not None
        self._publishing: Publishing | None = (
            parent._publishing if is_forked_child and parent is not None else self._make_publishing()
        )
        self._sampling = self._make_sampling(parent) if resolved.samples else None

    def start(self) -> bool:
        """Start what there is. True if something runs.

        Raises:
            RuntimeError: the process can make no more threads; `stop` ends what has begun.
        """
        self._set_fork_callback(
            self._on_fork_in_child
        )  # first: threads that start are then known to the walker, which it loads
        if self._publishing is not None:
            self._start_publishing(self._publishing)
        if self._sampling is not None:
            self._sampling.start()
        runs = self._sampling is not None or self._publishing is not None
        if not runs:
            self._set_fork_callback(None)
        return runs

    def stop(self, timeout_s: float) -> None:
        """Stop all of it, sending what is there; returns within about `timeout_s` seconds. May be called again.

        Up to 5 seconds longer while exporters of the application take what waits for them
        (`SpanForwarder.drain_spans`).
        """
        deadline_s = time.monotonic() + timeout_s
        self._set_fork_callback(None)
        try:
            if self._publishing is not None:
                self._publishing.stop(timeout_s * _PUBLISHING_STOP_SHARE)
        finally:
            if self._sampling is not None:
                self._sampling.stop(max(deadline_s - time.monotonic(), timeout_s * (1 - _PUBLISHING_STOP_SHARE)))

    def hold(self, timeout_s: float) -> None:
        """Let nothing be under way that must not be forked.

        Waits for imports of ours as long as they get on, and at most about `timeout_s` seconds for the rest.
        """
        if self._sampling is not None:
            self._sampling.hold_imports()
        deadline_s = time.monotonic() + timeout_s
        if self._sampling is not None:
            self._sampling.hold(timeout_s)
        if self._publishing is not None:
            self._publishing.hold(max(deadline_s - time.monotonic(), 0.0))

    def can_restart_in_child(self) -> bool:
        """In a forked child of this: whether another can begin; says so if it cannot."""
        if self._sampling is None or self._sampling.abandon_imports():
            return True
        logger.warning(
            "this process was forked while the profiler of its parent was loading what it exports with,"
            " and is not profiled; fork outside of imports, or later"
        )
        return False

    def release(self) -> None:
        """Go on after `hold`."""
        try:
            if self._publishing is not None:
                self._publishing.release()
        finally:
            if self._sampling is not None:
                self._sampling.release()

    def _start_publishing(self, publishing: Publishing) -> None:
        try:
            if self._continues_publishing:
                publishing.after_fork()
            else:
                publishing.start()
        except Exception as error:  # sampling does not depend on it
            self._publishing = None
            logger.warning("nothing is published to host profilers: %s", error, exc_info=True)

    def _make_publishing(self) -> Publishing | None:
        from splunk_profiler.lifecycle.publishing import make_publishing  # noqa: PLC0415  # loaded by a start that is switched on

        config = self.resolved.config
        is_sampled_often = self.resolved.samples and config.enabled and config.call_stack_interval_ms <= 1000
        return make_publishing(self.resolved, is_audited_by_sampling=is_sampled_often)

    def _make_sampling(self, parent: Profiler | None) -> Sampling | None:
        from splunk_profiler.capture.walker import choose_walker  # noqa: PLC0415  # loaded where it is wanted
        from splunk_profiler.lifecycle.sampling import Sampling  # noqa: PLC0415  # loaded where it is wanted
        from splunk_profiler.otel import spans  # noqa: PLC0415  # loaded where it is wanted

        choice = choose_walker(self.resolved.config.walker)
        if choice.name == "none":
            logger.warning("no stacks are sampled: %s", choice.reason)
            return None
        if self._has_lost_threads and (choice.name == "portable" or spans.context_variable() is None):
            logger.warning(
                "no stacks are sampled: C code has forked this process without Python's hooks, and the portable walker"
                " cannot tell which threads are left; use the native one (SPLUNK_PROFILER_WALKER)"
            )
            return None
        publishing = self._publishing
        audit = publishing.audit if publishing is not None else _skip_audit
        parent_sampling = None if parent is None else parent._sampling
        resource = publishing.resource if publishing is not None else _keep_resource
        local_root_of = publishing.local_root_of if publishing is not None else _no_local_root
        return Sampling(
            self.resolved,
            self._on_fork_in_child,
            audit,
            resource,
            local_root_of,
            runtime_id=self._runtime_id,
            choice=choice,
            parent=parent_sampling,
        )

    def _set_fork_callback(self, on_fork_in_child: Callable[[], None] | None) -> None:
        if self._sampling is not None and not self._sampling.is_native:
            return  # the portable walker has a way of its own
        try:
            from splunk_profiler import _walker  # noqa: PLC0415  # not there on every system
        except ImportError:
            return
        _walker.set_after_fork_in_child(on_fork_in_child)


def _keep_resource(resource: Any) -> Any:
    """No host profiler says anything that the resource does not."""
    return resource


def _no_local_root(_span: Any) -> int | None:
    """Return None for the local root of a span: nothing keeps it."""
    return None


def _skip_audit() -> None:
    """Nothing is published, so there is nothing to compare."""
