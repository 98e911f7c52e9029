"""Posts profiles to a Datadog agent over HTTP: on TCP, with TLS if that is asked for, or on a Unix socket.

`export` runs on the exporting thread, `interrupt` and `shutdown` on any. Each profile, one a minute, has a connection
of its own. The socket is ours, not `http.client`'s: it has to be real where gevent has replaced sockets, to be ended
from another thread in whatever it waits for, and to have one deadline for all of an exchange. Only the look-up of the
agent's name takes as long as the system's resolver does. Proxies do not count: an agent is on the machine, or next to
it.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, cast

from splunk_profiler.config.parsers import Agent
from splunk_profiler.export.datadog.multipart import LIBRARY_NAME, Form, ProfileFormEncoder, library_version
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.export.tls import TlsStream, client_context
from splunk_profiler.model import Batch, ExportResult, ExportStatus, Profile
from splunk_profiler.system.threads import real, real_lock

INPUT_PATH = "/profiling/v1/input"
TIMEOUT_S = 10.0  # the agent hands a profile on before it answers
_CONNECT_TIMEOUT_S = 2.0
_MIN_TIMEOUT_S = 0.05
_MAX_RESPONSE_BYTES = 4096
_MAX_SHOWN_CHARS = 200  # characters of an answer in the log
_RETRIED_STATUSES = {401, 403, 408, 425, 429}  # the first two for a while: an agent's key may be corrected

AgentResponse = tuple[int, str, float | None]  # status, text, the pause in seconds that it wishes for


class DatadogSink:
    """A Datadog agent that takes profiles.

    Args:
        agent: where it is.
        form: a profile → what to send.
        timeout_s: how long an exchange may take in all, in seconds.
    """

    def __init__(self, agent: Agent, form: Callable[[Profile], Form], timeout_s: float = TIMEOUT_S) -> None:
        self._agent = agent
        self._form = form
        self._timeout_s = timeout_s
        self._addresses: list[Any] = []
        self._tls: ssl.SSLContext | None = None
        self._lock = real_lock()  # guards what follows
        self._is_exporting = False
        self._is_interrupted = False
        self._is_closed = False
        self._socket: socket.socket | None = None
        self._shutdown_deadline_s: float | None = None

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """See `Sink.export`. A batch of profiles is one profile; more would be sent again where one is not taken."""
        with self._lock:
            self._is_exporting = True
        result = ExportResult(ExportStatus.DELIVERED)
        try:
            for profile in batch.records:
                result = self._send(self._form(profile))
                if result.export_status is not ExportStatus.DELIVERED:
                    break
        except Exception as error:
            text = f"the profile cannot be encoded or sent: {type(error).__name__}: {error}"
            return ExportResult(ExportStatus.REJECTED, text)
        finally:
            with self._lock:
                self._is_exporting = self._is_interrupted = False
        return result

    def set_shutdown_deadline(self, timeout_s: float) -> None:
        """See `Sink.set_shutdown_deadline`."""
        self._shutdown_deadline_s = time.monotonic() + timeout_s

    def interrupt(self) -> None:
        """See `Sink.interrupt`."""
        with self._lock:
            self._is_interrupted = self._is_exporting
            self._shut_down_socket()

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        with self._lock:
            self._is_closed = True
            self._shut_down_socket()

    def _shut_down_socket(self) -> None:
        """Wake the exporting thread from what it waits for; called with the lock held: the socket is still open."""
        if self._socket is not None:
            with suppress(
                OSError
            ):  # it is about to connect, which takes `_CONNECT_TIMEOUT_S` at most, or is done with it
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, form: Form) -> ExportResult:
        deadline_s = time.monotonic() + self._timeout_s
        if self._shutdown_deadline_s is not None:
            deadline_s = min(deadline_s, max(self._shutdown_deadline_s, time.monotonic() + _MIN_TIMEOUT_S))
        try:
            answer = self._exchange(form, deadline_s)
        except (OSError, HTTPException, ValueError) as error:
            self._addresses = []  # the agent may have moved
            if self._is_cancelled():
                return ExportResult(
                    ExportStatus.RETRY, f"{self._agent.url} had not answered when the export had to be ended"
                )
            return ExportResult(ExportStatus.RETRY, self._explain(error))
        return _classify_response(self._agent, *answer)

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

    def _exchange(self, form: Form, deadline_s: float) -> AgentResponse:
        sock = self._connect(deadline_s)
        try:
            stream = self._stream(sock, deadline_s)
            with suppress(BrokenPipeError, ConnectionResetError):  # who refuses early may have said why
                _send_all(stream, _format_head(self._agent, form) + form.body, deadline_s)
            with HTTPResponse(cast(socket.socket, _DeadlineReader(stream, deadline_s)), method="POST") as response:
                response.begin()
                text = b""
                # The status has said all that matters: to send again what is taken would count it twice.
                with suppress(OSError, HTTPException, ValueError):
                    text = response.read(_MAX_RESPONSE_BYTES)
                response_text = text.decode("utf-8", "replace")
                return response.status, response_text, _parse_retry_after(response.getheader("Retry-After"))
        finally:
            self._close(sock)

    def _connect(self, deadline_s: float) -> socket.socket:
        if self._agent.path:
            self._addresses = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self._agent.path)]
        elif not self._addresses:
            getaddrinfo = real("socket", "getaddrinfo")
            self._addresses = getaddrinfo(self._agent.host, self._agent.port, type=socket.SOCK_STREAM)
        last_error = OSError("it has no address")
        for address in self._addresses:
            try:
                return self._connect_to(address, deadline_s)
            except OSError as error:  # another may do: "localhost" has two, of which one often leads nowhere
                last_error = error
                if self._is_cancelled():
                    break
        raise last_error

    def _connect_to(self, address: Any, deadline_s: float) -> socket.socket:
        family, kind, protocol, _, destination = address
        sock: socket.socket = real("socket", "socket")(family, kind, protocol)
        with self._lock:
            self._socket = sock
        try:
            self._raise_if_cancelled()  # asked with the socket known: who ends us from now on will find it
            sock.settimeout(min(_seconds_left(deadline_s), _CONNECT_TIMEOUT_S))
            sock.connect(destination)
            self._raise_if_cancelled()  # what was asked just before it was connecting could not end it
        except BaseException:
            self._close(sock)
            raise
        return sock

    def _stream(self, sock: socket.socket, deadline_s: float) -> socket.socket | TlsStream:
        if not self._agent.is_secure:
            return sock
        if self._tls is None:
            self._tls = client_context()
        return TlsStream(sock, self._tls, self._agent.host, _seconds_left(deadline_s))

    def _close(self, sock: socket.socket) -> None:
        with self._lock:
            self._socket = None
        sock.close()

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled():
            raise ConnectionAbortedError

    def _is_cancelled(self) -> bool:
        return self._is_interrupted or self._is_closed


def open_sink(context: SinkContext) -> DatadogSink:
    """The sink for an `Agent`."""
    destination = context.resolved.destination
    assert isinstance(destination, Agent)
    forms = ProfileFormEncoder(context.resource, context.classifier, context.resolved.tags)
    return DatadogSink(destination, forms.form)


class _DeadlineReader(io.RawIOBase):
    """What a socket receives until a deadline, in the form in which `HTTPResponse` asks for it."""

    def __init__(self, stream: socket.socket | TlsStream, deadline_s: float) -> None:
        super().__init__()
        self._stream, self._deadline_s = stream, deadline_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As a socket's."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What is there next."""
        self._stream.settimeout(_seconds_left(self._deadline_s))
        return self._stream.recv_into(buffer)


