"""A bounded load on the demonstration's web shop.

Each worker is a thread with one connection that sends one request after the other. Imports nothing of ours.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter

_SEARCH_TERMS = ("lantern", "kettle", "bicycle", "drill", "compass", "brass bench", "silent radio", "borealis")
_PRODUCT_COUNT = 20_000
_TIMEOUT_S = 30


def choose_request(rng: random.Random) -> tuple[str, str, str | None]:
    """Choose a random request of the shop's mix: method, path and body."""
    kind = rng.random()
    if kind < 0.35:
        return "GET", f"/products/{rng.randrange(1, _PRODUCT_COUNT)}", None
    if kind < 0.60:
        return "GET", "/search?q=" + rng.choice(_SEARCH_TERMS).replace(" ", "+"), None
    if kind < 0.80:
        items = [{"product": rng.randrange(1, _PRODUCT_COUNT), "quantity": rng.randrange(1, 60)} for _ in range(24)]
        return "POST", "/orders", json.dumps({"customer": f"c{rng.randrange(99)}", "items": items})
    if kind < 0.95:
        return "GET", f"/receipts/{rng.randrange(1, 500)}", None
    return "GET", "/reports/stock", None


class Load:
    """Workers that send requests to ``host:port`` until the end of the `with` block."""

    def __init__(self, host: str, port: int, workers: int) -> None:
        self._host = host
        self._port = port
        self._stop_requested = threading.Event()
        self._lock = threading.Lock()
        self._answers: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._work, args=(seed,), name=f"load-{seed}", daemon=True)
            for seed in range(workers)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers and wait for the answers to their last requests."""
        self._stop_requested.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def answers(self) -> Counter[str]:
        """Return the counts of answers by kind: ``2xx``, ``5xx``, or the name of an exception."""
        with self._lock:
            return self._answers.copy()

    def _work(self, seed: int) -> None:
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        while not self._stop_requested.is_set():
            method, path, body = choose_request(rng)
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                answer = f"{response.status // 100}xx"
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                answer = type(error).__name__
                # A service that is gone refuses at once: do not spin.
                self._stop_requested.wait(0.2)
            with self._lock:
                self._answers[answer] += 1
        connection.close()
