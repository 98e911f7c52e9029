"""Switching the profiler on and off, each case in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from short_programs import run_code

from splunk_profiler.cli.run import AUTOSTART

PUBLISHING = ("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_ENABLED", "SPLUNK_PROFILER_CUSTOM_LABELS_ENABLED")
THREADS = "len(__import__('threading').enumerate())"


def test_a_thread_is_in_the_profiler_in_its_functions_and_in_forks() -> None:
    code = (
        "import os, splunk_profiler as p\nfrom splunk_profiler.activation import FORK_GATE, is_in_profiler\n"
        "seen = []\nlook = lambda: seen.append(is_in_profiler())\n"
        "os.register_at_fork(before=look)\n"  # it runs after the gate's, which come with the first start
        "with FORK_GATE: look()\n"
        "FORK_GATE.register(look, lambda: None, lambda: None)\n"
        "if os.fork() == 0: os._exit(is_in_profiler())\n"
        "assert os.wait()[1] == 0\n"
        "look()\nassert seen == [False, True, True, False], seen\n"
    )
    run_code(code, SPLUNK_PROFILER_ENABLED="false")


@pytest.mark.parametrize("value", ["", " FALSE "])
def test_off_means_no_thread_no_hook_and_nothing_loaded(value: str) -> None:
    code = (
        # The import finder of an editable install loads these modules, not the profiler.
        "import sys, importlib.machinery, importlib.util, warnings; before = set(sys.modules)\n"
        "import splunk_profiler as p\n"
        "assert p.start() is False and p.start() is False; p.stop()\n"
        "loaded = {n for n in sys.modules if n not in before}\n"
        "assert loaded <= {'splunk_profiler', 'splunk_profiler.activation', '__future__'}, loaded\n"
        "import os; assert len(os.listdir('/proc/self/task')) == 1\n"
    )
    run_code(code, SPLUNK_PROFILER_ENABLED=value)


@pytest.mark.parametrize("value", ["", " FALSE ", "auto"])
def test_publishing_is_off_with_the_profiler_unless_it_is_asked_for(value: str) -> None:
    code = (
        "import sys, splunk_profiler as p\nassert p.start() is False\n"
        "assert 'splunk_profiler.config' not in sys.modules\n"
    )
    run_code(code, **dict.fromkeys(PUBLISHING, value))


@pytest.mark.skipif(importlib.util.find_spec("splunk_profiler._context") is None, reason="the extension is not built")
@pytest.mark.parametrize(("name", "threads"), [(PUBLISHING[0], ["auditor", "sigterm"]), (PUBLISHING[1], ["auditor"])])
def test_publishing_alone_takes_no_samples_and_loads_neither_grpc_nor_sdk(name: str, threads: list[str]) -> None:
    code = (
        "import sys, threading, splunk_profiler as p\nassert p.start() and p.start()\n"
        "names = sorted(t.name for t in threading.enumerate() if t.name != 'MainThread')\n"
        f"assert names == {[f'splunk-profiler-{thread}' for thread in threads]}, names\n"
        "heavy = {'grpc', 'ssl', 'socket', 'opentelemetry.sdk', 'splunk_profiler.lifecycle.sampling'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        f"p.stop()\nassert {THREADS} == 1\n"
        f"assert p.start()\np.stop()\nassert {THREADS} == 1\n"
    )
    assert "Traceback" not in run_code(code, **{name: "true"})


@pytest.mark.parametrize("asked", [True, False])
def test_publishing_without_the_extension_is_off_and_logged_if_asked_for(asked: bool) -> None:
    code = (
        "import sys; sys.modules['splunk_profiler._context'] = None\n"
        f"import splunk_profiler as p\nassert p.start() is {not asked}\np.stop()\n"
    )
    settings = {PUBLISHING[0]: "true"} if asked else {"SPLUNK_PROFILER_ENABLED": "true"}
    said = run_code(code, **settings)
    assert said.count("nothing is published to host profilers: the C extension") == asked


@pytest.mark.skipif(importlib.util.find_spec("splunk_profiler._context") is None, reason="the extension is not built")
def test_sdk_disabled_or_another_kind_of_context_keeps_publishing_off() -> None:
    said = run_code(
        "import splunk_profiler as p\nassert not p.start()\n", OTEL_SDK_DISABLED="true", **{PUBLISHING[1]: "true"}
    )
    assert said.count("OTEL_SDK_DISABLED=true") == 1
    code = (
        "import opentelemetry.context as c\n"
        "class Runtime:\n"
        "    def attach(self, context): return None\n"
        "    def detach(self, token): pass\n"
        "    def get_current(self): return c.Context()\n"
        "c._RUNTIME_CONTEXT = Runtime()\n"
        "import splunk_profiler as p\nassert not p.start()\n"
    )
    assert "OTEL_PYTHON_CONTEXT" in run_code(code, **{PUBLISHING[1]: "true"})


def test_on_starts_one_profiler_however_often_it_is_started() -> None:
    code = (  # without the thread that makes the process visible to host profilers, and ends
        "import threading\ndef threads(): return [t for t in threading.enumerate() if 'auditor' not in t.name]\n"
        "import splunk_profiler as p\nassert p.start() and p.start()\nfirst = threads()\nassert len(first) > 1\n"
        f"assert p.start(p.Config(enabled=True))\nassert threads() == first\np.stop()\nassert {THREADS} == 1\n"
    )
    run_code(code, SPLUNK_PROFILER_ENABLED="true")


@pytest.mark.parametrize("exporter", ["auto", "thread"])
def test_threads_take_short_turns_while_the_profiler_is_loaded(exporter: str) -> None:
    code = (
        "import sys, splunk_profiler as p\nturns = {}\nclass Finder:\n"
        "    def find_spec(name, *_):\n"
        "        turns[name] = sys.getswitchinterval()\n"
        "sys.meta_path.insert(0, Finder)\nbefore = sys.getswitchinterval()\nassert p.start()\n"
        "ours = {name: s for name, s in turns.items() if name.startswith('splunk_profiler.')}\n"
        "long = [name for name, s in ours.items() if s > before / 10]\n"
        "assert long == ['splunk_profiler.system', 'splunk_profiler.system.short_turns'] and len(ours) > 50, long\n"
        "p.stop()\nassert sys.getswitchinterval() == before\n"
    )
    run_code(code, SPLUNK_PROFILER_ENABLED="true", SPLUNK_PROFILER_EXPORTER=exporter)


def test_it_can_be_started_again_after_a_stop() -> None:
    run_code(
        "import splunk_profiler as p\nfor _ in range(3):\n"
        f"    assert p.start()\n    assert {THREADS} > 1\n    p.stop()\n    assert {THREADS} == 1\n",
        SPLUNK_PROFILER_ENABLED="true",
    )


@pytest.mark.parametrize("value", ["", "${UNSET}"])
def test_start_follows_a_variable_that_is_set_after_a_start_that_was_off(value: str) -> None:
    code = (
        "import os, splunk_profiler as p\nassert not p.start() and not p.start()\n"
        "os.environ['SPLUNK_PROFILER_ENABLED'] = 'true'\n"
        "if os.fork() == 0:\n"  # as a server does whose hook starts the profiler
        "    os._exit(not p.start())\n"
        "assert os.wait()[1] == 0 and p.start()\n"
    )
    assert run_code(code, SPLUNK_PROFILER_ENABLED=value).count("is not usable") == bool(value)


def test_a_config_in_code_holds_where_the_environment_says_nothing() -> None:
    run_code(
        "import splunk_profiler as p\nassert not p.start()\nassert p.start(p.Config(enabled=True))\nassert p.start()\n"
    )
    run_code(
        f"import splunk_profiler as p\nassert not p.start(p.Config(enabled=False))\nassert {THREADS} == 1\n",
        SPLUNK_PROFILER_ENABLED="true",
    )


def test_an_explicit_false_wins_over_code_and_snapshot_profiles() -> None:
    code = (
        "import splunk_profiler as p\nassert not p.start()\nassert not p.start(p.Config(enabled=True))\n"
        f"p.stop()\nassert not p.start()\nassert {THREADS} == 1\n"
    )
    said = run_code(code, SPLUNK_PROFILER_ENABLED=" FALSE ", SPLUNK_SNAPSHOT_PROFILER_ENABLED="true")
    assert "SPLUNK_PROFILER_ENABLED=false: the profiler stays off" in said


def test_second_start_with_other_settings_keeps_the_first_and_warns_once() -> None:
    code = (
        "import splunk_profiler as p\nassert not p.start(p.Config(enabled=False, max_stack_depth=9))\n"
        "assert not p.start(p.Config(enabled=True, max_stack_depth=9))\n"
        "assert not p.start(p.Config(enabled=True, max_stack_depth=9))\n"
        f"p.stop()\nassert not p.start()\nassert {THREADS} == 1\n"
    )
    assert run_code(code).count("another start() has no effect on enabled\n") == 1


def test_lines_are_logged_after_logging_is_configured_anew() -> None:
    code = (
        "import logging.config, splunk_profiler as p\nassert not p.start(p.Config(enabled=False))\n"
        "logging.config.dictConfig({'version': 1})\n"  # disables all loggers that are there
        "assert not p.start(p.Config(enabled=True))\n"
    )
    assert run_code(code).count("another start() has no effect on enabled\n") == 1


def test_the_settings_of_the_first_start_hold_after_a_stop() -> None:
    code = (
        "import os, splunk_profiler as p\nassert p.start(p.Config(enabled=True))\np.stop()\n"
        "os.environ['SPLUNK_PROFILER_ENABLED'] = 'false'\n"
        "assert p.start() and p.start(p.Config(enabled=False))\np.stop()\n"
    )
    assert "another start() has no effect on enabled\n" in run_code(code)


def test_opentelemetrys_own_switch_goes_before_ours_and_says_so() -> None:
    code = f"import splunk_profiler as p\nassert not p.start() and not p.start()\nassert {THREADS} == 1\n"
    said = run_code(code, SPLUNK_PROFILER_ENABLED="true", OTEL_SDK_DISABLED="true")
    assert said.count("OTEL_SDK_DISABLED=true") == 1


@pytest.mark.parametrize("asked", ["SPLUNK_PROFILER_ENABLED", "p.Config(enabled=True)"])
def test_second_profiler_on_the_same_switch_is_logged(asked: str) -> None:
    argument, variables = ("", {asked: "true"}) if asked.startswith("SPLUNK") else (asked, {})
    code = (
        "import sys, types, splunk_profiler as p\nsys.modules['splunk_otel'] = types.ModuleType('splunk_otel')\n"
        f"assert p.start({argument}) and p.start()\np.stop()\n"
    )
    assert run_code(code, **variables).count("each stack is sent twice") == len(variables)


def test_a_wrong_value_is_logged_once_and_the_application_continues() -> None:
    code = "import splunk_profiler as p\nprint(p.start(), p.start())\n"
    said = run_code(code, SPLUNK_PROFILER_ENABLED="maybe", SPLUNK_PROFILER_CALL_STACK_INTERVAL="abc")
    assert "False False" in said
    assert said.count("SPLUNK_PROFILER_ENABLED='maybe' is not usable") == 1
    assert said.count("SPLUNK_PROFILER_CALL_STACK_INTERVAL='abc'") == 1


def test_child_forked_while_another_thread_waits_to_start_has_lost_nothing() -> None:
    code = """
