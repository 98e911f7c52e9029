"""Publishing to host profilers: the C extension, OpenTelemetry's context and the user's labels in one object.

`profiler` makes, starts and stops it. Must not load the SDK or gRPC: publishing works without sampling, in processes
that have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from splunk_profiler.config import Resolved, preload
from splunk_profiler.config.temporary import temporary_directory
from splunk_profiler.host_profilers.context_hooks import patch_runtime_context
from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.host_profilers.libraries import labels_library
from splunk_profiler.host_profilers.process_storage import service_of
from splunk_profiler.host_profilers.publisher import ContextSource, ProcessPublisher, PublishConfig
from splunk_profiler.host_profilers.span_identity import IDENTITY_ATTRIBUTE
from splunk_profiler.otel import spans
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import WakeEvent, Worker
from splunk_profiler.user_labels.labels import LABEL_PUBLISHER, PUBLISHED_LABELS

_AUDIT_S = 1.0
_JOIN_S = 0.1


class Publishing:
    """One run of publishing, from start to stop; a forked child continues it.

    Attributes:
        is_audited_by_sampling: True if sampling calls `audit`, once a second; else our thread does, and stays.
            Set before the start.
        publisher, correlator: no fork may interrupt what they do.
    """

    def __init__(self, resolved: Resolved, extension: Any, source: ContextSource) -> None:
        config = resolved.config
        publish_config = PublishConfig(
            config.publishes_correlation, config.publishes_labels, config.socket_directory or temporary_directory()
        )
        self._extension = extension
        self._wake = WakeEvent()
        self.correlator = Correlator(
            config.correlation.lower() == "true", config.correlation_buffer_size, extension.SocketReader
        )
        self.publisher = ProcessPublisher(extension, publish_config, source, self.correlator, self._wake.set)
        self._publishes_labels = config.publishes_labels
        self._removes_preload = config.preload.lower() == "auto"
        self._configured_attributes = resolved.resource_attributes
        self._context_patch: MethodPatch | None = None
        self._guard = Guard("comparing what is published to host profilers")
        self.is_audited_by_sampling = False
        self._thread: Worker | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Publish from now on.

        Raises:
            OSError, RuntimeError: it is not possible; everything is undone.
        """
        extension = self._extension
        try:
            provider = spans.tracer_provider()
            self.publisher.install()
            self._context_patch = patch_runtime_context(spans.runtime_context(), extension)
            self.publisher.start(provider, self._service_attributes(provider))
            if self._publishes_labels:
                LABEL_PUBLISHER.open(extension.UserLabels, extension.set_labels)
                if self._removes_preload:
                    preload.remove_library(str(labels_library()))
            self._start_thread()
        except BaseException:
            self.stop()
            self.remove_patch()
            raise

    def stop(self, timeout_s: float = 0.0) -> None:
        """Stop, after the spans that wait for host profilers are exported or `timeout_s` seconds are over.

        `remove_patch` is to follow.
        """
        self.publisher.stop_listening(timeout_s)
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self.publisher.stop()
        LABEL_PUBLISHER.close()

    def remove_patch(self) -> None:
        """Restore OpenTelemetry's runtime context, after `stop`: unseen switches would leave wrong spans.

        Comes after later patches are removed, which would put this one back.
        """
        if self._context_patch is not None:
            self._context_patch.remove()

    @staticmethod
    def local_root_of(span: Any) -> int | None:
        """Return the id of the local root of `span` if it is published."""
        root = getattr(getattr(span, IDENTITY_ATTRIBUTE, None), "local_root_id", None)
        return root if isinstance(root, int) else None

    def audit(self) -> None:
        """Compare what each thread shows with its context, and repair differences. Never raises.

        Where sampling calls this, a thread of ours begins what has become due since the last one has ended. The thread
        that makes it due is the application's, and might wait for many turns of busy threads until the new one runs.
        """
        with self._guard.catching():
            self.publisher.audit()
        with self._guard.catching():
            is_due = self.publisher.has_pending_work and not self._is_stopping
            if is_due and (self._thread is None or self._thread.join(0)):
                self._start_thread()

    def reset_after_fork(self) -> None:
        """Continue in a forked child. Raises what `start` raises; everything is undone."""
        self._thread, self._wake = None, WakeEvent()  # the thread is the parent's
        try:
            self.correlator.reset_after_fork()
            self.publisher.reset_after_fork()
            self._start_thread()
        except BaseException:
            self.stop()
            self.remove_patch()
            raise

    def run_pending_work(self) -> None:
        """Load libraries, make the process visible and listen to its socket, as far as due. Never raises."""
        self.publisher.run_pending_work()

    def _start_thread(self) -> None:
        body = self.run_pending_work if self.is_audited_by_sampling else self._audit_regularly
        self._thread = Worker("auditor", body)  # before its start, for `stop`: a signal handler may raise there
        self._thread.start()

    def _audit_regularly(self) -> None:
        while not self._is_stopping:
            self.run_pending_work()
            self.audit()
            self._wake.wait(_AUDIT_S)

    def _service_attributes(self, provider: Any) -> Mapping[str, object] | None:
        """Return the resource's attributes once a provider or the environment names the service."""
        attributes = getattr(getattr(provider, "resource", None), "attributes", None)
        if isinstance(attributes, Mapping):
            return attributes
        return self._configured_attributes if service_of(self._configured_attributes) is not None else None


def make_publishing(resolved: Resolved) -> Publishing | None:
    """Return publishing as `resolved` configures it; None if it is switched off or not possible (logged)."""
    config = resolved.config
    if not config.publishes_correlation and not config.publishes_labels:
        return None
    is_requested = "true" in (config.correlation.lower(), config.custom_labels.lower())
    try:
        from splunk_profiler import _context  # noqa: PLC0415  # missing on some systems
    except ImportError as error:
        log = logger.warning if is_requested else logger.debug
        log("nothing is published to host profilers: the C extension for it is not there (%s)", error)
        return None
    variable = spans.context_variable()
    if variable is None:
        logger.warning(
            "nothing is published to host profilers: the current context is not kept in a ContextVar"
            " (OTEL_PYTHON_CONTEXT)"
        )
        return None
    source = ContextSource(variable, spans.SPAN_KEY, PUBLISHED_LABELS, spans.CONTEXT_TYPE)
    return Publishing(resolved, _context, source)
