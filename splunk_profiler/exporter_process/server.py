"""The exporter's side of the connections: one thread that reads from all hosts and gives each its `Session`.

A process is a host once it has proved that it knows the token (`unproven_connection`). A command that has proved it
may ask for the status of a host, and its connection ends. Others get nothing. Only hosts keep the exporter alive.
Runs on the main thread of the exporter process. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Protocol

from splunk_profiler.exporter_process.transport import (
    MAX_CONNECTIONS,
    MAX_MESSAGE_BYTES,
    REFUSAL,
    SENT,
    frame,
)
from splunk_profiler.exporter_process.unproven_connection import UnprovenConnection
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import Guard

_READ_BYTES = 64 * 1024
_MAX_UNREAD_BYTES = 256 * 1024  # of messages to a host that does not read them
_TICK_S = 0.5
_POLL_S = 0.02  # while a session is ending
_MAX_UNPROVEN = 256
_MAX_ALONE_S = 10.0  # without a host


class Session(Protocol):
    """The pipeline of one host. Its methods should return soon: the other hosts wait meanwhile."""

    @property
    def is_done(self) -> bool:
        """True after `close` once everything is sent or given up."""

    @property
    def has_failed(self) -> bool:
        """True if an error at its end may have lost something."""

    @property
    def end_timeout_s(self) -> float:
        """Seconds that `close` may take."""

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the stream, which is cut anywhere. An exception ends the connection."""

    def tick(self) -> None:
        """Do what is due; called at least once a second until `is_done`."""

    def messages(self) -> list[bytes]:
        """Return the new messages to the host."""

    def status(self) -> bytes:
        """Return what a person should know of the host's records, at most `MAX_MESSAGE_BYTES`."""

    def log_lines(self) -> AbstractContextManager[None]:
        """Send the host the log lines of the calling thread meanwhile."""

    def close(self) -> None:
        """Begin to send everything, because the host ended or was killed; after `end_timeout_s` it is dropped."""


class _Connection:
    def __init__(self, unproven: UnprovenConnection, session: Session) -> None:
        self.socket = unproven.socket
        self.inode = os.fstat(unproven.socket.fileno()).st_ino
        self._session = session
        self._guard = Guard("a session of the exporter")
        self._status_guard = Guard("a session's status")
        self._unsent = bytearray()
        self._deadline_s = inf  # of a session that is ending

    @property
    def is_ending(self) -> bool:
        return self._deadline_s < inf

    @property
    def is_over(self) -> bool:
        return self.is_ending and (self._session.is_done or clocks.monotonic() >= self._deadline_s)

    def read(self) -> None:
        """Feed the session with what has come; begin its end at the end of the stream."""
        data = b""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the host was killed
            pass
        if not data or not self.call(lambda: self._session.feed(data)):
            self.end()

    def tick(self) -> None:
        if not self._session.is_done and not self.call(self._session.tick):
            self.end()
        self.write()

    def end(self) -> None:
        if not self.is_ending:
            self._deadline_s = clocks.monotonic() + self._session.end_timeout_s
            self.call(self._session.close)

    def finish(self) -> None:
        """Confirm that everything was sent, if so, and close the connection."""
        is_sent = self._session.is_done and not self._session.has_failed and not self._guard.failures
        self.write(last=[SENT] if is_sent else [])
        self.socket.close()

    def write(self, last: list[bytes] | None = None) -> None:
        """Write the session's messages; drop those that neither the socket nor the buffer takes."""
        messages: list[bytes] = []
        self.call(lambda: messages.extend(self._session.messages()))
        for message in messages + (last or []):
            if len(message) <= MAX_MESSAGE_BYTES and len(self._unsent) + len(message) <= _MAX_UNREAD_BYTES:
                self._unsent += frame(message)
        with suppress(OSError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]

    def status(self) -> bytes:
        """Return the session's status; empty after an error, after which the host's end is confirmed as ever."""
        with self._session.log_lines(), self._status_guard.catching():
            answer = self._session.status()
            if len(answer) <= MAX_MESSAGE_BYTES:
                return answer
        return b""

    def call(self, function: Callable[[], None]) -> bool:
        """Return False if it raised."""
        before = self._guard.failures.total()
        with self._session.log_lines(), self._guard.catching():
            function()
        return self._guard.failures.total() == before


