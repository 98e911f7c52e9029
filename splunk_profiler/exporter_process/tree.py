"""The token of a tree of processes, by which they find one exporter process.

Runs in the host, on the thread that starts the profiler. Loads the native walker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from splunk_profiler.config.tree import inherited_secret, propagate_secret
from splunk_profiler.exporter_process.transport import digest
from splunk_profiler.version import __version__


def tree_token(variables: Mapping[str, str]) -> str:
    """Return the token of this process's tree, for this installation of the package and these connection variables.

    Forked workers have the same one, also if their master never starts the profiler. Executed programs have it if they
    inherit it (`config.tree`). Another installation has its own exporter: it may have other code, or lack what exports.
    So have processes with other proxies, certificates, providers of credentials, or settings of gRPC or detectors, and
    of those with a provider, processes with any other variable.
    """
    secret = inherited_secret()
    if not secret:
        secret = _secret_of_execution()
        propagate_secret(secret)
    installation = (str(Path(__file__).parents[1]), __version__, str(sys.implementation.cache_tag))
    return digest(secret, *installation, *sorted(f"{name}={value}" for name, value in variables.items()))


def _secret_of_execution() -> str:
    from splunk_profiler._walker import execution_random  # noqa: PLC0415  # missing on some systems

    return digest("tree", (execution_random() or os.urandom(16)).hex())
