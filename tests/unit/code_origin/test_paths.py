"""The owner of code by the path of its file."""

from __future__ import annotations

import pytest

from splunk_profiler.code_origin.paths import is_library


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/srv/shop/app.py", False),
        ("/usr/lib/python3.11/threading.py", True),
        ("/opt/venv/lib/python3.12/site-packages/anyio/_core.py", True),
        ("/usr/lib/python3/dist-packages/click/core.py", True),
        ("<frozen runpy>", True),
        ("<string>", False),
    ],
)
def test_library_code_is_recognised_by_its_path(file: str, library: bool) -> None:
    assert is_library(file) == library
