"""The test for library code by the path of its file. Pure; imports nothing of ours."""

from __future__ import annotations

import re

_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3?[0-9.]*)/")


def is_library(file: str) -> bool:
    """Return True for code of Python's library or of an installed package."""
    return file.startswith("<frozen") or _LIBRARY.search(file) is not None
