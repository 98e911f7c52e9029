"""The two libraries that host profilers look for, where they are installed, and whether readers can follow them.

Their file names are part of the ABIs (docs/abi.md). Must not load anything: the launcher asks, too.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
CUSTOM_LABELS = "libcustomlabels.so"


def elastic_library() -> Path:
    """``elastic-jvmti-linux-<arch>.so``, for the architecture of this machine; it may not be there."""
    return _PACKAGE / f"elastic-jvmti-linux-{os.uname().machine}.so"


def labels_library() -> Path:
    """``libcustomlabels.so``; it may not be there."""
    return _PACKAGE / CUSTOM_LABELS


def remedy(library: Path) -> str:
    """What makes the thread-local pointer of `library` readable where the loader has put it out of reach."""
    tunable = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 in the environment of the process"
    if library.name == CUSTOM_LABELS:
        return f"start it by splunk-profiler run, which preloads the library, or set {tunable}"
    return f"set {tunable} (with musl: LD_PRELOAD={library})"
