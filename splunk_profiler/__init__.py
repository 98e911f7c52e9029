"""Always-on call-stack sampling for Python services, joined to OpenTelemetry spans, and readable by host profilers.

The public API: `start`, `stop`, `labels`, `Config`, `ConfigError`, `ProfilerError` and `__version__`. Importing this
package loads only `activation`, and so does a `start` that is switched off.
"""

from __future__ import annotations

import sys

from splunk_profiler.activation import FORK_GATE, is_surely_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from splunk_profiler.config import Config
    from splunk_profiler.config.parsers import ConfigError, ProfilerError
    from splunk_profiler.lifecycle.process import ProcessProfiler
    from splunk_profiler.user_labels.labels import labels
    from splunk_profiler.version import __version__

__all__ = ["Config", "ConfigError", "ProfilerError", "__version__", "labels", "start", "stop"]


def __getattr__(name: str) -> object:
    if name in ("Config", "ConfigError", "ProfilerError"):
        from splunk_profiler import config  # noqa: PLC0415  # loaded on use
        from splunk_profiler.config import parsers  # noqa: PLC0415  # loaded on use

        return getattr(config if name == "Config" else parsers, name)
    if name == "labels":
        from splunk_profiler.user_labels.labels import labels  # noqa: PLC0415

        globals()[name] = labels  # applications use it in every request
        return labels
    if name == "__version__":
        from splunk_profiler.version import __version__  # noqa: PLC0415  # loaded on use

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def start(config: Config | None = None) -> bool:
    """Start the profiler of this process, if it is switched on.

    Without `config` the environment decides, and ``SPLUNK_PROFILER_ENABLED`` is false by default: a call in an
    application's code does nothing until the environment switches the profiler on. Publishing to host profilers is
    switched on with it, or alone (docs/configuration.md). Starting a running profiler changes nothing. The settings of
    the first call that has a `config`, or that the environment switches on, hold for the life of the process.

    Args:
        config: settings that replace the environment's.

    Returns:
        True if the profiler runs when this returns: it samples, or publishes to host profilers, or both.

    Specification: Splunk profiling conventions, "Activation".
    """
    if config is None and _PROCESS_MODULE not in sys.modules and is_surely_off():
        return False
    profiler = _load_profiler()
    is_running = profiler is not None and profiler.start(config)
    if profiler is not None and _PENDING_STOPS:
        _PENDING_STOPS.clear()
        profiler.stop(2.0)
        is_running = False
    return is_running


def stop(timeout_s: float = 2.0) -> None:
    """Stop the profiler; send what it has gathered for at most `timeout_s` seconds. It can start again.

    Transactions that wait for a host profiler go to the application's exporters first. Slow exporters may take up to 5
    seconds more (docs/host-profilers/correlation.md).
    """
    if _PROCESS_MODULE not in sys.modules:
        return
    profiler = _load_profiler()
    if profiler is not None:
        profiler.stop(timeout_s)
    elif not FORK_GATE.has_locked_imports():
        _PENDING_STOPS.append(None)


_PROCESS_MODULE = "splunk_profiler.lifecycle.process"
_PENDING_STOPS: list[None] = []  # one for each from a signal handler during the first start's imports


def _load_profiler() -> ProcessProfiler | None:
    """Return the loaded profiler; None if it cannot be loaded, or in a signal handler that interrupts the loading.

    In a finaliser at the end of the interpreter nothing can be imported any more.
    """
    if FORK_GATE.has_locked_imports() or sys.is_finalizing():
        return None
    with FORK_GATE:
        from splunk_profiler.system.short_turns import ShortTurns  # noqa: PLC0415  # loaded on use

        with ShortTurns():
            from splunk_profiler.lifecycle import process  # noqa: PLC0415  # loaded on use

    profiler: ProcessProfiler | None = getattr(process, "PROCESS_PROFILER", None)
    return profiler
