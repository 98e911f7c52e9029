"""The calls that wait for a lock or queue in C, found in the bytecode of a frame: these have no frame of their own.

Pure; imports nothing of ours. Runs once for each place in the code.
"""

from __future__ import annotations

import opcode
import sys
from opcode import opname
from types import CodeType

_METHODS = ("acquire", "get")
_ENTERS_BLOCK = {"SETUP_WITH", "BEFORE_WITH"}  # CPython 3.10, 3.11 to 3.13
CALLS = {"CALL_METHOD", "CALL_FUNCTION_KW", "CALL", "CALL_KW"}
LOADS_METHOD = {"LOAD_METHOD", "LOAD_ATTR"}
_ARGUMENTS = {"LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT", "KW_NAMES", "PRECALL", "CACHE", "EXTENDED_ARG"}
_NAMES_ARGUMENTS = {"CALL_FUNCTION_KW", "KW_NAMES", "CALL_KW"}  # CPython 3.10, 3.11 and 3.12, 3.13 and newer
_CACHE = 0
_ENTER = 0  # argument of LOAD_SPECIAL


def lock_call(code: CodeType, lasti: int) -> str:
    """Return ``with``, ``acquire`` or ``get`` if the instruction at byte `lasti` enters a block or calls that.

    Empty for any other. A thread that waits there, in no Python function, waits for a lock, or for what is used
    like one; in ``get``, for a queue in C (`queue.SimpleQueue`). With positional arguments only, as in `dict.get(key)`,
    it does not wait: the thread only gave up the GIL at the end of the call. The first one of a queue is ``True``.
    """
    may_enter_block = getattr(code, "co_exceptiontable", True)
    may_call = any(method in code.co_names for method in _METHODS)
    if lasti < 0 or not (may_enter_block or may_call):
        return ""  # the bytecode is not asked for: CPython keeps a copy of it for each function that is
    instructions = code.co_code
    name = opname[instructions[lasti]]
    if name in _ENTERS_BLOCK or (name == "CALL" and _loads_enter(instructions, lasti)):
        return "with"
    return _loaded_method(code, instructions, lasti) if name in CALLS and may_call else ""


def _loads_enter(instructions: bytes, lasti: int) -> bool:
    """Return True if the called object is a context manager's ``__enter__`` (CPython 3.14 and newer)."""
    before = lasti - 2
    while before > 0 and instructions[before] == _CACHE:
        before -= 2
    return before >= 0 and opname[instructions[before]] == "LOAD_SPECIAL" and instructions[before + 1] == _ENTER


def _loads_argument(instructions: bytes, at: int) -> bool:
    name = opname[instructions[at]]
    if name == "LOAD_GLOBAL":  # its lowest bit says that it loads a function to call
        return sys.version_info < (3, 11) or not instructions[at + 1] & 1
    return name in _ARGUMENTS or name.startswith("LOAD_FAST")


def _loaded_method(code: CodeType, instructions: bytes, lasti: int) -> str:
    """Return the one of `_METHODS` that is called, with arguments that need no call themselves; else empty."""
    at = lasti - 2
    while at >= 0 and _loads_argument(instructions, at):
        at -= 2
    if at < 0 or opname[instructions[at]] not in LOADS_METHOD:
        return ""
    name = loaded_name(code, instructions, at)
    if name == "get" and instructions[lasti + 1] and not _may_wait(code, instructions[at + 2 : lasti + 2]):
        return ""
    return name if name in _METHODS else ""


def _may_wait(code: CodeType, arguments: bytes) -> bool:
    """Return True if a call of ``get`` has named arguments, or ``True`` as its first."""
    loads = [(opname[each], arguments[2 * i + 1]) for i, each in enumerate(arguments[::2]) if each != _CACHE]
    return any(name in _NAMES_ARGUMENTS for name, _ in loads) or _constant(code, *loads[0]) is True


def _constant(code: CodeType, name: str, index: int) -> object:
    """Return what an instruction loads; None if that is no constant."""
    if name == "LOAD_COMMON_CONSTANT":
        return getattr(opcode, "_common_constants", ())[index]
    return code.co_consts[index] if name == "LOAD_CONST" else None


def loaded_name(code: CodeType, instructions: bytes, at: int) -> str:
    """Return the name of the attribute or method that the instruction at byte `at` loads."""
    index = instructions[at + 1]
    if at >= 2 and opname[instructions[at - 2]] == "EXTENDED_ARG":
        index |= instructions[at - 1] << 8
    if sys.version_info >= (3, 12):
        index >>= 1  # the lowest bit says that it loads a method
    return code.co_names[index] if index < len(code.co_names) else ""
