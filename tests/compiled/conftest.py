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
    build = program.build
    monkeypatch.setattr(
        memory, "build", lambda *given, **named: build(*given, **{**named, "compiles": False})
    )
    monkeypatch.setattr(memory, "_stores", programs)
