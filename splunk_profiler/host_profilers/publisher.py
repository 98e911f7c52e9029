"""What host profilers can read of this process: the order in which it becomes visible, and in which it goes.

`Publisher` owns the C extension while it is installed, the socket and the process storage. Threads publish by
themselves, in C, at every switch of context. Runs on whichever thread starts and stops it, and for the first span of
a provider on the application's: must be short there and must not raise. Libraries, threads and directories are left to
a thread of ours (`catch_up`); only a forked child makes its socket at once. Knows neither settings nor OpenTelemetry.

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
from splunk_profiler.host_profilers.span_identity import ATTRIBUTE, Identities
from splunk_profiler.otel.providers import Providers
from splunk_profiler.system.guard import Guard, logger
from splunk_profiler.system.threads import real_lock

_WAIT_S = 1.0  # for another thread that is making the process visible
_MOST_SOCKETS = 4  # in the place of ones that the application has closed


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
class Source:
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

    def meet(self, processors: Any, /) -> None:
        """A provider's set of span processors has been found."""

    def listen(self, descriptor: int, on_lost: Callable[[], None], is_open: Callable[[], bool], /) -> None:
        """There is a socket. `on_lost` is to be called when somebody else has closed it; OSError or RuntimeError."""

    def stop(self, timeout_s: float, /) -> None:
        """The socket is about to be closed."""

    def after_fork(self) -> None:
        """In a forked child: there is no socket any more, and no thread."""


