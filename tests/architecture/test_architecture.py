"""The dependency table of docs/architecture.md, held as data and checked against the sources.

Reads every file of the repository with `ast` and imports none of them, apart from one test that asks a fresh
interpreter what a launch loads. A package that is new has to be given its row here.
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

import pytest
from source_tree import OURS, ROOT, at, modules, nodes_of, python_files, within

# Imports point down, from a row to lower ones: a row for each package, and for each module at the root.
ROWS: dict[str, int] = {
    "_walker": 0,
    "_context": 0,
    "activation": 0,
    "version": 0,
    "model": 0,
    "config": 0,
    "system": 0,
    "samples": 1,
    "raw": 1,
    "stream": 2,
    "formats": 2,
    "otel": 1,
    "user_labels": 1,
    "capture": 3,
    "pipeline": 3,
    "code_origin": 3,
    "host_profilers": 4,
    "export": 4,
    "exporter_process": 5,
    "lifecycle": 6,
    "__init__": 7,
    "inspector": 7,
    "viewer": 7,
    "cli": 8,
    "__main__": 9,
}

# Never, whatever the rows say. A name is a module of ours (``export``) or a package of others (``opentelemetry``).
NEVER: dict[str, set[str]] = {
    **{name: {"opentelemetry", "grpc", "google"} for name in ("model", "samples")},
    "config": {"pathlib", "opentelemetry", "grpc", "google"},
    "config.parsers": {"os", "config"},
    "config.settings": {"os"},
    "config.preload": {"config"},
    "config.otlp_transport": {"os"},
    "system": {"opentelemetry", "grpc", "rich"},
    **{
        f"system.{name}": {"system"}
        for name in ("descriptors", "import_locks", "method_patch", "printable", "private_files")
    },
    "system.guard": {"system.threads"},
    "system.threads": {"system.call_queue", "system.context_values"},
    "system.call_queue": {"system.guard"},
    "raw": {"opentelemetry", "grpc"},
    "stream": {"config", "capture", "pipeline", "opentelemetry", "grpc", "google"},
    "stream.records": {"model", "samples", "system"},
    "stream.writer": {"samples"},
    "formats": {
        *("config", "system", "_walker", "_context", "activation"),
        *("opentelemetry", "grpc", "logging", "os", "time", "io", "pathlib", "socket", "threading", "datetime"),
    },
    "otel": {"config", "opentelemetry.sdk", "grpc"},
    "otel.span_processors": {"opentelemetry"},
    "otel.trace_selector": {"opentelemetry", "otel.spans"},
    "otel.runtime_id": {"opentelemetry", "otel.spans"},
    "user_labels": {"config", "model", "samples", "opentelemetry", "grpc"},
    "user_labels.sample_labels": {"system"},
    "capture": {"samples", "formats", "otel", "user_labels", "opentelemetry", "grpc"},
    **{f"capture.{name}": {"config"} for name in ("sampler", "walker", "portable", "symbolizer")},
    "capture.recorder": {"config"},
    "capture.thread_registry": {"config", "model", "stream"},
    "capture.snapshot_writer": {"config", "model"},
    "capture.portable_gc": {"config", "model", "system.guard"},
    "capture.schedule": {"config", "model", "system"},
    "capture.overhead": {"config", "model", "system", "time"},
    "pipeline": {"config", "formats", "otel", "user_labels", "opentelemetry", "grpc"},
    "pipeline.thread_times": {"system"},
    **{f"pipeline.{name}": {"model", "samples", "system", "raw"} for name in ("thread_states", "selected_traces")},
    "pipeline.snapshot_builder": {"pipeline.batch_exporter", "pipeline.aggregator", "pipeline.record_pipeline"},
    "pipeline.aggregator": {"pipeline.batch_exporter", "pipeline.snapshot_builder"},
    "pipeline.batch_exporter": {"pipeline.aggregator", "pipeline.snapshot_builder"},
    "code_origin": {"config", "formats", "system.threads", "opentelemetry", "grpc", "importlib"},
    "code_origin.distributions": {"system"},
    "host_profilers": {
        *("config.settings", "config.otlp_transport", "capture", "pipeline", "user_labels"),
        *("socket", "opentelemetry.sdk", "grpc"),
    },
    "export": {"capture", "pipeline"},
    **{f"export.{name}": {"export.destinations"} for name in ("otlp", "datadog", "files", "lazy_sink")},
    "lifecycle": {"formats", "opentelemetry", "grpc"},
    "lifecycle.sampling": {"host_profilers", "lifecycle.publishing"},
    "lifecycle.publishing": {"export", "capture", "pipeline", "lifecycle.sampling"},
    "lifecycle.local_export": {"capture", "host_profilers", "lifecycle.sampling"},
    "lifecycle.sigterm": {
        *("config", "export", "host_profilers"),
        *("lifecycle.sampling", "lifecycle.publishing", "lifecycle.profiler"),
    },
    **{f"exporter_process.{name}": {"opentelemetry", "grpc"} for name in ("launch", "pipelines")},
    "exporter_process.session": {"capture"},
    **{
        f"exporter_process.{name}": {"config", "capture", "opentelemetry", "grpc", *more}
        for name, more in {
            "__main__": {"system", "pipeline", "export"},
            "connection": {"exporter_process.launch", "exporter_process.server"},
            "server": {"_walker", "threading"},  # one thread; the extension may be of no use there
            "transport": {"system"},
        }.items()
    },
    "inspector": {*ROWS} - {"inspector"},
    "viewer": {
        *("cli", "capture", "export", "exporter_process", "host_profilers"),
        *("opentelemetry", "grpc", "rich", "click"),
    },
    "viewer.profile_messages": {"formats.pprof"},
    **{
        f"viewer.{name}": {"starlette", "uvicorn"}
        for name in ("model", "stacks", "columns", "recording", "records", "live_files", "trees", "exports", "answers")
    },
    "cli": {"lifecycle"},
    **{f"cli.{name}": {"opentelemetry", "grpc", "rich"} for name in ("container_init", "run")},
    "cli.output": {"rich", "cli.terminal"},
    "cli.autostart": {"opentelemetry", "grpc", "click"},
}

EXTENSIONS = {"_walker", "_context"}  # in C; they have no file among the modules


@dataclass(frozen=True)
class ProcessWide:
    """Names of `module` that act on the whole process; only the `owners` use them."""

    module: str
    names: set[str]
    owners: set[str]


# A command has a process of its own. `activation` precedes `config`; `cli.autostart` may lack the package, and
# `exporter_process.__main__` finds it by a variable.
PROCESS_WIDE = [
    ProcessWide(
        "os",
        {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"},
        {"config", "activation", "cli.autostart", "exporter_process.__main__"},
    ),
    ProcessWide("os", {"register_at_fork"}, {"activation"}),
    ProcessWide("time", {"monotonic", "monotonic_ns"}, {"activation", "system.clocks", "cli", "viewer", "inspector"}),
    ProcessWide("sys", {"setswitchinterval"}, {"system.short_turns"}),
    ProcessWide("sys", {"monitoring"}, {"capture.events.exceptions"}),
    ProcessWide("atexit", {"register", "unregister"}, {"lifecycle.process"}),
    ProcessWide(
        "signal",
        {"signal", "set_wakeup_fd", "siginterrupt", "setitimer"},
        {"lifecycle.sigterm", "cli.container_init", "cli.run", "cli.demo"},
    ),
]
THREAD_STARTERS = ("threading.Thread", "threading.Timer", "_thread.start_new_thread")
THREAD_OWNERS = {"system.threads", "cli.load"}  # elsewhere gevent would turn them into greenlets


@dataclass(frozen=True)
class Import:
    """`name` is imported in line `line`; a module of ours is named without the package's name."""

    name: str
    ours: bool
    line: int
    lazy: bool


