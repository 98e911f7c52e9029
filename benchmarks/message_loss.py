"""How many messages of a host profiler are lost beside busy threads: gathered in C, and read by Python code.

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

from result import Result, main, median

from splunk_profiler._context import Mailbox

BUSY = 8
BURST = 5
EVERY_S = 0.02
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
print(json.dumps([sent, refused]))
"""


def be_busy(over: threading.Event) -> None:
    """Wants the GIL all the time."""
    while not over.is_set():
        sum(number * number for number in range(1000))


def by_mailbox(receiving: socket.socket, over: threading.Event) -> int:
    """As the profiler does it."""
    mailbox = Mailbox(receiving.fileno())
    reader = threading.Thread(target=mailbox.run)
    reader.start()
    got = 0
    while not over.is_set():
        got += len(mailbox.take(0.2))
    mailbox.stop()
    reader.join()
    return got + len(mailbox.take(0))


def by_python(receiving: socket.socket, over: threading.Event) -> int:
    """As a thread that blocks on the socket and drains it would."""
    waiting = select.poll()
    waiting.register(receiving, select.POLLIN)
    got = 0
    while not over.is_set():
        waiting.poll(200)
        while True:
            try:
                receiving.recv(2048)
            except BlockingIOError:
                break
            got += 1
    return got


def lost(read: Callable[[socket.socket, threading.Event], int], bursts: int) -> float:
    """The share of the messages that were not taken."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as directory:
        receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        receiving.bind(f"{directory}/s")
        got: list[int] = []
        threads = [threading.Thread(target=be_busy, args=(over,)) for _ in range(BUSY)]
        threads.append(threading.Thread(target=lambda: got.append(read(receiving, over))))
        for thread in threads:
            thread.start()
        command = [sys.executable, "-c", SENDER, f"{directory}/s", str(bursts), str(BURST), str(EVERY_S)]
        sent: int
        refused: int
        sent, refused = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        threading.Event().wait(1)
        over.set()
        for thread in threads:
            thread.join()
        receiving.close()
    if got != [sent]:
        raise RuntimeError(f"{sent} messages were sent and {got} were read")
    return float(refused / (sent + refused))


def measure(quick: bool) -> Iterator[Result]:
    """Both ways, in turns."""
    bursts, rounds = (10, 1) if quick else (250, 5)
    shares: dict[str, list[float]] = {"mailbox": [], "python": []}
    for _ in range(rounds):
        shares["mailbox"].append(lost(by_mailbox, bursts))
        shares["python"].append(lost(by_python, bursts))
    yield Result(
        f"messages lost beside {BUSY} busy threads, {BURST} every {EVERY_S * 1000:.0f} ms",
        median(shares["mailbox"]),
        "of all",
        0.0,
        details={"read_by_python_code": median(shares["python"]), "messages": bursts * BURST, "rounds": rounds},
    )


if __name__ == "__main__":
    main(measure, __doc__)
