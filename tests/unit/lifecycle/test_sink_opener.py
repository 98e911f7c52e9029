"""The opener of the sink, which knows when the service has its name."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from short_programs import run_code

from splunk_profiler.config import Config, from_config
from splunk_profiler.export import resource
from splunk_profiler.lifecycle.sink_opener import SinkOpener
from splunk_profiler.otel import spans
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId

# As without memory for a library that the codec needs. Python remembers codecs that it does not find.
_LOAD_WITHOUT_CODEC = """
import sys
sys.modules["stringprep"] = None
from splunk_profiler.config import Config, from_config
from splunk_profiler.lifecycle.sink_opener import SinkOpener
from splunk_profiler.otel.runtime_id import ResourceTagger, RuntimeId
opener = SinkOpener(from_config(Config(enabled=True), {}), ResourceTagger(RuntimeId.new(), on_spans=False), None, None)
try:
    opener.load()
except (ImportError, LookupError):
    print("not loaded")
del sys.modules["stringprep"]
print("shop.example".encode("idna"))
"""


def test_forked_child_does_not_know_its_service_before_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    provider: TracerProvider | None = None
    for module in (spans, resource):
        monkeypatch.setattr(module, "tracer_provider", lambda: provider)
    monkeypatch.setattr(resource, "current_resource", lambda _: Resource({}))  # the detected one is cached
    resolved, tagger = from_config(Config(enabled=True), {}), ResourceTagger(RuntimeId.new(), on_spans=False)
    parent = SinkOpener(resolved, tagger, lambda resource: resource, None)
    child = SinkOpener(resolved, tagger, lambda resource: resource, parent)
    assert not child.is_service_known()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    assert child.is_service_known()


def test_failed_load_leaves_the_application_its_codec_of_host_names() -> None:
    assert run_code(_LOAD_WITHOUT_CODEC) == "not loaded\nb'shop.example'\n"
