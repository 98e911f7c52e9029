"""Which processes have the same token: forked ones, and programs that inherit the variable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("splunk_profiler._walker")
from splunk_profiler.config.tree import TREE
from splunk_profiler.exporter_process import tree
from splunk_profiler.exporter_process.launch import connection_variables
from splunk_profiler.exporter_process.tree import tree_token
from splunk_profiler.version import __version__

_IMPORT = """
import _thread, os
from splunk_profiler.config.tree import TREE
from splunk_profiler.exporter_process.tree import tree_token
"""


@pytest.fixture(autouse=True)
def _no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TREE, raising=False)  # and restores it: a test process with one thread would keep it


def _run(code: str, **env: str) -> list[str]:
    """Run code in a process of its own, and return the words that it prints."""
    words = [sys.executable, "-c", _IMPORT + code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **env})
    return done.stdout.split()


def test_token_of_a_forked_child_is_its_parents() -> None:
    # The parent has none yet: a gunicorn master need not start the profiler.
    child, parent = _run("_ = os.fork() and os.wait()\nprint(tree_token({}))")
    assert child == parent


def test_token_of_another_execution_is_another_one() -> None:
    assert len({tree_token({}), *_run("print(tree_token({}))"), *_run("print(tree_token({}))")}) == 3


def test_token_is_that_of_an_inherited_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TREE, "secret \udcff")
    token = tree_token({})
    assert _run("print(tree_token({}))") == [token]
    assert "secret" not in token


def test_token_of_another_installation_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TREE, "secret")
    token = tree_token({})
    monkeypatch.setattr(tree, "__version__", __version__ + ".1")
    assert tree_token({}) != token


@pytest.mark.parametrize(
    ("name", "has_own"),
    [
        ("https_proxy", True),
        ("HTTPS_PROXY", True),
        ("SSL_CERT_FILE", True),
        ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", True),
        ("OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER", True),
        ("GRPC_DNS_RESOLVER", True),
        ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", True),
        ("REQUESTS_CA_BUNDLE", True),
        ("TENANT", False),
        ("OTEL_SERVICE_NAME", False),
        ("TZ", False),
    ],
)
def test_processes_with_other_ways_to_a_collector_have_other_tokens(
    name: str, has_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TREE, "secret")
    tokens = {tree_token(connection_variables({name: value, "PATH": value})) for value in ("one", "other")}
    assert len(tokens) == 1 + has_own


def test_other_variables_of_a_credential_provider_make_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TREE, "secret")
    provider = {"OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER": "cloud"}

    def token(**variables: str) -> str:
        return tree_token(connection_variables({**provider, "TENANT": "one", **variables}))

    assert token() == token(OTEL_SERVICE_NAME="cart", SPLUNK_PROFILER_TREE="secret", PYTHONPATH="/lib")
    assert token() != token(TENANT="other")


def test_process_with_one_thread_hands_its_secret_on() -> None:
    token, inherited = _run("print(tree_token({}), os.environ[TREE])")
    assert _run("print(tree_token({}))", **{TREE: inherited}) == [token]


def test_process_with_two_threads_leaves_its_environment_alone() -> None:
    second = "lock = _thread.allocate_lock()\nlock.acquire()\n_thread.start_new_thread(lock.acquire, ())\n"
    assert _run(second + "tree_token({})\nprint(TREE in os.environ)") == ["False"]
