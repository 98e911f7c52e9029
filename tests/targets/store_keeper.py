"""Appends samples to a store and keeps it small, again and again; prints the number of samples after each step.

Each step is as at a later hour, so that requests become parts, parts are joined, and old ones summed up. Ends when
standard input does, or is killed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from saved_samples import sample_line

from splunk_profiler.viewer.model import HOUR_NS
from splunk_profiler.viewer.store_writer import Limits, StoreWriter

START_NS = 20_000 * 24 * HOUR_NS
SAMPLES = 7  # of a step


def main(path: str, step: int) -> None:
    writer = StoreWriter(Path(path), Limits(samples_ns=3 * HOUR_NS, all_ns=10_000 * 24 * HOUR_NS))
    for _ in sys.stdin:
        now_ns = START_NS + step * HOUR_NS
        for number in range(SAMPLES):
            line = sample_line(f"shop.step_{step % 50}(/srv/shop.py:{number})", time_ns=now_ns + number)
            writer.append(json.loads(line), is_traces=False, received_ns=now_ns)
            print(step * SAMPLES + number + 1, flush=True)
        writer.run_maintenance(now_ns, hold_ns=0)
        step += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
