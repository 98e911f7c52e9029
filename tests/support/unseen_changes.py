"""Changes of context variables that no hook notices: C code makes them. Imports nothing of the package."""

from __future__ import annotations

from contextvars import ContextVar, Token
from ctypes import PYFUNCTYPE, c_int, py_object, pythonapi
from typing import Any

_set = PYFUNCTYPE(py_object, py_object, py_object)(("PyContextVar_Set", pythonapi))
_reset = PYFUNCTYPE(c_int, py_object, py_object)(("PyContextVar_Reset", pythonapi))


def set_unseen(variable: ContextVar[Any], value: object) -> Token[Any]:
    """Set a variable in the current context."""
    token: Token[Any] = _set(variable, value)
    return token


def reset_unseen(variable: ContextVar[Any], token: Token[Any]) -> None:
    """Reset it to its value before."""
    assert _reset(variable, token) == 0
