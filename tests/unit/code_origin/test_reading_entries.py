"""The reading of entries of `sys.path`: in steps, once each, by a child, and again where it has failed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from classifier_factory import make_classifier, site_of

from splunk_profiler.code_origin.classifier import LIBRARY, CodeClassifier
from splunk_profiler.samples import CodeOrigin, OriginKind


def test_a_large_site_is_read_in_steps_and_known_at_the_end(tmp_path: Path) -> None:
    site = str(site_of(tmp_path / "site-packages", 30))
    times = iter(range(10_000))
    classifier = CodeClassifier(lambda: [site], monotonic=lambda: next(times) / 50)
    file = f"{site}/p29/m1.py"
    turns = 0
    while not classifier.read():
        turns += 1
        assert classifier.classify(file, "p29.m1") == LIBRARY
    assert turns > 1
    assert classifier.classify(file, "p29.m1") == CodeOrigin(OriginKind.LIBRARY, "p29", "1.29")


def test_an_entry_is_read_once_and_those_that_come_later_are_read_then(tmp_path: Path) -> None:
    first, second = (site_of(tmp_path / name / "site-packages", 1) for name in "ab")
    entries = [str(first)]
    classifier = make_classifier(entries)
    assert classifier.read()
    site_of(first, 2)
    entries.append(str(second))
    assert classifier.classify(f"{second}/p0/m0.py", "p0") == LIBRARY
    assert classifier.read()
    assert classifier.classify(f"{second}/p0/m0.py", "p0").name == "p0"
    assert classifier.classify(f"{first}/p1/m0.py", "p1") == LIBRARY, "what is installed later counts after a restart"


def test_a_child_knows_what_its_parent_had_read_and_reads_the_rest(tmp_path: Path) -> None:
    first, second = (str(site_of(tmp_path / name / "site-packages", 3)) for name in "ab")
    parent = make_classifier([first])
    assert parent.read()
    for gone in Path(first).glob("*/RECORD"):
        gone.unlink()
    times = iter(range(10_000))
    halfway = CodeClassifier(lambda: [first, second], parent=parent, monotonic=lambda: next(times) / 9)
    assert not halfway.read()
    child = make_classifier([first, second], parent=halfway)
    assert child.read()
    assert [child.classify(f"{site}/p1/m0.py", "p1").version for site in (first, second)] == ["1.1", "1.1"]


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("tries", "name"), [(2, "p0"), (3, "")])
def test_entry_is_read_again_where_no_descriptor_was_free(tmp_path: Path, tries: int, name: str) -> None:
    site = site_of(tmp_path / "site-packages", 1)
    classifying = make_classifier([str(site)])
    with no_free_descriptor():
        done = [classifying.read() for _ in range(tries)]
    assert done == [False, False, True][:tries]
    assert classifying.read()
    assert classifying.classify(f"{site}/p0/m1.py", "p0.m1").name == name
