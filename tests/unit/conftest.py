"""The publisher of contexts, installed for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from own_memory import OwnMemory, Publishing


@pytest.fixture
def publishing() -> Iterator[Publishing]:
    publishing = Publishing()
    publishing.install()
    yield publishing
    publishing.uninstall()


@pytest.fixture
def memory(publishing: Publishing) -> OwnMemory:
    publishing.publish()
    return OwnMemory()
