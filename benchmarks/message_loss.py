"""The loss of a host profiler's messages beside busy threads: read in C, and read by Python code.

The sender is another process that sends five messages every 20 ms, as a profiler that samples at 50 Hz would of five
busy threads. It does not wait, and neither would a profiler: what the kernel's queue cannot take is lost.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from result import Result, main, median

from splunk_profiler._context import SocketReader

BUSY = 8
BURST = 5
BURST_INTERVAL_S = 0.02
END = b"end"  # of the messages
SENDER = """
import json, socket, sys, time
path, bursts, burst, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
sending.connect(path)
sent = refused = 0
start = time.monotonic()
for number in range(1, bursts + 1):
    for _ in range(burst):
        try:
            sending.send(b"x" * 46)
            sent += 1
        except BlockingIOError:
            refused += 1
    time.sleep(max(0, start + number * every - time.monotonic()))
sending.setblocking(True)
sending.send(b"end")  # waits for room
print(json.dumps([sent, refused]))
"""


def hold_gil(stop_event: threading.Event) -> None:
    """Compete for the GIL all the time."""
    while not stop_event.is_set():
        sum(number * number for number in range(1000))


def read_with_mailbox(receiving: socket.socket) -> int:
    """Read like the profiler."""
    mailbox = SocketReader(receiving.fileno())
    mailbox.start()
    received: list[bytes] = []
    while END not in received[-1:]:
        received += mailbox.take(0.2)
    mailbox.stop()
    return len(received) - 1


def read_with_poll(receiving: socket.socket) -> int:
    """Read like a Python thread that blocks on the socket and drains it."""
    waiting = select.poll()
    waiting.register(receiving, select.POLLIN)
    received = 0
    while True:
        waiting.poll()
        with suppress(BlockingIOError):
            while receiving.recv(2048) != END:
                received += 1
            return received


def measure_loss(read: Callable[[socket.socket], int], bursts: int) -> float:
    """Measure the share of lost messages."""
    stop_event = threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        receiving.bind(f"{directory}/s")
        received: list[int] = []
        threads = [threading.Thread(target=hold_gil, args=(stop_event,)) for _ in range(BUSY)]
        threads.append(threading.Thread(target=lambda: received.append(read(receiving))))
        for thread in threads:
            thread.start()
        command = [sys.executable, "-c", SENDER, f"{directory}/s", str(bursts), str(BURST), str(BURST_INTERVAL_S)]
        sent: int
        refused: int
        sent, refused = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        threads.pop().join()
        stop_event.set()
        for thread in threads:
            thread.join()
        receiving.close()
    if received != [sent]:
        raise RuntimeError(f"{sent} messages were sent and {received} were read")
    return float(refused / (sent + refused))


def measure(quick: bool) -> Iterator[Result]:
    """Measure both readers, in turns."""
    bursts, rounds = (1, 1) if quick else (250, 5)
    shares: dict[str, list[float]] = {"mailbox": [], "python": []}
    for _ in range(rounds):
        shares["mailbox"].append(measure_loss(read_with_mailbox, bursts))
        shares["python"].append(measure_loss(read_with_poll, bursts))
    yield Result(
        f"messages lost beside {BUSY} busy threads, {BURST} every {BURST_INTERVAL_S * 1000:.0f} ms",
        median(shares["mailbox"]),
        "of all",
        0.0,
        details={"read_by_python_code": median(shares["python"]), "messages": bursts * BURST, "rounds": rounds},
    )


if __name__ == "__main__":
    main(measure, __doc__)
