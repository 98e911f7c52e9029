"""A minimal build backend for projects that tests install. Imports nothing but the standard library.

A project has a ``project.json`` with ``name``, ``version``, ``packages`` (folder of the project that holds them) and
``editable``, which says how an editable install leads to it: by a path, or by a finder that knows its packages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

_FINDER = """
import sys
from importlib.util import spec_from_file_location

MAPPING = {mapping!r}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top in MAPPING and not rest:
            return spec_from_file_location(name, MAPPING[top] + "/__init__.py")


def install():
    sys.meta_path.append(Finder)
"""


def make_wheel(folder: str | Path, name: str, version: str, files: dict[str, str]) -> str:
    """Write a wheel with `files` (path → text) and pip's metadata, and return its file name."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in content.items()}
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{len(content[path].encode())}"
        for path, digest in digests.items()
    ]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    file = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / file, "w") as wheel:
        for path, text in content.items():
            wheel.writestr(path, text)
    return file


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:  # noqa: ARG001
    """Build a wheel (PEP 517)."""
    project = json.loads(Path("project.json").read_text())
    root = Path(project["packages"])
    files = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py") if path.name != "backend.py"}
    return make_wheel(wheel_directory, project["name"], project["version"], files)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:  # noqa: ARG001
    """Build an editable wheel (PEP 660)."""
    project = json.loads(Path("project.json").read_text())
    name, root = project["name"], Path(project["packages"]).resolve()
    if project["editable"] == "path":
        files = {f"_{name}.pth": f"{root}\n"}
    else:
        module = f"__editable___{name.replace('-', '_')}_finder"
        mapping = {path.parent.name: str(path.parent) for path in root.glob("*/__init__.py")}
        files = {
            f"{module}.py": _FINDER.format(mapping=mapping),
            f"{module}.pth": f"import {module}; {module}.install()",
        }
    return make_wheel(wheel_directory, name, project["version"], files)
