"""What can be shown: files, a store, a database."""

from __future__ import annotations

from splunk_profiler.viewer.model import Selection, Span
from splunk_profiler.viewer.recording import Recording


class Source:
    """Something that samples are read from.

    Attributes:
        name: as it is shown to the user.
        recording: what has been read.
        version: another number after each change of it.
        unread: records of the profiling scope, and requests, that could not be read.
        note: what else is missing; empty if nothing is.
    """

    name: str
    recording: Recording
    version = 0
    unread = 0
    note = ""

    def refresh(self) -> None:
        """Read what has been added since.

        Raises:
            SourceError: it cannot be read.
        """
        raise NotImplementedError

    def recording_of(self, selection: Selection) -> Recording:
        """Return the recording that has all of a selection."""
        del selection
        return self.recording

    def spans_of(self, trace: str) -> list[Span]:
        """Return the spans of a trace."""
        return list(self.recording.spans.get(trace, {}).values())
