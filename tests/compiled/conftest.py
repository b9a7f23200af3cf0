"""Programs of the compiled engine that are traced and not compiled."""

from __future__ import annotations

from typing import Any

import pytest

from gistgate.compiled import memory as store
from gistgate.compiled import program


@pytest.fixture(scope="module")
def programs() -> Any:
    """Traced programs, kept from test to test as a process would."""
    return type(store._stores)()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, programs: Any):
    """Programs as traced, not compiled: the same operations, built in a fraction of a second."""
    build = program.build
    monkeypatch.setattr(store, "build", lambda function, example, compiles: build(function, example, False))
    monkeypatch.setattr(store, "_stores", programs)
