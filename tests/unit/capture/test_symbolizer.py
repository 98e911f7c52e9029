"""Symbolization of code that runs: namespace, function, file and line."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from splunk_profiler.capture.symbolizer import Symbolizer
from splunk_profiler.model import Frame


def _name(frame: FrameType) -> Frame:
    return Symbolizer().frame(frame.f_code, frame.f_lasti, frame.f_globals)


def here() -> Frame:
    """Return the frame of the caller."""
    return _name(sys._getframe(1))


class Outer:
    """A class with the methods under test."""

    class Inner:
        """A nested class."""

        def method(self) -> Frame:
            return here()

        @staticmethod
        def static() -> Frame:
            return here()

        @classmethod
        def of_class(cls) -> Frame:
            return here()

        @property
        def attribute(self) -> Frame:
            return here()

    def local(self) -> Callable[[], Frame]:
        def inner() -> Frame:
            return here()

        return inner


def _logged(function: Callable[[], Frame]) -> Callable[[], Frame]:
    @functools.wraps(function)
    def wrapper() -> Frame:
        return function()

    return wrapper


@_logged
def decorated() -> Frame:
    return here()


def generator() -> Iterator[Frame]:
    yield here()


async def coroutine() -> Frame:
    return here()


def _await(awaitable: Any) -> Frame:
    with pytest.raises(StopIteration) as stopped:
        awaitable.send(None)
    result: Frame = stopped.value.value
    return result


@pytest.mark.parametrize(
    ("frame", "namespace", "function"),
    [
        (Outer.Inner().method(), "Outer.Inner", "method"),
        (Outer.Inner.static(), "Outer.Inner", "static"),
        (Outer.Inner.of_class(), "Outer.Inner", "of_class"),
        (Outer.Inner().attribute, "Outer.Inner", "attribute"),
        (Outer().local()(), "Outer.local.<locals>", "inner"),
        (decorated(), "", "decorated"),
        (next(generator()), "", "generator"),
        (_await(coroutine()), "", "coroutine"),
        (here(), "", "<module>"),
    ],
)
def test_the_namespace_is_the_module_and_the_class_path(frame: Frame, namespace: str, function: str) -> None:
    assert frame.namespace == f"{__name__}.{namespace}".rstrip(".")
    assert frame.function == function
    assert frame.file == __file__


NESTED = """
import ast
import functools
import subprocess
def function():
    class Local:
        def method(self): return here()
        class Inner:
            def method(self): return [here() for _ in "x"][0]
        def makes(self):
            def closure(): return here()
            class Deeper:
                attribute = here()
                def method(self): return here()
            return closure(), Deeper.attribute, Deeper().method()
        @functools.lru_cache
        def cached(self): return here()
    return Local
def wraps(wrapped):
    @functools.wraps(wrapped)
    def wrapper(): return here()
    return wrapper
@wraps
def decorated(): pass
class Plain:
    def method(self): return (lambda: here())()
