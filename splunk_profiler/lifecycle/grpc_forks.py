"""gRPC's handlers of forks, in a process whose threads export: without gRPC's descriptors they would hurt it.

They abort a process that has closed these, or write into its files and wait for ever.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from splunk_profiler.system.descriptors import were_closed

_EXTENSION = "splunk_profiler._context"


def keep_handlers() -> None:
    """Have gRPC register its handlers with us; call it once gRPC is loaded, before the first channel.

    Does nothing where the application has opened one before, the records go elsewhere, or the native parts are missing.
    """
    if "grpc" not in sys.modules:
        return
    with suppress(ImportError):
        from splunk_profiler._context import keep_grpc_fork_handlers  # noqa: PLC0415  # missing on some systems

        keep_grpc_fork_handlers()


def is_usable() -> bool:
    """Return False in a child that Python has forked while C code forked in the middle of gRPC's handlers."""
    extension = sys.modules.get(_EXTENSION)
    return extension is None or not extension.is_left_out_of_grpc_fork()


def drop_handlers_if_closed() -> bool:
    """Call gRPC's handlers no more if its descriptors were closed; return True in that case."""
    is_closed = were_closed()
    if is_closed and (extension := sys.modules.get(_EXTENSION)) is not None:
        extension.drop_grpc_fork_handlers()
    return is_closed
