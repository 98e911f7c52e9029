"""LD_PRELOAD, by which `splunk-profiler run` has the dynamic loader load the library of the labels.

Runs on the launcher's main thread, before `exec`, and on the thread that starts the profiler. Imports nothing of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

RUN_PID = "SPLUNK_PROFILER_RUN_PID"  # set by the launcher: the id of the process that it becomes
_VARIABLE = "LD_PRELOAD"
_SEPARATORS = " :"  # there is no way to quote them


def add_library(env: MutableMapping[str, str], library: str) -> bool:
    """Put `library` after what `env` preloads: some libraries (sanitizers') have to come first, ours not.

    Returns:
        False if the variable cannot carry the path.
    """
    libraries = _libraries(env)
    if library in libraries:
        return True
    if any(separator in library for separator in _SEPARATORS):
        return False
    env[_VARIABLE] = ":".join([*libraries, library])
    return True


def remove_library(library: str) -> None:
    """Have processes that this one starts not preload `library`, if the launcher has had it preloaded.

    In a chroot or another mount namespace the dynamic loader would complain that it is not there.
    """
    libraries = _libraries(os.environ)
    if RUN_PID not in os.environ or library not in libraries:
        return
    libraries.remove(library)
    if libraries:
        os.environ[_VARIABLE] = ":".join(libraries)
    else:
        del os.environ[_VARIABLE]


def _libraries(env: MutableMapping[str, str]) -> list[str]:
    return [path for path in re.split(f"[{_SEPARATORS}]", env.get(_VARIABLE, "")) if path]
