"""The source files of the repository as syntax trees; shared by the tests of the architecture."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = "splunk_profiler"


def python_files(*folders: str) -> list[Path]:
    """Return the Python files of these folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """``splunk_profiler/export/files.py`` → ``export.files``, a package's ``__init__`` → the package."""
    parts = path.relative_to(ROOT / OURS).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of the package, by its name without the package's."""
    return {module_of(path): path for path in python_files(OURS)}


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file, once."""
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file."""
    return tuple(ast.walk(tree_of(path)))


def within(module: str, package: str) -> bool:
    """Return True for the package itself and what is in it."""
    return module == package or module.startswith(package + ".")


def at(path: Path, line: int) -> str:
    """Return ``path:line``, relative to the repository."""
    return f"{path.relative_to(ROOT)}:{line}"
