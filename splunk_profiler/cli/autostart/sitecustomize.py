"""Starts the profiler in a Python process that `splunk-profiler run` launched, before the application runs.

Python imports the first ``sitecustomize`` of its path; the launcher sees to it that it is this one, and
processes that the application starts inherit it. It first lets the ``sitecustomize`` run that would have
run without us. Runs on the main thread while Python starts, perhaps in an interpreter that does not have
this package or is too old for it: keep to the syntax of Python 2, import nothing else of ours before
`_start`, and let no exception out. What keeps the profiler from starting is said in the launched process
only: other interpreters among its children are not the user's concern.
"""

# ruff: noqa: PTH100, PTH119, PTH120, RUF005, UP031, UP036 - Python 2 reads this; pathlib would be one more import
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import importlib
import os
import sys

_this_module = sys.modules.pop("sitecustomize")  # kept here: Python 2 clears a module that nobody refers to


def _run_application_sitecustomize():
    """Take this directory off the path and run the application's own ``sitecustomize``, if it has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if str(error).replace("'", "") != "No module named sitecustomize":
            raise
    finally:
        # The import that is under way ends by looking its module up here.
        sys.modules.setdefault("sitecustomize", _this_module)


def _is_helper_process():
    """True for multiprocessing's process that cleans up after others, and for a command that executes another one."""
    words = getattr(sys, "orig_argv", ())
    return any("multiprocessing.resource_tracker import" in word for word in words) or any(
        os.path.basename(word) == "opentelemetry-instrument" for word in words[1:2]
    )


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
    except ImportError as error:
        if error.name == "splunk_profiler":
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
    if not _is_helper_process():
        _start()
