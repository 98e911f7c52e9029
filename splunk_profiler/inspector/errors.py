"""Errors of the inspector; every text is one that a user can act on."""

from __future__ import annotations


class InspectorError(Exception):
    """Base of all errors of the inspector."""


class NoSuchProcessError(InspectorError):
    """Error for an id that no process has."""


class NotPermittedError(InspectorError):
    """Error for a process that the kernel does not let this user read."""


class AlreadyTracedError(NotPermittedError):
    """Error for a thread that another tracer (debugger, strace, inspector) holds."""


class NotPythonError(InspectorError):
    """Error for a process that publishes nothing and does not run Python."""


class ProcessEndedError(InspectorError):
    """Error for a process that ended, or executed another program, during a read."""


class UnsupportedError(InspectorError):
    """Error for a process whose architecture this machine's inspector cannot read."""


class UnreadableError(InspectorError):
    """Error for an address that is not mapped in the process."""


class MalformedError(InspectorError):
    """Error for bytes that break the layout of their specification."""
