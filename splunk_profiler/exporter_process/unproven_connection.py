"""A connection to the exporter whose process has not proved yet that it belongs to the tree.

The name of the socket is public: any process of the user in the network namespace can connect.
"""

from __future__ import annotations

import os
import socket
from _operator import _compare_digest as compare_digest  # as `hmac` has it, which loads OpenSSL
from contextlib import suppress

from splunk_profiler.exporter_process.transport import (
    CHALLENGE_BYTES,
    PROOF_BYTES,
    QUESTION,
    frame,
    prove_asker,
    prove_exporter,
    prove_host,
    read_peer,
)
from splunk_profiler.system import clocks

# A host sends it with its next data, and waits as long for an answer the second time: beside many busy processes both
# ends may have no processor for seconds.
MAX_PROOF_S = 60.0
_ROOT = 0  # may ask for a status: it can read all that the exporter has anyway


class UnprovenConnection:
    """A connection on which a challenge and the proof of a host, or of an asker, have to come first.

    Attributes:
        is_admitted: True once it has given the proof of a host.
        asked_inode: of the host whose status it asks for, once it has given the proof of an asker; else None.
    """

    def __init__(self, accepted: socket.socket, token: str) -> None:
        self.socket = accepted
        self.pid, self.uid = read_peer(accepted)
        self.is_admitted = False
        self.asked_inode: int | None = None
        self._wanted_bytes = CHALLENGE_BYTES + PROOF_BYTES
        self._token = token
        self._received = b""
        self._due_s = clocks.monotonic() + MAX_PROOF_S

    @property
    def is_user_allowed(self) -> bool:
        """True if its user may connect."""
        return self.uid in (os.geteuid(), _ROOT)

    @property
    def is_late(self) -> bool:
        """True if it has not given the proof in time."""
        return clocks.monotonic() >= self._due_s

    def read(self) -> bool:
        """Read up to the end of the proof or question, and answer the challenge; return False if it has to end."""
        try:
            data = self.socket.recv(self._wanted_bytes - len(self._received))
        except BlockingIOError:
            return True
        except OSError:  # the process was killed
            return False
        had, self._received = len(self._received), self._received + data
        challenge, proof = self._received[:CHALLENGE_BYTES], self._received[CHALLENGE_BYTES:][:PROOF_BYTES]
        if had < CHALLENGE_BYTES == len(challenge):
            with suppress(OSError):
                self.socket.send(frame(prove_exporter(self._token, challenge)))
        if len(proof) < PROOF_BYTES:
            return bool(data)
        question = self._received[CHALLENGE_BYTES + PROOF_BYTES :]
        if compare_digest(proof, prove_asker(self._token, challenge)):
            self._wanted_bytes = CHALLENGE_BYTES + PROOF_BYTES + QUESTION.size
            if len(question) == QUESTION.size:
                (self.asked_inode,) = QUESTION.unpack(question)
            return bool(data)
        self.is_admitted = self.uid == os.geteuid() and compare_digest(proof, prove_host(self._token, challenge))
        return self.is_admitted
