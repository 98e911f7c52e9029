"""The user's labels of each thread, for walkers that cannot read them from the interpreter.

`labels` blocks call a listener (`LabelPublisher.set_listener`). In an event loop the running task
decides: by its own context where it has one (CPython 3.12), else by its last block. Where a thread
can change its context without a call (copied contexts, greenlets, trio), labels are missing rather
than wrong. `on_labels_changed` runs on the application's threads: must be short and must not raise.
`labels_of` runs on the ticker's.
"""

from __future__ import annotations

import _thread
import sys
from typing import Any
from weakref import WeakKeyDictionary

from splunk_profiler.system.threads import real_get_ident, threads_are_greenlets
from splunk_profiler.user_labels.labels import CURRENT_LABELS, LABEL_PUBLISHER, LabelSet


class _ThreadCleanup:
    """A thread-local value whose destruction forgets the thread."""

    def __init__(self, ident: int, *known: dict[int, Any]) -> None:
        self._ident = ident
        self._known = known

    def __del__(self) -> None:
        for known in self._known:
            known.pop(self._ident, None)


class LabelTracker:
    """The labels of each thread, as far as other threads can know them."""

    def __init__(self) -> None:
        self._get_ident = real_get_ident()
        self._labels_by_thread: dict[int, LabelSet] = {}
        self._loop_by_thread: dict[int, Any] = {}  # the event loop in which the thread set labels
        self._labels_by_task: WeakKeyDictionary[Any, LabelSet] = WeakKeyDictionary()
        self._local = _thread._local()

    def install(self) -> None:
        """Track label changes from now on."""
        LABEL_PUBLISHER.set_listener(self.on_labels_changed)

    def remove(self) -> None:
        """Stop tracking and forget all labels."""
        LABEL_PUBLISHER.set_listener(None)
        self._labels_by_thread.clear()
        self._loop_by_thread.clear()
        self._labels_by_task.clear()

    def on_labels_changed(self, labels: LabelSet | None) -> None:
        """Record the new labels of the calling thread, or of its task."""
        if threads_are_greenlets() or _is_in_trio():
            return
        ident = self._get_ident()
        if getattr(self._local, "cleanup", None) is None:
            self._local.cleanup = _ThreadCleanup(ident, self._labels_by_thread, self._loop_by_thread)
        asyncio = sys.modules.get("asyncio")
        loop = None if asyncio is None else asyncio._get_running_loop()
        if loop is None:
            _set_or_remove(self._labels_by_thread, ident, labels)
            return
        self._loop_by_thread[ident] = loop
        task = asyncio.current_task(loop) if asyncio is not None else None
        if task is not None:
            _set_or_remove(self._labels_by_task, task, labels)

    def labels_of(self, ident: int) -> LabelSet | None:
        """Return the labels of the thread with this ident, or None."""
        loop = self._loop_by_thread.get(ident)
        if loop is not None and loop.is_closed():
            self._loop_by_thread.pop(ident, None)
            loop = None
        task = None if loop is None else sys.modules["asyncio"].current_task(loop)
        if task is None:
            return self._labels_by_thread.get(ident)
        context_of = getattr(task, "get_context", None)  # CPython 3.12
        if context_of is None:
            return self._labels_by_task.get(task)
        labels: LabelSet | None = context_of().get(CURRENT_LABELS)
        return labels


def _is_in_trio() -> bool:
    """Return True if the calling thread runs a trio loop, whose tasks other threads cannot query."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    in_trio_run = getattr(getattr(trio, "lowlevel", None), "in_trio_run", None)
    return in_trio_run is None or bool(in_trio_run())


def _set_or_remove(known: Any, key: Any, labels: LabelSet | None) -> None:
    if labels is None:
        known.pop(key, None)
    else:
        known[key] = labels
