"""Stacks of one made-up frame, for time and samples whose real stack is not kept."""

from __future__ import annotations

from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import UnattributedReason


def _pseudo_stack(function: str) -> Stack:
    return Stack((Frame("[process]", function, "unknown", None),), truncated=False)


MERGED_STACK = _pseudo_stack("merged")
UNATTRIBUTED_STACKS = {reason: _pseudo_stack(reason.value) for reason in UnattributedReason}
