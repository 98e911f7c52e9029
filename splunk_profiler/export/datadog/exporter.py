"""A sink that posts profiles to a Datadog agent over HTTP: TCP, TLS or a Unix socket.

`export` runs on the exporting thread, `interrupt` and `shutdown` on any. Each profile, one a minute,
has its own connection. `http.client` speaks HTTP over a socket that is opened here: a real one where
gevent has replaced sockets, with one deadline for the exchange, which other threads can shut down.
Only the look-up of the agent's name has no limit but the resolver's. Proxies are ignored: an agent is local.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTP_PORT, HTTPConnection, HTTPException
from typing import Any, cast

from splunk_profiler.config.parsers import DatadogAgent
from splunk_profiler.export.datadog.multipart import LIBRARY_NAME, Form, ProfileFormEncoder
from splunk_profiler.export.deadline_stream import DeadlineStream, TlsStream, client_context, remaining_s
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.samples import Batch, ExportResult, ExportStatus, Profile
from splunk_profiler.system import clocks
from splunk_profiler.system.threads import OwnedLock, real
from splunk_profiler.version import __version__

TIMEOUT_S = 10.0  # the agent hands a profile on before it answers
_CONNECT_TIMEOUT_S = 2.0
_MIN_TIMEOUT_S = 0.05
_MAX_RESPONSE_BYTES = 4096
_MAX_SHOWN_CHARS = 200  # of a response, in the log
_RETRIED_STATUSES = {401, 403, 408, 425, 429}  # 401 and 403: the agent's key may be corrected


class DatadogSink:
    """A Datadog agent that takes profiles; `timeout_s` limits one exchange."""

    def __init__(self, agent: DatadogAgent, form: Callable[[Profile], Form], timeout_s: float = TIMEOUT_S) -> None:
        self._agent = agent
        self._form = form
        self._timeout_s = timeout_s
        self._addresses: list[Any] = []
        self._tls: ssl.SSLContext | None = None
        self._lock = OwnedLock()  # guards what follows
        self._is_exporting = False
        self._is_interrupted = False
        self._is_closed = False
        self._socket: socket.socket | None = None
        self._shutdown_deadline_s: float | None = None

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """Send `batch` of one profile; of several, a retry would repeat those delivered."""
        with self._lock:
            self._is_exporting = True
        result = ExportResult(ExportStatus.DELIVERED)
        try:
            for profile in batch.records:
                result = self._send(self._form(profile))
                if result.export_status is not ExportStatus.DELIVERED:
                    break
        finally:
            with self._lock:
                self._is_exporting = self._is_interrupted = False
        return result

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """Limit exports to the next `timeout_s` seconds."""
        self._shutdown_deadline_s = clocks.monotonic() + timeout_s

    def interrupt(self) -> None:
        """End an export in flight."""
        with self._lock:
            self._is_interrupted = self._is_exporting
            self._shut_down_socket()

    def shutdown(self) -> None:
        """End an export in flight and refuse later ones."""
        with self._lock:
            self._is_closed = True
            self._shut_down_socket()

    def _shut_down_socket(self) -> None:
        """Wake the exporting thread; the caller holds the lock, so the socket is open."""
        if self._socket is not None:
            with suppress(OSError):  # not connected yet: `connect` takes at most `_CONNECT_TIMEOUT_S`
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, form: Form) -> ExportResult:
        deadline_s = clocks.monotonic() + self._timeout_s
        if self._shutdown_deadline_s is not None:
            deadline_s = min(deadline_s, max(self._shutdown_deadline_s, clocks.monotonic() + _MIN_TIMEOUT_S))
        try:
            return self._exchange(form, deadline_s)
        except (OSError, HTTPException, ValueError) as error:
            self._addresses = []  # the agent may have moved
            ended = f"{self._agent.url} had not answered when the export had to be ended"
            return ExportResult(ExportStatus.RETRY, ended if self._is_cancelled() else self._explain(error))

    def _explain(self, error: Exception) -> str:
        url = self._agent.url
        if isinstance(error, TimeoutError):
            return f"the Datadog agent at {url} has not answered in time"
        if isinstance(error, HTTPException) and not isinstance(error, OSError):
            return f"what listens at {url} does not speak HTTP; correct SPLUNK_PROFILER_OUTPUT"
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "SSL_CERT_FILE can name the file of its authority"
            return f"the certificate of the Datadog agent at {url} is not trusted ({error.verify_message}); {remedy}"
        if isinstance(error, ssl.SSLError):
            return f"what listens at {url} does not speak TLS as it should ({error.reason or error})"
        reason = getattr(error, "strerror", None) or error
        return f"no Datadog agent can be reached at {url} ({reason}); start one there or correct SPLUNK_PROFILER_OUTPUT"

    def _exchange(self, form: Form, deadline_s: float) -> ExportResult:
        sock = self._connect(deadline_s)
        try:
            connection = HTTPConnection(self._agent.host, self._agent.port or HTTP_PORT)
            connection.set_debuglevel(0)  # where the application has set it for all, the profile would be printed
            connection.sock = cast(socket.socket, self._stream(sock, deadline_s))
            headers = {"User-Agent": f"{LIBRARY_NAME}/{__version__}", "Connection": "close", **dict(form.headers)}
            with suppress(BrokenPipeError, ConnectionResetError):  # the agent may refuse early and say why
                connection.request("POST", DatadogAgent.INPUT_PATH, form.body, headers)
            with connection.getresponse() as response:
                text = ""
                # The status decides alone: a retry of a profile that was accepted would count it twice.
                with suppress(OSError, HTTPException, ValueError):
                    text = response.read(_MAX_RESPONSE_BYTES).decode("utf-8", "replace")
                return _classify_response(self._agent, response.status, text, response.getheader("Retry-After"))
        finally:
            self._close(sock)

    def _connect(self, deadline_s: float) -> socket.socket:
        if self._agent.path:
            self._addresses = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self._agent.path)]
        elif not self._addresses:
            getaddrinfo = real("socket", "getaddrinfo")
            self._addresses = getaddrinfo(self._agent.host, self._agent.port, type=socket.SOCK_STREAM)
        for address in self._addresses:
            try:
                return self._connect_to(address, deadline_s)
            except OSError:  # "localhost" has two addresses, of which one often fails
                if address is self._addresses[-1] or self._is_cancelled():
                    raise
        raise OSError("it has no address")

    def _connect_to(self, address: Any, deadline_s: float) -> socket.socket:
        family, kind, protocol, _, destination = address
        sock: socket.socket = real("socket", "socket")(family, kind, protocol)
        with self._lock:
            self._socket = sock
        try:
            if self._is_cancelled():  # from now on, `_shut_down_socket` finds the socket
                raise ConnectionAbortedError
            sock.settimeout(min(remaining_s(deadline_s), _CONNECT_TIMEOUT_S))
            if not self._agent.path:  # head and body are sent apart
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(destination)
            if self._is_cancelled():  # a shutdown just before `connect` had no effect
                raise ConnectionAbortedError
        except BaseException:
            self._close(sock)
            raise
        return sock

    def _stream(self, sock: socket.socket, deadline_s: float) -> DeadlineStream:
        if not self._agent.is_secure:
            return DeadlineStream(sock, deadline_s)
        if self._tls is None:
            self._tls = client_context()
        return TlsStream(sock, deadline_s, self._tls, self._agent.host)

    def _close(self, sock: socket.socket) -> None:
        with self._lock:
            self._socket = None
        sock.close()

    def _is_cancelled(self) -> bool:
        return self._is_interrupted or self._is_closed


def open_sink(context: SinkContext) -> DatadogSink:
    """Make the sink for a `DatadogAgent`."""
    destination = context.resolved.destination
    assert isinstance(destination, DatadogAgent)
    forms = ProfileFormEncoder(context.resource, context.classifier, context.resolved.tags)
    return DatadogSink(destination, forms.form)


def _classify_response(agent: DatadogAgent, status: int, text: str, retry_after: str | None) -> ExportResult:
    if 200 <= status < 300:
        return ExportResult(ExportStatus.DELIVERED)
    text = " ".join(text.split())[:_MAX_SHOWN_CHARS]
    detail = f"the Datadog agent at {agent.url} answered {status}" + (f" ({text})" if text else "")
    if status == 413:
        remedy = "raise the limit there or of a proxy in between; SPLUNK_PROFILER_MAX_STACK_DEPTH bounds single stacks"
        text = f"{detail}: also a small part of the profile is too large; {remedy}"
        return ExportResult(ExportStatus.TOO_LARGE, text)
    if status in (404, 405):
        detail += "; it takes no profiles: it is older than 7.20, or SPLUNK_PROFILER_OUTPUT names something else"
    elif 300 <= status < 400:
        detail += "; profiles do not follow where it leads to, which SPLUNK_PROFILER_OUTPUT may name instead"
    elif status in (401, 403):
        detail += "; look at the key that the agent is configured with"
    if status in _RETRIED_STATUSES or status >= 500:
        seconds = int(retry_after) if retry_after and retry_after.isdecimal() and len(retry_after) < 10 else None
        return ExportResult(ExportStatus.RETRY, detail, None if seconds is None else seconds * 1_000_000_000)
    return ExportResult(ExportStatus.REJECTED, detail)
