"""A service whose collector dies, is silent, is slow, refuses, and comes back; the runner sees to that.

It makes fewer records than the queue holds during the longest outage, so none of them may be lost.
"""

from __future__ import annotations

import time

from soak.stage import Stage

THREADS = 6


def main() -> None:
    """Work until the time is up: no outage may hold the service up."""
    stage = Stage()

    def work() -> None:
        while not stage.is_over:
            with stage.tracer.start_as_current_span("work"):
                sum(index * index for index in range(2000))
                time.sleep(0.02)
            stage.did()

    stage.together(work, THREADS)
    stage.end()


if __name__ == "__main__":
    main()
