"""The two libraries that host profilers look for, where they are installed, and whether readers can follow them.

Their file names are part of the ABIs (docs/abi.md). Must not load anything: the launcher asks, too.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

CUSTOM_LABELS = "libcustomlabels.so"


def elastic_library() -> Path:
    """``elastic-jvmti-linux-<arch>.so``, for the architecture of this machine; it may not be there."""
    return _library_directory() / f"elastic-jvmti-linux-{os.uname().machine}.so"


def labels_library() -> Path:
    """``libcustomlabels.so``; it may not be there."""
    return _library_directory() / CUSTOM_LABELS


def _library_directory() -> Path:
    """Beside the extension: an editable installation keeps what was compiled apart from the sources."""
    extension = find_spec("splunk_profiler._context")
    if extension is not None and extension.origin is not None:
        return Path(extension.origin).resolve().parent
    return Path(__file__).resolve().parent.parent


def remedy(library: Path) -> str:
    """What makes the thread-local pointer of `library` readable where the loader has put it out of reach."""
    tunable = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 in the environment of the process"
    if library.name == CUSTOM_LABELS:
        return f"start it by splunk-profiler run, which preloads the library, or set {tunable}"
    return f"set {tunable} (with musl: LD_PRELOAD={library})"
