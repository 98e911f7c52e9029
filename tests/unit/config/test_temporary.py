"""Tests of the directory for temporary files: it is that of `tempfile`, which is not loaded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from splunk_profiler.config.temporary import temporary_directory

_VARIABLES = ("TMPDIR", "TEMP", "TMP")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without any variable that names a directory."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _of_tempfile(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tempfile.gettempdir()


def test_without_variables_it_is_that_of_tempfile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert temporary_directory() == _of_tempfile(monkeypatch)


@pytest.mark.parametrize("name", _VARIABLES)
def test_variable_names_it_as_for_tempfile(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(tmp_path))
    assert temporary_directory() == str(tmp_path) == _of_tempfile(monkeypatch)


def test_first_variable_that_names_a_usable_place_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    second = tmp_path / "second"
    second.mkdir()
    for name, place in zip(_VARIABLES, (tmp_path / "file", second, tmp_path), strict=True):
        monkeypatch.setenv(name, str(place))
    assert temporary_directory() == str(second) == _of_tempfile(monkeypatch)


@pytest.mark.parametrize("value", ["", "relative", "/missing\x7f/place"])
def test_what_names_no_absolute_place_is_passed_over(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = temporary_directory()
    monkeypatch.setenv("TMPDIR", value)
    assert temporary_directory() == before


def test_without_a_place_to_write_it_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert temporary_directory() == "/tmp"  # noqa: S108
