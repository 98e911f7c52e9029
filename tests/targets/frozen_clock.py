"""A profiled process that ends with a frozen clock, as tests with freezegun may."""

from __future__ import annotations

import sys
import time

from freezegun import freeze_time
from marked_work import say

import splunk_profiler

assert splunk_profiler.start()
say("ready")
sys.stdin.readline()
freeze_time("2031-01-14").start()
frozen_ns = time.time_ns()
say("frozen")
sys.stdin.readline()
assert time.time_ns() == frozen_ns
