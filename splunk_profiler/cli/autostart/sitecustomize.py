"""Starts the profiler in a Python process that `splunk-profiler run` launched, before the application runs.

Python imports the first ``sitecustomize`` of its path; the launcher sees to it that it is this one, and
processes that the application starts inherit it. It first lets the ``sitecustomize`` run that would have
run without us. Runs on the main thread while Python starts, perhaps in an interpreter that does not have
this package or is too old for it: keep to plain syntax, import nothing else of ours before `_start`, and
let no exception out.
"""

# ruff: noqa: PTH100, PTH120, UP036 - pathlib would be one more import in every process; old versions are meant

import importlib
import os
import sys


def _step_aside() -> None:
    """Take this directory off the path and run the application's own ``sitecustomize``, if it has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        # The import that is under way ends by looking its module up here.
        sys.modules.setdefault("sitecustomize", ours)


def _is_bookkeeping() -> bool:
    """True for the process that multiprocessing keeps to clean up after the others: it runs no user code."""
    return any("multiprocessing.resource_tracker import" in word for word in getattr(sys, "orig_argv", ()))


def _say(problem: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write("splunk-profiler: the profiler is not started in this process: " + problem + "\n")


def _start() -> None:
    if _is_bookkeeping():
        return
    python = sys.executable or "this interpreter"
    if sys.version_info < (3, 10):
        _say(f"{python} is Python {sys.version_info[0]}.{sys.version_info[1]}, and it needs 3.10 or newer")
        return
    try:
        import splunk_profiler  # noqa: PLC0415
    except ImportError as error:
        if getattr(error, "name", None) == "splunk_profiler":
            _say(f"{python} does not have it; install it there: {python} -m pip install splunk-profiler")
        else:
            _say(f"it cannot be imported by {python}: {error}")
        return
    try:
        splunk_profiler.start()
    except Exception as error:
        _say(f"{type(error).__name__}: {error}")


try:
    _step_aside()
finally:
    _start()
