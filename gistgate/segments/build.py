"""The decoder that accepts segments: from loaded parts, or from a folder of probes at what its
certificate says.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import num_ids
from gistgate.core.decoder import Decoder
from gistgate.core.identity import gate_hash
from gistgate.core.request import eos_ids
from gistgate.core.utils import Registry, UserError
from gistgate.coverage.certificate import is_within
from gistgate.coverage.choose import Choice, Policy
from gistgate.coverage.covers import Difference
from gistgate.gate import Gate
from gistgate.models.options import DecodeOptions
from gistgate.segments.judging import (
    MeanLogprob,
    Opinion,
    Score,
    SegmentDraw,
    SegmentJudge,
    SegmentRule,
    Semantic,
)
from gistgate.segments.probes import Probes, load_probes
from gistgate.segments.writing import Boundaries, RewritingDrafter, SegmentDrafter

SEGMENT_RULES: Registry[type[SegmentRule]] = Registry(
    "segment rule", {rule.id: rule for rule in (SegmentRule, SegmentDraw)}
)
"""Segment rules by id."""
MakeOpinion = Callable[[Probes, PreTrainedModel, PreTrainedTokenizerBase], Opinion]
OPINIONS: Registry[MakeOpinion] = Registry(
    "segment opinion",
    {
        "probe": lambda probes, _target, _tokenizer: Semantic(probes.target),
        "ratio": lambda probes, _target, _tokenizer: Semantic(probes.target, probes.draft),
        "logprob": lambda _probes, _target, _tokenizer: MeanLogprob(),
        "score": lambda _probes, target, tokenizer: Score(target, tokenizer),
    },
)
"""Opinions by the name that a setting gives them."""
DRAFTERS: Registry[type[SegmentDrafter]] = Registry(
    "replacement of a refused segment", {"token": SegmentDrafter, "segment": RewritingDrafter}
)
"""Drafters by what the target writes in place of a refused segment before it judges the next one:
one token, or its own segment to the end."""
DEFAULTS: dict[str, Any] = {"opinion": "probe", "risk": None, "replacement": "token"}
"""Settings of segments beside those of the rule, where neither certificate nor user says
otherwise.
"""
OF_RULE = [item.name for item in fields(SegmentRule)]
SETTINGS = (*DEFAULTS, *OF_RULE)


def segment_decoder(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    opinion: Opinion,
    rule: SegmentRule,
    *,
    style: str,
    limit: int,
    replacement: str = "token",
    token_gate: Any = None,
    risk: float = 0.1,
    **parts: Any,
) -> Decoder:
    """A decoder whose draft is one segment of at most `limit` tokens, judged by `opinion`.

    Everything else is the ordinary loop: keys and values are kept by ids, and nothing is tokenised
        again. Where a
    `token_gate` is given, tokens of refused segments pass while P(harm) <= `risk`. `replacement`:
    see DRAFTERS.
    """
    if limit < 2:
        raise UserError(f"A segment of at most {limit} tokens is none. Set the limit to 2 or more.")
    drafter = DRAFTERS[replacement](draft, Boundaries(tokenizer, style, eos_ids(target, tokenizer)))
    judge = SegmentJudge(opinion, drafter, token_gate, risk)
    decoder = Decoder(target, drafter, rule, limit, gate=judge, tokenizer=tokenizer, **parts)
    return decoder.watched_by(opinion) if isinstance(opinion, Score) else decoder


def decoder_of(
    probes: Probes,
    choice: Choice,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    gate: Gate | None = None,
    **parts: Any,
) -> Decoder:
    """The decoder of loaded probes at chosen settings; `gate` stands in for their token gate."""
    settings = choice.settings
    risk = settings["risk"]
    token_gate = None if risk is None else gate or probes.gate
    if risk is not None and token_gate is None:
        raise UserError(
            "A risk is kept by a token gate, and none was given. Pass gate=<folder>, or leave risk"
            " away."
        )
    kind = SEGMENT_RULES[choice.rule]
    rule = kind(**{name: settings[name] for name in OF_RULE if name in settings})
    arguments = {
        "style": probes.style,
        "limit": probes.limit,
        "replacement": settings["replacement"],
        "risk": risk or 0.0,
        "token_gate": token_gate,
        "vocabulary": num_ids(tokenizer),
        **parts,
    }
    opinion = OPINIONS[settings["opinion"]](probes, target, tokenizer)
    return segment_decoder(target, draft, tokenizer, opinion, rule, **arguments)


def choose_segments(probes: Probes, rule: str | None, settings: dict[str, Any]) -> Choice:
    """The certified choice where nothing is said, else what is said on top of it. Pure, as `choose`
    is for tokens.
    """
    certificate = probes.certificate
    certified = certificate.get("settings", {})
    for name in (*certified, *settings):
        if name not in SETTINGS:
            raise UserError(f"Segments have no setting '{name}'. Known: {', '.join(SETTINGS)}.")
    usual = {"rule": certificate.get("rule", SegmentRule.id), **DEFAULTS, **certified}
    chosen = {**usual, **settings}
    if rule is not None:
        chosen["rule"] = rule
    rule_id = SEGMENT_RULES[chosen.pop("rule")].id
    _ = OPINIONS[chosen["opinion"]]
    choice = Choice(rule_id, chosen, probes.limit, "segment")
    if not certificate:
        doubt = "no setting of these probes is certified"
        return choice.doubted(doubt) if settings or rule else refusing_all(probes, doubt)
    return choice.doubted(*segment_differences(usual, {"rule": rule_id, **chosen}))


def segment_differences(certified: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """A clause for each setting that is not the certified one."""
    doubts = []
    for name, value in here.items():
        if value != certified.get(name):
            doubts.append(Difference("setting", certified.get(name), value, name).sentence)
    return doubts


def refusing_all(probes: Probes, doubt: str) -> Choice:
    """The choice that refuses every segment, so that decoding is strict, because of a doubt."""
    settings = DEFAULTS | {"threshold": 2.0}  # no opinion reaches it
    return Choice(SegmentRule.id, settings, probes.limit, "segment", (doubt,), fell_back=True)


def build_segments(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    gate: Gate | None,
    options: DecodeOptions,
    policy: Policy = "warn",
    **parts: Any,
) -> Decoder:
    """The decoder of the probes in `options.segments`, with the folder's own token gate where no
    other is given.
    """
    if draft is None:
        raise UserError(
            "Segments are written by a draft model, and there is none. Name it as draft=<name or"
            " folder>."
        )
    if tokenizer is None:
        raise UserError(
            "A tokenizer tells where segments end, and there is none. Pass tokenizer= as well."
        )
    for name in ("block", "drafter", "stop_drafting"):
        if getattr(options, name) is not None:
            raise UserError(
                f"Segments have no {name}: the draft model writes each to its end. Leave it away."
            )
    probes = options.segments
    if not isinstance(probes, Probes):
        probes = load_probes(probes, target, draft, tokenizer)
    check_budget(probes, options.budget, options.confidence)
    choice = choose_segments(probes, options.rule, options.settings)
    if gate is not None and choice.settings["risk"] is not None:
        if gate.strict_reason is not None:  # the gate may not decide here
            choice = refusing_all(probes, gate.strict_reason)
        elif probes.gate is None or gate_hash(gate) != gate_hash(probes.gate):
            choice = choice.doubted("the token gate is not the folder's own")
    choice.warn(policy, stacklevel=4)
    return decoder_of(probes, choice, target, draft, tokenizer, gate, **parts)


def check_budget(probes: Probes, budget: float | None, confidence: float | None) -> None:
    """Refuse a budget or a confidence that the certificate of the probes does not keep."""
    if budget is None and confidence is None:
        return
    certified = probes.certificate.get("budget")
    sure = probes.certificate.get("confidence")
    if certified is None or sure is None:
        raise UserError(
            "No setting of these probes is certified, so no budget is kept. Leave the budget away."
        )
    if not is_within(certified, budget) or (confidence or 0.0) > sure:
        raise UserError(
            f"These probes are certified for a budget of {certified:g} with confidence {sure:g}"
            " alone. Name these, or calibrate the probes for what you want."
        )
