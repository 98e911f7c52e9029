"""The command line prints in one way: through the two modules that make outside text safe."""

from __future__ import annotations

import ast

from source_tree import at, modules, tree_of, within

PRINTS = {"cli.output", "cli.terminal"}
# Before anything of ours may be imported: it says in plain words why the profiler does not start.
STANDS_ALONE = {"cli.autostart.sitecustomize"}
CALLS = {"print", "click.echo", "click.secho", "Console", "Text", "Text.assemble", "Text.from_markup", "Text.from_ansi"}
STREAMS = ("sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer", "sys.stderr.buffer")


def of_the_command_line() -> list[str]:
    return [name for name in modules() if within(name, "cli") or name == "__main__"]


def test_the_command_line_prints_through_the_modules_that_make_text_safe() -> None:
    wrong = []
    for module in set(of_the_command_line()) - PRINTS - STANDS_ALONE:
        path = modules()[module]
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in CALLS or called.startswith(STREAMS):
                wrong.append(f"{at(path, node.lineno)}: {called}")
    assert not wrong


def test_no_module_gives_what_prints_another_name() -> None:
    wrong = [
        f"{at(modules()[module], node.lineno)}: {alias.name} as {alias.asname}"
        for module in of_the_command_line()
        for node in ast.walk(tree_of(modules()[module]))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias.asname or alias.name in ("echo", "secho")
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in ("click", "rich", "sys")
    ]
    assert not wrong