import os, sys, threading
admitted, announced, forked = threading.Event(), threading.Event(), threading.Event()
os.register_at_fork(before=lambda: (admitted.set(), announced.wait()))  # registered first, it is called last
from splunk_profiler.activation import ForkGate

gate = ForkGate()
with gate:
    pass

def pause(frame, event, called):
    if event == "c_return" and called.__name__ == "append" and frame.f_code.co_name == "__enter__":
        sys.setprofile(None)
        announced.set()
        forked.wait()

def start():
    admitted.wait()
    sys.setprofile(pause)
    with gate:
        pass

starter = threading.Thread(target=start)
starter.start()
child = os.fork()
if child == 0:
    os._exit(gate.has_locked_imports())
forked.set()
starter.join()
print(os.waitpid(child, 0)[1])
"""
    assert run_code(code, PYTHONWARNINGS="ignore") == "0\n"


def test_fork_beside_a_start_keeps_no_local_variables_of_other_threads() -> None:
    code = """
import gc, os, threading, weakref
from splunk_profiler.activation import ForkGate

gc.disable()
gate, things = ForkGate(), []
started, forked = threading.Event(), threading.Event()

class Thing:
    pass

def start():
    local = Thing()
    things.append(weakref.ref(local))
    with gate:
        started.set()
        forked.wait()

