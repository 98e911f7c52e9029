"""``splunk-profiler run``: executes a command so that every Python process in it starts the profiler.

As process 1 it executes the command in a child (`container_init`).

Runs on the main thread before `exec`. Must not import the profiler or OpenTelemetry, which would slow each start.

PYTHONPATH makes Python import `autostart/sitecustomize.py` first, so the application needs no change; child processes
(workers of gunicorn and Celery, multiprocessing) inherit it. LD_PRELOAD loads the library of the custom labels at the
start, as its specification asks.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.output import print_line
from splunk_profiler.config import Resolved, environment, from_env, preload
from splunk_profiler.config.parsers import ConfigError
from splunk_profiler.config.settings import SETTINGS
from splunk_profiler.config.tree import begin_tree
from splunk_profiler.host_profilers.libraries import labels_library

AUTOSTART = Path(__file__).resolve().parent / "autostart"

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # a shell's exit codes
_PID_VARIABLES = ("LISTEN_PID", "WATCHDOG_PID")  # systemd's, for the process that they name only


def _option(option: str, name: str, metavar: str, meaning: str) -> Callable[[Any], Any]:
    """Return a click option for the setting `name`, with the setting's parser."""
    setting = next(item for item in SETTINGS if item.name == name)

    def check(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
        try:
            return value if value is None else str(setting.parse(value))
        except ConfigError as error:
            raise click.BadParameter(f"{setting.quote_redacted(value)} is not usable: {error}") from None

    return click.option(option, name, metavar=metavar, callback=check, help=f"{meaning} [{name}]")


def _switch(option: str, name: str, meaning: str) -> Callable[[Any], Any]:
    return click.option(f"--{option}/--no-{option}", name, is_flag=True, default=None, help=f"{meaning} [{name}]")


@click.command(context_settings={"allow_interspersed_args": False})
@_option("--interval-ms", "SPLUNK_PROFILER_CALL_STACK_INTERVAL", "MS", "Milliseconds between two samples; 1000.")
@_option("--endpoint", "SPLUNK_PROFILER_LOGS_ENDPOINT", "URL", "Where profiles are sent, such as http://host:4317.")
@_option(
    "--export-interval-ms",
    "SPLUNK_PROFILER_EXPORT_INTERVAL",
    "MS",
    "Milliseconds between exports; 1000, for pprof 10000.",
)
@_option("--data-format", "SPLUNK_PROFILER_DATA_FORMAT", "FORMAT", "What is sent: text or pprof-gzip-base64; text.")
@_option(
    "--output", "SPLUNK_PROFILER_OUTPUT", "PLACE", "What takes them: otlp, file:DIR, stream:DIR or datadog:URL; otlp."
)
@_option("--max-stack-depth", "SPLUNK_PROFILER_MAX_STACK_DEPTH", "N", "Frames kept of a stack; 1024.")
@_switch("tracing-stacks-only", "SPLUNK_PROFILER_TRACING_STACKS_ONLY", "Send only samples taken inside a span.")
@_switch(
    "include-internal-stacks",
    "SPLUNK_PROFILER_INCLUDE_INTERNAL_STACKS",
    "Send the threads of the profiler and of OpenTelemetry as well.",
)
@_option("--walker", "SPLUNK_PROFILER_WALKER", "NAME", "What reads the stacks: auto, native or portable; auto.")
@click.option("--service-name", "OTEL_SERVICE_NAME", metavar="NAME", help="Name of the service [OTEL_SERVICE_NAME]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
def run(command: tuple[str, ...], **settings: str | bool | None) -> None:
    """Run COMMAND with the profiler in its Python processes. The application needs no change.

    \b
    splunk-profiler run -- gunicorn --workers 4 shop:app
    splunk-profiler run --endpoint http://collector:4317 -- python -m uvicorn shop:app
    splunk-profiler run -- opentelemetry-instrument celery -A shop worker

    The command takes this process's place, so signals and its exit code pass through. It switches the profiler
    on by SPLUNK_PROFILER_ENABLED=true, unless that variable is set already; every other setting in the
    environment holds too, and an option given here overrides it. As process 1 of a container it stays, as a small
    init, beside the command.
    """
    if not command:
        raise click.UsageError("name the command to run: splunk-profiler run -- python app.py")
    chosen = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in settings.items()
        if value is not None
    }
    env = {**environment(), **chosen}
    if not env.get("SPLUNK_PROFILER_ENABLED", "").strip():
        env["SPLUNK_PROFILER_ENABLED"] = "true"
    resolved = from_env(env)  # its warnings are dropped: start() logs them in each process
    may_run = resolved.config.runs or env["SPLUNK_PROFILER_ENABLED"].strip().lower() != "false"
    if may_run:
        _prepare(env, resolved)
    path = find_program(command[0], env.get("PATH", os.defpath))
    flag = find_isolating_flag(path, command[1:])
    if flag and may_run and not resolved.sdk_disabled:
        print_line(
            f"splunk-profiler: Python's option {flag} keeps the profiler from being started from outside; "
            "leave it out, or call splunk_profiler.start() in the application",
            error=True,
        )
    if os.getpid() == 1 and _has_exporter_process(resolved):
        _stay_as_init(env)
    _execute(path, command, env)


def _prepare(env: MutableMapping[str, str], resolved: Resolved) -> None:
    """Let Python processes with this environment start the profiler."""
    config = resolved.config
    old_entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry != str(AUTOSTART)]
    env["PYTHONPATH"] = os.pathsep.join([str(AUTOSTART), *(old_entries if any(old_entries) else [])])
    env[preload.RUN_PID] = str(os.getpid())
    begin_tree(env)
    if config.publishes_labels and config.preload.lower() != "false" and not resolved.sdk_disabled:
        library = str(labels_library())
        if Path(library).is_file() and not preload.add_library(env, library):
            print_line(
                f"splunk-profiler: LD_PRELOAD cannot carry {library}, which has a space or a colon in it: host"
                " profilers may not see labels; install the package elsewhere",
                error=True,
            )


