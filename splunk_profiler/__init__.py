"""Always-on call-stack sampling for Python services, joined to OpenTelemetry spans.

The whole public API: `start`, `stop`, `Config`, `ProfilerError` and `__version__`. Importing this package
loads nothing else; what the profiler needs is loaded by a `start` that is switched on.
"""

from __future__ import annotations

from splunk_profiler.config import Config, ConfigError, ProfilerError

__version__ = "0.1.0"
__all__ = ["Config", "ConfigError", "ProfilerError", "__version__", "start", "stop"]


def start(config: Config | None = None) -> bool:
    """Start the profiler of this process, if it is switched on.

    Without `config` the environment decides, and ``SPLUNK_PROFILER_ENABLED`` is false by default: a call left
    in an application's code does nothing until whoever runs it switches the profiler on. Starting a profiler
    that runs changes nothing. Settings are read once, by the first start, and hold for the life of the process.

    Args:
        config: settings made in code, in place of the environment's.

    Returns:
        True if the profiler runs when this returns.

    Specification: Splunk profiling conventions, "Activation".
    """
    from splunk_profiler.profiler import process_profiler  # noqa: PLC0415  # off means off: nothing is loaded

    return process_profiler().start(config)


def stop(timeout_s: float = 2.0) -> None:
    """Stop the profiler, sending what it has gathered for at most `timeout_s` seconds. It can start again."""
    from splunk_profiler.profiler import process_profiler  # noqa: PLC0415  # see start

    process_profiler().stop(timeout_s)
