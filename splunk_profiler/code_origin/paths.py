"""The owner of code, judged by the path of its file alone. Pure: reads nothing, knows nothing of this process."""

from __future__ import annotations

import re

_LIBRARY = re.compile(r"/(?:(?:site|dist)-packages|lib(?:64)?/(?:python|pypy)3\.[0-9]+t?|lib/python3)/")


def is_library(file: str) -> bool:
    """Return True for code of Python's library or of an installed package."""
    return file.startswith("<frozen") or _LIBRARY.search(file) is not None
