"""Writes profiles to files under a limit of their size, as a full disk sets one: ``file_writer.py END DIRECTORY``.

END ``killed``: the kernel ends the process in the middle of a write, as ``kill -9`` would. ``refused``: the write
fails; prints the outcome as ``outcome […]``, and a second one for a profile that fits.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

from marked_work import say
from opentelemetry.sdk.resources import Resource
from profile_factory import large_profile, small_profile

from splunk_profiler.export.files import DirectorySink
from splunk_profiler.samples import Batch, Profile

_MAX_BYTES = 10_000


def main(end: str, directory: Path) -> None:
    sink = DirectorySink(directory, lambda: Resource({"service.name": "shop"}))

    def export(profile: Profile) -> None:
        outcome = sink.export(Batch((profile,)))
        say("outcome", [outcome.export_status.value, outcome.detail])

    if end == "killed":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_BYTES, _MAX_BYTES))
    export(large_profile(2000))
    export(small_profile())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
