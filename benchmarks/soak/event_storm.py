"""All kinds of events at once on threads, in tasks and forked children, while the exporter is killed and stopped.

The work is that of ``tests/targets/event_storm.py``, which also stops and starts the profiler.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import splunk_profiler
from soak.harness import ScenarioHarness

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "targets"))
import event_storm


def main() -> None:
    """Take turns on a thread for each kind of work until the count is reached."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
    harness = ScenarioHarness()
    faults: Counter[str] = Counter()
    threading.excepthook = lambda args: faults.update([f"{args.thread}: {args.exc_value!r}"])

    def take_turns(work: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        while not harness.is_over:
            with harness.tracer.start_as_current_span(work.__name__):
                work(chance)
            event_storm.turns[work.__name__] += 1
            harness.add_done()
            time.sleep(chance.random() / (2 if work is event_storm.restart else 50))

    threads = [threading.Thread(target=take_turns, args=(work, seed)) for seed, work in enumerate(event_storm.WORKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    event_storm.kept.clear()
    splunk_profiler.start()  # unless it runs
    harness.end(turns=event_storm.turns, faults=faults)


if __name__ == "__main__":
    main()
