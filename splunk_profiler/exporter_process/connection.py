"""The host's side of the connection to the exporter process: a local stream socket that never blocks the host.

Runs on one thread of the profiler at a time. Needs the native walker, which makes and checks the socket.

The socket has an abstract name: a digest of the token of the tree of processes, and the user. All processes of the tree
with the same user find one exporter by it. A process that finds none binds the name and starts one; the kernel lets
only one succeed. Names are public, and free after an exporter's end. So an exporter gets only a challenge until it has
proved that it knows the token, unless this process has started it, or the parent that has forked it. The host's proof
comes before the stream.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from contextlib import suppress

from splunk_profiler._walker import OwnedSocket, close_inherited_sockets
from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
    LENGTH,
    MAX_MESSAGE_BYTES,
    REFUSAL,
    SENT,
    prove_exporter,
    prove_host,
    socket_name,
)
from splunk_profiler.system import clocks
from splunk_profiler.system.guard import logger
from splunk_profiler.system.threads import OwnedLock, real

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
_MAX_MESSAGES = 256
_PIECE_BYTES = 4096  # of what the exporter sends, as a rule some hundred bytes a second
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0
_LOG_INTERVAL_S = 60.0
_STARTS_ELSEWHERE = "another process is about to start it"  # its name is bound, but it does not listen yet
_RETRY_S = 0.01
# An exporter answers before it loads gRPC, but perhaps beside many busy processes. The second time it is twice as long:
# the exporter may have been stopped for a while, and one for the tree is the rule.
MAX_ANSWER_S = 30.0
# Of a program that is missing, forbidden or has too large an environment, and of a process that would be its parent.
_LASTING_ERRNOS = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    *(errno.ENOEXEC, errno.E2BIG, errno.ENOSYS, errno.ECHILD),
)


def _wait(socket: OwnedSocket, deadline_s: float, *, is_writing: bool) -> None:
    """Wait until the socket can be written or read, has an error, or the deadline passes."""
    poll = real("select", "poll")()
    poll.register(socket.descriptor, select.POLLOUT if is_writing else select.POLLIN)
    poll.poll(max(deadline_s - clocks.monotonic(), 0) * 1000)


class ExporterConnection:
    """A connection to the exporter of this tree of processes, which is started if there is none.

    Attributes:
        failure: why the last attempt to connect or to start failed; empty after one that worked.
        cannot_start: True if further attempts do not mend that: an error of the start, or a program that never answers.
    """

    def __init__(
        self, launch: Callable[[OwnedSocket, str], None], token: str, clock: Callable[[], float] = clocks.monotonic
    ) -> None:
        """`launch(listener, token)` starts an exporter that accepts connections there; else it raises `OSError`.

        `token` is the secret of the tree (`tree.tree_token`). `clock` is for pauses between attempts.
        """
        self._launch = launch
        self._clock = clock
        self._token = token
        self._pid = os.getpid()
        self._lock = OwnedLock()
        self._generation = 1
        self._socket: OwnedSocket | None = None
        self._launcher_pid = 0  # of the last launch by this process, or by one that has forked it
        self._answer = b""  # that the exporter, trusted or not, has to give first; empty once it has come
        self._answer_due_s = 0.0  # on the clock
        self._silences = 0  # connections in a row that had no answer in time
        self._awaits_launched = False  # this process has started an exporter that has not answered yet
        self._is_restart = False  # there was one before it
        self._is_trusted = False  # the exporter may get the stream
        self._unsent = bytearray()
        self._was_full = False  # and is not half empty yet
        self._received = bytearray()
        self._messages: list[bytes] = []
        self._has_been_connected = self._is_closed = self._is_closed_by_application = False
        # Times of the clock: a session that fails at once must not be tried again with each snapshot.
        self._next_connection_s = self._next_launch_s = 0.0
        self._next_log_s: dict[str, float] = {}  # by kind of line
        self._pause_s = 0.0
        self._restarts = 0
        self.failure, self.cannot_start = "", False

    def successor(self) -> ExporterConnection:
        """Return a connection to the same exporter: this one in a forked child, another one after `close`."""
        self.reset_after_fork()
        return ExporterConnection(self._launch, self._token) if self._is_closed else self

    @property
    def name(self) -> bytes:
        """Abstract name of the socket; another one after `setuid`, because users do not share an exporter."""
        return socket_name(self._token, os.geteuid())

    @property
    def generation(self) -> int:
        """Number of the connection that the next `send` writes to. It rises when a connection is lost.

        A writer for which it has risen defines its tables anew.
        """
        self.reset_after_fork()
        return self._generation

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes in the buffer."""
        return len(self._unsent)

    def send(self, data: bytes) -> bool:
        """Send `data` whole, without waiting, and start an exporter if there is none; return False if it is dropped.

        That is so while there is no connection, from a full buffer on until half of it is free, and if the connection
        is lost by this call. While another process starts the exporter, data is kept.
        """
        self.reset_after_fork()
        with self._lock:
            is_coming = not self._is_closed and (self._open() or self.failure == _STARTS_ELSEWHERE)
            if not is_coming or not self._flush() or not self._has_room(len(data)):
                return False
            self._unsent += data
            return self._flush()

    def receive(self) -> list[bytes]:
        """Return the messages that have come from the exporter, without waiting."""
        self.reset_after_fork()
        with self._lock:
            self._flush()
            self._read()
            messages, self._messages = self._messages, []
            return messages

    def close(self, timeout_s: float) -> bool:
        """End the connection for good; return True if the exporter confirms in time that it has sent everything on."""
        deadline_s = clocks.monotonic() + timeout_s
        self.reset_after_fork()
        if not self._lock.acquire(timeout_s):
            return False
        try:
            self._is_closed = True
            has_work = self._unsent or self._socket is not None
            return self._finish(deadline_s) if has_work else not self._has_been_connected
        finally:
            self._lose()
            self._lock.release()

    def reset_after_fork(self) -> None:
        """Connect a forked child anew; elsewhere do nothing. Every other method does this first."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._lock = OwnedLock()  # a lost thread may hold the parent's
        self._generation += 1
        self._next_connection_s = self._next_launch_s = self._pause_s = 0.0
        self._next_log_s.clear()
        self._restarts = self._silences = 0
        self._awaits_launched = False
        self._messages = []
        self._unsent, self._received = bytearray(), bytearray()
        inherited, self._socket = self._socket, None
        if inherited is not None and not self._is_closed:
            with suppress(OSError):
                self._connect()  # first: the exporter ends with its last connection
        close_inherited_sockets()  # those of lost threads, too: while one is open its connection is

    def _has_room(self, size: int) -> bool:
        """Return True if the buffer takes so many bytes; half of it has to be free once it has been full."""
        was_full = self._was_full
        limit = MAX_BUFFERED_BYTES // 2 if was_full else MAX_BUFFERED_BYTES
        self._was_full = len(self._unsent) + size > limit
        if self._was_full and not was_full:
            text = "the exporter process does not keep up, or is stopped: samples are lost until it has caught up"
            self._log("full", text)
        return not self._was_full

    def _open(self) -> bool:
        """Connect, or start an exporter, unless that is done or not due; return True if there is a connection."""
        if self._socket is not None or self._clock() < self._next_connection_s:
            return self._socket is not None
        try:
            try:
                self._connect()
            except ConnectionRefusedError:
                self._start_exporter()
            except BlockingIOError:  # it has not begun to accept, and many wait already
                self.failure = _STARTS_ELSEWHERE
        except OSError as error:
            self._note_failure(str(error))
        return self._socket is not None

    def _connect(self, *, is_launched: bool = False) -> None:
        made = OwnedSocket.connect(self.name)
        if made.peer_uid != os.geteuid():
            self._token = os.urandom(16).hex()
            raise PermissionError(errno.EPERM, f"the exporter's name was taken by user {made.peer_uid}")
        challenge = os.urandom(CHALLENGE_BYTES)
        made.send(challenge)
        self._unsent[:0] = prove_host(self._token, challenge)
        self._answer = prove_exporter(self._token, challenge)
        self._answer_due_s = self._clock() + MAX_ANSWER_S * (1 + self._silences)
        # The name is ours, or that of our parent, which forked us since: a child may end before an exporter that is
        # starting answers. No other process with a listener can have the id of one that has launched and lives.
        self._is_trusted = is_launched or made.peer_pid == os.getppid() == self._launcher_pid != 0
        self._socket = made
        self._has_been_connected, self.failure, self.cannot_start = True, "", False
        self._next_connection_s = self._clock() + _FIRST_PAUSE_S

    def _start_exporter(self) -> None:
        now = self._clock()
        if now < self._next_launch_s:
            self.failure = self.failure or "it ended and is not started again yet"
            return
        try:
            listener = OwnedSocket.listen(self.name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self.failure = _STARTS_ELSEWHERE
            return
        # An exporter that lived for long was no failure of its start.
        is_recent = now < self._next_launch_s + _MAX_PAUSE_S
        self._pause_s = min(self._pause_s * 2, _MAX_PAUSE_S) if self._pause_s and is_recent else _FIRST_PAUSE_S
        self._next_launch_s = now + self._pause_s
        self._launcher_pid = os.getpid()
        if self._awaits_launched:
            closes = "the application closes all descriptors again and again"
            reason = closes if self._is_closed_by_application else "it ends before it answers"
            self._log("failure", f"the exporter process cannot be reached or started: {reason}")
        try:
            self._launch(listener, self._token)
            self._awaits_launched, self._is_restart = True, self._has_been_connected
            self._connect(is_launched=True)
        except OSError as error:
            self.cannot_start = error.errno in _LASTING_ERRNOS
            raise
        finally:
            listener.close()

    def _flush(self) -> bool:
        """Write what the socket takes, if the exporter may get it; return False if the connection is lost by that."""
        generation = self._generation
        if self._socket is not None and self._answer and self._clock() >= self._answer_due_s:
            self._read()  # this process may have been stopped itself
            if self._socket is not None and self._answer:
                self._give_up_waiting()
        try:
            while self._unsent and self._socket is not None and self._is_trusted:
                with memoryview(self._unsent) as data:
                    sent = self._socket.send(data)
                if not sent:
                    break
                del self._unsent[:sent]
        except OSError as error:
            self._read()  # the exporter may have said why it ended
            self._lose(error)
        return self._generation == generation

    def _read(self) -> None:
        if self._socket is None:
            return
        target = bytearray(_PIECE_BYTES)
        try:
            count = self._socket.receive(target)
        except OSError as error:
            self._lose(error)
            return
        self._received += target[:count]
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            if length > MAX_MESSAGE_BYTES:
                self._lose()
                return
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            message = bytes(self._received[LENGTH.size : end])
            del self._received[:end]
            self._take(message)

    def _take(self, message: bytes) -> None:
        if not self._answer or message == REFUSAL:
            self._messages.append(message)
            del self._messages[:-_MAX_MESSAGES]
        elif message == self._answer:
            self._is_trusted, self._answer, self._silences = True, b"", 0
            if self._awaits_launched and self._is_restart:
                self._restarts += 1
                text = f"the exporter process ended and was started again ({self._restarts} times so far)"
                self._log("restart", text)
            self._awaits_launched = False
        else:
            self._abandon_name("does not know its secret")

    def _give_up_waiting(self) -> None:
        """End a connection that had no answer; the second in a row leaves the name, too."""
        self._silences += 1
        if self._silences > 1:
            self.cannot_start = self._awaits_launched
            self._abandon_name("does not answer")
        else:
            self._disconnect("does not answer")

    def _abandon_name(self, reason: str) -> None:
        """Take another name for the exporter of this process: another process has the present one."""
        self._token = os.urandom(16).hex()
        self._silences, self._awaits_launched = 0, False
        self._disconnect(reason)

    def _disconnect(self, reason: str) -> None:
        self._lose()
        self._has_been_connected = False
        self._note_failure(f"the process that has the exporter's name {reason}")

    def _finish(self, deadline_s: float) -> bool:
        while (
            self._unsent and not self._open() and self.failure == _STARTS_ELSEWHERE and clocks.monotonic() < deadline_s
        ):
            real("time", "sleep")(_RETRY_S)
        is_writing = True
        while self._socket is not None and clocks.monotonic() < deadline_s:
            if is_writing and self._flush() and not self._unsent:
                self._socket.shutdown()
                is_writing = False
            if self._socket is not None:
                _wait(self._socket, deadline_s, is_writing=is_writing and self._is_trusted)
            self._read()
            if SENT in self._messages:
                self._messages.remove(SENT)
                return True
        return False

    def _lose(self, error: OSError | None = None) -> None:
        if self._socket is not None:
            self._is_closed_by_application = error is not None and error.errno == errno.EBADF
            self._socket.close()
            self._socket = None
            self._generation += 1
        self._unsent, self._received = bytearray(), bytearray()

    def _note_failure(self, reason: str) -> None:
        self.failure = reason
        self._log("failure", f"the exporter process cannot be reached or started: {reason}")

    def _log(self, kind: str, text: str) -> None:
        now = self._clock()
        if now >= self._next_log_s.get(kind, now):
            self._next_log_s[kind] = now + _LOG_INTERVAL_S
            logger.warning("%s", text)
