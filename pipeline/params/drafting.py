"""What a pair's drafter means for the methods of params.yaml.

A method that says `drafter: model` drafts with whatever the pair drafts with: its draft model, or the drafter that its
file names instead. Such a drafter has no draft probabilities, so that rules and features which read them are refused
here, before hours are spent on labels.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from gistgate.errors import UserError
from pipeline.common.paths import PAIRS
from pipeline.common.yaml_file import read_yaml
from pipeline.params.methods import MODEL, MethodParams
from pipeline.params.training import TrainParams


def drafter_of(pair: str, folder: Path = PAIRS) -> str:
    """The drafter of a pair; "model" where there is no file yet, about which the stage `pair` complains."""
    path = folder / f"{pair}.yaml"
    content = read_yaml(path) if path.is_file() else None
    named = content.get("drafter") if isinstance(content, dict) else None
    return named if isinstance(named, str) else MODEL


def with_drafter(methods: dict[str, MethodParams], drafter: str) -> dict[str, MethodParams]:
    """The methods, with the pair's drafter in the place of "model"."""
    return {
        name: replace(method, drafter=drafter) if method.drafter == MODEL else method
        for name, method in methods.items()
    }


def heads_without(train: TrainParams, drafter: str) -> TrainParams:
    """The heads that can be trained with a drafter: without draft probabilities none that asks for more than others."""
    if drafter == MODEL:
        return train
    extra, lost = extra_without_q(train), lost_heads(train)
    return replace(train, extra_features=extra, heads=tuple(head for head in train.heads if head not in lost))


def extra_without_q(train: TrainParams) -> tuple[str, ...]:
    """Those of `extra_features` that need no draft probabilities."""
    features = import_module("gistgate.gates.features")
    return tuple(name for name in train.extra_features if not features.needs_q([name]))


def lost_heads(train: TrainParams) -> set[str]:
    """The heads that see draft probabilities besides what all heads see."""
    left = set(extra_without_q(train))
    return {head for head in train.heads if not set(head.split("+")[1:]) <= left}


def check_probabilities(methods: dict[str, MethodParams], train: TrainParams, drafter: str) -> None:
    """Refuse what reads draft probabilities where the pair's drafter has none.

    Rules and features are imported by name, as in `check_rules`: this check can only refuse.

    Raises:
        UserError: a rule, a feature or a head that is asked needs them.
    """
    if drafter == MODEL:
        return
    rules, features = import_module("gistgate.rules"), import_module("gistgate.gates.features")
    for name, method in methods.items():
        if "q" in rules.RULES[rules.meant(method.rule)[0]].needs:
            raise UserError(
                f"params.yaml: the method '{name}' has the rule '{method.rule}', which reads draft probabilities, and "
                f"the pair's drafter '{drafter}' has none. Remove the method, or choose a pair with a draft model."
            )
    lost = lost_heads(train)
    asked = {f"methods.learned.{name}.head": method.head for name, method in methods.items()}
    for key, head in {**asked, "train.headline_head": train.headline_head}.items():
        if head in lost:
            raise UserError(
                f"params.yaml: '{key}' is '{head}', which reads draft probabilities, and the pair's drafter "
                f"'{drafter}' has none. Name another head of 'train.heads', or choose a pair with a draft model."
            )
    for key in ("features", "pilot_features"):
        if features.needs_q(getattr(train, key)):
            raise UserError(
                f"params.yaml: 'train.{key}' names 'draft', which reads draft probabilities, and the pair's drafter "
                f"'{drafter}' has none. Remove it, or choose a pair with a draft model."
            )