@cache
def imports(path: Path) -> list[Import]:
    lazy = {
        inner
        for outer in nodes_of(path)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
    }
    lazy |= {  # what only a type checker sees is not loaded at all
        inner
        for block in nodes_of(path)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for inner in ast.walk(block)
    }
    found = []
    for node in nodes_of(path):
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
            own = name[len(OURS) + 1 :] or "__init__"
            found.append(Import(own if ours else name, ours, node.lineno, node in lazy))
    return found


def _target(module: str, name: str) -> str:
    """Return the module that ``from module import name`` loads: the submodule, where `name` is one."""
    if not within(module, OURS):
        return module
    full = f"{module}.{name}"
    known = full[len(OURS) + 1 :]
    return full if known in modules() or known in EXTENSIONS else module


def _text_of(node: ast.expr) -> str:
    """The constant text at the start of a string expression; a name that is computed begins with what is known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return str(node.values[0].value).rstrip(".")
    return ""


def row_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_has_a_row() -> None:
    assert {row_of(name) for name in modules()} | EXTENSIONS == {*ROWS}


def test_imports_point_down() -> None:
    wrong = []
    for module, path in modules().items():
        own = row_of(module)
        for found in imports(path):
            target = row_of(found.name)
            if found.ours and target != own and ROWS[target] >= ROWS[own]:
                wrong.append(f"{at(path, found.line)}: {module} (row {ROWS[own]}) imports {found.name}")
    assert not wrong


def test_modules_do_not_import_in_a_circle() -> None:
    targets = {module: {found.name for found in imports(path) if found.ours} for module, path in modules().items()}
    while free := {module for module, names in targets.items() if not names & targets.keys()}:
        targets = {module: names for module, names in targets.items() if module not in free}
    assert not targets, "these import a circle, perhaps lazily, or are part of one"


def test_nothing_imports_what_it_must_never_know() -> None:
    wrong = []
    for module, path in modules().items():
        rules = [(package, banned) for package, banned in NEVER.items() if within(module, package)]
        for found in imports(path):
            full = f"{OURS}.{found.name}" if found.ours else found.name
            if any(
                within(full, f"{OURS}.{name}") or within(full, name)
                for package, banned in rules
                if not (found.ours and within(found.name, package))  # its own modules
                for name in banned
            ):
                wrong.append(f"{at(path, found.line)}: {module} imports {full}")
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
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == module and node.attr in names:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == module:
            lines += [node.lineno for alias in node.names if alias.name in names]
    return lines


def _others(owners: set[str]) -> list[Path]:
    return [path for module, path in modules().items() if not any(within(module, owner) for owner in owners)]


@pytest.mark.parametrize("thing", PROCESS_WIDE, ids=lambda thing: f"{thing.module}.{min(thing.names)}")
def test_only_the_owners_use_what_a_process_has_once(thing: ProcessWide) -> None:
    assert not [at(path, line) for path in _others(thing.owners) for line in _uses(path, thing.module, thing.names)]


def test_only_the_owners_start_threads() -> None:
    wrong = [
        at(path, node.lineno)
        for path in _others(THREAD_OWNERS)
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in THREAD_STARTERS
    ]
    assert not wrong, "system.threads.Worker starts threads"


def test_no_module_keeps_state_in_globals() -> None:
    nodes = ((path, node) for path in python_files(OURS) for node in nodes_of(path))
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
    assert plain == {f"{OURS}.activation"}, "`import splunk_profiler` loads nothing else of ours"
    assert not {name for name in launched if not within(name, OURS)}
    assert not {name for name in launched if within(name, f"{OURS}.lifecycle")}


def _defined_underscored(path: Path) -> set[str]:
    found = set()
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if name.startswith("_") and name[1:2] not in ("", "_")}


def _imported(path: Path) -> Iterator[tuple[int, str, ast.alias]]:
    for node in nodes_of(path):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            yield from ((node.lineno, module, alias) for alias in node.names)


def _reached_from_outside(path: Path, private: set[str]) -> Iterator[tuple[int, str]]:
    """Underscored names of ours that a file outside the package uses: imported, dotted or in a string."""
    private = private - _defined_underscored(path)
    foreign = set()
    for line, module, alias in _imported(path):
        if not within(module or alias.name, OURS):
            foreign.add((alias.asname or alias.name).partition(".")[0])
        elif re.match(r"_[^_]", alias.name) and alias.name not in EXTENSIONS:
            yield line, f"{module}.{alias.name}"
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and node.attr in private:
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
    wrong = [
        f"{at(path, line)}: {name}"
        for path in python_files("tests", "benchmarks", "examples")
        if path != Path(__file__).resolve() and private & {*re.findall(r"\w+", path.read_text("utf-8"))}
        for line, name in _reached_from_outside(path, private)
    ]
    assert not wrong


def test_the_published_abis_know_nothing_of_python() -> None:
    sources = [*(ROOT / "native" / "abi").glob("*.[ch]")]
    assert len(sources) == 2
    assert not [path for path in sources if "Python.h" in path.read_text("utf-8")]


def test_the_documented_table_has_each_row() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert not [name for name, row in ROWS.items() if not re.search(rf"^\| {row} \|.*`{name}`", text, re.M)]
