"""The block about methods: which rule with which drafter, which settings compete, which knob is calibrated."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from gistgate.errors import UserError
from pipeline.common.reading import Count, Number, block

MODEL = "model"
"""The drafter of the pair: its draft model, or what its file names instead."""


@block
class MethodParams:
    """One line of the results table."""

    rule: str
    """Rule id, a key of gistgate.rules.RULES."""
    drafter: str = MODEL
    """Drafter id, a key of gistgate.drafters.DRAFTERS or pipeline.studies.retrieval.drafters.RETRIEVAL; "model" is the
    pair's own drafter, "none" decodes plainly."""
    learned: bool = False
    """Whether the rule needs a trained gate; follows from the group the method stands in."""
    head: str | None = None
    """Head whose gate the rule asks, one of train.heads; None for rules without a gate."""
    block: Count | None = None
    """K of this method, in tokens; None takes decoding.block."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule that never change."""
    variants: tuple[dict[str, Any], ...] = ({},)
    """Settings of the rule of which development prompts choose one; each overrides `fixed`."""
    knob: str | None = None
    """The scalar setting that calibration moves; None for a rule without one."""
    grid: tuple[Number, ...] = ()
    """Values of the knob, from strict to loose, in the knob's own unit."""
    extra: bool = False
    """Whether only the large table has it."""

    def __post_init__(self) -> None:
        steps = [later - earlier for earlier, later in zip(self.grid, self.grid[1:], strict=False)]
        if (self.knob is None) != (not self.grid):
            raise UserError(f"params.yaml: a method of rule '{self.rule}' needs both 'knob' and 'grid', or neither.")
        if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
            raise UserError(
                f"params.yaml: the grid of a method of rule '{self.rule}' goes up and down: {list(self.grid)}. "
                "Order it from strict to loose, without repetition."
            )
        if self.learned != (self.head is not None):
            raise UserError(
                f"params.yaml: a method of rule '{self.rule}' needs 'head' if and only if it is under "
                "'methods.learned'."
            )

    def settings(self, variant: dict[str, Any], value: float | None) -> dict[str, Any]:
        """All settings of the rule for one variant and one value of the knob."""
        knob = {} if self.knob is None else {self.knob: value}
        return {**self.fixed, **variant, **knob}


@block
class MethodGroups:
    """Methods as they stand in the file: apart by what they wait for."""

    lossless: dict[str, MethodParams] = field(default_factory=dict)
    """Methods without a knob: nothing to calibrate, by name."""
    free: dict[str, MethodParams] = field(default_factory=dict)
    """Methods that need no training, by name."""
    learned: dict[str, MethodParams] = field(default_factory=dict)
    """Methods that ask a trained gate, by name."""


def mark_learned(groups: Any) -> Any:
    """The block `methods` with `learned` filled in from the group each method stands in."""
    if not isinstance(groups, dict):
        return groups
    marked = dict(groups)
    if isinstance(marked.get("learned"), dict):
        marked["learned"] = {
            name: {"learned": True, **method} if isinstance(method, dict) else method
            for name, method in marked["learned"].items()
        }
    return marked
