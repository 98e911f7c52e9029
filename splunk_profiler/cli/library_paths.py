"""Whose code a source file is, as far as its path can tell. Pure; imports nothing of ours."""

from __future__ import annotations

import re

_LIBRARY = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3?[0-9.]*)/")


def is_library(file: str) -> bool:
    """True for code that came with Python or was installed."""
    return file.startswith("<frozen") or _LIBRARY.search(file) is not None
