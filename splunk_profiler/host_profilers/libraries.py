"""Paths of the two libraries that host profilers look for. Their file names are ABI (docs/host-profilers/abi.md).

Must not load anything: the launcher imports this module.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

_CUSTOM_LABELS = "libcustomlabels.so"


def elastic_library() -> Path:
    """Return the path of ``elastic-jvmti-linux-<arch>.so`` for this machine; it may not exist."""
    return _library_directory() / f"elastic-jvmti-linux-{os.uname().machine}.so"


def labels_library() -> Path:
    """Return the path of ``libcustomlabels.so``; it may not exist."""
    return _library_directory() / _CUSTOM_LABELS


def _library_directory() -> Path:
    """Return the extension's directory: editable installations keep compiled files apart."""
    extension = find_spec("splunk_profiler._context")
    if extension is not None and extension.origin is not None:
        return Path(extension.origin).resolve().parent
    return Path(__file__).resolve().parent.parent


def remedy(library: Path) -> str:
    """Return advice that makes the thread-local pointer of `library` readable for host profilers."""
    tunable = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 in the environment of the process"
    if library.name == _CUSTOM_LABELS:
        return f"start it by splunk-profiler run, which preloads the library, or set {tunable}"
    return f"set {tunable} (with musl: LD_PRELOAD={library})"
