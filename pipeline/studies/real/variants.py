"""Other heads, and rules that combine them with others, on development prompts alone: is one of them worth calibrating?

    python -m pipeline.studies.real.variants [--file variants.yaml]     -> reports/studies/variants.json

Run it in the folder of a run that has finished the stage `label`. The file names heads by the features that they see
and the rules that ask them. Each head is trained on the run's labels; what it sees is read first, hidden layers
included. A rule is tried at the risk at which its gate lets a given share of the mismatches through, on problems that
the head was not fitted on, so that heads are compared where they accept equally much. Nothing here is certified:
calibration prompts are not decoded, and whoever chooses by this table has to calibrate the choice. An interruption
costs one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gistgate.certificates.calibration import Method
from gistgate.certificates.outcomes import Outcomes
from gistgate.certificates.search import Setting
from gistgate.errors import UserError
from gistgate.files import fingerprint
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash
from gistgate.rules import RULES
from pipeline.certification.outcomes import Setup
from pipeline.common.code import running, write_result
from pipeline.common.decoders import make_decoder
from pipeline.common.entry import run
from pipeline.common.paths import STUDIES
from pipeline.common.reading import Share, block, build, nearest
from pipeline.common.yaml_file import read_yaml
from pipeline.heads.job import head_job
from pipeline.heads.partners import partners_of
from pipeline.heads.rows import Rows, rows_of
from pipeline.heads.split import split_by_problem
from pipeline.labels.schema import LABEL_FOLDER, PASSES
from pipeline.labels.tables import Table
from pipeline.params import MethodParams, Params, read_params
from pipeline.params.methods import MODEL
from pipeline.stages.calibrate import chunk_of, describe
from pipeline.stages.train import finish, with_features
from pipeline.studies.labels.layers import states

FILE = STUDIES / "real/variants.yaml"
OUTPUT = Path("reports/studies/variants.json")
KNOB = "risk"
"""The setting of every rule that is tried."""


@block
class Try:
    """One row of the table."""

    rule: str
    """A rule whose knob is `risk`, by id."""
    head: str
    """One of the heads of the file, by name."""
    share: Share
    """Share of the mismatches that the gate lets through."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Other settings of the rule."""

    def __post_init__(self) -> None:
        asked = [name for name, rule in RULES.items() if rule.knob == KNOB]
        if self.rule not in asked:
            raise UserError(f"The file tries '{self.rule}', which has no risk. {nearest(self.rule, asked)}")


@block
class Variants:
    """The whole file."""

    heads: dict[str, tuple[str, ...]]
    """Ids of the features that each head sees, by its name."""
    tries: tuple[Try, ...]
    """What is decoded, in this order."""

    def __post_init__(self) -> None:
        for one in self.tries:
            if one.head not in self.heads:
                raise UserError(f"The file names no head '{one.head}'. {nearest(one.head, self.heads)}")


def main(file: Annotated[Path, typer.Option(help="Heads and rules to try.")] = FILE) -> None:
    torch.set_grad_enabled(False)
    params, variants = read_params(), build(Variants, read_yaml(file), file=str(file))
    names = tuple(dict.fromkeys(name for features in variants.heads.values() for name in features))
    table = states(params, names)
    setup, rows = Setup(params), []
    gates = {name: trained(setup, table, name, features) for name, features in variants.heads.items()}
    for one in variants.tries:
        gate, seen = gates[one.head]
        risk = risk_at(params, gate, seen, one.share)
        rows.append({**asdict(one), **measured(setup, one, gate, risk)})
        found = {"pair": params.pair, "task": params.task, "strict": strict_of(setup), "tries": rows}
        write_result(OUTPUT, found, running())
        print(f"{one.rule}, {one.head}, {one.share:.0%}: {rows[-1]}", flush=True)


def trained(setup: Setup, table: Table, name: str, features: tuple[str, ...]) -> tuple[Gate, Rows]:
    """A logistic head on these features, and the rows that it was trained and measured on."""
    own, rows = with_features(setup.params, features), rows_of(table, features)
    widths = {feature: table[feature].shape[-1] for feature in features}
    data = {str(folder): fingerprint(folder) for folder in (LABEL_FOLDER / goal for goal in PASSES)}
    no_problems = ""  # no certificate comes of this gate, so that nobody asks which problems taught it
    job = head_job("logistic", own, widths, partners_of(setup.pair), data, no_problems)
    with torch.enable_grad():
        return Gate.load(finish(f"variant-{name}", job, rows)), rows


def risk_at(params: Params, gate: Gate, rows: Rows, share: float) -> float:
    """The risk at which the gate lets this share of the mismatches of unseen problems through."""
    parts = split_by_problem(rows.problem, params.train, params.seed)
    unseen = rows.x[parts.calibration | parts.test]
    return float((1 - gate.probability(unseen).double()).quantile(share))


def measured(setup: Setup, one: Try, gate: Gate, risk: float) -> dict[str, Any]:
    """What the rule does on the development prompts, against the strict reference."""
    params = setup.params
    method = Method(one.rule, MODEL, params.decoding.block, KNOB, (risk,), one.fixed)
    decoded = outcomes_of(setup, one, gate).decoded("development", method.settings(Setting(risk)))
    strict = setup.strict_scores("development")
    return {"forwards": decoded.counted.forwards, **describe(method, Setting(risk), decoded, strict, 0.95)}


def outcomes_of(setup: Setup, one: Try, gate: Gate) -> Outcomes:
    """The rule with this gate; answers are kept in the scratch folder."""
    params = setup.params
    method = MethodParams(one.rule, fixed=one.fixed, learned=True, head=one.head, knob=KNOB, grid=(0.0,))
    decode = setup.kept(
        f"variant-{one.rule}",
        lambda settings: make_decoder(setup.pair, method, settings, params.decoding.block, gate=gate),
        setup.dependencies,
        one.rule,
        params.decoding.block,
        gate_hash(gate),
    )
    return Outcomes(setup.prompts, setup.scorer, setup.strict, decode, chunk_of(params, setup.pair.target.dtype))


def strict_of(setup: Setup) -> Mapping[str, Any]:
    """The strict answers to the same prompts."""
    answers = setup.strict_answers({}, setup.prompts["development"], 0)
    forwards = sum(answer.statistics.forwards for answer in answers)
    tokens = sum(answer.statistics.tokens for answer in answers)
    return {"n": len(answers), "forwards": forwards, "mean_accepted_length": tokens / forwards}


if __name__ == "__main__":
    run(main)
