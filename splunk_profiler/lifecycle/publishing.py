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
from splunk_profiler.host_profilers.context_hooks import publish_switches
from splunk_profiler.host_profilers.correlator import Correlator, Feedback
from splunk_profiler.host_profilers.libraries import labels_library
from splunk_profiler.host_profilers.process_storage import service_of
from splunk_profiler.host_profilers.publisher import PublishConfig, Publisher, Source
from splunk_profiler.host_profilers.span_identity import ATTRIBUTE
from splunk_profiler.otel import spans
from splunk_profiler.system import preload
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.method_patch import MethodPatch
from splunk_profiler.system.threads import Signal, Worker
from splunk_profiler.user_labels.labels import LABEL_PUBLISHER, PUBLISHED

_AUDIT_S = 1.0
_IDLE_S = 3600.0
_JOIN_S = 0.1


class Publishing:
    """One life of publishing.

    Args:
        resolved: the settings.
        extension: ``splunk_profiler._context``.
        source: where the current context and labels are.
        audited: whether somebody calls `audit` at every sample; else our thread does, once a second.
    """

    def __init__(self, resolved: settings.Resolved, extension: Any, source: Source, *, audited: bool) -> None:
        config = resolved.config
        wishes = PublishConfig(
            config.publishes_correlation,
            config.publishes_labels,
            config.socket_directory or _temporary_directory(),
            "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR",
        )
        feedback = Feedback(at_once=config.correlation.lower() == "true", buffer_size=config.correlation_buffer_size)
        self._extension = extension
        self._correlator = Correlator(feedback, extension.Mailbox, MethodPatch)
        self._publisher = Publisher(extension, wishes, source, self._correlator, self._notify)
        self._publishes_labels = config.publishes_labels
        self._ends_preload = config.preload.lower() == "auto"
        self._described = resolved.described
        self._decoration: MethodPatch | None = None
        self._guard = Guard("comparing what is published to host profilers")
        self._audited = audited
        self._auditor: Auditor | None = None
        self._forking = 0  # ident of the thread for which the publisher is held while it forks

    def start(self) -> None:
        """Publish from now on.

        Raises:
            OSError, RuntimeError: it is not possible; nothing is left of it.
        """
        extension = self._extension
        try:
            provider = spans.tracer_provider()
            self._publisher.install()
            self._decoration = publish_switches(
                spans.runtime_context(), extension.attach, extension.detach, extension.publish
            )
            self._publisher.start(provider, self._attributes(provider))
            if self._publishes_labels:
                LABEL_PUBLISHER.open(extension.UserLabels, extension.set_labels)
                if self._ends_preload:
                    preload.remove_library(str(labels_library()))
            self._begin_work()
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 0.0) -> None:
        """Publish nothing any more, after what waits for host profilers has been exported or `timeout_s` is over."""
        self._publisher.hang_up(timeout_s)
        if self._auditor is not None:
            self._auditor.stop(_JOIN_S)
        self._publisher.stop()  # first: what is still shown while switches are no longer seen would be wrong
        LABEL_PUBLISHER.close()
        if self._decoration is not None:
            self._decoration.remove()

    def resource(self, resource: Any) -> Any:
        """See `Correlator.resource`."""
        return self._correlator.resource(resource)

    def local_root(self, span: Any) -> int | None:
        """The id of the local root of `span`, if it is published."""
        root = getattr(getattr(span, ATTRIBUTE, None), "local_root_id", None)
        return root if isinstance(root, int) else None

    def audit(self) -> None:
        """See `Publisher.audit`. Never raises."""
        with self._guard.watching():
            self._publisher.audit()

    def hold(self, timeout_s: float) -> None:
        """Before a fork; see `Publisher.hold` and `Correlator.hold`. Two threads may fork at once."""
        until = time.monotonic() + timeout_s
        if self._publisher.hold(timeout_s):
            self._forking = get_ident()
        self._correlator.hold(max(until - time.monotonic(), 0.0))

    def release(self) -> None:
        """See `Publisher.release` and `Correlator.release`."""
        self._correlator.release()
        if self._forking == get_ident():
            self._forking = 0
            self._publisher.release()

    def after_fork(self) -> None:
        """See `Publisher.after_fork`. Raises as `start` does; nothing is left of it then."""
        self._forking = 0
        self._auditor = None  # the parent's
        try:
            self._publisher.after_fork()
            self._begin_work()
        except BaseException:
            self.stop()
            raise

    def catch_up(self) -> None:
        """See `Publisher.catch_up`."""
        self._publisher.catch_up()

    def _begin_work(self) -> None:
        self._auditor = Auditor(self._work, _IDLE_S if self._audited else _AUDIT_S)
        self._auditor.start()  # known before it runs: a signal handler may raise here, and `stop` has to find it

    def _work(self) -> None:
        self.catch_up()
        if not self._audited:
            self.audit()

    def _notify(self) -> None:
        if self._auditor is not None:
            self._auditor.wake()

    def _attributes(self, provider: Any) -> Mapping[str, object] | None:
        """The resource's, once it is known which service this is: there is a provider, or the environment says."""
        attributes = getattr(getattr(provider, "resource", None), "attributes", None)
        if isinstance(attributes, Mapping):
            return attributes
        return self._described if service_of(self._described) is not None else None


class Auditor:
    """Does what publishing leaves to a thread of ours: at its start, when woken, and every period.

    Args:
        work: never raises.
        period_s: seconds.
    """

    def __init__(self, work: Callable[[], None], period_s: float) -> None:
        self._work = work
        self._period_s = period_s
        self._stopping = False
        self._wake = Signal()
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
        self._stopping = True
        self._wake.set()
        return self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            self._work()
            self._wake.wait(self._period_s)


def _temporary_directory() -> str:
    """The system's, found out here: a child that is forked while another thread does so could never ask for it."""
    try:
        return gettempdir()
    except OSError:
        return "/tmp"  # noqa: S108  # what is said of the socket there is right: it cannot be made


def make_publishing(resolved: settings.Resolved, *, audited: bool) -> Publishing | None:
    """What publishes as `resolved` says; None where it says nothing of the kind or where it cannot be done.

    Args:
        resolved: the settings.
        audited: see `Publishing`.
    """
    config = resolved.config
    if not config.publishes_correlation and not config.publishes_labels:
        return None
    asked_for = "true" in (config.correlation.lower(), config.custom_labels.lower())
    try:
        from splunk_profiler import _context  # noqa: PLC0415  # not there on every system
    except ImportError as error:
        log = logger.warning if asked_for else logger.debug
        log("nothing is published to host profilers: the C extension for it is not there (%s)", error)
        return None
    variable = spans.context_variable()
    if variable is None:
        logger.warning(
            "nothing is published to host profilers: the current context is not kept in a ContextVar"
            " (OTEL_PYTHON_CONTEXT)"
        )
        return None
    source = Source(variable, spans.span_key(), PUBLISHED, spans.context_type())
    return Publishing(resolved, _context, source, audited=audited)