Local = function()
frames = [Local().method(), Local.Inner().method(), *Local().makes(), Local().cached(), decorated(), Plain().method()]
"""


def test_code_in_functions_and_classes_has_the_qualified_name_of_python() -> None:
    found: dict[str, Any] = {"here": here, "__name__": "m"}
    exec(NESTED, found)  # noqa: S102
    local = "m.function.<locals>.Local"
    inner = f"{local}.Inner.method.<locals>.<listcomp>" if sys.version_info < (3, 12) else f"{local}.Inner.method"
    assert [f"{frame.namespace}.{frame.function}" for frame in found["frames"]] == [
        f"{local}.method",
        inner,
        f"{local}.makes.<locals>.closure",
        f"{local}.makes.<locals>.Deeper",
        f"{local}.makes.<locals>.Deeper.method",
        f"{local}.cached",
        "m.wraps.<locals>.wrapper",
        "m.Plain.method.<locals>.<lambda>",
    ]


def test_a_lambda_and_a_comprehension_are_named_as_python_names_them() -> None:
    found: list[Frame] = []
    assert max("x", key=lambda _: found.append(here()) or 0) == "x"  # type: ignore[func-returns-value]
    found += (here() for _ in "x")
    assert [frame.function for frame in found] == ["<lambda>", "<genexpr>"]


def test_code_without_a_module_is_unknown() -> None:
    found: dict[str, Any] = {"here": here}
    exec("frame = here()", found)  # noqa: S102  # the case under test: no __name__
    assert found["frame"].namespace == "unknown"
    assert (found["frame"].file, found["frame"].line) == ("<string>", 1)


def test_a_module_name_that_is_no_string_is_unknown() -> None:
    found: dict[str, Any] = {"here": here, "__name__": 7}
    exec("frame = here()", found)  # noqa: S102
    assert found["frame"].namespace == "unknown"


def test_globals_that_run_code_when_they_are_read_are_not_run() -> None:
    class Trap(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise AssertionError("the application's code was run")

    frame = Symbolizer().frame(here.__code__, 0, Trap(__name__="trapped"))
    assert frame.namespace == "trapped"


def test_a_file_name_that_would_break_the_line_is_escaped() -> None:
    found: dict[str, Any] = {"here": here, "__name__": "generated"}
    exec(compile("frame = here()", "a\nb)\tc", "exec"), found)  # noqa: S102
    assert found["frame"].file == "a\\nb)\\tc"


def test_code_that_no_module_has_is_not_kept() -> None:
    symbolizer, code = Symbolizer(), compile("rule", "<rule>", "eval")
    symbolizer.frame(code, 0, {"__name__": "rules"})
    ref = weakref.ref(code)
    del code
    gc.collect()
    assert ref() is None


def test_names_without_end_are_cut() -> None:
    name = "x" * 5000
    code = here.__code__.replace(co_name=name, co_filename=name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=f"{name}.{name}")
    frame = Symbolizer().frame(code, 0, {"__name__": name})
    assert {frame.namespace, frame.function, frame.file} == {"x" * 4095 + "…"}


def _code_with_a_line_of_none() -> tuple[CodeType, int]:
    def function(flag: bool) -> None:
        with open("/dev/null") as file:  # noqa: PTH123
            if flag:
                file.read()

    code = function.__code__
    for start, _, line in code.co_lines():
        if line is None:
            return code, start
    return code.replace(co_linetable=b""), 0


def test_a_place_without_a_line_has_none() -> None:
    code, lasti = _code_with_a_line_of_none()
    assert Symbolizer().frame(code, lasti, {"__name__": "m"}).line is None


def test_the_entry_of_a_module_has_a_line_or_none_but_never_line_0() -> None:
    code = compile("x = 1", "<string>", "exec")
    lines = {Symbolizer().frame(code, offset, {"__name__": "m"}).line for offset in range(0, len(code.co_code), 2)}
    assert lines <= {None, 1}
    assert 1 in lines


def test_code_that_was_compiled_with_negative_lines_has_none() -> None:
    tree = ast.parse("def f():\n    return 1\n")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = -5
            node.col_offset = node.end_col_offset = -1
    names: dict[str, Any] = {}
    exec(compile(tree, "negative", "exec"), names)  # noqa: S102  # made here
    code = names["f"].__code__
    for offset in range(-1, len(code.co_code), 2):
        frame = Symbolizer().frame(code, offset, {"__name__": "m"})
        assert (frame.line, frame.first_line) == (None, 0)


def test_a_frame_that_has_not_begun_is_at_its_first_line() -> None:
    frame = Symbolizer().frame(here.__code__, -1, {"__name__": "m"})
    assert frame.line == here.__code__.co_firstlineno


def test_module_with_proxies_and_aliases_is_read_without_running_them() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AssertionError("the application's code was run")

    found: dict[str, Any] = {"here": here, "__name__": "proxied", "alias": list[int], "proxy": Proxy()}
    exec("class A:\n    def f(self):\n        return here()\nframe = A().f()", found)  # noqa: S102
    assert found["frame"].namespace == "proxied.A"


def test_a_module_with_a_type_that_nobody_has_used_yet_is_named() -> None:
    program = (
        "import _socket\n"  # on CPython 3.10 its type has no attributes before its first use
        "from splunk_profiler.capture.symbolizer import Symbolizer\n"
        "code = compile('pass', 'socket.py', 'exec')\n"
        "print(Symbolizer().frame(code, 0, {'__name__': 'socket', 'SocketType': _socket.SocketType}).function)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "<module>\n"
