"""The classes of pprof's messages."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import gc, threading
from splunk_profiler.formats.profile_proto import ProfileMessage
threading.stack_size(65536)
collecting = threading.Thread(target=gc.collect)
collecting.start()
collecting.join()
profile = ProfileMessage()
profile.sample_type.add(type=1, unit=2)
profile.period_type.CopyFrom(profile.sample_type[0])
print(profile.period_type.unit)
"""


def test_messages_can_be_used_after_garbage_was_collected_on_a_small_stack() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
