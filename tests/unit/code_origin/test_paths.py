"""The owner of code by the path of its file."""

from __future__ import annotations

import time

import pytest

from splunk_profiler.code_origin.paths import is_library


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/srv/shop/app.py", False),
        ("/usr/lib/python3.11/threading.py", True),
        ("/opt/venv/lib/python3.12/site-packages/anyio/_core.py", True),
        ("/usr/lib/python3/dist-packages/click/core.py", True),
        ("/usr/lib64/python3.11/json/__init__.py", True),
        ("/usr/local/lib/python3.13t/json/__init__.py", True),
        ("/opt/pypy/lib/pypy3.10/json/__init__.py", True),
        ("/srv/lib/python/shop.py", False),
        ("/srv/lib/python3.py", False),
        ("<frozen runpy>", True),
        ("<string>", False),
    ],
)
def test_library_code_is_recognised_by_its_path(file: str, library: bool) -> None:
    assert is_library(file) == library


def test_path_of_many_slashes_is_judged_in_linear_time() -> None:
    before_s = time.thread_time()
    assert not is_library("/" * 100_000)
    assert time.thread_time() - before_s < 1