def _has_exporter_process(resolved: Resolved) -> bool:
    return resolved.samples and not resolved.sdk_disabled and resolved.config.exporter != "thread"


def _stay_as_init(env: MutableMapping[str, str]) -> None:
    """Return in a child; this process ends with it."""
    from splunk_profiler.cli import container_init  # noqa: PLC0415  # only needed there

    container_init.fork_application()
    container_init.name_application(env, (preload.RUN_PID, *_PID_VARIABLES))


def find_program(name: str, search_path: str) -> str:
    """Return the file that a shell would execute for `name`.

    Raises:
        CommandError: there is no such file, or it may not be executed.
    """
    found = shutil.which(name, path=search_path)
    if found:
        return found
    if os.sep in name and Path(name).exists():
        what = "is a directory" if Path(name).is_dir() else "may not be executed (chmod +x it)"
        raise CommandError(f"{name} {what}", exit_code=_NOT_EXECUTABLE)
    where = "does not exist" if os.sep in name else "is not a program in PATH"
    raise CommandError(f"{name}: {where}", exit_code=_NOT_FOUND)


def find_isolating_flag(path: str, arguments: Sequence[str]) -> str | None:
    """Return the Python option in the command that disables PYTHONPATH or ``sitecustomize``; None if there is none."""
    words = [path, *arguments]
    if not _PYTHON.fullmatch(Path(path).name):
        words = _read_shebang(path)
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if word != "-S"]
        if not words or not _PYTHON.fullmatch(Path(words[0]).name):
            return None
    return _find_isolating_option(iter(words[1:]))


def _find_isolating_option(words: Iterator[str]) -> str | None:
    for word in words:
        if not word.startswith("-") or word.startswith("--"):
            return None
        for position, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                return None  # the rest is the application's
            if letter in "IES":
                return f"-{letter}"
            if letter in "WX":
                if position == len(word):
                    next(words, None)  # its value
                break
    return None


def _read_shebang(path: str) -> list[str]:
    try:
        with Path(path).open("rb") as file:
            first = file.readline(1024)
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []


def _execute(path: str, command: tuple[str, ...], env: Mapping[str, str]) -> None:
    # Python ignores these signals, and an executed program inherits that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):  # Windows has neither
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed already
            stream.flush()
    try:
        os.execve(path, command, env)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            # A script without a shebang: run it by a shell, as a shell does.
            os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], env)
        if error.errno == errno.ENOENT:
            raise CommandError(f"{path} names an interpreter that does not exist", exit_code=_NOT_FOUND) from None
        if error.errno == errno.EACCES:
            raise CommandError(f"{path} may not be executed", exit_code=_NOT_EXECUTABLE) from None
        raise CommandError(f"{path} cannot be executed: {os.strerror(error.errno or 0)}") from None
