"""What host profilers can read of this process: the order in which it becomes visible, and in which it goes.

`Publisher` owns the C extension while it is installed, the socket and the process storage. Threads publish by
themselves, in C, at every switch of context. Runs on whichever thread starts and stops it, and for the first span of
a provider on the application's: must be short there and must not raise. Libraries, threads and directories are left to
a thread of ours (`run_pending_work`); only a forked child makes its socket at once. Knows neither settings nor
OpenTelemetry.

Readers look once, when they see a library appear. So all that it leads to is there before: socket, storage, library,
pointer, in this order. Specification: Elastic universal profiling integration; docs/abi.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from splunk_profiler.host_profilers.libraries import elastic_library, labels_library, remedy
from splunk_profiler.host_profilers.message_socket import MessageSocket, MessageSocketError
from splunk_profiler.host_profilers.process_storage import Service, encode, service_of
from splunk_profiler.host_profilers.span_identity import IDENTITY_ATTRIBUTE, IdentityFactory
from splunk_profiler.otel.providers import SpanStartInstaller
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import real_lock

_LOCK_TIMEOUT_S = 1.0  # for another thread that is making the process visible
_MAX_SOCKETS = 4  # in the place of ones that the application has closed


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """What is to be published.

    Attributes:
        correlation: Elastic's ABI.
        labels: the Custom Labels ABI.
        socket_directory: where the socket is made.
        socket_setting: the setting of that, for messages.
    """

    correlation: bool
    labels: bool
    socket_directory: str
    socket_setting: str


@dataclass(frozen=True, slots=True)
class ContextSource:
    """Where the current context is.

    Attributes:
        variable: OpenTelemetry's; holds a context.
        span_key: under which a context holds its span.
        labels: holds the user's labels.
        context_type: what is found in an instance of exactly this type is there for good.
    """

    variable: ContextVar[Any]
    span_key: str
    labels: ContextVar[Any]
    context_type: type


class Listener(Protocol):
    """Whoever is interested in what host profilers send."""

    def describe(self, attributes: Mapping[str, object], /) -> None:
        """The attributes of the service's resource."""

    def attach(self, processors: Any, /) -> None:
        """A provider's set of span processors has been found."""

    def listen(self, descriptor: int, on_closed: Callable[[], None], is_open: Callable[[], bool], /) -> None:
        """There is a socket. `on_closed` is to be called when somebody else has closed it; OSError or RuntimeError."""

    def stop(self, timeout_s: float, /) -> None:
        """The socket is about to be closed."""

    def after_fork(self) -> None:
        """In a forked child: there is no socket any more, and no thread."""


