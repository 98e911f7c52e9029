"""The steps that open the sink: import what it takes, detect the resource, make the sink.

`LazySink` calls them on the exporting thread. Only they load the OpenTelemetry SDK, gRPC and the code classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from splunk_profiler.config import Resolved
from splunk_profiler.export import destinations
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.lifecycle.grpc_forks import keep_handlers
from splunk_profiler.otel import spans
from splunk_profiler.otel.runtime_id import ResourceTagger

if TYPE_CHECKING:
    from splunk_profiler.code_origin.classifier import CodeClassifier


class SinkOpener:
    """Opener of the sink of one run of sampling; `parent` is the parent's opener in a forked child."""

    def __init__(
        self,
        resolved: Resolved,
        resource_tagger: ResourceTagger,
        enrich_resource: Callable[[Any], Any],
        parent: SinkOpener | None,
    ) -> None:
        self._resolved = resolved
        self._resource_tagger = resource_tagger
        self._enrich_resource = enrich_resource
        self._is_forked_child = parent is not None
        self._classifier: CodeClassifier | None = None if parent is None else parent._classifier

    def is_service_known(self) -> bool:
        """Return True once it is known which service sends."""
        from splunk_profiler.export.resource import is_service_known  # noqa: PLC0415  # loads the SDK

        self._resource_tagger.attach(spans.tracer_provider())  # here too: soon after the application has set it
        return is_service_known(self._resolved.resource_attributes)

    def load(self) -> None:
        """Import all that the sink takes."""
        with suppress(RuntimeError):  # after the end of the main thread, when detectors are not asked
            import concurrent.futures.thread  # noqa: F401, PLC0415  # detectors run on a pool

        from splunk_profiler.code_origin import classifier  # noqa: F401, PLC0415
        from splunk_profiler.export import resource  # noqa: F401, PLC0415  # loads the SDK

        destinations.load_sink_module(self._resolved)
        keep_handlers()
        # Each look-up of a host name takes it. Loaded by `encode`, it would be unknown for ever after a failure.
        import encodings.idna  # noqa: F401, PLC0415

    def detect_resource(self) -> None:
        """Detect and cache the resource now: detectors may use the network, and an exiting process cannot wait."""
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        current_resource(self._resolved.resource_attributes)

    def open(self) -> Any:
        """Return the sink."""
        from splunk_profiler.code_origin.classifier import CodeClassifier  # noqa: PLC0415

        if self._resolved.config.sends_profiles:
            self._classifier = CodeClassifier(parent=self._classifier)
        context = SinkContext(self._resolved, self._resource, self._classifier, not self._is_forked_child)
        return destinations.make_sink(context)

    def _resource(self) -> Any:
        from splunk_profiler.export.resource import current_resource  # noqa: PLC0415

        found = current_resource(self._resolved.resource_attributes)
        return self._enrich_resource(self._resource_tagger.resource(found))
