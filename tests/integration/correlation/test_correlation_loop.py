"""The whole loop, out of process: a service under load, a host agent beside it, and what a trace collector receives.

Each stack trace that the agent says it has sent has to be on its transaction when that is exported, as often as it was
sent; where there can be none (the transaction is not sampled, or had been exported before) the numbers have to agree.
"""

from __future__ import annotations

import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from loop_judge import ATTRIBUTE, LoopResult, exported, judge, reported
from loop_processes import HostAgentProcess, Load, Service
from publishing_target import socket_folder
from receiver_process import Receiver
from target_process import Target

pytest.importorskip("splunk_profiler._context", reason="the native publisher is not built for this interpreter")
# Not imported: that takes half a second of each worker.
pytestmark = pytest.mark.skipif(find_spec("fastapi") is None, reason="FastAPI is not there for this interpreter")

WORKERS = 3
LENGTHS_MS = (1, 5, 20, 2, 50, 10, 200, 100)
TASKS, THREADS = ([f"/{kind}/{length}" for length in LENGTHS_MS] for kind in ("task", "thread"))
BOTH = [path for pair in zip(TASKS, THREADS, strict=True) for path in pair]
REPORT_S = 0.3
# Agents announce longer delays than they need, so that a busy machine makes nothing late. The first is
# short enough for transactions to end while the load continues.
SHORT_DELAY_MS, LONG_DELAY_MS = 400, 1500
_RUN = (sys.executable, "-m", "splunk_profiler", "run", "--", sys.executable, "-m")
UVICORN = (*_RUN, "uvicorn", "loop_asgi:app", "--port", "0", "--no-access-log")
_WORKERS = ("--workers", str(WORKERS), "--worker-class", "gthread", "--threads", "3")
GUNICORN = (*_RUN, "gunicorn", "loop_wsgi:application", "--bind", "127.0.0.1:0", *_WORKERS)
_LISTENING = r"(?:running on|Listening at:) (http://127.0.0.1:[0-9]+)"


class Loop:
    """A service that is up, and the collector of its spans.

    Attributes:
        target: the service's first process.
        service: what it says.
        url: where it answers.
        agents: all that were started.
    """

    def __init__(self, target: Target, receiver: Receiver, url: str, ending: signal.Signals, delay_ms: int) -> None:
        self.target = target
        self.service = Service(target)
        self.url = url
        self.agents: list[HostAgentProcess] = []
        self._receiver = receiver
        self._ending = ending
        self._delay_ms = delay_ms
        self._stack = ExitStack()

    def agent(self, *options: str) -> HostAgentProcess:
        """Start an agent."""
        words = ("--rate", "100", "--samples-delay", str(self._delay_ms), *options)
        agent = HostAgentProcess(self.target.pid, *words)
        self._stack.enter_context(agent)
        self.agents.append(agent)
        return agent

    def came_back(self, count: int) -> None:
        """Wait until so many transactions with stack traces have been received."""
        self._receiver.spans(count, lambda span: ATTRIBUTE in span["attributes"])

    def close(self) -> None:
        """End the agents that are left."""
        self._stack.close()

    def verdict(self, load: Load, *, processes: int = 1, most_unlogged: int = 0, **rules: Any) -> LoopResult:
        """End the service, and judge. All agents have ended."""
        self.target.signal(self._ending)
        self.target.finish()
        answers = load.answers()
        sampled = {answer.key for answer in answers if answer.sampled}
        self._receiver.spans(len(sampled), lambda span: (span["trace_id"], span["span_id"]) in sampled)
        spans = exported(self._receiver.spans())
        events = [event for agent in self.agents for event in agent.events()]
        rules = {**rules, "most_unlogged": most_unlogged, "delay_ns": self._delay_ms * 1_000_000}
        verdict = judge(answers, reported(events), spans, **rules)
        assert not verdict.wrong, "\n".join(verdict.wrong[:5])
        self._agree(verdict, events, processes, most_unlogged)
        return verdict

    def _agree(
        self, verdict: LoopResult, events: Sequence[Mapping[str, Any]], processes: int, most_unlogged: int
    ) -> None:
        """Check the processes' own counts against the agents' messages and the attributes of the spans."""
        counts = self.service.counts(processes)
        total, unlogged = Counter[str](), 0
        for pid, counted in counts.items():
            kinds = Counter(event["event"] for event in events if event.get("pid") == pid)
            unlogged += counted["received"] - kinds["sent"] - kinds["registered"]
            total.update(counted)
        assert 0 <= unlogged <= most_unlogged
        assert total["matched"] == verdict.written
        assert total["unmatched"] == verdict.late + verdict.unsampled + unlogged - verdict.unlogged
        assert not [total[name] for name in ("malformed", "unknown", "too_long", "beyond", "refused") if total[name]]


