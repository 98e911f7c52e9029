"""The command line: its verbs, and the exit codes of their errors.

Runs on the main thread of ``splunk-profiler``. Must not import a verb at module level: `run` stands between a
service and its start, so it may cost no more than click.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

from splunk_profiler.cli.output import discard_unwritten, print_line
from splunk_profiler.config.parsers import ProfilerError
from splunk_profiler.version import __version__

VERBS = {
    "run": "Run a command with the profiler in its Python processes.",
    "collect": "Receive profiles and spans over OTLP/gRPC and save them.",
    "report": "Show what saved profiles say.",
    "view": "Show saved profiles in a browser.",
    "replay": "Show what a kept stream of captures says.",
    "inspect": "Show what a host profiler would see of a process.",
    "host-agent": "Act as a host profiler would, to try the whole loop.",
    "doctor": "Say whether samples would flow, and if not, why.",
    "demo": "Profile an example web service under load and report on it.",
}

# Modules of extras: their packages, and the extra.
TOOLS = {
    "rich": ("rich", "tools"),
    "numpy": ("numpy", "view"),
    "starlette": ("starlette", "view"),
    "uvicorn": ("uvicorn", "view"),
}
EXTRAS = {"view": "view", "demo": "demo"}  # of verbs that need more of an extra than what is missed first


@contextmanager
def _exit_at_closed_output() -> Iterator[None]:
    """Exit as a shell's commands do when the reader of our output has closed it (`| head`)."""
    try:
        yield
    except BrokenPipeError:  # with which click would exit with 1
        raise click.exceptions.Exit(141) from None


class Verbs(click.Group):
    """The group of the verbs; imports the module of a verb when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import the verb `name`; None if there is none."""
        if name not in VERBS:
            return None
        module = name.replace("-", "_")
        command = getattr(import_module(f"splunk_profiler.cli.{module}"), module)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group, of which ``--help`` and ``--version`` write."""
        with _exit_at_closed_output():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Call a verb."""
        with _exit_at_closed_output():
            return super().invoke(ctx)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their descriptions, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    print_line(f"splunk-profiler {__version__}")
    ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Call-stack sampling for Python services, joined to their OpenTelemetry spans.

    \b
    See it work:            splunk-profiler demo
    Profile a service:      splunk-profiler run -- gunicorn shop:app
    No data? Find out why:  splunk-profiler run -- splunk-profiler doctor
    """


def main() -> None:
    """Run the verb that the command line names, and exit: 0 done, 1 failed, 2 wrong usage."""
    try:
        _run()
    finally:
        discard_unwritten()


def _run() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Output in another encoding shows `?` for what it cannot encode; it must not end a report.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = cli.main(prog_name="splunk-profiler", standalone_mode=False)
    except click.exceptions.Abort:
        print_line("", error=True)
        sys.exit(130)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)  # the usage and the error
        for line in shown.getvalue().rstrip("\n").split("\n"):
            print_line(line, error=True)
        sys.exit(error.exit_code)
    except ProfilerError as error:
        print_line(f"splunk-profiler: error: {error}", error=True)
        for line in getattr(error, "details", ()):
            print_line(f"    {line}", error=True)
        sys.exit(getattr(error, "exit_code", 1))
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in TOOLS:
            raise
        package, extra = TOOLS[missing]
        extra = EXTRAS.get(sys.argv[1], extra)
        needed = f"this command needs {package}, which is not installed"
        print_line(f"splunk-profiler: error: {needed}: pip install 'splunk-profiler[{extra}]'", error=True)
        sys.exit(1)
    except OSError as error:  # as of a full disk below our output
        print_line(f"splunk-profiler: error: {error}", error=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
