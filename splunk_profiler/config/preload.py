"""The variable LD_PRELOAD, with which `splunk-profiler run` loads the labels library into the service.

Runs on the launcher's main thread, before `exec`, and on the thread that starts the profiler. Imports nothing of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

RUN_PID = "SPLUNK_PROFILER_RUN_PID"  # process id, set by the launcher, which becomes the service
_VARIABLE = "LD_PRELOAD"
_SEPARATORS = " :"  # they cannot be quoted


def add_library(env: MutableMapping[str, str], library: str) -> bool:
    """Append `library` to the libraries that `env` preloads; others (sanitizers) may have to come first.

    Return False if the variable cannot carry the path.
    """
    libraries = _libraries(env)
    if library in libraries:
        return True
    if any(separator in library for separator in _SEPARATORS):
        return False
    env[_VARIABLE] = ":".join([*libraries, library])
    return True


def remove_library(library: str) -> None:
    """Keep child processes from preloading `library`, if the launcher preloaded it.

    In a chroot or another mount namespace, the dynamic loader would complain that it is missing.
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
