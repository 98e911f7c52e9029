"""Composes what publishing to host profilers consists of: the C extension, OpenTelemetry's context, the user's labels.

`Publishing` is one life of it, and goes on in a forked child. Built, started and stopped by `profiler`.
Must not load the SDK or gRPC: publishing works without sampling, in processes that have neither.
"""

from __future__ import annotations

import time
from _thread import get_ident
from collections.abc import Callable, Mapping
from tempfile import gettempdir
from typing import Any

from splunk_profiler import config as settings
from splunk_profiler.host_profilers.context_hooks import patch_runtime_context
from splunk_profiler.host_profilers.correlator import CorrelationConfig, Correlator
from splunk_profiler.host_profilers.libraries import labels_library
from splunk_profiler.host_profilers.process_storage import service_of
from splunk_profiler.host_profilers.publisher import ContextSource, PublishConfig, Publisher
from splunk_profiler.host_profilers.span_identity import IDENTITY_ATTRIBUTE
from splunk_profiler.otel import spans
from splunk_profiler.system import preload
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import WakeEvent, Worker
from splunk_profiler.user_labels.labels import LABEL_PUBLISHER, PUBLISHED_LABELS

_AUDIT_S = 1.0
_IDLE_S = 3600.0
_JOIN_S = 0.1


class Publishing:
    """One life of publishing.

    Args:
        resolved: the settings.
        extension: ``splunk_profiler._context``.
        source: where the current context and labels are.
        is_audited_by_sampling: whether somebody calls `audit` at every sample; else our thread does, once a second.
    """

    def __init__(
        self, resolved: settings.Resolved, extension: Any, source: ContextSource, *, is_audited_by_sampling: bool
    ) -> None:
        config = resolved.config
        publish_config = PublishConfig(
            config.publishes_correlation,
            config.publishes_labels,
            config.socket_directory or _temporary_directory(),
            "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR",
        )
        correlation_config = CorrelationConfig(
            at_once=config.correlation.lower() == "true", buffer_size=config.correlation_buffer_size
        )
        self._extension = extension
        self._correlator = Correlator(correlation_config, extension.SocketReader, MethodPatch)
        self._publisher = Publisher(extension, publish_config, source, self._correlator, self._notify)
        self._publishes_labels = config.publishes_labels
        self._removes_preload = config.preload.lower() == "auto"
        self._configured_attributes = resolved.resource_attributes
        self._context_patch: MethodPatch | None = None
        self._guard = Guard("comparing what is published to host profilers")
        self._is_audited_by_sampling = is_audited_by_sampling
        self._periodic_worker: PeriodicWorker | None = None
        self._forking_ident = 0  # ident of the thread for which the publisher is held while it forks

    def start(self) -> None:
        """Publish from now on.

        Raises:
            OSError, RuntimeError: it is not possible; nothing is left of it.
        """
        extension = self._extension
        try:
            provider = spans.tracer_provider()
            self._publisher.install()
            self._context_patch = patch_runtime_context(
                spans.runtime_context(), extension.attach, extension.detach, extension.publish
            )
            self._publisher.start(provider, self._service_attributes(provider))
            if self._publishes_labels:
                LABEL_PUBLISHER.open(extension.UserLabels, extension.set_labels)
                if self._removes_preload:
                    preload.remove_library(str(labels_library()))
            self._start_periodic_worker()
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 0.0) -> None:
        """Publish nothing any more, after what waits for host profilers has been exported or `timeout_s` is over."""
        self._publisher.stop_listening(timeout_s)
        if self._periodic_worker is not None:
            self._periodic_worker.stop(_JOIN_S)
        self._publisher.stop()  # first: what is still shown while switches are no longer seen would be wrong
        LABEL_PUBLISHER.close()
        if self._context_patch is not None:
            self._context_patch.remove()

    def resource(self, resource: Any) -> Any:
        """See `Correlator.resource`."""
        return self._correlator.resource(resource)

    def local_root_of(self, span: Any) -> int | None:
        """The id of the local root of `span`, if it is published."""
        root = getattr(getattr(span, IDENTITY_ATTRIBUTE, None), "local_root_id", None)
        return root if isinstance(root, int) else None

    def audit(self) -> None:
        """See `Publisher.audit`. Never raises."""
        with self._guard.catching():
            self._publisher.audit()

    def hold(self, timeout_s: float) -> None:
        """Before a fork; see `Publisher.hold` and `Correlator.hold`. Two threads may fork at once."""
        deadline_s = time.monotonic() + timeout_s
        if self._publisher.hold(timeout_s):
            self._forking_ident = get_ident()
        self._correlator.hold(max(deadline_s - time.monotonic(), 0.0))

    def release(self) -> None:
        """See `Publisher.release` and `Correlator.release`."""
        self._correlator.release()
        if self._forking_ident == get_ident():
            self._forking_ident = 0
            self._publisher.release()

    def after_fork(self) -> None:
        """See `Publisher.after_fork`. Raises as `start` does; nothing is left of it then."""
        self._forking_ident = 0
        self._periodic_worker = None  # the parent's
        try:
            self._publisher.after_fork()
            self._start_periodic_worker()
        except BaseException:
            self.stop()
            raise

    def run_pending_work(self) -> None:
        """See `Publisher.run_pending_work`."""
        self._publisher.run_pending_work()

    def _start_periodic_worker(self) -> None:
        self._periodic_worker = PeriodicWorker(self._work, _IDLE_S if self._is_audited_by_sampling else _AUDIT_S)
        self._periodic_worker.start()  # assigned before: a signal handler may raise here, and `stop` has to find it

    def _work(self) -> None:
        self.run_pending_work()
        if not self._is_audited_by_sampling:
            self.audit()

    def _notify(self) -> None:
        if self._periodic_worker is not None:
            self._periodic_worker.wake()

    def _service_attributes(self, provider: Any) -> Mapping[str, object] | None:
        """The resource's, once it is known which service this is: there is a provider, or the environment says."""
        attributes = getattr(getattr(provider, "resource", None), "attributes", None)
        if isinstance(attributes, Mapping):
            return attributes
        return self._configured_attributes if service_of(self._configured_attributes) is not None else None