starter = threading.Thread(target=start)
starter.start()
started.wait()
child = os.fork()
if child == 0:
    os._exit(0)
forked.set()
starter.join()
print(os.waitpid(child, 0)[1], things[0]())
"""
    assert run_code(code, PYTHONWARNINGS="ignore") == "0 None\n"


def test_start_during_an_import_loads_neither_grpc_nor_sdk_nor_ssl(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(
        "import sys, time, splunk_profiler as p\nassert p.start()\n"
        "time.sleep(1)\n"
        "heavy = {'grpc', 'ssl', 'socket', 'asyncio', 'opentelemetry.sdk.trace'} & set(sys.modules)\n"
        "assert not heavy, heavy\n",
        "utf-8",
    )
    run_code(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import application", SPLUNK_PROFILER_ENABLED="true")


def test_starting_installs_no_tracer_provider() -> None:
    code = (
        "import splunk_profiler as p\nassert p.start()\n"
        "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "mine = TracerProvider()\ntrace.set_tracer_provider(mine)\nassert trace.get_tracer_provider() is mine\n"
    )
    assert "not allowed" not in run_code(code, SPLUNK_PROFILER_ENABLED="true")


def test_start_that_cannot_make_a_thread_leaves_nothing_and_raises_nothing() -> None:
    code = (
        "import _thread, splunk_profiler as p\n"
        "_thread.start_new_thread = lambda *_: (_ for _ in ()).throw(RuntimeError('cannot start new thread'))\n"
        f"assert p.start() is False\nassert {THREADS} == 1\n"
    )
    assert "cannot start new thread" in run_code(code, SPLUNK_PROFILER_ENABLED="true")


SUBINTERPRETER = """
import sys, splunk_profiler
import {module} as interpreters
assert splunk_profiler.start()
for _ in range(3):
    other = interpreters.create()
    error = interpreters.run_string(other, "{first}import splunk_profiler; assert not splunk_profiler.start()")
    assert error is None, error
    interpreters.destroy(other)