class Publisher:
    """One process's publishing; goes on in a forked child.

    Args:
        extension: ``splunk_profiler._context``.
        config: what is published.
        source: where it is found.
        listener: is told of the socket.
        notify: called when there is something for `run_pending_work`; must be short.
    """

    def __init__(
        self,
        extension: Any,
        config: PublishConfig,
        source: ContextSource,
        listener: Listener,
        notify: Callable[[], None],
    ) -> None:
        self._extension = extension
        self._config = config
        self._source = source
        self._listener = listener
        self._notify = notify
        self._lock = real_lock()
        self._guard = Guard("publishing to host profilers")
        self._identity_factory = IdentityFactory(extension.Identity, extension.previous_local_root)
        self._providers = SpanStartInstaller(extension.assign_identity)
        self._message_socket: MessageSocket | None = None
        self._service: Service | None = None
        self._is_visible = False  # Elastic's library is loaded and leads to a storage
        self._correlates = config.correlation
        self._reopen_count = 0
        self._logged_messages: set[str] = set()
        self._has_service_name = False  # by a provider: those that come later are not this service's
        # What `run_pending_work` has to do. A child that is forked in the middle of something finds it there still.
        self._pending_attributes: deque[Mapping[str, object]] = deque()  # attributes of resources
        self._needs_listener = False  # nobody listens to the socket yet
        self._needs_labels_library = config.labels

    def install(self) -> None:
        """Install the hooks. Comes before `start`, with the decoration of OpenTelemetry's context in between.

        Raises:
            OSError: the hooks cannot be installed; nothing is left of them.
        """
        source = self._source
        problems = self._extension.install(
            source.variable, source.span_key, source.labels, IDENTITY_ATTRIBUTE, self._identify, source.context_type
        )
        for hook, problem in problems:
            self._warn_once(f"not every change of context can be shown to host profilers: {hook}: {problem}")

    def start(self, provider: Any, attributes: Mapping[str, object] | None) -> None:
        """Publish from now on: every switch of context is seen by now. Readers find it after `run_pending_work`.

        Args:
            provider: the tracer provider, if there is one already.
            attributes: of the resource, if it is known already which service this is.
        """
        processors = getattr(provider, "_active_span_processor", None)
        if processors is not None and self._providers.attach(processors):
            self._listener.attach(processors)
        if attributes is not None:
            self._has_service_name = processors is not None and service_of(attributes) is not None
            self._pending_attributes.append(attributes)
        self._extension.publish()
        self._extension.audit()  # threads that showed something before a stop, and have not switched since

    def stop_listening(self, timeout_s: float) -> None:
        """Listen no more. Comes before `stop`, while every switch is still seen: it may take its time.

        Args:
            timeout_s: seconds that exporters are waited for, to be given what they have not been given yet.
        """
        has_lock = self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        self._correlates = False
        if has_lock:
            self._lock.release()
        self._listener.stop(timeout_s)

    def stop(self) -> None:
        """Publish nothing any more, and leave nothing that a reader could follow."""
        has_lock = self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            self._correlates = self._needs_labels_library = False
            self._providers.detach()
            self._extension.clear_storage()
            self._extension.uninstall()
            self._close_socket()
        finally:
            if has_lock:
                self._lock.release()

    def run_pending_work(self) -> None:
        """Load what readers look for, make the process visible once its service is known, and listen to its socket.

        For a thread of ours: takes long in a large directory or beside busy threads. Never raises.
        """
        with self._guard.catching():
            with self._lock:
                if self._needs_labels_library:
                    self._load_labels_library()
                    self._needs_labels_library = False
                while self._pending_attributes:
                    try:
                        if self._correlates:
                            self._publish_attributes(self._pending_attributes[0])
                    finally:
                        self._pending_attributes.popleft()
                message_socket = self._message_socket if self._needs_listener and self._correlates else None
                if message_socket is not None:
                    self._start_listening(must_reopen=not message_socket.is_open)
            if message_socket is not None:
                message_socket.remove_stale_sockets()

    def audit(self) -> None:
        """Compare what each thread shows with what it should; what differs is repaired. Hooks go into new modules."""
        message_socket = self._message_socket
        if message_socket is not None and not message_socket.is_open:
            self._reopen()
        self._extension.refresh()
        _, repaired = self._extension.audit()
        if repaired and "repaired" not in self._logged_messages:
            self._logged_messages.add("repaired")
            logger.debug("what a thread showed to host profilers was not its context and has been repaired")

    def hold(self, timeout_s: float) -> bool:
        """Let nobody be half-way through making the process visible while it forks. True if `release` is due."""
        return self._lock.acquire(timeout=timeout_s)

    def release(self) -> None:
        """Go on after `hold`, in the parent."""
        self._lock.release()

    def after_fork(self) -> None:
        """Go on in a forked child, with a socket and a storage of its own.

        Readers look at the child as at a new process, perhaps at once: so the storage that it has inherited is
        replaced in one step, and never absent.
        """
        self._lock = real_lock()
        self._extension.reset_after_fork()
        self._listener.after_fork()
        self._reopen_count = 0
        self._close_socket()  # the parent's
        service, self._service = self._service, None
        if service is None or not self._publish_service(service):
            self._extension.clear_storage()  # it leads to the parent

    def _identify(self, span: Any) -> Any | None:
        """Called by the extension for a span that has no identity yet, on the thread that made it current."""
        with self._guard.catching():
            self._discover_provider(span)
        return self._identity_factory.of(span)

    def _discover_provider(self, span: Any) -> None:
        processors = getattr(span, "_span_processor", None)
        if processors is not None and self._providers.attach(processors):
            self._listener.attach(processors)
            if not self._has_service_name:
                attributes = getattr(getattr(span, "resource", None), "attributes", {})
                self._has_service_name = service_of(attributes) is not None
                self._pending_attributes.append(attributes)
                self._notify()

    def _publish_attributes(self, attributes: Mapping[str, object]) -> None:
        """Make the process visible as the service of these attributes, if it is not yet. The lock is held."""
        service = service_of(attributes)
        if service is not None:
            self._listener.describe(attributes)
            self._publish_service(service)
        elif self._service is None:
            self._warn_once(
                "host profilers are not told of this process, because its service has no name: set OTEL_SERVICE_NAME"
            )

    def _publish_service(self, service: Service) -> bool:
        """The order of publication; see the head of this file."""
        if service == self._service or not self._correlates:
            return self._correlates
        try:
            if self._message_socket is None:
                self._message_socket, self._needs_listener = MessageSocket(self._config.socket_directory), True
            if not self._correlates:  # a stop has not waited for this any longer
                self._close_socket()
                return False
            storage = encode(service, self._message_socket.address)
            if self._is_visible:
                self._extension.replace_storage(storage)
            else:
                path = elastic_library()
                library = self._extension.load_elastic_library(str(path), storage)
                self._is_visible = True
                self._warn_if_unreadable(path, library.tls, "which span each thread is in")
        except (MessageSocketError, OSError, RuntimeError) as error:
            self._correlates = False
            if not self._is_visible:
                self._close_socket()  # it would have no reader
            setting = f"{self._config.socket_setting}: " if isinstance(error, MessageSocketError) else ""
            self._warn_once(f"host profilers are not told of this process: {setting}{error}")
            return False
        self._service = service
        return True

    def _reopen(self, reopen_count: int | None = None) -> None:
        """Called when the application has closed the socket, as daemons close all that is open.

        Args:
            reopen_count: how often it had been made anew when the listener lost it; None: it is looked at.
        """
        if self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            try:
                message_socket = self._message_socket
                is_lost = (
                    message_socket is not None and not message_socket.is_open
                    if reopen_count is None
                    else reopen_count == self._reopen_count
                )
                if is_lost:  # else it has been done already
                    self._start_listening(must_reopen=True)
            finally:
                self._lock.release()

    def _start_listening(self, *, must_reopen: bool) -> None:
        """Have the listener take what comes to the socket, or to one in its place. The lock is held."""
        message_socket = self._message_socket
        if message_socket is None or not self._correlates:
            return
        try:
            if must_reopen:
                if self._reopen_count >= _MAX_SOCKETS:
                    raise MessageSocketError("it does so again and again")
                self._reopen_count += 1
                message_socket.reopen()
            if not self._correlates:  # a stop has not waited for this any longer
                message_socket.close()
                return
            reopen_count = self._reopen_count
            self._listener.listen(
                message_socket.fileno(), lambda: self._reopen(reopen_count), lambda: message_socket.is_open
            )
            self._needs_listener = False
            if must_reopen:
                logger.debug("the socket for host profilers had been closed and has been made anew")
        except (MessageSocketError, OSError, RuntimeError) as error:
            if self._reopen_count < _MAX_SOCKETS and not message_socket.is_open:
                return  # closed again meanwhile: the next audit sees it
            self._correlates = False
            self._extension.clear_storage()  # it leads nowhere
            message_socket.close()
            reason = f"the application has closed its socket, and {error}" if must_reopen else error
            self._warn_once(f"host profilers cannot send to this process any more: {reason}")

    def _close_socket(self) -> None:
        message_socket, self._message_socket, self._needs_listener = self._message_socket, None, False
        if message_socket is not None:
            message_socket.close()

    def _load_labels_library(self) -> None:
        path = labels_library()
        try:
            library = self._extension.load_labels_library(str(path))
        except OSError as error:
            self._warn_once(f"labels are not shown to host profilers: {error}")
            return
        self._warn_if_unreadable(path, library.tls, "the labels of the threads")

    def _warn_if_unreadable(self, path: Any, tls: str, what: str) -> None:
        if tls == "dynamic":
            self._warn_once(
                f"host profilers cannot read {what}: the dynamic loader has put the thread-local pointer of"
                f" {path.name} where they do not look; {remedy(path)}"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._logged_messages:
            self._logged_messages.add(text)
            logger.warning("%s", text)