class PeriodicWorker:
    """Does what publishing leaves to a thread of ours: at its start, when woken, and every period.

    Args:
        work: never raises.
        period_s: seconds.
    """

    def __init__(self, work: Callable[[], None], period_s: float) -> None:
        self._work = work
        self._period_s = period_s
        self._is_stopping = False
        self._wake = WakeEvent()
        self._thread = Worker("auditor", self._run)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the process can make no more threads.
        """
        self._thread.start()

    def wake(self) -> None:
        """There is something to do. Safe from any thread; returns at once."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """True if it has ended within `timeout_s` seconds."""
        self._is_stopping = True
        self._wake.set()
        return self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping:
            self._work()
            self._wake.wait(self._period_s)


def _temporary_directory() -> str:
    """The system's, found out here: a child that is forked while another thread does so could never ask for it."""
    try:
        return gettempdir()
    except OSError:
        return "/tmp"  # noqa: S108  # what is said of the socket there is right: it cannot be made


def make_publishing(resolved: settings.Resolved, *, is_audited_by_sampling: bool) -> Publishing | None:
    """What publishes as `resolved` says; None where it says nothing of the kind or where it cannot be done.

    Args:
        resolved: the settings.
        is_audited_by_sampling: see `Publishing`.
    """
    config = resolved.config
    if not config.publishes_correlation and not config.publishes_labels:
        return None
    is_requested = "true" in (config.correlation.lower(), config.custom_labels.lower())
    try:
        from splunk_profiler import _context  # noqa: PLC0415  # not there on every system
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
    source = ContextSource(variable, spans.span_key(), PUBLISHED_LABELS, spans.context_type())
    return Publishing(resolved, _context, source, is_audited_by_sampling=is_audited_by_sampling)
