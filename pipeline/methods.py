"""A method of params.yaml: a rule with a drafter, the settings that compete, the knob that is calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from gistgate.core.utils import UserError, nearest
from pipeline.paths import HEADS, PAIR_REPORT
from pipeline.reading import Count, Number, block

MODEL = "model"
"""The drafter of the pair: its draft model, or what its file names instead."""
SEGMENT = "segment"
"""The drafter of whole segments, which the rules `segment` and `segment-draw` judge."""


@block
class MethodParams:
    rule: str
    drafter: str = MODEL
    after: str = str(PAIR_REPORT)
    block: Count | None = None
    fixed: dict[str, Any] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ({},)
    knob: str | None = None
    grid: tuple[Number, ...] = ()

    def __post_init__(self) -> None:
        steps = [later - earlier for earlier, later in zip(self.grid, self.grid[1:], strict=False)]
        if (self.knob is None) != (not self.grid):
            raise UserError(f"params.yaml: a method of rule '{self.rule}' needs both 'knob' and 'grid', or neither.")
        if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
            raise UserError(
                f"params.yaml: the grid of a method of rule '{self.rule}' goes up and down: {list(self.grid)}. "
                "Order it from strict to loose, without repetition."
            )

    @property
    def gate(self) -> Path | None:
        """The folder of the gate that the rule asks; None for a rule without one."""
        asks = self.drafter != SEGMENT and self.rule != "exact" and "gate" in kind_of_rule(self.rule).needs
        return Path(self.after) if asks else None

    @property
    def head(self) -> str | None:
        """The name of that gate."""
        return self.gate.name if self.gate else None

    def settings(self, variant: dict[str, Any], value: float | None) -> dict[str, Any]:
        """All settings of the rule for one variant and one value of the knob."""
        knob = {} if self.knob is None else {self.knob: value}
        return {**self.fixed, **variant, **knob}


def kind_of_rule(rule: str) -> Any:
    """The class of a rule, presets and the rules of segments included."""
    from gistgate.rules import PRESETS, RULES, meant

    if rule.startswith(SEGMENT):
        from gistgate.segments.build import SEGMENT_RULES

        if rule in SEGMENT_RULES:
            return SEGMENT_RULES[rule]
    if rule not in RULES and rule not in PRESETS:
        known = [*RULES, *PRESETS, SEGMENT]
        raise UserError(f"params.yaml: there is no rule '{rule}'. {nearest(rule, known)}")
    return RULES[meant(rule)[0]]


def check_method(name: str, method: MethodParams, heads: Sequence[str]) -> None:
    """Its rule exists, its knob is the rule's, its grid goes from strict to loose, and its gate is trained."""
    kind = kind_of_rule(method.rule)
    if method.knob is None and kind.knob is not None:
        raise UserError(
            f"params.yaml: the method '{name}' has no knob, so that nothing certifies it. "
            f"Give it 'knob: {kind.knob}' and a 'grid', which may have a single value."
        )
    rises = len(method.grid) > 1 and method.grid[0] < method.grid[1]
    if len(method.grid) > 1 and method.knob == kind.knob and rises != (kind.looser == "up"):
        raise UserError(
            f"params.yaml: the grid of the method '{name}' goes from loose to strict: {list(method.grid)}. Turn it "
            f"round; a {'larger' if kind.looser == 'up' else 'smaller'} '{kind.knob}' accepts more."
        )
    if method.rule.startswith(SEGMENT) != (method.drafter == SEGMENT):
        raise UserError(f"params.yaml: the method '{name}' needs both a rule and the drafter '{SEGMENT}', or neither.")
    if method.gate and method.after == str(PAIR_REPORT):
        raise UserError(f"params.yaml: the method '{name}' asks a gate. Name it, as in 'after: {HEADS}/logistic'.")
    if method.gate and method.gate.parent == HEADS and method.head not in heads:
        raise UserError(
            f"params.yaml: 'methods.{name}.after' names the head '{method.head}', which is not among 'train.heads'. "
            f"{nearest(str(method.head), heads)}"
        )