@contextmanager
def loop(command: Sequence[str], mode: str, delay_ms: int) -> Iterator[Loop]:
    """The service under `command`, ready for requests."""
    with socket_folder() as folder, Receiver() as receiver:
        settings = {
            "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED": mode,
            "ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR": str(folder),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_SERVICE_NAME": "loop",
        }
        with Target(*command, env=settings) as target:
            # At SIGTERM uvicorn has itself killed, after all else has ended in order; gunicorn ends at once at SIGINT.
            ending = signal.SIGINT if "uvicorn" in command else signal.SIGTERM
            made = Loop(target, receiver, target.find(_LISTENING), ending, delay_ms)
            try:
                target.lines(WORKERS if "gunicorn" in command else 1, "set up")  # from then on each one's log is seen
                urllib.request.urlopen(f"{made.url}/health", timeout=60).close()
                yield made
            finally:
                made.close()


def test_asyncio_and_threaded_transactions_carry_all_stack_traces_sent() -> None:
    with loop(UVICORN, "true", SHORT_DELAY_MS) as made:
        agent = made.agent()
        agent.wait_for("registered")
        with Load(made.url, BOTH) as load:
            load.wait_for_all_paths()
            agent.wait_for("sent", 150)
            made.came_back(10)
        agent.end()
        verdict = made.verdict(load)
    assert verdict.written > 50
    assert verdict.unsampled > 0
    assert verdict.sent_before_end > 0


@pytest.mark.parametrize("options", [(), ("--no-register",)], ids=["registered", "unregistered"])
def test_only_transactions_that_ended_before_a_profiler_came_carry_less(
    options: tuple[str, ...],
) -> None:
    with loop(UVICORN, "auto", SHORT_DELAY_MS) as made:
        with Load(made.url, BOTH) as load:
            load.wait_for_all_paths()
            agent = made.agent(*options)
            since_ns = made.service.registration_times(1)
            load.wait_for_all_paths()
            agent.wait_for("sent", 150)
            made.came_back(10)
        agent.end()
        verdict = made.verdict(load, since_ns=since_ns)
    assert verdict.written > 50


def test_transactions_of_all_workers_carry_stacks_sent_after_their_end() -> None:
    with loop(GUNICORN, "true", LONG_DELAY_MS) as made:
        agent = made.agent("--children", "--off-cpu", "--report-interval", str(REPORT_S))
        made.service.registration_times(WORKERS)
        with Load(made.url, THREADS, clients=6) as load:
            load.request_extra("/thread/500", times=4)  # longer than what is gathered for one report
            load.request_extra("/thread/5000")
            load.wait_for_all_paths()
            load.wait_for_processes(WORKERS)
            agent.wait_for("sent", 100)
        agent.end()
        verdict = made.verdict(load, processes=WORKERS)
    assert verdict.sent_after_end > 0
    assert verdict.sent_on_both_sides > 0


def test_two_agents_at_once_of_which_one_is_killed_and_comes_again_add_up() -> None:
    with loop(UVICORN, "auto", SHORT_DELAY_MS) as made:
        one, two = made.agent(), made.agent("--report-interval", "0.1")
        since_ns = made.service.registration_times(1)
        with Load(made.url, BOTH) as load:
            for agent in (one, two):
                agent.wait_for("sent", 20)
            one.kill()
            again = made.agent()
            again.wait_for("sent", 20)
            load.wait_for_all_paths()
        two.end()
        again.end()
        verdict = made.verdict(load, since_ns=since_ns, most_unlogged=1)
    assert verdict.written > 20