class Publisher:
    """One process's publishing; goes on in a forked child.

    Args:
        extension: ``splunk_profiler._context``.
        wishes: what is published.
        source: where it is found.
        listener: is told of the socket.
        notify: called when there is something for `catch_up`; must be short.
    """

    def __init__(
        self, extension: Any, wishes: PublishConfig, source: Source, listener: Listener, notify: Callable[[], None]
    ) -> None:
        self._extension = extension
        self._wishes = wishes
        self._source = source
        self._listener = listener
        self._notify = notify
        self._lock = real_lock()
        self._guard = Guard("publishing to host profilers")
        self._identities = Identities(extension.Identity, extension.local_root_before)
        self._providers = Providers(extension.inherit)
        self._inbox: MessageSocket | None = None
        self._service: Service | None = None
        self._visible = False  # Elastic's library is loaded and leads to a storage
        self._correlates = wishes.correlation
        self._reopened = 0
        self._told: set[str] = set()
        self._named = False  # by a provider: those that come later are not this service's
        # What `catch_up` has to do. A child that is forked in the middle of something finds it there still.
        self._to_describe: deque[Mapping[str, object]] = deque()  # attributes of resources
        self._to_serve = False  # nobody listens to the socket yet
        self._to_load = wishes.labels

    def install(self) -> None:
        """Install the hooks. Comes before `start`, with the decoration of OpenTelemetry's context in between.

        Raises:
            OSError: the hooks cannot be installed; nothing is left of them.
        """
        source = self._source
        problems = self._extension.install(
            source.variable, source.span_key, source.labels, ATTRIBUTE, self._identify, source.context_type
        )
        for hook, problem in problems:
            self._say_once(f"not every change of context can be shown to host profilers: {hook}: {problem}")

    def start(self, provider: Any, attributes: Mapping[str, object] | None) -> None:
        """Publish from now on: every switch of context is seen by now. Readers find it after `catch_up`.

        Args:
            provider: the tracer provider, if there is one already.
            attributes: of the resource, if it is known already which service this is.
        """
        processors = getattr(provider, "_active_span_processor", None)
        if processors is not None and self._providers.meet(processors):
            self._listener.meet(processors)
        if attributes is not None:
            self._named = processors is not None and service_of(attributes) is not None
            self._to_describe.append(attributes)
        self._extension.publish()
        self._extension.audit()  # threads that showed something before a stop, and have not switched since

    def hang_up(self, timeout_s: float) -> None:
        """Listen no more. Comes before `stop`, while every switch is still seen: it may take its time.

        Args:
            timeout_s: seconds that exporters are waited for, to be given what they have not been given yet.
        """
        held = self._lock.acquire(timeout=_WAIT_S)
        self._correlates = False
        if held:
            self._lock.release()
        self._listener.stop(timeout_s)

    def stop(self) -> None:
        """Publish nothing any more, and leave nothing that a reader could follow."""
        held = self._lock.acquire(timeout=_WAIT_S)
        try:
            self._correlates = self._to_load = False
            self._providers.leave()
            self._extension.withdraw_storage()
            self._extension.uninstall()
            self._close_socket()
        finally:
            if held:
                self._lock.release()

    def catch_up(self) -> None:
        """Load what readers look for, make the process visible once its service is known, and listen to its socket.

        For a thread of ours: takes long in a large directory or beside busy threads. Never raises.
        """
        with self._guard.watching():
            with self._lock:
                if self._to_load:
                    self._load_labels()
                    self._to_load = False
                while self._to_describe:
                    try:
                        if self._correlates:
                            self._describe(self._to_describe[0])
                    finally:
                        self._to_describe.popleft()
                inbox = self._inbox if self._to_serve and self._correlates else None
                if inbox is not None:
                    self._serve(anew=not inbox.is_open)
            if inbox is not None:
                inbox.clear_directory()

    def audit(self) -> None:
        """Compare what each thread shows with what it should; what differs is repaired. Hooks go into new modules."""
        inbox = self._inbox
        if inbox is not None and not inbox.is_open:
            self._reopen()
        self._extension.refresh()
        _, repaired = self._extension.audit()
        if repaired and "repaired" not in self._told:
            self._told.add("repaired")
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
        self._reopened = 0
        self._close_socket()  # the parent's
        service, self._service = self._service, None
        if service is None or not self._show(service):
            self._extension.withdraw_storage()  # it leads to the parent

    def _identify(self, span: Any) -> Any | None:
        """Called by the extension for a span that has no identity yet, on the thread that made it current."""
        with self._guard.watching():
            self._meet(span)
        return self._identities.of(span)

    def _meet(self, span: Any) -> None:
        processors = getattr(span, "_span_processor", None)
        if processors is not None and self._providers.meet(processors):
            self._listener.meet(processors)
            if not self._named:
                attributes = getattr(getattr(span, "resource", None), "attributes", {})
                self._named = service_of(attributes) is not None
                self._to_describe.append(attributes)
                self._notify()

    def _describe(self, attributes: Mapping[str, object]) -> None:
        """Make the process visible as the service of these attributes, if it is not yet. The lock is held."""
        service = service_of(attributes)
        if service is not None:
            self._listener.describe(attributes)
            self._show(service)
        elif self._service is None:
            self._say_once(
                "host profilers are not told of this process, because its service has no name: set OTEL_SERVICE_NAME"
            )

    def _show(self, service: Service) -> bool:
        """The order of publication; see the head of this file."""
        if service == self._service or not self._correlates:
            return self._correlates
        try:
            if self._inbox is None:
                self._inbox, self._to_serve = MessageSocket(self._wishes.socket_directory), True
            if not self._correlates:  # a stop has not waited for this any longer
                self._close_socket()
                return False
            storage = encode(service, self._inbox.address)
            if self._visible:
                self._extension.replace_storage(storage)
            else:
                path = elastic_library()
                library = self._extension.load_elastic(str(path), storage)
                self._visible = True
                self._check_reach(path, library.tls, "which span each thread is in")
        except (MessageSocketError, OSError, RuntimeError) as error:
            self._correlates = False
            if not self._visible:
                self._close_socket()  # it would have no reader
            setting = f"{self._wishes.socket_setting}: " if isinstance(error, MessageSocketError) else ""
            self._say_once(f"host profilers are not told of this process: {setting}{error}")
            return False
        self._service = service
        return True

    def _reopen(self, reopened: int | None = None) -> None:
        """Called when the application has closed the socket, as daemons close all that is open.

        Args:
            reopened: how often it had been made anew when the listener lost it; None: it is looked at.
        """
        if self._lock.acquire(timeout=_WAIT_S):
            try:
                inbox = self._inbox
                lost = inbox is not None and not inbox.is_open if reopened is None else reopened == self._reopened
                if lost:  # else it has been done already
                    self._serve(anew=True)
            finally:
                self._lock.release()

    def _serve(self, *, anew: bool) -> None:
        """Have the listener take what comes to the socket, or to one in its place. The lock is held."""
        inbox = self._inbox
        if inbox is None or not self._correlates:
            return
        try:
            if anew:
                if self._reopened >= _MOST_SOCKETS:
                    raise MessageSocketError("it does so again and again")
                self._reopened += 1
                inbox.renew()
            if not self._correlates:  # a stop has not waited for this any longer
                inbox.close()
                return
            reopened = self._reopened
            self._listener.listen(inbox.fileno(), lambda: self._reopen(reopened), lambda: inbox.is_open)
            self._to_serve = False
            if anew:
                logger.debug("the socket for host profilers had been closed and has been made anew")
        except (MessageSocketError, OSError, RuntimeError) as error:
            if self._reopened < _MOST_SOCKETS and not inbox.is_open:
                return  # closed again meanwhile: the next audit sees it
            self._correlates = False
            self._extension.withdraw_storage()  # it leads nowhere
            inbox.close()
            reason = f"the application has closed its socket, and {error}" if anew else error
            self._say_once(f"host profilers cannot send to this process any more: {reason}")

    def _close_socket(self) -> None:
        inbox, self._inbox, self._to_serve = self._inbox, None, False
        if inbox is not None:
            inbox.close()

    def _load_labels(self) -> None:
        path = labels_library()
        try:
            library = self._extension.load_labels(str(path))
        except OSError as error:
            self._say_once(f"labels are not shown to host profilers: {error}")
            return
        self._check_reach(path, library.tls, "the labels of the threads")

    def _check_reach(self, path: Any, tls: str, what: str) -> None:
        if tls == "dynamic":
            self._say_once(
                f"host profilers cannot read {what}: the dynamic loader has put the thread-local pointer of"
                f" {path.name} where they do not look; {remedy(path)}"
            )

    def _say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)
