"""A folder of probes as something that decodes: at what its certificate says, or as the caller wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.optional.segments.files import Probes
from gistgate.optional.segments.judges import MeanLogprob, Opinion, Semantic
from gistgate.optional.segments.rule import SegmentDraw, SegmentRule
from gistgate.optional.segments.steps import Score

SEGMENT_RULES: dict[str, type[SegmentRule]] = {rule.id: rule for rule in (SegmentRule, SegmentDraw)}
"""By id."""
OPINIONS: dict[str, Callable[[Probes, PreTrainedModel, PreTrainedTokenizerBase], Opinion]] = {
    "probe": lambda probes, _target, _tokenizer: Semantic(probes.target),
    "ratio": lambda probes, _target, _tokenizer: Semantic(probes.target, probes.draft),
    "logprob": lambda _probes, _target, _tokenizer: MeanLogprob(),
    "score": lambda _probes, target, tokenizer: Score(target, tokenizer),
}
"""By the name that a setting gives them; what needs a further model is put together by `segment_decoder`."""
SETTINGS = ("opinion", "risk", "replacement", *(item.name for item in fields(SegmentRule)))
"""What a caller may say besides the rule."""
STRICT = {"threshold": 2.0}
"""What runs where nothing is certified and nothing was said."""


@dataclass(frozen=True)
class SegmentChoice:
    """What segments are judged with."""

    opinion: str
    """A name of OPINIONS."""
    rule: SegmentRule
    replacement: str
    """What follows a refused segment: token or segment."""
    risk: float | None
    """Largest P(harm) of the token gate inside refused segments; None without one."""
    doubts: tuple[str, ...]
    """Why no certificate covers the loss, as sentences; empty when one does and when nothing can be lost."""


def take_segment_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of segments from `arguments` and return them."""
    return {name: arguments.pop(name) for name in SETTINGS if name in arguments}


def choose_segments(probes: Probes, rule: str | None, settings: dict[str, Any]) -> SegmentChoice:
    """The certified choice where nothing was said, else what was said on top of it.

    Raises:
        UserError: there is no such rule, opinion or setting, or it is out of range.
    """
    certified = probes.certificate
    default = {"rule": SegmentRule.id, "opinion": "probe", "risk": None, "replacement": "token"}
    known: dict[str, Any] = {**default, "rule": certified.get("rule", SegmentRule.id), **certified.get("settings", {})}
    wanted = {**known, **({} if rule is None else {"rule": rule}), **settings}
    doubts = [
        f"{name} is {value}, but {known.get(name)} was certified"
        for name, value in wanted.items()
        if value != known.get(name)
    ]
    if not certified:
        doubts = ["no setting of these probes is certified"]
        wanted = wanted if settings or rule else {**wanted, **STRICT}
    for name, names in (("rule", SEGMENT_RULES), ("opinion", OPINIONS)):
        if wanted[name] not in names:
            raise UserError(f"There is no segment {name} '{wanted[name]}'. Known: {', '.join(names)}.")
    if unknown := [name for name in settings if name not in SETTINGS]:
        raise UserError(f"Segments have no setting '{unknown[0]}'. Known: {', '.join(SETTINGS)}.")
    own = {item.name: wanted[item.name] for item in fields(SegmentRule) if item.name in wanted}
    made = SEGMENT_RULES[wanted["rule"]](**own)
    return SegmentChoice(wanted["opinion"], made, wanted["replacement"], wanted["risk"], tuple(doubts))