class Server:
    """Serves hosts until the last one has ended, or if none comes."""

    def __init__(self, listener: socket.socket, make_session: Callable[[int], Session], token: str) -> None:
        """`make_session(pid)` makes the session of the process that connects; `token` is the secret of the tree."""
        self._listener = listener
        self._listener.setblocking(False)
        self._make_session = make_session
        self._token = token
        # Of the listener and unproven connections. Polled between any two hosts, since one may send much. A host that
        # gets no answer in time abandons the name.
        self._unproven_selector = selectors.EpollSelector()
        self._unproven_selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._unproven_selector, selectors.EVENT_READ, lambda: None)
        self._guard = Guard("the exporter's server")
        self._connections: list[_Connection] = []
        self._unproven: list[UnprovenConnection] = []  # oldest first
        self._had_connection = False
        self._alone_since_s = clocks.monotonic()

    def run(self) -> None:
        """Serve until the last connection is gone, or for 10 seconds without one."""
        next_tick_s = clocks.monotonic()
        try:
            while self._is_needed():
                is_ending = any(connection.is_ending for connection in self._connections)
                for key, _ in self._selector.select(_POLL_S if is_ending else _TICK_S):
                    self._poll_unproven()
                    key.data()
                is_due = clocks.monotonic() >= next_tick_s
                if is_due:
                    next_tick_s = clocks.monotonic() + _TICK_S
                if is_due or is_ending:
                    self._tick([one for one in self._connections if is_due or one.is_ending])
        finally:
            self._listener.close()

    def _is_needed(self) -> bool:
        if self._connections:
            return True
        may_come = bool(self._unproven) or not self._had_connection
        return may_come and clocks.monotonic() < self._alone_since_s + _MAX_ALONE_S

    def _poll_unproven(self) -> None:
        for key, _ in self._unproven_selector.select(0):
            key.data()

    def _accept(self) -> None:
        try:
            for _ in range(MAX_CONNECTIONS):
                self._add(self._listener.accept()[0])
        except BlockingIOError:
            pass
        except OSError:  # no descriptor is free: the next tick listens again
            self._unproven_selector.unregister(self._listener)

    def _add(self, accepted: socket.socket) -> None:
        with self._guard.catching():
            unproven = UnprovenConnection(accepted, self._token)
            accepted.setblocking(False)
            if unproven.is_user_allowed:
                if len(self._unproven) == _MAX_UNPROVEN:
                    self._close(self._unproven[0])
                self._unproven_selector.register(accepted, selectors.EVENT_READ, lambda: self._read_proof(unproven))
                self._unproven.append(unproven)
                self._read_proof(unproven)  # its challenge may be there
                return
        accepted.close()

    def _read_proof(self, unproven: UnprovenConnection) -> None:
        if unproven not in self._unproven:
            return  # another has just got its place
        stays = unproven.read()
        if stays and not unproven.is_admitted and unproven.asked_inode is None:
            return
        self._forget(unproven)
        with self._guard.catching():
            if unproven.is_admitted and len(self._connections) < MAX_CONNECTIONS:
                self._had_connection = True
                connection = _Connection(unproven, self._make_session(unproven.pid))
                self._selector.register(unproven.socket, selectors.EVENT_READ, lambda: self._serve(connection))
                self._connections.append(connection)
                return
            if stays:
                answer = REFUSAL if unproven.asked_inode is None else self._status_of(unproven.asked_inode)
                with suppress(OSError):  # it has gone
                    unproven.socket.send(frame(answer))  # whole: only the proof may be in the way
        unproven.socket.close()

    def _status_of(self, inode: int) -> bytes:
        """Return the status of the host with this connection; empty if there is none."""
        found = (one for one in self._connections if one.inode == inode and not one.is_ending)
        return next((one.status() for one in found), b"")

    def _close(self, unproven: UnprovenConnection) -> None:
        self._forget(unproven)
        unproven.socket.close()

    def _forget(self, unproven: UnprovenConnection) -> None:
        self._unproven_selector.unregister(unproven.socket)
        self._unproven.remove(unproven)

    def _serve(self, connection: _Connection) -> None:
        connection.read()
        connection.write()
        if connection.is_ending:  # its socket stays readable
            self._selector.unregister(connection.socket)

    def _tick(self, connections: Iterable[_Connection]) -> None:
        if self._listener not in self._unproven_selector.get_map():
            self._unproven_selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for unproven in [one for one in self._unproven if one.is_late]:
            self._close(unproven)
        for connection in connections:
            was_ending = connection.is_ending
            connection.tick()
            if connection.is_ending and not was_ending:
                self._selector.unregister(connection.socket)
            if connection.is_over:
                if len(self._connections) == 1:
                    self._accept()  # one may have come since: it is not the last then
                connection.finish()
                self._connections.remove(connection)
                self._alone_since_s = clocks.monotonic()
