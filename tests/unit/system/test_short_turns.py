"""Short turns of the GIL, and what is left of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from splunk_profiler.system.short_turns import ShortTurns


@pytest.fixture(params=[0.005, 0.00123, 0.02, 0.00005], autouse=True)
def before_s(request: pytest.FixtureRequest) -> Iterator[float]:
    original_s = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield sys.getswitchinterval()
    sys.setswitchinterval(original_s)


def is_short() -> bool:
    return sys.getswitchinterval() < 0.0001


def test_turns_are_short_until_the_last_of_several_times_has_ended(before_s: float) -> None:
    one, other, third = ShortTurns(), ShortTurns(), ShortTurns()
    with one:
        with other:
            assert is_short()
        assert is_short()
        third.__enter__()
    assert is_short()
    third.end()
    assert sys.getswitchinterval() == before_s
    third.end()
    assert sys.getswitchinterval() == before_s


def test_length_that_the_application_has_set_meanwhile_stays() -> None:
    with ShortTurns():
        sys.setswitchinterval(0.002)
        application_s = sys.getswitchinterval()
    assert sys.getswitchinterval() == application_s


def test_child_of_a_fork_restores_what_lost_threads_have_shortened(before_s: float) -> None:
    of_main, of_lost = ShortTurns(), ShortTurns()
    with of_main, of_lost:
        child = os.fork()
        if child == 0:
            of_main.end()
            os._exit(sys.getswitchinterval() != before_s)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
