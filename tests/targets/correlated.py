"""A process that publishes, works in spans and keeps the messages that it is sent; obeys lines on standard input.

    publish PATH   binds a socket at PATH and publishes a storage that names it; says "published"
    work N         N threads that are on a CPU as often as they can, each in a span of its own; says "working"
    fork PATH      a child that does the same with a socket and a span of its own; says "child PID"
    end            ends the work and says what came in, first of the children, then of this process: "received
                   {"pid": …, "path": …, "traces": […], "messages": […]}"

Spans, the variable and the storage are those of `own_memory`; the socket is read in plain Python.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # the tests share own_memory

from own_memory import ELASTIC_PATH, InstalledPublisher, Span, storage_of

from splunk_profiler import _context

_NO_MORE = b"no more"


class MessageSocket:
    """A socket and the thread that empties it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.messages: list[bytes] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while (message := self._socket.recv(4096)) != _NO_MORE:
            self.messages.append(message)

    def end(self) -> None:
        """Everything that was sent before this was called is there when it returns."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(_NO_MORE, self.path)  # waits while the queue is full
        self._thread.join()
        self._socket.close()


class Service:
    """The work of one process."""

    def __init__(self) -> None:
        self._publishing = InstalledPublisher()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._traces: list[int] = []
        self._inbox: MessageSocket | None = None

    def publish(self, path: str) -> None:
        """For the first time."""
        self._inbox = MessageSocket(path)
        made = self._publishing
        made.install_hooks()
        _context.begin()
        _context.load_elastic_library(ELASTIC_PATH, storage_of("correlated", "test", path))

    def publish_after_fork(self, path: str) -> None:
        """In a child, which goes on publishing."""
        self._over = threading.Event()
        self._threads, self._traces = [], []
        self._inbox = MessageSocket(path)
        _context.reset_after_fork()
        _context.replace_storage(storage_of("correlated", "test", path))

    def work(self, count: int) -> None:
        """Returns when all of them are in their spans."""
        reached = threading.Barrier(count + 1)

        def run(trace: int) -> None:
            self._publishing.attach(Span(trace, trace & 0xFFFF_FFFF_FFFF_FFFF))
            reached.wait()
            while not self._over.is_set():
                sum(range(1000))

        for _ in range(count):
            trace = int.from_bytes(os.urandom(16), "big") | 1
            self._traces.append(trace)
            self._threads.append(threading.Thread(target=run, args=(trace,)))
            self._threads[-1].start()
        reached.wait()

    def end(self) -> None:
        """Say what came in."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        inbox = self._inbox
        assert inbox is not None
        inbox.end()
        received = {
            "pid": os.getpid(),
            "path": inbox.path,
            "traces": [f"{trace:032x}" for trace in self._traces],
            "messages": [message.hex() for message in inbox.messages],
        }
        print("received", json.dumps(received), flush=True)


class Children:
    """Forked from the main thread; each ends when its pipe is closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pipes: dict[int, int] = {}

    def fork(self, path: str) -> None:
        """Returns when the child works."""
        told, tell = os.pipe()
        ready, say = os.pipe()
        child = os.fork()
        if not child:
            for pipe in (tell, *self._pipes.values()):
                os.close(pipe)
            self._service.publish_after_fork(path)
            self._service.work(1)
            os.write(say, b"r")
            os.read(told, 1)
            self._service.end()
            os._exit(0)
        os.close(told)
        os.close(say)
        assert os.read(ready, 1) == b"r"
        os.close(ready)
        self._pipes[child] = tell
        print("child", child, flush=True)

    def end(self) -> None:
        """One after the other, so that what they say is not mixed."""
        for child, tell in self._pipes.items():
            os.close(tell)
            assert os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Obey."""
    service = Service()
    children = Children(service)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "publish":
            service.publish(rest)
            print("published", flush=True)
        elif word == "work":
            service.work(int(rest))
            print("working", flush=True)
        elif word == "fork":
            children.fork(rest)
        elif word == "end":
            children.end()
            service.end()
            return


if __name__ == "__main__":
    main()
