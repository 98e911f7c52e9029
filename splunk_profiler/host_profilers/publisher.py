"""The order in which a process becomes visible to host profilers, and invisible again.

`ProcessPublisher` owns the installed C extension, the socket and the process storage. Threads publish in C,
at every switch of context. It runs on the threads that start and stop it. For the first span of a
provider it runs on the application's, where it must be short and must not raise. A thread of ours
does the work with libraries, threads and directories (`run_pending_work`). Only a forked child makes
its socket at once. Knows neither settings nor OpenTelemetry.

Readers look once, when a library appears. So its targets exist before: socket, correlator, storage, library,
pointer, in this order. Specification: Elastic universal profiling integration; docs/host-profilers/abi.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from splunk_profiler.host_profilers.correlator import Correlator
from splunk_profiler.host_profilers.libraries import elastic_library, labels_library, remedy
from splunk_profiler.host_profilers.message_socket import MessageSocket, MessageSocketError
from splunk_profiler.host_profilers.process_storage import Service, encode, service_of
from splunk_profiler.host_profilers.span_identity import IDENTITY_ATTRIBUTE, IdentityFactory
from splunk_profiler.otel.span_processors import SpanStartInstaller
from splunk_profiler.system.guard import Guard, OnceLog, logger
from splunk_profiler.system.threads import OwnedLock

_LOCK_TIMEOUT_S = 1.0  # while another thread makes the process visible
_SOCKET_SETTING = "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR"
_MAX_SOCKETS = 4  # made anew after the application has closed them


class PublishConfig(NamedTuple):
    """Settings of the publishing."""

    correlation: bool  # publish Elastic's ABI
    labels: bool  # publish the Custom Labels ABI
    socket_directory: str


class ContextSource(NamedTuple):
    """The places of the current context and labels. The content of exact `context_type`s, immutable, may be cached."""

    variable: ContextVar[Any]
    span_key: str
    labels: ContextVar[Any]
    context_type: type


class ProcessPublisher:
    """The publishing of one process; continues in a forked child. `notify` announces pending work; must be short."""

    def __init__(
        self,
        extension: Any,
        config: PublishConfig,
        source: ContextSource,
        correlator: Correlator,
        notify: Callable[[], None],
    ) -> None:
        self._extension = extension
        self._config = config
        self._source = source
        self._correlator = correlator
        self._notify = notify
        self._lock = OwnedLock()
        self._guard = Guard("publishing to host profilers")
        self._identity_factory = IdentityFactory(extension.Identity, extension.known_local_root)
        self._providers = SpanStartInstaller(extension.assign_identity)
        self._message_socket: MessageSocket | None = None
        self._service: Service | None = None
        self._is_visible = False  # Elastic's library is loaded and points to a storage
        self._correlates = config.correlation
        self._reopen_count = 0
        self._once_log = OnceLog()
        self._has_service_name = False  # from a provider; later providers are other services
        # Work for `run_pending_work`. It stays until it is done, also for a child forked midway.
        self._pending_attributes: deque[Mapping[str, object]] = deque()  # of resources
        self._needs_correlator = False
        self._needs_stop = False  # of the correlator, which could not listen
        self._needs_labels_library = config.labels

    def install(self) -> None:
        """Install the hooks, which do nothing yet. Comes before the patch of OpenTelemetry's context, then `start`.

        Raises:
            OSError: the hooks cannot be installed; nothing is left of them.
        """
        source = self._source
        problems = self._extension.install(
            source.variable, source.span_key, source.labels, IDENTITY_ATTRIBUTE, self._identify, source.context_type
        )
        for hook, problem in problems:
            self._once_log.log(f"not every change of context can be shown to host profilers: {hook}: {problem}")

    def start(self, provider: Any, attributes: Mapping[str, object] | None) -> None:
        """Publish from now on. Readers find the process after `run_pending_work`, once `attributes` are known."""
        processors = getattr(provider, "_active_span_processor", None)
        if processors is not None and self._providers.attach(processors):
            self._correlator.attach(processors)
        if attributes is not None:
            self._has_service_name = processors is not None and service_of(attributes) is not None
            self._pending_attributes.append(attributes)
        self._extension.begin()
        self._extension.audit()  # for threads that published before a stop and have not switched since

    def stop_listening(self, timeout_s: float) -> None:
        """Stop the correlator. Comes before `stop`, while switches are still published: it may take long."""
        self._lock.acquire(_LOCK_TIMEOUT_S)
        self._correlates = False
        self._lock.release()
        self._correlator.stop(timeout_s)

    def stop(self) -> None:
        """Publish nothing any more, and leave readers no pointer to follow."""
        self._lock.acquire(_LOCK_TIMEOUT_S)
        try:
            self._correlates = self._needs_labels_library = False
            self._providers.detach()
            self._extension.clear_storage()
            self._extension.uninstall()
            self._close_socket()
        finally:
            self._lock.release()

    @property
    def has_pending_work(self) -> bool:
        """True if `run_pending_work` has anything to do."""
        return bool(self._pending_attributes or self._needs_correlator or self._needs_labels_library)

    def run_pending_work(self) -> None:
        """Load the libraries, make the process visible once its service is known, and start the correlator.

        For a thread of ours: takes long in a large directory or beside busy threads. Never raises.
        """
        with self._guard.catching():
            with self._lock:
                known_socket = None if self._needs_correlator else self._message_socket
                if self._needs_correlator and self._message_socket is not None:  # a forked child's
                    self._start_listening(must_reopen=not self._message_socket.is_open)
            self._stop_after_failure()
            self._extension.wait_for_linker()  # some forked children wait for ever
            with self._lock:
                self._load_libraries()
                message_socket = self._message_socket if self._correlates else None
            self._stop_after_failure()
            if message_socket is not None and message_socket is not known_socket:
                message_socket.remove_stale_sockets()

    def audit(self) -> None:
        """Repair the records of threads that differ from their contexts. Look for new modules and a first message."""
        message_socket = self._message_socket
        if message_socket is not None and not message_socket.is_open:
            self._reopen()
        self._extension.refresh()
        compared, repaired = self._extension.audit()
        if repaired:
            text = f"{repaired} of {compared} threads showed host profilers another context than theirs; now repaired"
            self._once_log.log(text, logging.DEBUG)
        self._correlator.look()  # last: it may raise

    def hold_for_fork(self, timeout_s: float) -> None:
        """Keep other threads from making the process visible. Two threads may fork at once."""
        self._lock.acquire(timeout_s)

    def release_after_fork(self) -> None:
        """Let other threads continue, in the parent; does nothing on a thread without the hold."""
        self._lock.release()

    def reset_after_fork(self) -> None:
        """Continue in a forked child, with its own socket and storage, after the correlator's reset.

        Readers may look at the child at once. So its inherited storage is replaced in one step, and is never absent.
        """
        self._lock = OwnedLock()
        self._extension.reset_after_fork()
        self._reopen_count = 0
        self._close_socket()  # the parent's
        service, self._service = self._service, None
        if service is not None and self._publish_service(service):
            self._correlator.defer_at_once()  # the threads that forward are started by `run_pending_work`
        else:
            self._extension.clear_storage()  # it points to the parent's socket

    def _identify(self, span: Any) -> Any | None:
        """Return a span's first identity, for the extension, on the thread that made the span current.

        Raises only what is the application's; the extension passes that on.
        """
        with self._guard.catching():
            self._discover_provider(span)
        with self._guard.catching():
            return self._identity_factory.of(span)
        return None

    def _discover_provider(self, span: Any) -> None:
        processors = getattr(span, "_span_processor", None)
        if processors is not None and self._providers.attach(processors):
            self._correlator.attach(processors)
            if not self._has_service_name:
                attributes = getattr(getattr(span, "resource", None), "attributes", {})
                self._has_service_name = service_of(attributes) is not None
                self._pending_attributes.append(attributes)
                self._notify()

    def _publish_attributes(self, attributes: Mapping[str, object]) -> None:
        """Make the process visible as the service of these attributes. The lock is held."""
        service = service_of(attributes)
        if service is not None:
            self._correlator.set_service_attributes(attributes)
            self._publish_service(service, listens_first=True)
        elif self._service is None:
            self._once_log.log(
                "host profilers cannot find this process, because its service has no name: set OTEL_SERVICE_NAME"
            )

    def _publish_service(self, service: Service, *, listens_first: bool = False) -> bool:
        """Publish in the order that the module's docstring gives. Return True if the service is visible.

        With `listens_first`, start the correlator before: each transaction that begins while the process is visible is
        then known to it. Not in a fork, which does not wait for that.
        """
        if service == self._service or not self._correlates:
            return self._correlates
        try:
            if self._message_socket is None:
                self._message_socket, self._needs_correlator = MessageSocket(self._config.socket_directory), True
            if not self._correlates:  # a stop has timed out and did not wait for this
                self._close_socket()
                return False
            storage = encode(service, self._message_socket.address)
            if listens_first and self._needs_correlator:
                self._start_listening(must_reopen=not self._message_socket.is_open)
                if not self._correlates:
                    return False
            if self._is_visible:
                self._extension.replace_storage(storage)
            else:
                path = elastic_library()
                tls = self._extension.load_elastic_library(str(path), storage)
                self._is_visible = True
                self._warn_if_unreadable(path, tls, "which span each thread is in")
        except (MessageSocketError, OSError, RuntimeError) as error:
            self._correlates = False
            if not self._is_visible:
                self._correlator.stop(0)  # it has hardly begun
                self._close_socket()
            setting = f"{_SOCKET_SETTING}: " if isinstance(error, MessageSocketError) else ""
            self._once_log.log(f"host profilers cannot find this process: {setting}{error}")
            return False
        self._service = service
        return True

    def _reopen(self, reopen_count: int | None = None) -> None:
        """Make the socket anew after the application has closed it, as daemons do.

        `reopen_count` is that of the socket that the correlator lost; None to check the socket itself.
        """
        if self._lock.acquire(_LOCK_TIMEOUT_S):
            try:
                message_socket = self._message_socket
                is_lost = (
                    message_socket is not None and not message_socket.is_open
                    if reopen_count is None
                    else reopen_count == self._reopen_count
                )
                if is_lost:  # else another thread has made it anew
                    self._start_listening(must_reopen=True)
            finally:
                self._lock.release()
            self._stop_after_failure()

    def _stop_after_failure(self) -> None:
        """Stop the correlator after it could not listen. The lock is not held: exporters of the application may run."""
        if self._needs_stop:
            self._needs_stop = False
            self._correlator.stop(0)

    def _start_listening(self, *, must_reopen: bool) -> None:
        """Start the correlator on the socket, or on one in its place. The lock is held."""
        message_socket = self._message_socket
        if message_socket is None or not self._correlates:
            return
        try:
            if must_reopen:
                if self._reopen_count >= _MAX_SOCKETS:
                    raise MessageSocketError("it does so again and again")
                self._reopen_count += 1
                message_socket.reopen()
            if not self._correlates:  # a stop has timed out and did not wait for this
                message_socket.close()
                return
            reopen_count = self._reopen_count
            self._correlator.listen(
                message_socket.fileno(), lambda: self._reopen(reopen_count), lambda: message_socket.is_open
            )
            if not self._correlates:
                self._correlator.close()  # the stop may have come before the reader was known
            self._needs_correlator = False
            if must_reopen:
                logger.debug("the socket for host profilers had been closed and has been made anew")
        except (MessageSocketError, OSError, RuntimeError) as error:
            if self._reopen_count < _MAX_SOCKETS and not message_socket.is_open:
                return  # the application has closed it again: the next audit finds it
            self._correlates = self._needs_correlator = False
            self._extension.clear_storage()  # it points to no socket
            self._needs_stop = True
            message_socket.close()
            reason = f"the application has closed its socket, and {error}" if must_reopen else error
            self._once_log.log(f"host profilers cannot send to this process any more: {reason}")

    def _close_socket(self) -> None:
        message_socket, self._message_socket, self._needs_correlator = self._message_socket, None, False
        if message_socket is not None:
            message_socket.close()

    def _load_libraries(self) -> None:
        """Load the libraries that are due, and make the process visible. The lock is held."""
        if self._needs_labels_library:
            with self._guard.catching():
                self._load_labels_library()
            self._needs_labels_library = False
        while self._pending_attributes:
            try:
                if self._correlates:
                    self._publish_attributes(self._pending_attributes[0])
            finally:
                self._pending_attributes.popleft()

    def _load_labels_library(self) -> None:
        path = labels_library()
        try:
            tls = self._extension.load_labels_library(str(path))
        except OSError as error:
            self._once_log.log(f"labels are not shown to host profilers: {error}")
            return
        self._warn_if_unreadable(path, tls, "the labels of the threads")

    def _warn_if_unreadable(self, path: Any, tls: str, what: str) -> None:
        if tls == "dynamic":
            self._once_log.log(
                f"host profilers cannot read {what}: the dynamic loader has put the thread-local pointer of"
                f" {path.name} where they do not look; {remedy(path)}"
            )
