"""The dependency table of docs/architecture.md, held as data and checked against the sources.

Reads every file of the repository with `ast` and imports none of them, apart from one test that asks a fresh
interpreter what a launch loads. A module that is new has to be given its layer here.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = "splunk_profiler"

# Imports point down: a module may import what is in a lower layer.
LAYERS: dict[str, int] = {
    "_walker": 0,
    "_context": 0,
    "model": 0,
    "values": 0,
    "transport": 0,
    "settings": 0,
    "config": 0,
    "threads": 0,
    "guard": 0,
    "imports": 0,
    "printable": 0,
    "preload": 0,
    "private_files": 0,
    "switch": 0,
    "calls": 0,
    "focus": 0,
    "accounts": 1,
    "changes": 1,
    "lives": 1,
    "naming": 1,
    "filtering": 1,
    "portable": 1,
    "listening": 1,
    "selection": 1,
    "shares": 1,
    "trace_capture": 1,
    "portable_collections": 1,
    "capture": 1,
    "spans": 1,
    "roots": 1,
    "runtime_id": 1,
    "pacing": 1,
    "user_labels": 1,
    "sample_labels": 1,
    "distributions": 1,
    "provenance": 1,
    "formats": 1,
    "correlation": 1,
    "delivery": 2,
    "events": 2,
    "sampler": 2,
    "recorder": 2,
    "aggregator": 2,
    "recording": 2,
    "snapshots": 2,
    "runtime": 2,
    "sinks": 2,
    "correlation.processor": 2,
    "correlation.correlator": 2,
    "destinations": 3,
    "sampling": 3,
    "publishing": 3,
    "sigterm": 3,
    "composition": 3,
    "profiler": 3,
    "__init__": 4,
    "__main__": 4,
    "cli": 4,
}

# Within a layer these may be imported, by these; everything inside one package of the table may import its neighbours.
BESIDE: dict[str, set[str]] = {
    "transport": {"values"},
    "settings": {"transport", "values"},
    "config": {"settings", "transport", "values"},
    "guard": {"printable"},
    "calls": {"threads"},
    "capture": {"accounts", "changes", "lives", "naming", "filtering", "portable", "portable_collections"},
    "lives": {"accounts"},
    "portable": {"portable_collections"},
    "sample_labels": {"user_labels"},
    "roots": {"listening", "spans"},
    "selection": {"listening"},
    "trace_capture": {"accounts", "capture", "changes", "filtering", "lives"},
    "snapshots": {"recording"},
    "runtime_id": {"correlation"},
    "correlation": {"listening"},
    "provenance": {"distributions"},
    "recorder": {"delivery"},
    "aggregator": {"events"},
    "recording": {"aggregator", "recorder"},
    "correlation.correlator": {"correlation.processor"},
    "sampling": {"destinations"},
    "composition": {"sampling", "publishing"},
    "profiler": {"composition", "sigterm"},
    "__main__": {"cli", "__init__"},
    "cli": {"__init__", "__main__"},
}

# Never, whatever the layers say. A name is a module of ours (``sinks``) or a package of others (``opentelemetry``).
NEVER: dict[str, set[str]] = {
    "model": {"opentelemetry", "grpc", "google"},
    "config": {"model", "threads", "guard", "opentelemetry", "grpc", "google"},
    "values": {"model", "config", "transport", "threads", "guard", "opentelemetry", "grpc", "google", "os", "pathlib"},
    "transport": {"model", "config", "threads", "guard", "opentelemetry", "grpc", "google", "os", "pathlib"},
    "settings": {"model", "config", "threads", "guard", "opentelemetry", "grpc", "google", "os", "pathlib"},
    "threads": {"model", "config", "guard", "opentelemetry"},
    "guard": {"model", "config", "threads", "opentelemetry"},
    "imports": {"model", "config", "threads", "guard", "opentelemetry", "grpc"},
    "printable": {"model", "config", "guard", "threads", "opentelemetry", "rich"},
    "naming": {"config", "opentelemetry", "grpc"},
    "filtering": {"config", "opentelemetry", "grpc"},
    "portable": {"config", "spans", "opentelemetry", "grpc"},
    "portable_collections": {"model", "config", "guard", "spans", "user_labels", "opentelemetry", "grpc"},
    "sample_labels": {"model", "config", "capture", "correlation", "opentelemetry", "grpc"},
    "events": {"sinks", "formats", "opentelemetry", "grpc", "correlation"},
    "capture": {"spans", "config", "opentelemetry", "grpc"},
    "spans": {"config", "capture"},
    "accounts": {"config", "threads", "guard", "opentelemetry", "grpc"},
    "calls": {"model", "config", "guard", "opentelemetry"},
    "sigterm": {"config", "sampling", "publishing", "sinks", "correlation", "opentelemetry", "grpc"},
    "focus": {"model", "config", "threads", "guard", "opentelemetry"},
    "listening": {"config", "capture", "opentelemetry", "grpc"},
    "selection": {"config", "capture", "spans", "opentelemetry", "grpc"},
    "trace_capture": {"config", "spans", "opentelemetry", "grpc"},
    "snapshots": {"sinks", "formats", "grpc", "correlation", "config"},
    "roots": {"config", "capture", "correlation", "opentelemetry.sdk", "grpc"},
    "runtime_id": {"config", "capture", "spans", "opentelemetry", "grpc"},
    "pacing": {"config", "threads", "guard", "time", "opentelemetry", "grpc"},
    "distributions": {"config", "guard", "threads", "opentelemetry", "grpc", "importlib"},
    "provenance": {"config", "formats", "threads", "opentelemetry", "grpc", "importlib"},
    "formats": {"opentelemetry", "grpc", "logging", "os", "time", "io", "pathlib", "socket", "threading", "datetime"},
    "sampler": {"sinks", "formats", "opentelemetry", "grpc", "correlation", "config"},
    "recorder": {"sinks", "formats", "opentelemetry", "grpc", "correlation", "config"},
    "aggregator": {"sinks", "formats", "opentelemetry", "grpc", "correlation", "config"},
    "recording": {"sinks", "formats", "opentelemetry", "grpc", "correlation", "config"},
    "delivery": {"sinks", "formats", "opentelemetry", "grpc", "config"},
    "correlation": {"sampler", "recorder", "config", "user_labels", "socket", "opentelemetry.sdk", "grpc"},
    "user_labels": {"config", "correlation", "opentelemetry", "grpc"},
    "destinations": {"correlation", "sampler", "recorder"},
    "sampling": {"correlation"},
    "publishing": {"sinks", "recorder", "sampler", "opentelemetry.sdk", "grpc"},
    "inspector": {OURS},
    "cli.run": {"profiler", "sampling", "publishing", "opentelemetry", "grpc", "rich"},
    "cli.output": {"rich", "cli.terminal"},
    "cli.autostart": {"profiler", "opentelemetry", "grpc", "click"},
}

EXTENSIONS = {"_walker", "_context"}  # in C; they have no file among the modules
FORMATS_IMPORT_OF_OURS = {"model", "formats.profile_proto"}
PLAIN_C = ("correlation.c", "custom_labels.c")  # the two published ABIs: nothing of Python in them
READS_THE_ENVIRONMENT = {"config", "switch", "preload", "cli.autostart.sitecustomize"}


@dataclass(frozen=True)
class Import:
    """`name` is imported in line `line`; a module of ours is named without the package's name."""

    name: str
    ours: bool
    line: int
    lazy: bool


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """``splunk_profiler/sinks/otlp.py`` → ``sinks.otlp``, a package's ``__init__`` → the package."""
    parts = path.relative_to(ROOT / OURS).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in python_files(OURS)}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def lookup(table: dict[str, int], module: str) -> str | None:
    """The row of `table` for `module`: its own, or that of the package that holds it."""
    while module not in table:
        if "." not in module:
            return None
        module = module.rpartition(".")[0]
    return module


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imports(path: Path) -> Iterator[Import]:
    lazy = {
        inner
        for outer in ast.walk(tree_of(path))
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
    }
    lazy |= {  # what only a type checker sees is not loaded at all
        inner
        for block in ast.walk(tree_of(path))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for inner in ast.walk(block)
    }
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [_target(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            names = [_text_of(node.args[0])]
        else:
            continue
        for name in names:
            ours = within(name, OURS)
            yield Import((name[len(OURS) + 1 :] or "__init__") if ours else name, ours, node.lineno, node in lazy)


def _target(module: str, name: str) -> str:
    """What ``from module import name`` loads: the submodule, where `name` is one."""
    if not within(module, OURS):
        return module
    full = f"{module}.{name}"
    known = full[len(OURS) + 1 :]
    return full if known in modules() or known in LAYERS else module


def _text_of(node: ast.expr) -> str:
    """The constant text at the start of a string expression; a name that is computed begins with what is known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value).rstrip(".")
    return ""


def at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_has_a_layer() -> None:
    homeless = [name for name in modules() if lookup(LAYERS, name) is None and not within(name, "inspector")]
    assert not homeless


def test_imports_point_down() -> None:
    wrong = []
    for module, path in modules().items():
        row = lookup(LAYERS, module)
        for found in imports(path) if row else ():
            target = lookup(LAYERS, found.name) if found.ours else None
            if row is None or target is None or target == row:
                continue
            beside, below = target in BESIDE.get(row, set()), LAYERS[target] < LAYERS[row]
            if not (beside if LAYERS[target] == LAYERS[row] else below):
                wrong.append(f"{at(path, found.line)}: {module} (layer {LAYERS[row]}) imports {found.name}")
    assert not wrong


def test_nothing_imports_what_it_must_never_know() -> None:
    wrong = []
    for module, path in modules().items():
        rules = [(package, banned) for package, banned in NEVER.items() if within(module, package)]
        for found in imports(path):
            full = f"{OURS}.{found.name}" if found.ours else found.name
            if any(
                within(full, OURS if name == OURS else f"{OURS}.{name}") or within(full, name)
                for package, banned in rules
                if not (found.ours and within(found.name, package))  # its own modules
                for name in banned
            ):
                wrong.append(f"{at(path, found.line)}: {module} imports {full}")
    assert not wrong


def test_formats_know_the_model_and_their_wire_format_and_nothing_else_of_ours() -> None:
    wrong = [
        f"{at(path, found.line)}: {found.name}"
        for module, path in modules().items()
        if within(module, "formats")
        for found in imports(path)
        if found.ours and found.name not in FORMATS_IMPORT_OF_OURS
    ]
    assert not wrong


def test_only_the_command_line_reaches_the_inspector_and_lazily() -> None:
    wrong = [
        f"{at(path, found.line)}: {module}"
        for module, path in modules().items()
        if not within(module, "inspector")
        for found in imports(path)
        if found.ours and within(found.name, "inspector") and not (within(module, "cli") and found.lazy)
    ]
    assert not wrong


def _uses(path: Path, module: str, names: set[str]) -> list[int]:
    """Lines in which ``module.name`` or ``from module import name`` stands."""
    lines = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == module and node.attr in names:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == module:
            lines += [node.lineno for alias in node.names if alias.name in names]
    return lines


def _used_elsewhere(places: set[str], module: str, names: set[str]) -> list[str]:
    others = {name: path for name, path in modules().items() if name not in places}
    if module == "signal":  # commands have a process of their own
        others = {name: path for name, path in others.items() if not within(name, "cli")}
    return [at(path, line) for path in others.values() for line in _uses(path, module, names)]


def test_only_config_reads_the_environment() -> None:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    assert not _used_elsewhere(READS_THE_ENVIRONMENT, "os", names)


def test_only_the_lifecycle_hooks_forks_exit_and_signals() -> None:
    assert not _used_elsewhere({"profiler"}, "os", {"register_at_fork"})
    assert not _used_elsewhere({"profiler"}, "atexit", {"register", "unregister"})
    assert not _used_elsewhere({"sigterm"}, "signal", {"signal", "set_wakeup_fd", "siginterrupt", "setitimer"})


def test_only_one_place_starts_threads() -> None:
    starters = ("threading.Thread", "threading.Timer", "_thread.start_new_thread")
    wrong = [
        at(path, node.lineno)
        for module, path in modules().items()
        if module != "threads" and not within(module, "cli")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in starters
    ]
    assert not wrong, "threads.Worker starts threads: elsewhere gevent would turn them into greenlets"


def test_no_module_keeps_state_in_globals() -> None:
    nodes = ((path, node) for path in python_files(OURS) for node in ast.walk(tree_of(path)))
    assert not [at(path, node.lineno) for path, node in nodes if isinstance(node, ast.Global)]


def test_a_launch_and_an_import_load_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "import splunk_profiler\n"
        "plain = {name for name in sys.modules if name.startswith('splunk_profiler.')}\n"
        "import splunk_profiler.__main__, splunk_profiler.cli.run\n"
        "print(*sorted(plain))\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('splunk_profiler', 'opentelemetry', 'grpc', 'google', 'rich')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    plain, launched = (set(line.split()) for line in done.stdout.splitlines())
    assert plain == set(), "`import splunk_profiler` loads nothing else of ours"
    assert not {name for name in launched if not within(name, OURS)}
    assert f"{OURS}.profiler" not in launched


def _defined_underscored(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if re.match(r"_[^_]", name)}


def _reached_from_outside(path: Path, private: set[str]) -> Iterator[tuple[int, str]]:
    """Underscored names of ours that a file outside the package uses: imported, dotted or in a string."""
    own = _defined_underscored(path)
    foreign = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if not within(module or alias.name, OURS):
                    foreign.add((alias.asname or alias.name).partition(".")[0])
                elif re.match(r"_[^_]", alias.name) and alias.name not in EXTENSIONS:
                    yield node.lineno, f"{module}.{alias.name}"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and node.attr in private - own:
            base = node.value
            while isinstance(base, (ast.Attribute, ast.Call)):
                base = base.value if isinstance(base, ast.Attribute) else base.func
            if not (isinstance(base, ast.Name) and base.id in foreign):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = re.search(r"\bsplunk_profiler(\.\w+)*?\.(_(?!walker\b|context\b|_)\w+)", node.value)
            if dotted:
                yield node.lineno, dotted.group()


def test_tests_and_benchmarks_use_no_underscored_name_of_ours() -> None:
    private = set().union(*(_defined_underscored(path) for path in modules().values()))
    outside = [path for path in python_files("tests", "benchmarks", "examples") if path != Path(__file__).resolve()]
    wrong = [f"{at(path, line)}: {name}" for path in outside for line, name in _reached_from_outside(path, private)]
    assert not wrong


def test_the_published_abis_know_nothing_of_python() -> None:
    assert not [name for name in PLAIN_C if "Python.h" in (ROOT / "native" / name).read_text("utf-8")]


def test_the_documented_table_names_every_module_that_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    there = {str(lookup(LAYERS, name)) for name in modules() if not within(name, "inspector")} | EXTENSIONS
    missing = [name for name in sorted(there) if not re.search(rf"^\| {LAYERS[name]} \|.*`{name}`", text, re.M)]
    assert not missing
