"""The calls that run an event loop, found in the bytecode of a frame: a loop in C has no frame of its own.

Pure. Runs once for each place in the code.
"""

from __future__ import annotations

from opcode import opname
from types import CodeType

from splunk_profiler.capture.lock_calls import CALLS, LOADS_METHOD, loaded_name

_METHODS = ("run_until_complete", "run_forever")
_STARTS_STATEMENT = {"POP_TOP", "RESUME", "NOP", "RETURN_VALUE", "RERAISE", "SETUP_FINALLY", "PUSH_EXC_INFO"}
_ENDS_STATEMENT = {"POP_TOP", "RETURN_VALUE"}


def loop_call(code: CodeType, lasti: int) -> str:
    """Return ``run_until_complete`` or ``run_forever`` if the instruction at byte `lasti` calls that; else empty.

    The call has to be a statement, or all that one assigns or returns, without conditions among its arguments.
    """
    if lasti < 0 or not any(method in code.co_names for method in _METHODS):
        return ""  # the bytecode is not asked for: CPython keeps a copy of it for each function that is
    instructions = code.co_code
    if opname[instructions[lasti]] not in CALLS or not _is_last(instructions, lasti):
        return ""
    for at in range(lasti - 2, -1, -2):
        name = opname[instructions[at]]
        if name in _STARTS_STATEMENT or name.startswith("STORE_") or "JUMP" in name:
            break
        if name in LOADS_METHOD and (method := loaded_name(code, instructions, at)) in _METHODS:
            return method
    return ""


def _is_last(instructions: bytes, lasti: int) -> bool:
    """Return True if the result of a call is what its statement assigns, returns or drops."""
    after = lasti + 2
    while after < len(instructions) and opname[instructions[after]] == "CACHE":
        after += 2
    name = opname[instructions[after]] if after < len(instructions) else ""
    return name in _ENDS_STATEMENT or name.startswith("STORE_")