def _send_all(stream: socket.socket | TlsStream, content: bytes, deadline_s: float) -> None:
    remaining = memoryview(content)
    while remaining:
        stream.settimeout(_seconds_left(deadline_s))
        remaining = remaining[stream.send(remaining) :]


def _seconds_left(deadline_s: float) -> float:
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _format_head(agent: Agent, form: Form) -> bytes:
    host = f"[{agent.host}]" if ":" in agent.host else agent.host
    fields = (
        ("Host", f"{host}:{agent.port}" if agent.port else host),
        ("User-Agent", f"{LIBRARY_NAME}/{library_version()}"),
        ("Connection", "close"),
        *form.headers,
        ("Content-Length", str(len(form.body))),
    )
    lines = [f"POST {INPUT_PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parse_retry_after(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() and len(text) < 10 else None


def _classify_response(agent: Agent, status: int, text: str, retry_after_s: float | None) -> ExportResult:
    """What an answer of the agent means for the profile."""
    if 200 <= status < 300:
        return ExportResult(ExportStatus.DELIVERED)
    response_text = " ".join(text.split())[:_MAX_SHOWN_CHARS]
    detail = f"the Datadog agent at {agent.url} answered {status}" + (f" ({response_text})" if response_text else "")
    if status == 413:
        remedy = "raise the limit there or of a proxy in between; SPLUNK_PROFILER_MAX_STACK_DEPTH bounds single stacks"
        return ExportResult(
            ExportStatus.TOO_LARGE, f"{detail}: also a small part of the profile is too large; {remedy}"
        )
    if status in (404, 405):
        detail += "; it takes no profiles: it is older than 7.20, or SPLUNK_PROFILER_OUTPUT names something else"
    elif 300 <= status < 400:
        detail += "; profiles do not follow where it leads to, which SPLUNK_PROFILER_OUTPUT may name instead"
    elif status in (401, 403):
        detail += "; look at the key that the agent is configured with"
    if status in _RETRIED_STATUSES or status >= 500:
        return ExportResult(ExportStatus.RETRY, detail, None if retry_after_s is None else int(retry_after_s * 1e9))
    return ExportResult(ExportStatus.REJECTED, detail)
