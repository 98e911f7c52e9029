"""The profilers that a service can be measured with: what each is set by, and how the service starts and ends it.

Imported by the measured service, in an environment that need not have the other profilers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

END_TIMEOUT_S = 8


class Profiler(ABC):
    """A profiler: `start` and `stop` run in the service, the rest where it is measured from.

    Attributes:
        requirement: name of its package.
        default_ms: interval that it has if none is set.
        takes_all_threads: False if a snapshot has only the thread that has the GIL.
    """

    requirement: str
    default_ms: int
    takes_all_threads = True

    @abstractmethod
    def environment(self, url: str, http_url: str, interval_ms: int) -> Mapping[str, str]:
        """Return its settings; `url` takes OTLP over gRPC."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """Send what is left and stop it."""


class Ours(Profiler):
    """This project's, in any version."""

    requirement = "splunk-profiler"
    default_ms = 1000

    def __init__(self, data_format: str = "text", exporter: str = "auto") -> None:
        self._data_format = data_format
        self._exporter = exporter

    def environment(self, url: str, http_url: str, interval_ms: int) -> Mapping[str, str]:  # noqa: ARG002
        return {
            "SPLUNK_PROFILER_ENABLED": "true",
            "SPLUNK_PROFILER_LOGS_ENDPOINT": url,
            "SPLUNK_PROFILER_CALL_STACK_INTERVAL": str(interval_ms),
            "SPLUNK_PROFILER_DATA_FORMAT": self._data_format,
            "SPLUNK_PROFILER_EXPORTER": self._exporter,
            "SPLUNK_PROFILER_MAX_OVERHEAD": "off",
        }

    def start(self) -> None:
        import splunk_profiler  # noqa: PLC0415  # may be missing

        if not splunk_profiler.start():
            raise RuntimeError("the profiler did not start")

    def stop(self) -> None:
        import splunk_profiler  # noqa: PLC0415

        splunk_profiler.stop(END_TIMEOUT_S)


class SplunkOpenTelemetry(Profiler):
    """The profiler of the Splunk distribution."""

    requirement = "splunk-opentelemetry"
    default_ms = 1000

    def environment(self, url: str, http_url: str, interval_ms: int) -> Mapping[str, str]:  # noqa: ARG002
        return {
            "SPLUNK_PROFILER_ENABLED": "true",
            "SPLUNK_PROFILER_CALL_STACK_INTERVAL": str(interval_ms),
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
        }

    def start(self) -> None:
        from splunk_otel import init_splunk_otel  # type: ignore[import-not-found]  # noqa: PLC0415

        init_splunk_otel()

    def stop(self) -> None:
        from opentelemetry._logs import get_logger_provider  # noqa: PLC0415

        provider: Any = get_logger_provider()
        provider.shutdown()


class Ddtrace(Profiler):
    """Datadog's, with all that it profiles by default: also locks, memory and exceptions."""

    requirement = "ddtrace"
    default_ms = 10

    def environment(self, url: str, http_url: str, interval_ms: int) -> Mapping[str, str]:  # noqa: ARG002
        return {
            "DD_TRACE_AGENT_URL": http_url,
            "DD_TRACE_ENABLED": "false",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
            "DD_PROFILING_UPLOAD_INTERVAL": "10",  # of 60: several in a run
        }

    def start(self) -> None:
        from ddtrace.profiling import Profiler as Started  # type: ignore[import-not-found]  # noqa: PLC0415

        self._started = Started()
        self._started.start()

    def stop(self) -> None:
        self._started.stop(flush=True)


class Pyroscope(Profiler):
    """Grafana's: by default the thread that has the GIL, or all threads."""

    requirement = "pyroscope-io"
    default_ms = 10

    def __init__(self, *, all_threads: bool = False) -> None:
        self.takes_all_threads = all_threads

    def environment(self, url: str, http_url: str, interval_ms: int) -> Mapping[str, str]:  # noqa: ARG002
        return {"BENCHMARK_PYROSCOPE": f"{http_url} {1000 // interval_ms}"}

    def start(self) -> None:
        import os  # noqa: PLC0415

        import pyroscope  # type: ignore[import-not-found]  # noqa: PLC0415

        address, _, rate = os.environ["BENCHMARK_PYROSCOPE"].partition(" ")
        some = not self.takes_all_threads
        pyroscope.configure(
            application_name="benchmark", server_address=address, sample_rate=int(rate), oncpu=some, gil_only=some
        )

    def stop(self) -> None:
        import pyroscope  # noqa: PLC0415

        pyroscope.shutdown()


PROFILERS: Mapping[str, Profiler] = {
    "text": Ours(),
    "pprof": Ours("pprof-gzip-base64"),
    "text, threads": Ours(exporter="thread"),
    "splunk-opentelemetry": SplunkOpenTelemetry(),
    "ddtrace": Ddtrace(),
    "pyroscope-io": Pyroscope(),
    "pyroscope-io, all threads": Pyroscope(all_threads=True),
}
