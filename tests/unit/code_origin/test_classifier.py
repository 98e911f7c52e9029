"""Origins of files: packages that pip has installed in all its ways, and code of no package."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from classifier_factory import make_classifier, put
from wheel_backend import make_wheel

from splunk_profiler.code_origin import classifier
from splunk_profiler.code_origin.classifier import APPLICATION, LIBRARY, STANDARD_LIBRARY, UNKNOWN, CodeClassifier
from splunk_profiler.code_origin.distributions import read_entry
from splunk_profiler.samples import CodeOrigin, OriginKind

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
FUNCTION = "def work():\n    return 1\n"
GENERATED = "from dataclasses import dataclass\n\n\n@dataclass\nclass Point:\n    x: int\n"
DIRECT = "x/a.py,,\nx-1.dist-info/direct_url.json,,\n"
BY_PIP = {"x-1.dist-info/INSTALLER": "pip\n"}


def project(folder: Path, name: str, version: str, editable: str) -> Path:
    """Write a project with one package in ``src`` that pip can install."""
    settings = {"name": name, "version": version, "packages": "src", "editable": editable}
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    own = {
        "project.json": json.dumps(settings),
        "pyproject.toml": f'{backend}[project]\nname = "{name}"\nversion = "{version}"\n',
        "backend.py": (TESTS / "support" / "wheel_backend.py").read_text("utf-8"),
    }
    return put(folder / name, {**own, f"src/{name.replace('-', '_')}/__init__.py": FUNCTION})


def pip(prefix: Path, *what: str) -> Path:
    """Install into `prefix`; return the directory with the packages."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    command += ["--ignore-installed", "--no-warn-script-location", "--no-compile", "--prefix", str(prefix)]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1", "PYTHONPATH": ""}
    done = subprocess.run([*command, *what], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (metadata, *_) = prefix.rglob("*.dist-info")
    return metadata.parent


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the origins of all packages in a process that has imported them."""
    folder = tmp_path_factory.mktemp("installed")
    wheels = folder / "wheels"
    wheels.mkdir()
    libraries = {
        ("Plain.Thing", "1.0"): {
            "plain/__init__.py": FUNCTION,
            "plain/deep/inside.py": FUNCTION,
            "plain/models.py": GENERATED,
            "plain_single.py": FUNCTION,
        },
        ("ns-one", "1.1"): {"ns/one/__init__.py": FUNCTION, "ns/both/first.py": FUNCTION},
        ("ns-two", "2.0"): {"ns/two/__init__.py": FUNCTION, "ns/both/second.py": FUNCTION},
    }
    what = [str(wheels / make_wheel(wheels, *named, files)) for named, files in libraries.items()]
    what.append(str(project(folder, "local-app", "0.3", "path")))
    by_path = project(folder, "by-path", "0.4", "path")
    by_finder = project(folder, "by-finder", "0.5", "finder")
    site = pip(folder / "prefix", *what, "--editable", str(by_path), "--editable", str(by_finder))
    put(site, {"listed/__init__.py": FUNCTION, "debian_like-3.1.dist-info/top_level.txt": "listed\n"})
    put(site, {"old_way.py": FUNCTION, "old_way-0.9-py3.7.egg-info/installed-files.txt": "../old_way.py\nPKG-INFO\n"})
    put(site, {"stray.py": FUNCTION})
    packaged = {
        "RECORD": "packaged.py,,\npackaged-6.0.dist-info/direct_url.json,,\n",
        "direct_url.json": json.dumps({"dir_info": {}, "url": "file:///builds/packaged/work"}),
        "INSTALLER": "conda",
    }
    put(site, {"packaged.py": FUNCTION, **{f"packaged-6.0.dist-info/{name}": text for name, text in packaged.items()}})
    developed = put(
        folder / "developed",
        {
            "developed/__init__.py": FUNCTION,
            "developed.egg-info/PKG-INFO": "Name: developed\nVersion: 0.7\n",
            "developed.egg-info/top_level.txt": "developed\n",
        },
    )
    zipped = folder / "bundle.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for path in ("zipped/__init__.py", "mine/__init__.py"):
            archive.writestr(path, FUNCTION)
        archive.writestr("zipped-4.2.dist-info/RECORD", "zipped/__init__.py,,\nzipped-4.2.dist-info/RECORD,,\n")
    egg = folder / "laid-2.1-py3.8.egg"
    with zipfile.ZipFile(egg, "w") as archive:
        archive.writestr("laid.py", FUNCTION)
        archive.writestr("EGG-INFO/PKG-INFO", "Name: laid\nVersion: 2.1\n")
    whole_app = folder / "app.zip"
    with zipfile.ZipFile(whole_app, "w") as archive:
        archive.writestr("own_main.py", FUNCTION)
        archive.writestr("lib/packed.py", FUNCTION)
        archive.writestr("lib/packed-5.0.dist-info/RECORD", "packed.py,,\n")
    put(site, {"further/second_entry.py": FUNCTION, "further.pth": "further\n"})
    put(site, {"further-1.5.dist-info/RECORD": "further/second_entry.py,,\nfurther.pth,,\n"})
    put(site, {"sourceless-0.8.dist-info/RECORD": "sourceless.pyc,,\n"})
    source = put(folder / "compiled", {"sourceless.py": FUNCTION}) / "sourceless.py"
    py_compile.compile(str(source), str(site / "sourceless.pyc"), dfile="/builds/sourceless.py")
    (folder / "linked").symlink_to(put(folder / "app", {"service.py": FUNCTION}))
    modules = (
        "plain plain.deep.inside plain.models plain_single ns.one ns.two ns.both.first ns.both.second local_app by_path"
        " by_finder packaged listed old_way stray developed zipped mine service wave"
        " laid own_main packed second_entry sourceless"
    )
    paths = [str(path) for path in (site, developed, zipped, folder / "linked", egg, whole_app, whole_app / "lib")]
    done = subprocess.run(
        [sys.executable, str(TESTS / "targets" / "code_origins.py"), *paths, "--", *modules.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("code", "origin"),
    [
        ("plain.work", ("library", "plain-thing", "1.0")),
        ("plain.deep.inside.work", ("library", "plain-thing", "1.0")),
        ("plain.models.Point", ("library", "plain-thing", "1.0")),
        ("plain_single.work", ("library", "plain-thing", "1.0")),
        ("ns.one.work", ("library", "ns-one", "1.1")),
        ("ns.two.work", ("library", "ns-two", "2.0")),
        ("ns.both.first.work", ("library", "ns-one", "1.1")),
        ("ns.both.second.work", ("library", "ns-two", "2.0")),
        ("listed.work", ("library", "debian-like", "3.1")),
        ("old_way.work", ("library", "old-way", "0.9")),
        ("stray.work", ("library", "", "")),
        ("packaged.work", ("library", "packaged", "6.0")),
        ("zipped.work", ("library", "zipped", "4.2")),
        ("local_app.work", ("application", "local-app", "0.3")),
        ("by_path.work", ("application", "by-path", "0.4")),
        ("by_finder.work", ("application", "by-finder", "0.5")),
        ("developed.work", ("application", "developed", "0.7")),
        ("mine.work", ("application", "", "")),
        ("laid.work", ("library", "laid", "2.1")),
        ("packed.work", ("library", "packed", "5.0")),
        ("own_main.work", ("application", "", "")),
        ("second_entry.work", ("library", "further", "1.5")),
        ("sourceless.work", ("library", "sourceless", "0.8")),
        ("service.work", ("application", "", "")),
        ("wave.open", ("standard library", "python", ".".join(map(str, sys.version_info[:3])))),
    ],
)
def test_code_belongs_to_what_has_brought_it(told: dict[str, Any], code: str, origin: tuple[str, str, str]) -> None:
    if code == "wave.open":
        origin = (origin[0], origin[1], STANDARD_LIBRARY.version)  # as of a release candidate
    assert tuple(told["told"][code]) == origin


def test_reading_what_is_installed_imports_nothing(told: dict[str, Any]) -> None:
    assert told["whole"]
    assert told["loaded"] == []


@pytest.mark.parametrize(
    ("file", "namespace", "origin"),
    [
        ("<frozen importlib._bootstrap>", "importlib._bootstrap", STANDARD_LIBRARY),
        ("<frozen runpy>", "runpy", STANDARD_LIBRARY),
        ("<frozen service>", "service", APPLICATION),
        ("<string>", "__main__", APPLICATION),
        ("<stdin>", "__main__", APPLICATION),
        ("<string>", "json.decoder.JSONDecoder", STANDARD_LIBRARY),
        ("<string>", "namedtuple_Point", UNKNOWN),
        ("unknown", "[process]", UNKNOWN),
        ("", "", UNKNOWN),
        ("service/app.py", "gone", APPLICATION),
        ("/srv/app.py", "app", APPLICATION),
        ("/srv/no\0path/app.py", "app", APPLICATION),
        ("/srv/no\ud800path/app.py", "app", APPLICATION),
        ("/gone/lib/python3.9/site-packages/x/y.py", "x.y", LIBRARY),
        (os.__file__, "os", STANDARD_LIBRARY),
    ],
)
def test_code_without_a_distribution_is_known_by_where_it_is(file: str, namespace: str, origin: CodeOrigin) -> None:
    assert make_classifier().classify(file, namespace) == origin


def test_the_library_of_another_python_is_not_the_applications(tmp_path: Path) -> None:
    put(tmp_path, {"lib/python3.9/json/decoder.py": FUNCTION, "lib/python3.9/shop/app.py": FUNCTION})
    other = CodeOrigin(OriginKind.STANDARD_LIBRARY, "python")
    for place in (tmp_path, "/gone"):
        assert make_classifier().classify(f"{place}/lib/python3.9/json/decoder.py", "json.decoder.JSONDecoder") == other
        assert make_classifier().classify(f"{place}/lib/python3.9/shop/app.py", "shop.app") == APPLICATION


@pytest.mark.parametrize("file", [None, "os.py", 7])
def test_a_program_that_modules_are_built_into_is_no_standard_library(
    file: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file is None:
        monkeypatch.delattr(os, "__file__")
    else:
        monkeypatch.setattr(os, "__file__", file)
    assert make_classifier().classify(f"{Path.cwd()}/app.py", "app") == APPLICATION


def test_profiler_is_a_library_even_when_run_from_its_sources(tmp_path: Path) -> None:
    file = classifier.__file__
    assert make_classifier().classify(file, "splunk_profiler.code_origin.classifier") == CodeOrigin(
        OriginKind.LIBRARY, "splunk-profiler"
    )
    site = put(tmp_path / "site-packages", {"splunk_profiler-0.9.dist-info/RECORD": "splunk_profiler.pth,,\n"})
    installed = make_classifier([str(site)])
    assert installed.read()
    assert installed.classify(file, "splunk_profiler.code_origin.classifier") == CodeOrigin(
        OriginKind.LIBRARY, "splunk-profiler", "0.9"
    )


def test_start_script_belongs_to_the_distribution_that_installed_it(tmp_path: Path) -> None:
    site = put(
        tmp_path / "lib" / "python3" / "site-packages",
        {
            "server-2.dist-info/RECORD": "server/__init__.py,,\n../../../bin/server,sha256=x,220\n",
            "mine-1.dist-info/RECORD": "../../../bin/mine,sha256=x,220\nmine.pth,,\n",
            "mine.pth": "/srv/mine/src\n",
        },
    )
    put(tmp_path, dict.fromkeys(("bin/server", "bin/mine", "bin/other"), FUNCTION))
    classifier = make_classifier([str(site)])
    assert classifier.read()
    assert classifier.classify(f"{tmp_path}/bin/server", "__main__") == CodeOrigin(OriginKind.LIBRARY, "server", "2")
    assert classifier.classify(f"{tmp_path}/bin/mine", "__main__") == CodeOrigin(OriginKind.APPLICATION, "mine", "1")
    assert classifier.classify(f"{tmp_path}/bin/other", "__main__") == APPLICATION


def test_an_editable_install_of_single_modules_is_known_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "src", {"single.py": FUNCTION, "whole/__init__.py": FUNCTION, "other.py": FUNCTION})
    finder = ModuleType("__editable___mine_1_2_finder")
    vars(finder)["MAPPING"] = {name: f"{tmp_path}/src/{name}" for name in ("single", "whole")}
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    record = f"__editable__.mine-1.2.pth,,\n{finder.__name__}.py,,\n"
    site = put(tmp_path / "site-packages", {"mine-1.2.dist-info/RECORD": record})
    put(site, {"__editable__.mine-1.2.pth": f"import {finder.__name__}; {finder.__name__}.install()\n"})
    classifier = make_classifier([str(site)])
    assert classifier.read()
    mine = CodeOrigin(OriginKind.APPLICATION, "mine", "1.2")
    assert classifier.classify(f"{tmp_path}/src/single.py", "single") == mine
    assert classifier.classify(f"{tmp_path}/src/whole/__init__.py", "whole") == mine
    assert classifier.classify(f"{tmp_path}/src/other.py", "other") == APPLICATION


def test_a_directory_of_many_files_is_read_in_many_steps(tmp_path: Path) -> None:
    site = put(tmp_path / "site-packages", dict.fromkeys((f"m{number}.py" for number in range(1000)), ""))
    put(site, {"good-2.dist-info/RECORD": "good.py,,\n"})
    assert sum(1 for _ in read_entry(str(site))) > 10
    times = iter(range(10_000))
    classifier = CodeClassifier(lambda: [str(site)], monotonic=lambda: next(times) / 20)
    turns = 1
    while not classifier.read():
        turns += 1
    assert turns > 2
    assert classifier.classify(f"{site}/good.py", "good").version == "2"


def test_others_are_let_in_while_a_long_list_is_read(tmp_path: Path) -> None:
    record = "".join(f"big/m{n}.py,,\n" for n in range(60_000))
    site = put(tmp_path / "site-packages", {"big-1.dist-info/RECORD": record})
    pauses: list[int] = []
    assert CodeClassifier(lambda: [str(site)], monotonic=lambda: 0.0).read(lambda: pauses.append(1))
    assert len(pauses) >= 5


@pytest.mark.parametrize(
    "files",
    [
        {"x-1.dist-info/RECORD/file": "a directory in place of a file"},
        {"x-1.dist-info/RECORD": DIRECT + '"x/b,c.py",,\n,\n"\n', "x-1.dist-info/direct_url.json": "[{"},
        {"x-1.dist-info/RECORD": DIRECT, "x-1.dist-info/direct_url.json": "7"},
        {"x-1.dist-info/RECORD": DIRECT, "x-1.dist-info/direct_url.json": '{"url": 7, "dir_info": {}}', **BY_PIP},
        {"x-1.dist-info/RECORD": DIRECT, "x-1.dist-info/direct_url.json": '{"url": "x:", "dir_info": {}}', **BY_PIP},
        {"x-1.dist-info/RECORD": "../../../etc/x.py,,\n/x/a.py,,\nx.pth,,\n", "x.pth": "\0\n../..\n/\n"},
        {".dist-info/RECORD": "x/a.py,,\n", "-.dist-info/RECORD": "x/a.py,,\n", "~x-1.dist-info/RECORD": "x/a.py,,\n"},
        {"x.egg-info": "a file"},
    ],
)
def test_what_installers_should_not_have_left_does_no_harm(tmp_path: Path, files: dict[str, str]) -> None:
    site = put(tmp_path / "site-packages", {**files, "good-2.dist-info/RECORD": "good/a.py,,\n"})
    (site / "loop-1.dist-info").mkdir()
    os.mkfifo(site / "loop-1.dist-info" / "RECORD")
    (site / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    odd: list[object] = [str(site), site, 7, None, "", "\0", "relative", str(site / "broken.zip"), "/gone"]
    classifier = make_classifier(odd)
    assert classifier.read()
    assert classifier.classify(f"{site}/good/a.py", "good.a") == CodeOrigin(OriginKind.LIBRARY, "good", "2")
    assert classifier.classify("/srv/app.py", "app") == APPLICATION


def test_however_many_files_and_distributions_there_are_little_is_kept(tmp_path: Path) -> None:
    record = "".join(f"big/d{n % 1000}/e/f/m{n}.py,,\n" for n in range(10_000))
    site = put(tmp_path / "site-packages", {"big-1.dist-info/RECORD": record})
    tracemalloc.start()
    try:
        classifier = CodeClassifier(lambda: [str(site)])
        while not classifier.read():
            pass
        for number in range(20_000):
            assert classifier.classify(f"{site}/big/d1/e/f/m{number}.py", "big").name == "big"
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 6 << 20
