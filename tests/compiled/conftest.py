"""Programs of the compiled engine that are traced and not compiled."""

from typing import Any

import pytest

from gistgate.compiled import memory, program


@pytest.fixture(scope="module")
def programs() -> Any:
    """Traced programs, kept from test to test as a process would."""
    return type(memory._stores)()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, programs: Any):
    """Programs as traced, not compiled: the same operations, built in a fraction of a second."""

    def build(function: Any, example: Any, layers: Any, _compiles: bool, shared: Any) -> Any:
        return program.build(function, example, layers, False, shared)

    monkeypatch.setattr(memory, "build", build)
    monkeypatch.setattr(memory, "_stores", programs)
