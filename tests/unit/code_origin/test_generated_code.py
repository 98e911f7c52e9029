"""Generated code belongs to the module in whose name it runs, as `sys.path` has it, whichever process is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from splunk_profiler.code_origin.classifier import APPLICATION, LIBRARY, UNKNOWN, CodeClassifier
from splunk_profiler.samples import CodeOrigin, OriginKind


@pytest.fixture
def entries(tmp_path: Path) -> list[str]:
    """Return the directories of an application and of what is installed for it; no module of them is loaded."""
    files = {
        "app/shop/models.py": "",
        "app/single.py": "",
        "app/utils/__init__.py": "",
        "app/config.py": "",
        "app/ns/own.py": "",
        "site-packages/orm-2.0.dist-info/RECORD": "orm/base.py,,\norm_single.py,,\n",
        "site-packages/orm/base.py": "",
        "site-packages/one-1.0.dist-info/RECORD": "ns/one/base.py,,\nns/both/first.py,,\n",
        "site-packages/two-1.5.dist-info/RECORD": "ns/two/base.py,,\nns/both/second.py,,\n",
        "site-packages/ns/one/base.py": "",
        "site-packages/stray.py": "",
        "site-packages/untidy-1.0.dist-info/RECORD": "untidy.py,,\nutils/__init__.py,,\nconfig.py,,\n",
        "site-packages/utils/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return [f"{tmp_path}/app", f"{tmp_path}/site-packages/"]


def library(name: str, version: str) -> CodeOrigin:
    return CodeOrigin(OriginKind.LIBRARY, name, version)


@pytest.mark.parametrize(
    ("namespace", "origin"),
    [
        ("shop.models.__create_fn__.<locals>", APPLICATION),
        ("shop.models.Item", APPLICATION),
        ("single.Item", APPLICATION),
        ("utils.models.Item", APPLICATION),  # an installed package has this name, too
        ("config.Item", APPLICATION),
        ("orm.base.Model", library("orm", "2.0")),
        ("orm_single", library("orm", "2.0")),
        ("ns.one.base.Model", library("one", "1.0")),
        ("ns.both.second.Model", library("two", "1.5")),
        ("stray", LIBRARY),
        ("namedtuple_Item", UNKNOWN),
        ("unknown", UNKNOWN),
        ("odd\0name.\ud800", UNKNOWN),
    ],
)
def test_generated_code_has_the_origin_of_its_module_on_the_path(
    entries: list[str], namespace: str, origin: CodeOrigin
) -> None:
    classifier = CodeClassifier(lambda: entries, monotonic=lambda: 0.0)
    assert classifier.read()
    assert classifier.classify("<string>", namespace) == origin


def test_generated_code_of_a_module_off_the_path_is_known_by_its_files(entries: list[str]) -> None:
    application, installed = entries
    classifier = CodeClassifier(lambda: [installed])  # `uvicorn --app-dir` adds the other one later
    assert classifier.read()
    assert classifier.classify("<string>", "shop.models.Item") == UNKNOWN
    assert classifier.classify(f"{application}/shop/models.py", "shop.models") == APPLICATION
    assert classifier.classify("<string>", "shop.models.Item") == APPLICATION
    assert classifier.classify("<string>", "orm.base.Model") == library("orm", "2.0")


def test_installed_package_before_the_application_wins(entries: list[str]) -> None:
    classifier = CodeClassifier(lambda: reversed(entries))
    assert classifier.read()
    assert classifier.classify("<string>", "utils.models.Item") == library("untidy", "1.0")


def test_modules_of_the_exporting_process_are_not_looked_at(
    entries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__main__", "shop", "shop.models"):
        module = ModuleType(name)
        module.__file__ = f"/gone/site-packages/{name}.py"
        monkeypatch.setitem(sys.modules, name, module)
    classifier = CodeClassifier(lambda: entries)
    assert classifier.classify("<string>", "shop.models.Item") == APPLICATION
    assert classifier.classify("<string>", "__main__.Item") == APPLICATION
