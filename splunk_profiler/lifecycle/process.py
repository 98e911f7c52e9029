"""The profiler of the process: start, stop, forks and exit, one at a time.

Registers all exit hooks; `activation` registers the fork hooks, `sigterm` the only signal handler. A `Profiler`
(`profiler`) runs between a start and a stop.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from splunk_profiler.activation import FORK_GATE
from splunk_profiler.config import Config, Resolved, from_config, from_env
from splunk_profiler.lifecycle.grpc_forks import drop_handlers_if_closed
from splunk_profiler.lifecycle.log_lines import LINE_HANDLER
from splunk_profiler.lifecycle.profiler import Profiler
from splunk_profiler.lifecycle.sigterm import SigtermHandler
from splunk_profiler.system import clocks
from splunk_profiler.system.call_queue import CallQueue
from splunk_profiler.system.guard import Guard, OnceLog, logger
from splunk_profiler.system.short_turns import ShortTurns
from splunk_profiler.system.threads import WakeEvent, Worker, is_profiler_thread, prepare_fork

if TYPE_CHECKING:
    from splunk_profiler.otel.runtime_id import RuntimeId

_START_TIMEOUT_S = 5.0  # for a stop on another thread
_MIN_STOP_S = 0.1  # for threads to end
_MAX_STOP_S = 3600.0  # locks and polls take no infinite time
_SIGTERM_TIMEOUT_S = 1.2  # less than `SigtermHandler` allows
_EXIT_TIMEOUT_S = 1.5  # for sampling: joins and a cancelled export take less than half a second more
_FORK_TIMEOUT_S = 0.02
_STANDARD_LIBRARY = 5  # `WHENCE_STDLIB` of the interpreters that it makes
_EXEC_MODULES = {"subprocess", "gevent.subprocess"}  # modules whose forks run another program


class ProcessProfiler:
    """The one profiler of a process. `start` and `stop` never raise, return in bounded time, and are safe anywhere.

    A call in the middle of another one, from a signal handler or a finaliser, returns at once and runs after it.
    `_profiler` is the running profiler. `_unfinished` is one that is starting or stopping; if a signal handler raises
    meanwhile, the next call ends it.
    """

    def __init__(self) -> None:
        self._calls = CallQueue()
        self._pid = os.getpid()
        self._has_fork_hooks = False
        self._has_multiprocessing_hook = False
        self._once_log = OnceLog()
        # By ident of each thread between Python's hooks before and after a fork: the profiler that it holds.
        self._held_by_forking_thread: dict[int, Profiler | None] = {}
        self._has_lost_threads = False
        self._resolved: Resolved | None = None
        self._has_final_settings = False  # True once `_resolved` holds for the life of the process
        self._profiler: Profiler | None = None
        self._unfinished: Profiler | None = None
        self._abandoned: list[Profiler] = []
        self._finalizer: Any = None  # of `multiprocessing`
        self._profiler_to_restart: Profiler | None = None  # the parent's, in a child that may run another program
        self._runtime_id: RuntimeId | None = None  # made by the first start, because its module loads others
        self._turns = ShortTurns()  # of a start, which loads most of the profiler
        self._guard = Guard("starting or stopping the profiler")
        self._sigterm = SigtermHandler(self._stop_and_exit)

    def start(self, config: Config | None = None) -> bool:
        """Start the profiler if it is switched on; `splunk_profiler.start` is the public form."""
        if config is None and self._profiler is not None and self._pid == os.getpid():
            return True
        self._run_call(lambda: self._start(config), _START_TIMEOUT_S)
        return self._profiler is not None

    def stop(self, timeout_s: float) -> None:
        """Stop the profiler; `splunk_profiler.stop` is the public form."""
        timeout_s = min(max(0.0, timeout_s), _MAX_STOP_S)  # `max` in this order makes 0 of nan
        deadline_s = clocks.monotonic() + timeout_s
        self._run_call(lambda: self._stop(deadline_s), timeout_s)

    def _run_call(self, function: Callable[[], None], timeout_s: float) -> None:
        if self._pid != os.getpid():  # no fork hook has run here yet
            self._after_fork_in_child(
                is_python_fork=not self._has_fork_hooks or _thread.get_ident() in self._held_by_forking_thread
            )
        calls = self._calls
        if not is_profiler_thread():
            calls.run(function, timeout_s)
            return
        with self._guard.catching():  # our thread cannot wait for its own end
            Worker("caller", lambda: calls.run(function, timeout_s)).start()

    def _start(self, config: Config | None) -> None:
        with LINE_HANDLER.in_start(), self._guard.catching(), FORK_GATE, self._turns:
            self._stop_unfinished(0)
            self._restart_in_child()
            resolved = self._resolve_settings(config)
            should_run = resolved.runs and not resolved.sdk_disabled
            if self._profiler is None and should_run and self._may_run_here() and not sys.is_finalizing():
                self._start_profiler(resolved)

    def _stop(self, deadline_s: float) -> None:
        self._turns.end()  # a signal handler may have raised where a start would have ended them
        with self._guard.catching():
            self._profiler_to_restart = None
            if self._profiler is not None and self._pid == os.getpid():
                self._unfinished, self._profiler = self._profiler, None
            try:
                self._stop_unfinished(deadline_s - clocks.monotonic())
            except BaseException:
                self._stop_unfinished(0)  # a signal handler has raised
                raise

    def _stop_unfinished(self, timeout_s: float) -> None:
        """End a profiler that is half started or half stopped."""
        if self._unfinished is not None:
            with self._guard.catching():
                self._unfinished.stop(max(timeout_s, _MIN_STOP_S))
            self._sigterm.stop()
            atexit.unregister(self._at_exit)
            if self._profiler is self._unfinished:
                self._profiler = None
            self._unfinished = None

    def _may_run_here(self) -> bool:
        """Return False on Windows and in a subinterpreter, which could end while our threads are in gRPC."""
        if sys.platform == "win32":
            self._once_log.log("the profiler stays off: on Windows it can neither sample nor publish to host profilers")
            return False
        number, maker = _current_interpreter()
        if number == 0:
            return True
        text = "the profiler runs in the main interpreter only and stays off in this subinterpreter"
        if maker == _STANDARD_LIBRARY:  # it makes one for each worker of a pool, and each would say so
            logger.info(text)
        else:
            self._once_log.log(f"{text} (mod_wsgi: WSGIApplicationGroup %{{GLOBAL}})")
        return False

    def _resolve_settings(self, config: Config | None) -> Resolved:
        initial = self._resolved
        if initial is not None and (config is None or self._has_final_settings or self._profiler is not None):
            if config is not None:
                self._warn_of_other_settings(initial.config, from_config(config).config)
            return initial  # warnings about it are logged already
        resolved = from_env() if config is None else from_config(config)
        if config is not None or resolved.config.runs:  # else the environment is read again by the next start
            self._resolved, self._has_final_settings = resolved, True
        for warning in resolved.warnings:
            self._once_log.log(warning)
        if resolved.sdk_disabled and resolved.runs:
            logger.warning("OTEL_SDK_DISABLED=true: the profiler stays off as well")
        elif config is None and resolved.samples and "splunk_otel" in sys.modules:
            logger.warning(
                "splunk-opentelemetry is in use, and its profiler has the same switches: each stack is sent twice;"
                " use opentelemetry-distro instead, or unset them and start this one with a Config in code"
            )
        return resolved

    def _warn_of_other_settings(self, initial: Config, other: Config) -> None:
        changed_fields = [
            item.name for item in fields(initial) if getattr(initial, item.name) != getattr(other, item.name)
        ]
        if changed_fields:
            self._once_log.log(
                "the settings of the first start() hold for the life of the process; another start() has no effect on"
                f" {', '.join(changed_fields)}"
            )

    def _start_profiler(self, resolved: Resolved, *, is_forked_child: bool = False) -> None:
        parent = self._abandoned[-1] if self._abandoned else None
        if self._runtime_id is None:
            from splunk_profiler.otel.runtime_id import RuntimeId  # noqa: PLC0415  # loaded when switched on

            self._runtime_id = RuntimeId.new()
        profiler = Profiler(
            resolved,
            self._on_fork_detected,
            self._sigterm.look,
            self._runtime_id,
            parent=parent,
            is_forked_child=is_forked_child,
            has_lost_threads=self._has_lost_threads,
        )
        self._unfinished = profiler
        if not is_forked_child:  # its parent has noted it; another file may have the number since
            LINE_HANDLER.standard_error.note()
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.isEnabledFor(level)  # takes a lock the first time; under gevent no thread of ours may have it
        try:
            if not profiler.start():
                self._unfinished = None
                return
            self._pid = os.getpid()
            if not self._has_fork_hooks:
                self._has_fork_hooks = True
                FORK_GATE.register(
                    self._before_fork,
                    self._after_fork_in_parent,
                    partial(self._after_fork_in_child, is_python_fork=True),  # a partial adds no frame
                )
            atexit.register(self._at_exit)
            self._register_child_exits()
            if resolved.samples or resolved.config.publishes_correlation:  # samples or spans may wait
                self._sigterm.start(is_looked_for=profiler.looks_for_sigterm)
        except BaseException:
            self._stop_unfinished(0)
            raise
        self._profiler = profiler  # before the next line: a signal handler that raises between them must not lose it
        self._unfinished = None

    def _at_exit(self, **_: object) -> None:  # Celery's signal has arguments
        self.stop(_EXIT_TIMEOUT_S)
        if self._sigterm.is_ending:
            WakeEvent().wait(_EXIT_TIMEOUT_S)  # SIGTERM ends the process here, with its exit status

    def _stop_and_exit(self, end_process: Callable[[], None]) -> None:
        deadline_s = clocks.monotonic() + _SIGTERM_TIMEOUT_S

        def stop_and_exit() -> None:
            self._stop(deadline_s)
            end_process()

        self._calls.run(stop_and_exit, _SIGTERM_TIMEOUT_S)

    def _register_child_exits(self, *_: object) -> None:
        """Register the exits of children that skip `atexit`: those of `multiprocessing` and Celery."""
        util, celery = sys.modules.get("multiprocessing.util"), sys.modules.get("celery.signals")
        if util is not None:
            if not self._has_multiprocessing_hook:
                self._has_multiprocessing_hook = True  # in the children as well, which inherit the hook
                util.register_after_fork(self, ProcessProfiler._register_child_exits)
            if self._finalizer is None or not self._finalizer.still_active():
                self._finalizer = util.Finalize(None, self._at_exit, exitpriority=-1_000_000)
        if celery is not None:
            celery.worker_process_shutdown.connect(self._at_exit, weak=False, dispatch_uid=__name__)

    def _before_fork(self) -> None:
        profiler = self._held_by_forking_thread[_thread.get_ident()] = self._profiler or self._unfinished
        with self._guard.catching():
            if profiler is not None:
                profiler.hold_for_fork(_FORK_TIMEOUT_S)
            prepare_fork(True)
            drop_handlers_if_closed()

    def _after_fork_in_parent(self) -> None:
        profiler = self._held_by_forking_thread.pop(_thread.get_ident(), None)
        with self._guard.catching():
            prepare_fork(False)
            if profiler is not None:
                profiler.release_after_fork()

    def _on_fork_detected(self) -> None:
        """Handle a fork that was detected without Python's hooks.

        Do nothing between Python's hooks: `threading` would forget threads started here, taking them for the parent's.
        """
        if _thread.get_ident() not in self._held_by_forking_thread:
            self._after_fork_in_child(is_python_fork=False)

    def _after_fork_in_child(self, *, is_python_fork: bool) -> None:
        """Start anew in a forked child. Every detection of the fork calls this; the first one counts.

        With `is_python_fork` Python's hooks run, so that the interpreter knows which threads are left.
        """
        if self._pid == os.getpid():
            return  # no fork: the portable walker calls at each attach, while other threads may hold for theirs
        with LINE_HANDLER.in_fork_hook(), self._guard.catching():
            try:
                self._leave_parent()
            except BaseException:  # of a signal handler
                self._leave_parent()
                raise
            self._has_lost_threads = not is_python_fork
            if not _is_forked_to_exec():
                self._restart_in_child()
        walker = sys.modules.get("splunk_profiler._walker")
        if walker is not None:
            walker.close_inherited_sockets()  # where nothing was started: the exporter would take the parent for alive

    def _leave_parent(self) -> None:
        """Keep nothing of the parent's profiler in a forked child but what to start anew; may be called twice."""
        self._pid = os.getpid()
        if self._profiler is not None:
            self._profiler_to_restart = self._profiler
        self._abandoned += filter(None, (self._unfinished, self._profiler))  # closing the parent's could hang or end it
        self._profiler = self._unfinished = None
        prepare_fork(False)  # of a child of `clone`, which no handler of ours has seen
        self._finalizer = None  # the parent's: it does nothing here
        self._held_by_forking_thread.clear()
        self._has_final_settings = False  # the parent's settings hold until a `start` here has others
        self._calls = CallQueue()  # a lost thread may have been in it
        self._turns.end()
        portable_frames = sys.modules.get("splunk_profiler.capture.frames")
        if portable_frames is not None:
            portable_frames.enable_gc_in_child()
        self._sigterm.is_ending = False
        if self._runtime_id is not None:
            self._runtime_id = self._runtime_id.new_for_child()
        context = sys.modules.get("splunk_profiler._context")
        if self._profiler_to_restart is None and context is not None:  # the parent was in a start, which ends here
            context.clear_storage()
            context.uninstall()

    def _restart_in_child(self) -> None:
        """Start in a forked child the profiler of its parent, unless that is done."""
        profiler, self._profiler_to_restart = self._profiler_to_restart, None
        if profiler is not None and profiler.can_restart_in_child():
            self._start_profiler(profiler.resolved, is_forked_child=True)


def _is_forked_to_exec() -> bool:
    """Return True if `subprocess` has forked to run another program, with Python before it (``preexec_fn``)."""
    hook = sys._getframe(1)
    frame = hook.f_back
    while frame is not None and frame.f_globals.get("__name__") == "gevent.os":
        frame = frame.f_back
    if frame is None:  # C code has forked
        return False
    return frame.f_code.co_name == "_execute_child" and frame.f_globals.get("__name__") in _EXEC_MODULES


def _current_interpreter() -> tuple[int, int]:
    """Return the number of this interpreter, 0 for the main one, and who has made it; before CPython 3.13, -1."""
    try:
        interpreters: Any = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        return 0, -1  # this implementation has no subinterpreters
    current = interpreters.get_current()
    return current if isinstance(current, tuple) else (int(current), -1)


PROCESS_PROFILER = ProcessProfiler()
