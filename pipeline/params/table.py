"""The block about the large table: every rule of the library beside the core methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from gistgate.errors import UserError
from gistgate.rules import RULES
from pipeline.params.methods import MethodParams
from pipeline.params.reading import Between, nearest


@dataclass(frozen=True)
class TableParams:
    """What `make table` compares besides `methods`: every rule with a knob that greedy decoding defines."""

    skip: tuple[str, ...] = ("wisv",)
    """Rules to leave out, by id."""
    fixed: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "csd": {"counts": "models/table/pairs.safetensors"},
            "trt-relaxed": {"scope": "all"},
            "typical": {"greedy": "raw"},
        }
    )
    """Settings of rules that differ from their defaults, by rule id."""
    heads: dict[str, str] = field(default_factory=lambda: {"judge": "judge"})
    """Head that a learned rule asks where it is not train.headline_head, by rule id."""
    span: Annotated[int, Between(1)] = 3
    """Draft tokens that share the label of the mismatch they begin with, for heads on span labels, in tokens."""
    span_features: tuple[str, ...] = ("h_tok:pre",)
    """What the head `judge` sees, as feature ids."""

    def __post_init__(self) -> None:
        for name in (*self.skip, *self.fixed, *self.heads):
            if name not in RULES:
                raise UserError(f"params.yaml: 'table' names an unknown rule '{name}'. {nearest(name, RULES)}")


def table_methods(table: TableParams, core: Mapping[str, MethodParams], headline_head: str) -> dict[str, MethodParams]:
    """The methods of the large table that the core lacks, by rule id, with the settings that the rules declare."""
    known = {method.rule for method in core.values()} | set(table.skip)
    wanted = {name: rule for name, rule in RULES.items() if name not in known and rule.temperatures != "sampled"}
    return {
        name: MethodParams(
            rule=name,
            learned="gate" in rule.needs,
            head=table.heads.get(name, headline_head) if "gate" in rule.needs else None,
            fixed=table.fixed.get(name, {}),
            variants=tuple(rule.variants),
            knob=rule.knob,
            grid=tuple(rule.grid),
            extra=True,
        )
        for name, rule in wanted.items()
        if rule.knob is not None
    }
