"""What the development prompts say of methods at values of their knobs: trying things out costs no calibration prompt.

    python -m pipeline.studies.certify.development autojudge                  every value of its grid
    python -m pipeline.studies.certify.development autojudge --knob 0.1 --knob 0.15
    python -m pipeline.studies.certify.development autojudge ensemble-gate    -> reports/studies/development.json

Reads what the stage `calibrate` reads. Decoded settings are kept where that stage keeps its own, so neither decodes
twice. What is chosen here is certified by prompts that had no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gistgate.certificates.search import Setting
from gistgate.errors import UserError
from pipeline.certification.outcomes import Setup, method_of
from pipeline.common.code import running, write_result
from pipeline.common.entry import run
from pipeline.params import read_params
from pipeline.stages.calibrate import chunk_of, describe, request_of

OUTPUT = Path("reports/studies/development.json")


def main(
    methods: Annotated[list[str], typer.Argument(help="Methods of params.yaml.")],
    knob: Annotated[list[float] | None, typer.Option(help="Values of the knob; default: the whole grid.")] = None,
) -> None:
    torch.set_grad_enabled(False)
    setup = Setup(read_params())
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for name in methods:
        for row in measured(setup, name, knob):
            found[name].append(row)
            print(f"{name} {line(row)}", flush=True)
    write_result(OUTPUT, {"pair": setup.params.pair, "task": setup.task.name, "methods": found}, running())


def measured(setup: Setup, name: str, values: Sequence[float] | None) -> Iterator[dict[str, Any]]:
    """What the stage `calibrate` reports of a setting, for each of these values of a method's knob, strict first.

    Raises:
        UserError: values are given for a method without a knob.
    """
    method, strict = method_of(setup.params, name), setup.strict_scores("development")
    if values and method.knob is None:
        raise UserError(f"The method {name} has no knob. Leave out --knob.")
    confidence = request_of(setup.params).confidence
    outcomes = setup.outcomes(name, chunk_of(setup.params, setup.pair.target.dtype))
    for variant in method.variants:
        for value in values or method.grid or (None,):
            setting = Setting(value, variant)
            decoded = outcomes.decoded("development", method.settings(setting))
            yield describe(method, setting, decoded, strict, confidence)


def line(row: dict[str, Any]) -> str:
    """A setting on one line."""
    return (
        f"{row['knob']} {row['fixed']}: {row['losses']:g} lost and {row['gains']:g} gained of {row['n']}, "
        f"tau {row['mean_accepted_length']:.2f}, {row['loose_per_100']:.2f} loose per 100"
    )


if __name__ == "__main__":
    run(main)
