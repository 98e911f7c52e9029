"""Log lines to a standard error that nobody reads, in processes of their own: they are dropped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from short_programs import run_code

_FILL = """
import logging, os, sys
{patch}
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import Worker

reader, writer = os.pipe()
os.dup2(writer, 2)
os.set_blocking(2, False)
for piece in (b"x" * 4096, b"x"):
    try:
        while True:
            os.write(2, piece)
    except BlockingIOError:
        pass
os.set_blocking(2, True)
{handlers}
import splunk_profiler
assert splunk_profiler.start()  # with a warning
logging_thread = Worker("log", lambda: logger.warning("a line of ours"))
logging_thread.start()
print(logging_thread.join(5), flush=True)
splunk_profiler.stop(0)
left = os.read(reader, 1 << 20).strip(b"x")
logger.warning("now there is room")
print(left, os.read(reader, 1 << 20).decode())
"""
_SETTINGS = {
    "SPLUNK_PROFILER_ENABLED": "true",
    "SPLUNK_PROFILER_EXPORTER": "thread",
    "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "abc",
}


@pytest.mark.parametrize(
    ("handlers", "patch"),
    [
        ("", ""),
        ("logging.basicConfig(format='%(message)s')", ""),
        ("logging.basicConfig(format='%(message)s')", "import gevent.monkey; gevent.monkey.patch_all()"),
    ],
    ids=["without a handler", "with a handler", "gevent"],
)
def test_full_standard_error_keeps_no_thread_waiting(handlers: str, patch: str) -> None:
    if patch and find_spec("gevent") is None:
        pytest.skip("gevent is not there for this interpreter")
    said = run_code(_FILL.format(handlers=handlers, patch=patch), PYTHONWARNINGS="ignore", **_SETTINGS)
    assert said == "True\nb'' now there is room\n\n"
