"""At which setting a method runs once calibration has spoken: the certified one, or strictly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.params import MethodParams, Params

REPORTS = Path("reports")
OWN_REPORTS = Path("reports/speed")
"""Where methods at their own K are kept apart from those at the common one."""


@dataclass(frozen=True)
class Operating:
    """One method at one setting."""

    method: str
    """Name in params.yaml, or "plain"."""
    rule: str
    """Rule id that runs; "exact" where nothing looser is certified."""
    drafter: str
    """Drafter id; "none" is plain decoding."""
    block: int
    """K, in tokens."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule."""
    knob: float | None = None
    """Value of the knob; None without one."""
    head: str | None = None
    """Head whose gate the rule asks."""
    budget: float | None = None
    """Certified loss against strict, as a share of prompts; None where none was asked for."""
    certified: bool = True
    """False where calibration certified nothing at the budget, so that the method runs strictly."""

    def as_method(self) -> MethodParams:
        """What `make_decoder` wants to know."""
        return MethodParams(self.rule, drafter=self.drafter, learned=self.head is not None, head=self.head)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def folder_of(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where the results of one method lie: those of the large table apart from the core ones."""
    return reports / "table" if name in params.methods and params.methods[name].extra else reports


def calibration_file(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where the calibration of a method is written; what a changed gate makes worthless lies in a folder apart."""
    group = "learned" if params.method(name).learned else "free"
    return folder_of(params, name, reports) / "calibration" / group / f"{name}.json"


def evaluation_folder(params: Params, name: str, reports: Path = REPORTS) -> Path:
    """Where lm-eval's verdict on a method lies."""
    return folder_of(params, name, reports) / "evaluation" / name


def operating_point(params: Params, name: str, budget: float | None = None, reports: Path = REPORTS) -> Operating:
    """Where `name` runs at `budget` (default: the headline budget).

    Raises:
        UserError: no such method, or its calibration is missing or speaks of another budget.
    """
    if name == "plain":
        return Operating("plain", "exact", "none", 0)
    method, block = params.method(name), params.block_of(name)
    if method.knob is None:
        return Operating(name, method.rule, method.drafter, block, method.settings({}, None), head=method.head)
    budget = params.headline_budget if budget is None else budget
    report = read_json(calibration_file(params, name, reports))
    found = next((entry for key, entry in report["budgets"].items() if float(key) == budget), None)
    if found is None:
        raise UserError(
            f"{calibration_file(params, name, reports)} says nothing about the budget {budget:g}. "
            "Add it to calibrate.budgets in params.yaml and run the stage `calibrate` again."
        )
    if not found["certified"]:
        return Operating(name, "exact", method.drafter, block, budget=budget, certified=False)
    settings = {**method.fixed, **found["fixed"], method.knob: found["knob"]}
    return Operating(name, method.rule, method.drafter, block, settings, found["knob"], method.head, budget)
