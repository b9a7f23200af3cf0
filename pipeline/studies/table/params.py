"""pipeline/studies/table/params.yaml: the methods of the large table, which has every rule of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from gistgate.errors import UserError
from gistgate.rules import RULES
from pipeline.common.paths import STUDIES
from pipeline.common.reading import Count, block, nearest, read
from pipeline.params import Params, read_params
from pipeline.params.drafting import drafter_of, with_drafter
from pipeline.params.methods import MethodParams

FILE = STUDIES / "table/params.yaml"


@block
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
    mixed: dict[str, str] = field(default_factory=lambda: {"autojudge-draft": "logistic+draft"})
    """Methods that have the rule `autojudge` and another head than the headline one: the head by method name."""
    span: Count = 3
    """Draft tokens that share the label of the mismatch they begin with, for heads on span labels, in tokens."""
    span_features: tuple[str, ...] = ("h_tok:pre",)
    """What the head `judge` sees, as feature ids."""

    def __post_init__(self) -> None:
        for name in (*self.skip, *self.fixed, *self.heads):
            if name not in RULES:
                raise UserError(f"{FILE} names an unknown rule '{name}'. {nearest(name, RULES)}")

    @property
    def wants_judge(self) -> bool:
        """Whether a rule is compared that asks the head on span labels."""
        return any(head == "judge" and rule not in self.skip for rule, head in self.heads.items())


def table_methods(table: TableParams, core: Mapping[str, MethodParams], headline_head: str) -> dict[str, MethodParams]:
    """The methods of the large table that the core lacks, by rule id, with the settings that the rules declare."""
    known = {method.rule for method in core.values()} | set(table.skip)
    wanted = {name: rule for name, rule in RULES.items() if name not in known and rule.temperatures != "sampled"}
    heads = {
        name: table.heads.get(name, headline_head) if "gate" in rule.needs else None for name, rule in wanted.items()
    }
    alone = {
        name: method_of(name, heads[name], table.fixed.get(name, {}))
        for name, rule in wanted.items()
        if rule.knob is not None
    }
    return {**alone, **{name: method_of("autojudge", head, {}) for name, head in table.mixed.items()}}


def method_of(rule: str, head: str | None, fixed: Mapping[str, Any]) -> MethodParams:
    """A method with the settings that its rule declares, and the gate of `head` if there is one."""
    declared = RULES[rule]
    return MethodParams(
        rule=rule,
        learned=head is not None,
        head=head,
        fixed=dict(fixed),
        variants=tuple(declared.variants),
        knob=declared.knob,
        grid=tuple(declared.grid),
        extra=True,
    )


def read_table_params() -> TableParams:
    """Read the study's file.

    Raises:
        UserError: it is missing, or holds an unknown key or rule, a wrong type or a value out of range.
    """
    return read(TableParams, FILE)


def table_params(core: Params | None = None) -> Params:
    """The parameters of the run with the methods of the large table behind the core ones."""
    core = core or read_params()
    extra = table_methods(read_table_params(), core.methods, core.train.headline_head)
    return replace(core, methods={**core.methods, **with_drafter(extra, drafter_of(core.pair))})
