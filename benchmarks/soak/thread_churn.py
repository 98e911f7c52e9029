"""Threads that begin, work in a span and end, sixteen at a time, while all threads are sampled."""

from __future__ import annotations

import threading

from soak.stage import Stage

STARTING = 2
AT_ONCE = 8


def main() -> None:
    """Start and join threads until there have been enough."""
    stage = Stage()

    def live() -> None:
        with stage.tracer.start_as_current_span("short"):
            sum(range(500))

    def churn() -> None:
        while not stage.is_over:
            threads = [threading.Thread(target=live) for _ in range(AT_ONCE)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stage.did(AT_ONCE)

    stage.together(churn, STARTING)
    stage.end()


if __name__ == "__main__":
    main()
