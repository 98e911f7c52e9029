"""Rules for every source file: at most 400 lines, a description at the top, a name with a meaning; short test names."""

from __future__ import annotations

import re

from source_tree import OURS, ROOT, python_files

MAX_LINES = 400
MAX_TEST_NAME = 70
SAYS_NOTHING = re.compile(r"(^|_)(utils?|common|manager|helpers?|misc|v2)(_|\.|$)")
SOURCES = [*python_files(OURS, "tests", "benchmarks", "examples"), *sorted((ROOT / "native").rglob("*.[ch]"))]


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}


def test_every_file_says_what_it_is_for() -> None:
    silent = []
    for path in SOURCES:
        text = path.read_text("utf-8")
        says = text.startswith(('"""', 'r"""') if path.suffix == ".py" else ("/*", "//"))
        if text.strip() and not says:  # an empty __init__.py only makes a folder a package
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [str(path.relative_to(ROOT)) for path in SOURCES if SAYS_NOTHING.search(path.name)]


def test_names_of_tests_are_short() -> None:
    names = [name for path in python_files("tests") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))]
    assert names
    assert not [name for name in names if len(name) > MAX_TEST_NAME]
