"""The start of the profiler in a Python process of `splunk-profiler run`, before the application runs.

Python imports the first ``sitecustomize`` of its path. The launcher puts this one first, and child processes inherit
that. This module first runs the application's own ``sitecustomize``.

Runs on the main thread while Python starts, perhaps in an interpreter that lacks this package or is too old for it.
Keep to the syntax of Python 2, import nothing else of ours before `_start`, and let no exception out. Only the launched
process reports why the profiler does not start; its child processes may be interpreters without the package.
"""

# ruff: noqa: PTH100, PTH119, PTH120, RUF005, UP031, UP036 - Python 2 reads this; pathlib would be one more import
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import importlib
import os
import sys

_this_module = sys.modules.pop("sitecustomize")  # a reference: Python 2 clears a module that has none
_here = os.path.dirname(os.path.abspath(__file__))
_LAUNCHERS = ("opentelemetry-instrument", "splunk-profiler")
_OWN_MODULE = ["-m", "splunk_profiler"]
_MADE_BY_C = 3  # `WHENCE_CAPI` of CPython


def _run_application_sitecustomize():
    """Remove this directory from the path and run the application's own ``sitecustomize``, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _here]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if str(error).replace("'", "") != "No module named sitecustomize":
            raise
    finally:
        # The running import of this module looks it up here when it ends.
        sys.modules.setdefault("sitecustomize", _this_module)
        _come_first()


def _come_first():
    """Put this directory first in PYTHONPATH: OpenTelemetry puts its own there, and runs no other ``sitecustomize``."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _here in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([_here] + [entry for entry in entries if entry != _here])


def _come_first_at_exec(event, _arguments):
    if event == "os.exec":
        _come_first()


def _is_helper_process():
    """Return True for multiprocessing's resource tracker, the launcher of OpenTelemetry and our own commands."""
    words = list(getattr(sys, "orig_argv", ()))
    if any("multiprocessing.resource_tracker import" in word for word in words) or words[1:3] == _OWN_MODULE:
        return True
    return any(os.path.basename(word) in _LAUNCHERS for word in words[1:2])


def _is_made_by_python():
    """Return True in an interpreter that Python code makes, as a pool does for each worker: the profiler is in another.

    While it starts, it is one that C code has made, but not with the older function that servers call.
    """
    if sys.version_info < (3, 13):
        return False
    try:
        number, maker = importlib.import_module("_interpreters").get_current()
    except Exception:  # it is not there, or the application refuses imports
        return False
    return number != 0 and maker == _MADE_BY_C


def _report_problem(problem):
    if os.environ.get("SPLUNK_PROFILER_RUN_PID") == str(os.getpid()) and sys.stderr is not None:
        sys.stderr.write("splunk-profiler: the profiler is not started in this process: " + problem + "\n")


def _start():
    python = sys.executable or "this interpreter"
    if sys.version_info < (3, 10):
        _report_problem("%s is Python %d.%d, and it needs 3.10 or newer" % ((python,) + sys.version_info[:2]))
        return
    try:
        import splunk_profiler  # noqa: PLC0415
    except Exception as error:
        if getattr(error, "name", "") == "splunk_profiler":
            _report_problem(
                python + " does not have it; install it there: " + python + " -m pip install splunk-profiler"
            )
        else:
            _report_problem("it cannot be imported by " + python + ": " + str(error))
        return
    try:
        splunk_profiler.start()
    except Exception as error:
        _report_problem(type(error).__name__ + ": " + str(error))


try:
    _run_application_sitecustomize()
finally:
    if _is_helper_process():
        sys.addaudithook(_come_first_at_exec)
    elif not _is_made_by_python():
        _start()