assert splunk_profiler.start()
splunk_profiler.stop()
"""


@pytest.mark.parametrize(("first", "lines"), [("", 0), ("import logging; logging.basicConfig(level='INFO');", 3)])
def test_a_subinterpreter_is_not_profiled_and_the_log_reports_it(first: str, lines: int) -> None:
    knows_pools = sys.version_info >= (3, 13)  # workers of a pool are no news
    module = "_interpreters" if knows_pools else "_xxsubinterpreters"
    said = run_code(SUBINTERPRETER.format(module=module, first=first), SPLUNK_PROFILER_ENABLED="true")
    assert said.count("stays off in this subinterpreter") == (lines if knows_pools else 3)
    assert "Traceback" not in said


POOL = """
import {module} as interpreters
look = "import sys; print('splunk_profiler' in sys.modules, flush=True)"
for _ in range(2):
    other = interpreters.create()
    assert interpreters.run_string(other, look) is None
    interpreters.destroy(other)
"""


def test_launcher_starts_nothing_in_interpreters_of_a_pool() -> None:
    knows_makers = sys.version_info >= (3, 13)
    module = "_interpreters" if knows_makers else "_xxsubinterpreters"
    path = os.pathsep.join([str(AUTOSTART), os.environ.get("PYTHONPATH", "")])
    said = run_code(POOL.format(module=module), SPLUNK_PROFILER_ENABLED="true", PYTHONPATH=path)
    assert said.count("stays off in this subinterpreter") == (0 if knows_makers else 2)
    assert said.count(f"{not knows_makers}\n") == 2


def test_launcher_starts_where_interpreters_cannot_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['_interpreters'] = None", "utf-8")
    path = os.pathsep.join([str(AUTOSTART), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = "import sys; assert '_interpreters' in sys.modules; print('splunk_profiler' in sys.modules)"
    assert run_code(code, SPLUNK_PROFILER_ENABLED="true", PYTHONPATH=path).splitlines()[0] == "True"
