"""What reading another process can end with; every text is one a user can act on.

Owns no thread. Imports nothing of the package: the inspector is an island.
"""

from __future__ import annotations


class InspectorError(Exception):
    """Base of all errors of the inspector."""


class NoSuchProcessError(InspectorError):
    """There is no process of that id."""


class NotPermittedError(InspectorError):
    """The kernel does not let this user look into the process."""


class AlreadyTracedError(NotPermittedError):
    """Somebody else (a debugger, another inspector) holds a thread of the process at this moment."""


class NotPythonError(InspectorError):
    """The process publishes nothing and does not run Python either."""


class ProcessEndedError(InspectorError):
    """The process ended, or became another program, while it was read."""


class UnsupportedError(InspectorError):
    """The process is of an architecture that this machine's inspector cannot read."""


class UnreadableError(InspectorError):
    """An address that the process names is not mapped in it."""


class MalformedError(InspectorError):
    """Bytes that were read are not laid out as their specification says."""
