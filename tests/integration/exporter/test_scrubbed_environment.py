"""A service that takes the settings out of its environment, once they are read, keeps what they say."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
from receiver_process import Receiver
from target_process import Target, profiling_settings

pytestmark = pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="the native walker is not built")

_PROGRAM = """
import os, sys
import splunk_profiler

def serve():
    print("ready", flush=True)
    sys.stdin.readline()

splunk_profiler.start()
if sys.argv[1] == "change":
    os.environ.update(OTEL_SERVICE_NAME="other", OTEL_RESOURCE_ATTRIBUTES="team=late")
elif sys.argv[1] == "replace":
    os.environ = {}
else:
    for name in [name for name in os.environ if name.startswith(("OTEL_", "SPLUNK_"))]:
        del os.environ[name]
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        serve()
    else:
        os.waitpid(child, 0)
else:
    if sys.argv[1] == "restart":
        splunk_profiler.stop()
        splunk_profiler.start()
    serve()
"""


@pytest.mark.parametrize("exporter", ["auto", "thread"])
@pytest.mark.parametrize("how", ["fork", "restart", "change", "replace"])
def test_records_go_where_the_variables_of_the_start_said(how: str, exporter: str) -> None:
    with Receiver() as receiver:
        settings = profiling_settings(receiver.url)
        settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = settings.pop("SPLUNK_PROFILER_LOGS_ENDPOINT")
        settings |= {"OTEL_EXPORTER_OTLP_HEADERS": "x-token=sesame", "OTEL_SERVICE_NAME": "shop"}
        settings |= {"SPLUNK_PROFILER_EXPORTER": exporter}
        with Target(sys.executable, "-c", _PROGRAM, how, env=settings) as target:
            target.line("ready")
            record = receiver.record(lambda record: "serve(" in record["body"])
            target.tell("stop")
            assert target.finish() == 0, target.output
        assert (record["resource"]["service.name"], record["resource"].get("team")) == ("shop", None)
        assert {export["headers"].get("x-token") for export in receiver.exports()} == {"sesame"}
