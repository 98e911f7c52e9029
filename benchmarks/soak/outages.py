"""A service whose collector dies, is silent, is slow, refuses, and comes back; the runner controls it.

It makes fewer records than the queue holds during the longest outage, so none of them may be lost.
"""

from __future__ import annotations

import time

from soak.harness import ScenarioHarness

THREADS = 6


def main() -> None:
    """Work until the time is up; no outage may block the service."""
    harness = ScenarioHarness()

    def work() -> None:
        while not harness.is_over:
            with harness.tracer.start_as_current_span("work"):
                sum(index * index for index in range(2000))
                time.sleep(0.02)
            harness.add_done()

    harness.run_on_threads(work, THREADS)
    harness.end()


if __name__ == "__main__":
    main()
