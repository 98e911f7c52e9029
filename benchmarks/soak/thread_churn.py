"""Threads that begin, work in a span and end, sixteen at a time, while all threads are sampled."""

from __future__ import annotations

import threading

from soak.harness import ScenarioHarness

STARTER_THREADS = 2
CONCURRENCY = 8


def main() -> None:
    """Start and join threads until the count is reached."""
    harness = ScenarioHarness()

    def run_short_thread() -> None:
        with harness.tracer.start_as_current_span("short"):
            sum(range(500))

    def churn() -> None:
        while not harness.is_over:
            threads = [threading.Thread(target=run_short_thread) for _ in range(CONCURRENCY)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            harness.add_done(CONCURRENCY)

    harness.run_on_threads(churn, STARTER_THREADS)
    harness.end()


if __name__ == "__main__":
    main()
