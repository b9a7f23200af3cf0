"""Operating points: where a method of params.yaml runs, at the loosest setting that calibration has
certified for the headline budget, or strictly.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gistgate.core.files import read_json
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from pipeline.methods import MODEL, SEGMENT, MethodParams
from pipeline.params import EAGER, Params
from pipeline.paths import calibration_file


@dataclass(frozen=True)
class Operating:
    """One method at one setting."""

    method: str  # name in params.yaml, or "plain"
    rule: str  # rule id that runs; "exact" where nothing looser is certified
    drafter: str  # drafter id; "none" is plain decoding
    block: int  # K, in tokens
    settings: dict[str, Any] = field(default_factory=dict)
    knob: float | None = None  # value of the knob
    head: str | None = None  # head whose gate the rule asks
    budget: float | None = None  # certified loss, a share of prompts; None without a knob
    certified: bool = True  # False where nothing is certified at the budget, so that it is strict
    after: str = MethodParams.after  # where the method's parts come from
    batch_size: int | None = None  # rows decoded together; None: as decoding.batch_size
    engine: str = EAGER  # engine on which its answers are judged

    @property
    def choice(self) -> Choice:
        """What decodes, for `make_decoder`."""
        return Choice(self.rule, self.settings, self.block, self.drafter)

    @property
    def gate(self) -> Path | None:
        """The folder of the gate that the rule asks; None for a rule without one."""
        return Path(self.after) if self.head else None


def operating_point(params: Params, name: str) -> Operating:
    """Where the method `name` runs at the headline budget; "plain" decodes without a drafter."""
    if name == "plain":
        return Operating("plain", "exact", "none", 0)
    method = params.method(name)
    point = Operating(
        name,
        method.rule,
        method.drafter,
        params.block_of(name),
        method.fixed,
        head=method.head,
        after=method.after,
        batch_size=method.batch_size,
        engine=params.engine_of(name),
    )
    if method.knob is None:
        return point
    budget = params.headline_budget
    point = replace(point, budget=budget)
    entry = at_budget(read_json(calibration_file(name))["budgets"], budget)
    if entry is None:
        raise UserError(
            f"{calibration_file(name)} says nothing about the budget {budget:g}. Calibrate for it."
        )
    if entry["certified"]:
        settings = {**method.fixed, **entry["fixed"], method.knob: entry["knob"]}
        return replace(point, settings=settings, knob=entry["knob"])
    point = replace(point, rule="exact", settings={}, head=None, certified=False)
    if method.drafter == SEGMENT:  # whose drafts are not verified token by token
        return replace(point, drafter=MODEL, block=params.decoding.block)
    return point


def at_budget(budgets: dict[str, dict[str, Any]], budget: float) -> dict[str, Any] | None:
    """The entry of a calibration for one of its budgets."""
    return next((entry for key, entry in budgets.items() if float(key) == budget), None)
