"""Each thread's labels, for walkers that cannot read them from the interpreter.

Exact for blocks that a thread, task or greenlet enters itself. Runs on the application's threads: must be short and
must not raise.
"""

from __future__ import annotations

from splunk_profiler.system.context_values import ContextValues
from splunk_profiler.user_labels.labels import CURRENT_LABELS, ActiveLabels


class LabelTracker(ContextValues[ActiveLabels]):
    """A tracker of the labels in force on each thread, task or greenlet, which `labels` calls at each change."""

    def __init__(self) -> None:
        super().__init__(CURRENT_LABELS)

    def enter(self, entered: ActiveLabels) -> None:
        """Record that a block has begun."""
        try:
            current = self._current()
            if current.value is not entered.outer:
                current.first = entered
            current.value = entered
        except Exception as error:  # a block of the guard costs more
            self._guard.note(error)

    def leave(self, ended: ActiveLabels, outer: ActiveLabels | None) -> None:
        """Record that a block has ended, and `outer` is in force.

        Labels around the first block in a copied context end with that context, without a call; they would then stay
        for ever. So they do not count.
        """
        try:
            current = self._current()
            found = current.value
            while found is not None and found is not ended and found is not current.first:
                found = found.outer  # of a generator that was left inside the block
            current.value = outer if found is ended and found is not current.first else None
            if current.value is None:
                current.first = None
        except Exception as error:
            self._guard.note(error)
