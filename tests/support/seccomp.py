"""Filters of system calls for the calling process and its descendants, as containers and sandboxes have them."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_NUMBERS = {
    "x86_64": {"clone": 56, "execve": 59, "setsid": 112, "close_range": 436},
    "aarch64": {"clone": 220, "execve": 221, "setsid": 157, "close_range": 436},
}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _JUMP_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16
_EXIT_SIGNAL, _CLONE_VFORK = 0xFF, 0x4000  # in the flags of `clone`


def refuse(call: str, error: int = errno.EPERM) -> None:
    """Have the call fail with `error`."""
    _install(call, _ERRNO | error)


def refuse_vfork(error: int = errno.EPERM) -> None:
    """Have `clone` fail with `error` where it makes a process that its parent waits for."""
    _install("clone", _ERRNO | error, _CLONE_VFORK, _CLONE_VFORK)


def kill_at(call: str) -> None:
    """Kill the process that makes the call."""
    _install(call, _KILL_PROCESS)


def kill_at_clone_with_signal(number: int) -> None:
    """Kill the process that makes a child whose exit signal is `number`."""
    _install("clone", _KILL_PROCESS, _EXIT_SIGNAL, number)


def _install(call: str, action: int, mask: int = 0, value: int = 0) -> None:
    """Do `action` for the call if its first argument, masked, is `value`."""
    instructions = [
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_EQUAL, 0, 4, _NUMBERS[platform.machine()][call]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_AND, 0, 0, mask),
        (_JUMP_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, action),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    program = ctypes.create_string_buffer(struct.pack("HP", len(instructions), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, program)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
