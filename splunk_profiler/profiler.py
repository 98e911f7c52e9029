"""The composition root: builds the profiler, starts and stops it, and carries it over forks and exits.

The only place that registers fork and exit hooks. `ProcessProfiler` is the switch that the public functions
turn; `Profiler` is one life of it: threads, ticker, queue and sink, replaced as a whole in a forked child,
which never repairs, joins or closes what its parent had.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from splunk_profiler import config as settings
from splunk_profiler.guard import Guard, logger

_EXIT_S = 1.5  # what stopping takes at most on top of it (joins, a cancelled export) stays below half a second
_JOIN_S = 0.1
_FORK_WAIT_S = 0.5
_OPENING_S = 3.0  # loading gRPC takes a fraction of that, once


class ProcessProfiler:
    """The one profiler of a process. All methods are safe from any thread and never raise."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._pid = os.getpid()
        self._hooked = False
        self._told = False  # that it does not run in a subinterpreter
        self._forking = 0  # ident of the thread that is between Python's hooks before and after a fork
        self._resolved: settings.Resolved | None = None
        self._profiler: Profiler | None = None
        self._abandoned: list[Profiler] = []
        self._guard = Guard("starting or stopping the profiler")

    def start(self, config: settings.Config | None = None) -> bool:
        """See `splunk_profiler.start`."""
        with self._locked(), self._guard.watching():
            if self._profiler is None:
                resolved = self._settings(config)
                if resolved.config.enabled and not resolved.sdk_disabled and self._may_run_here():
                    self._begin(resolved)
            return self._profiler is not None
        return False

    def stop(self, timeout_s: float) -> None:
        """See `splunk_profiler.stop`."""
        with self._locked(), self._guard.watching():
            profiler, self._profiler = self._profiler, None
            if profiler is not None and self._pid == os.getpid():
                atexit.unregister(self._at_exit)
                profiler.stop(timeout_s)

    def _may_run_here(self) -> bool:
        """False in a subinterpreter: its end would come while threads of ours are in gRPC, which is not made for it."""
        if not _in_main_interpreter() and not self._told:
            self._told = True
            logger.warning(
                "the profiler runs in the main interpreter only and stays off in this subinterpreter"
                " (mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
            )
        return not self._told

    def _settings(self, config: settings.Config | None) -> settings.Resolved:
        if config is not None:
            self._resolved = settings.from_config(config)
        elif self._resolved is None:
            self._resolved = settings.from_env()
        else:
            return self._resolved  # read once: not again, and not warned of again
        for warning in self._resolved.warnings:
            logger.warning("%s", warning)
        if self._resolved.sdk_disabled and self._resolved.config.enabled:
            logger.warning("OTEL_SDK_DISABLED=true: the profiler stays off as well")
        return self._resolved

    def _begin(self, resolved: settings.Resolved) -> None:
        parents = self._abandoned[-1] if self._abandoned else None
        profiler = Profiler(resolved, self._noticed_to_be_a_child, parents=parents)
        profiler.start()
        self._profiler = profiler
        self._pid = os.getpid()
        self._resolved = resolved
        if not self._hooked:
            self._hooked = True
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(
                    before=self._before_fork,
                    after_in_parent=self._after_fork_in_parent,
                    after_in_child=self._after_fork_in_child,
                )
        atexit.register(self._at_exit)
        self._at_exit_of_multiprocessing()

    def _at_exit(self) -> None:
        self.stop(_EXIT_S)

    def _at_exit_of_multiprocessing(self, *_: object) -> None:
        """Have the children of `multiprocessing`, which skip `atexit`, send what they have gathered."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, ProcessProfiler._at_exit_of_multiprocessing)
            util.Finalize(None, self._at_exit, exitpriority=-1_000_000)

    def _before_fork(self) -> None:
        self._forking = _thread.get_ident()
        with self._guard.watching():
            if self._profiler is not None:
                self._profiler.hold(_FORK_WAIT_S)

    def _after_fork_in_parent(self) -> None:
        self._forking = 0
        with self._guard.watching():
            if self._profiler is not None:
                self._profiler.release()

    def _noticed_to_be_a_child(self) -> None:
        """Called by the other ways of noticing a fork, which serve where Python's hooks are not run.

        Where they are run, these may come in the middle of them: `threading` would then take the threads that
        begin here for ones of the parent and forget them.
        """
        if self._forking != _thread.get_ident():
            self._after_fork_in_child()

    def _after_fork_in_child(self) -> None:
        """Begin again in a forked child. Called by every way of noticing a fork; the first one counts."""
        self._forking = 0
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()  # a thread that is not here may have held it
        with self._guard.watching():
            profiler, self._profiler = self._profiler, None
            if profiler is not None:
                self._abandoned.append(profiler)  # kept: closing what is the parent's could hang or end it
                self._begin(profiler.resolved)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._pid != os.getpid():
            self._after_fork_in_child()
        lock = self._lock
        lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _in_main_interpreter() -> bool:
    try:
        interpreters: Any = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        return True  # an implementation without them
    current = interpreters.get_current()
    return int(current[0] if isinstance(current, tuple) else current) == 0


class Profiler:
    """One life of the profiler, from start to stop.

    Args:
        resolved: the settings.
        in_child: called in a forked child when no fork hook of Python's has run there.
        parents: in a forked child, what its parent had opened, which must not be used; else None.
    """

    def __init__(self, resolved: settings.Resolved, in_child: Callable[[], None], *, parents: Profiler | None) -> None:
        from splunk_profiler import capture, spans  # noqa: PLC0415  # loaded by a start that is switched on
        from splunk_profiler.recorder import Recorder  # noqa: PLC0415
        from splunk_profiler.runtime.otel import ContextShadow  # noqa: PLC0415
        from splunk_profiler.sampler import Sampler  # noqa: PLC0415
        from splunk_profiler.sinks.late import LateSink  # noqa: PLC0415
        from splunk_profiler.threads import Worker  # noqa: PLC0415

        config = resolved.config
        self.resolved = resolved
        self._in_child = in_child
        self._forked = parents is not None
        self._choice = capture.choose_walker(config.walker)
        # A child goes on with its parent's: that knows what the thread that forked has attached.
        self._shadow: ContextShadow = (
            ContextShadow(spans.runtime_context(), in_child) if parents is None else parents._shadow
        )
        variable = spans.context_variable()
        if variable is None and self._choice.name == "native":
            self._choice = capture.Choice(
                "portable", "the current context is not kept in a ContextVar (OTEL_PYTHON_CONTEXT)"
            )
        ticker = capture.make_ticker(self._choice, variable, self._shadow.context_of, config.max_stack_depth)
        self._capture = capture.Capture(
            spans.span_ref,
            capture.thread_clocks(self._choice),
            config.period_ns,
            include_internal=config.include_internal_stacks,
        )
        self._sink = LateSink(self._open_sink, self._is_described)
        self._recorder = Recorder(self._sink, export_interval_ns=config.export_interval_ms * 1_000_000)
        self._ticker = ticker
        self._sampler = Sampler(ticker, config.period_ns, self._handle)
        self._export_thread = Worker("exporter", self._export)
        self._primed = False

    def start(self) -> None:
        """Start the threads.

        Raises:
            RuntimeError: the process can make no more threads; nothing is left running.
        """
        resolved, choice = self.resolved, self._choice
        if choice.name == "portable":
            self._shadow.install()
            log = logger.info if resolved.config.walker == "portable" else logger.warning
            log(
                "the portable walker is used: %s. It finds the spans that a thread opens itself; under asyncio and"
                " in copied contexts (asyncio.to_thread) spans may be missing",
                choice.reason,
            )
        else:
            self._watch_forks(self._in_child)
        try:
            self._ticker.capture()  # the first snapshot only says who has used how much CPU so far
            self._sampler.start()
            self._recorder.expect_run()
            self._export_thread.start()
        except BaseException:
            self.stop(0.1)
            raise
        logger.info(
            "profiling all threads every %d ms with the %s walker; records go to %s (from %s)",
            resolved.config.call_stack_interval_ms,
            choice.name,
            resolved.endpoint.url,
            resolved.endpoint.setting,
        )

    def stop(self, timeout_s: float) -> None:
        """Stop the threads and send what is there; returns within about `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        self._sampler.stop(timeout_s * 0.25)  # beside busy threads each step of its worker waits for the GIL
        self._recorder.stop(max(until - time.monotonic(), 0.0) * 0.8)
        self._export_thread.join(_JOIN_S)
        if self._choice.name == "portable":
            self._shadow.remove()
        else:
            self._watch_forks(None)

    def hold(self, timeout_s: float) -> None:
        """Let no export be in flight while the process forks; waits at most `timeout_s` seconds for one."""
        self._sink.hold_for_fork(_OPENING_S)
        self._recorder.hold_for_fork(timeout_s)

    def release(self) -> None:
        """Go on after `hold`."""
        self._recorder.release_after_fork()
        self._sink.release_after_fork()

    def _export(self) -> None:
        self._sink.open()
        self._recorder.run()

    def _handle(self, raw: Any) -> None:
        snapshot = self._capture.snapshot(raw)
        if not self._primed:
            self._primed = True
            return
        samples = snapshot.samples
        if self.resolved.config.tracing_stacks_only:
            samples = tuple(sample for sample in samples if sample.span is not None)
        self._recorder.record(samples)

    def _watch_forks(self, in_child: Callable[[], None] | None) -> None:
        from splunk_profiler import _walker  # noqa: PLC0415  # there whenever it was chosen

        _walker.watch_forks(in_child)

    def _is_described(self) -> bool:
        from splunk_profiler.sinks.resource import is_described  # noqa: PLC0415  # loads the SDK

        return self._forked or is_described()

    def _open_sink(self) -> Any:
        from splunk_profiler.sinks.otlp import OtlpSink  # noqa: PLC0415  # loads gRPC
        from splunk_profiler.sinks.resource import current_resource, tracer_provider  # noqa: PLC0415

        current_resource()  # detectors import too, and a process that ends or forks cannot wait for that
        return OtlpSink(
            self.resolved.endpoint,
            current_resource,
            self.resolved.transport,
            tracer_provider,
            share_connection=not self._forked,
        )


_PROCESS = ProcessProfiler()


def process_profiler() -> ProcessProfiler:
    """The one of this process."""
    return _PROCESS
