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
from splunk_profiler.export.datadog.multipart import LIBRARY, Form, ProfileForms, library_version
from splunk_profiler.export.sink_context import SinkContext
from splunk_profiler.export.tls import TlsStream, client_context
from splunk_profiler.model import Batch, ExportResult, ExportStatus, Profile
from splunk_profiler.system.threads import real, real_lock

PATH = "/profiling/v1/input"
TIMEOUT_S = 10.0  # the agent hands a profile on before it answers
_CONNECT_S = 2.0
_SHORTEST_S = 0.05
_MOST_ANSWER_BYTES = 4096
_SHOWN = 200  # characters of an answer in the log
_RETRIED = {401, 403, 408, 425, 429}  # the first two for a while: an agent's key may be corrected

Answer = tuple[int, str, float | None]  # status, text, the pause in seconds that it wishes for


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
        self._busy = False
        self._interrupted = False
        self._closed = False
        self._socket: socket.socket | None = None
        self._until_s: float | None = None

    def export(self, batch: Batch[Profile]) -> ExportResult:
        """See `Sink.export`. A batch of profiles is one profile; more would be sent again where one is not taken."""
        with self._lock:
            self._busy = True
        outcome = ExportResult(ExportStatus.DELIVERED)
        try:
            for profile in batch.records:
                outcome = self._send(self._form(profile))
                if outcome.delivery is not ExportStatus.DELIVERED:
                    break
        except Exception as error:
            text = f"the profile cannot be encoded or sent: {type(error).__name__}: {error}"
            return ExportResult(ExportStatus.REJECTED, text)
        finally:
            with self._lock:
                self._busy = self._interrupted = False
        return outcome

    def hurry(self, timeout_s: float) -> None:
        """See `Sink.hurry`."""
        self._until_s = time.monotonic() + timeout_s

    def interrupt(self) -> None:
        """See `Sink.interrupt`."""
        with self._lock:
            self._interrupted = self._busy
            self._end_exchange()

    def shutdown(self) -> None:
        """See `Sink.shutdown`."""
        with self._lock:
            self._closed = True
            self._end_exchange()

    def _end_exchange(self) -> None:
        """Wake the exporting thread from what it waits for; called with the lock held: the socket is still open."""
        if self._socket is not None:
            with suppress(OSError):  # it is about to connect, which takes `_CONNECT_S` at most, or is done with it
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, form: Form) -> ExportResult:
        until = time.monotonic() + self._timeout_s
        if self._until_s is not None:
            until = min(until, max(self._until_s, time.monotonic() + _SHORTEST_S))
        try:
            answer = self._exchange(form, until)
        except (OSError, HTTPException, ValueError) as error:
            self._addresses = []  # the agent may have moved
            if self._unwanted():
                return ExportResult(
                    ExportStatus.RETRY, f"{self._agent.url} had not answered when the export had to be ended"
                )
            return ExportResult(ExportStatus.RETRY, self._explain(error))
        return _outcome(self._agent, *answer)

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
        why = getattr(error, "strerror", None) or error
        return f"no Datadog agent can be reached at {url} ({why}); start one there or correct SPLUNK_PROFILER_OUTPUT"

    def _exchange(self, form: Form, until: float) -> Answer:
        opened = self._connected(until)
        try:
            stream = self._stream(opened, until)
            with suppress(BrokenPipeError, ConnectionResetError):  # who refuses early may have said why
                _send_all(stream, _head(self._agent, form) + form.body, until)
            with HTTPResponse(cast(socket.socket, _Reading(stream, until)), method="POST") as response:
                response.begin()
                text = b""
                # The status has said all that matters: to send again what is taken would count it twice.
                with suppress(OSError, HTTPException, ValueError):
                    text = response.read(_MOST_ANSWER_BYTES)
                said = text.decode("utf-8", "replace")
                return response.status, said, _seconds(response.getheader("Retry-After"))
        finally:
            self._close(opened)

    def _connected(self, until: float) -> socket.socket:
        if self._agent.path:
            self._addresses = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", self._agent.path)]
        elif not self._addresses:
            look_up = real("socket", "getaddrinfo")
            self._addresses = look_up(self._agent.host, self._agent.port, type=socket.SOCK_STREAM)
        failure = OSError("it has no address")
        for address in self._addresses:
            try:
                return self._connected_to(address, until)
            except OSError as error:  # another may do: "localhost" has two, of which one often leads nowhere
                failure = error
                if self._unwanted():
                    break
        raise failure

    def _connected_to(self, address: Any, until: float) -> socket.socket:
        family, kind, protocol, _, place = address
        opened: socket.socket = real("socket", "socket")(family, kind, protocol)
        with self._lock:
            self._socket = opened
        try:
            self._go_on()  # asked with the socket known: who ends us from now on will find it
            opened.settimeout(min(_left(until), _CONNECT_S))
            opened.connect(place)
            self._go_on()  # what was asked just before it was connecting could not end it
        except BaseException:
            self._close(opened)
            raise
        return opened

    def _stream(self, opened: socket.socket, until: float) -> socket.socket | TlsStream:
        if not self._agent.secure:
            return opened
        if self._tls is None:
            self._tls = client_context()
        return TlsStream(opened, self._tls, self._agent.host, _left(until))

    def _close(self, opened: socket.socket) -> None:
        with self._lock:
            self._socket = None
        opened.close()

    def _go_on(self) -> None:
        if self._unwanted():
            raise ConnectionAbortedError

    def _unwanted(self) -> bool:
        return self._interrupted or self._closed


def open_sink(opening: SinkContext) -> DatadogSink:
    """The sink for an `Agent`."""
    place = opening.resolved.destination
    assert isinstance(place, Agent)
    forms = ProfileForms(opening.resource, opening.provenance, opening.resolved.tags)
    return DatadogSink(place, forms.form)


class _Reading(io.RawIOBase):
    """What a socket receives until a deadline, in the form in which `HTTPResponse` asks for it."""

    def __init__(self, stream: socket.socket | TlsStream, until: float) -> None:
        super().__init__()
        self._stream, self._until = stream, until

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As a socket's."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What is there next."""
        self._stream.settimeout(_left(self._until))
        return self._stream.recv_into(buffer)


def _send_all(stream: socket.socket | TlsStream, content: bytes, until: float) -> None:
    rest = memoryview(content)
    while rest:
        stream.settimeout(_left(until))
        rest = rest[stream.send(rest) :]


def _left(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _head(agent: Agent, form: Form) -> bytes:
    host = f"[{agent.host}]" if ":" in agent.host else agent.host
    fields = (
        ("Host", f"{host}:{agent.port}" if agent.port else host),
        ("User-Agent", f"{LIBRARY}/{library_version()}"),
        ("Connection", "close"),
        *form.headers,
        ("Content-Length", str(len(form.body))),
    )
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() and len(text) < 10 else None


def _outcome(agent: Agent, status: int, text: str, pause_s: float | None) -> ExportResult:
    """What an answer of the agent means for the profile."""
    if 200 <= status < 300:
        return ExportResult(ExportStatus.DELIVERED)
    said = " ".join(text.split())[:_SHOWN]
    detail = f"the Datadog agent at {agent.url} answered {status}" + (f" ({said})" if said else "")
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
    if status in _RETRIED or status >= 500:
        return ExportResult(ExportStatus.RETRY, detail, None if pause_s is None else int(pause_s * 1e9))
    return ExportResult(ExportStatus.REJECTED, detail)
