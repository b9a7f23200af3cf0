"""Guards by the names that a command line knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash, identify_model
from gistgate.optional.guards import DomainGuard, Guard, LoopGuard


def make_guards(names: Sequence[str], gate: Any = None) -> list[Guard]:
    """Guards by their ids; `gate` is the folder that "domain" is read from, or a gate that was loaded from it.

    Raises:
        UserError: there is no such guard, or no folder to read it from.
    """
    return [make_guard(name, gate) for name in names]


def check_guards(guards: Sequence[Guard], gate: Gate | None, target: PreTrainedModel) -> None:
    """Refuse a guard that was fitted with another gate or on other weights; older ones do not say the weights.

    Raises:
        UserError: which of the two it is.
    """
    for about in [guard.about for guard in guards if isinstance(guard, DomainGuard)]:
        here = {"gate": gate and gate_hash(gate), "target": identify_model(target).fingerprint}
        for part, value in here.items():
            if value is not None and about.get(part) not in (None, value):
                raise UserError(
                    f"The guard 'domain' was fitted with another {part}, so that it knows other states. Leave the "
                    "guard out, or run the pipeline for these models and export the gate again."
                )


def make_guard(name: str, gate: Any = None) -> Guard:
    """One guard by its id.

    Raises:
        UserError: there is no such guard, or no folder to read it from.
    """
    if name == LoopGuard.id:
        return LoopGuard()
    if name != DomainGuard.id:
        raise UserError(f"There is no guard '{name}'. Known: {LoopGuard.id}, {DomainGuard.id}.")
    folder = gate.folder if isinstance(gate, Gate) else gate
    if folder is None:
        raise UserError("The guard 'domain' compares with the prompts of a gate's calibration. Name the gate's folder.")
    return DomainGuard.load(folder)
