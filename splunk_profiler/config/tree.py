"""The variable that holds the secret of a tree of processes, by which they share one exporter process.

Launchers set it, `splunk-profiler run` and `opentelemetry-instrument`, and the programs that they start inherit it.
Imports nothing of ours.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

TREE = "SPLUNK_PROFILER_TREE"
_SECRET_BYTES = 16


def begin_tree(env: MutableMapping[str, str]) -> None:
    """Give the program that is launched with `env` a secret, unless this launcher has inherited one."""
    env.setdefault(TREE, os.urandom(_SECRET_BYTES).hex())


def inherited_secret() -> str:
    """Return the secret that this process has inherited; empty if it has none."""
    return os.environ.get(TREE, "")


def propagate_secret(secret: str) -> None:
    """Let programs that this process executes from now on inherit the secret, if nothing can go wrong.

    A change of the environment moves it in memory. C code of another thread may read it meanwhile, without the GIL, and
    crash. So there must be no other thread.
    """
    if _has_one_thread():
        os.environ[TREE] = secret


def _has_one_thread() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  # `config` does without pathlib
    except OSError:
        return False
