"""Controls that look at one number of the target's row: probability, ratio, rank. No paper claims them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.core.block import Block
from gistgate.core.rule import Context, Rule, State, allowed, own_token, target_draw
from gistgate.core.utils import UserError


def log_of_threshold(rule_id: str, r: float) -> float:
    """ln r, with r checked to lie in (0, 1]."""
    if not 0 < r <= 1:
        raise UserError(f"{rule_id}: r is {r}, but a probability threshold lies in (0, 1]. 1 is strict.")
    return math.log(r)


@dataclass(frozen=True)
class Prob(Rule):
    """Accept where p(x) >= r."""

    r: float = 0.1
    """Smallest target probability of a tolerated draft token."""
    id: ClassVar[str] = "prob"
    knob: ClassVar[str | None] = "r"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)

    def __post_init__(self) -> None:
        log_of_threshold(self.id, self.r)

    def accept(self, block: Block, state: State) -> Tensor:
        return block.draft_logprob >= log_of_threshold(self.id, self.r)


@dataclass(frozen=True)
class ProbRatio(Rule):
    """Accept where p(x) / p(t*) >= r."""

    r: float = 0.3
    """Smallest ratio of the draft token's probability to the best token's."""
    id: ClassVar[str] = "prob-ratio"
    knob: ClassVar[str | None] = "r"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002)

    def __post_init__(self) -> None:
        log_of_threshold(self.id, self.r)

    def accept(self, block: Block, state: State) -> Tensor:
        if self.r == 1:  # neither a tie with t* nor, when sampling, t* itself is a reason to overrule the strict test
            return block.strict
        return block.draft_logprob - block.top_logprob[:, :-1] >= log_of_threshold(self.id, self.r)


@dataclass(frozen=True)
class TopK(Rule):
    """Accept where x is among the target's k most probable tokens."""

    k: int = 2
    """Rank, counted from 1, that is still tolerated; 1 is strict."""
    id: ClassVar[str] = "top-k"
    knob: ClassVar[str | None] = "k"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (2, 3, 4, 5, 6, 8, 10, 15, 20)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"top-k: k is {self.k}, but at least the best token must count. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        return (block.draft_rank < self.k) if self.k > 1 else block.strict


# ---- Typical acceptance: keep what is not atypical for the target, judged by its entropy (arXiv 2401.10774).


@dataclass(frozen=True)
class Typical(Rule):
    """Accept where p(x) > scale * min(eps, delta * exp(-H(p))), as Medusa does, or in the form of vllm-ascend.

    As published, greedy requests are decoded exactly. Where p is peaked, eps is the threshold, and where p is flat,
    delta is, so neither alone makes the rule looser everywhere. The knob multiplies both.
    """

    scale: float = 1.0
    """Factor of the threshold: 1 is the published rule, 0 keeps every token with p(x) > 0; above V / delta: strict."""
    eps: float = 0.09
    """Probability that is always enough (form "medusa")."""
    delta: float = 0.3
    """Share of exp(-H), the probability of each of equally likely tokens, that is enough (form "medusa")."""
    form: Literal["medusa", "ascend"] = "medusa"
    """"medusa", or "ascend": the threshold is scale * min(exp(-0.4 H), 0.95)."""
    superset: bool = True
    """True: strict OR typical. False: typical alone, as published, which can refuse what exact sampling accepts."""
    greedy: Literal["exact", "raw"] = "exact"
    """Greedy requests: "exact" takes the argmax alone, as published; "raw" judges them by p at temperature 1."""
    id: ClassVar[str] = "typical"
    knob: ClassVar[str | None] = "scale"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (5.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"greedy": "raw"}, {"greedy": "raw", "form": "ascend"})

    def __post_init__(self) -> None:
        if not (self.scale >= 0 and 0 < self.eps <= 1 and self.delta > 0):
            raise UserError(
                f"typical: scale {self.scale}, eps {self.eps}, delta {self.delta} do not fit: scale is 0 or more, eps "
                "a probability above 0, delta above 0."
            )
        if self.form not in ("medusa", "ascend") or self.greedy not in ("exact", "raw"):
            raise UserError(
                f"typical: form '{self.form}', greedy '{self.greedy}' do not fit: the form is 'medusa' or 'ascend', "
                "greedy 'exact' or 'raw'."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        if block.greedy and self.greedy == "exact":
            return block.match
        # accept(j)  <=>  ln p(x_j) > ln scale + ln threshold(p_j)
        log_scale = math.log(self.scale) if self.scale else -math.inf
        return block.draft_logprob > self.log_threshold(block.entropy[:, :-1]) + log_scale

    def log_threshold(self, entropy_BK: Tensor) -> Tensor:
        """ln of the published threshold [B, K] for H(p) in nats."""
        if self.form == "ascend":
            return (-0.4 * entropy_BK).clamp_max(math.log(0.95))
        return (math.log(self.delta) - entropy_BK).clamp_max(math.log(self.eps))

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        # The residual corrects the distribution after the strict test. Without that test there is nothing to correct.
        return own_token(block, length_B) if self.superset else target_draw(block, length_B)


# ---- Lenience: let a token be drawn up to 1 / l times as often as the target would (arXiv 2211.17192, appendix).


@dataclass(frozen=True)
class Lenience(Rule):
    """Accept with min(1, p(x) / (l q(x))); a refused token is replaced from the residual norm([p - q]_+).

    No token becomes more than 1 / l times as probable as under the target. Greedy requests have no such ratio.
    """

    lenience: float = 0.5
    """l in (0, 1]; 1 is strict."""
    id: ClassVar[str] = "lenience"
    knob: ClassVar[str | None] = "lenience"
    looser: ClassVar[Literal["up", "down"]] = "down"
    temperatures: ClassVar[str] = "sampled"
    alternative: ClassVar[str] = "'prob-ratio'"
    grid: ClassVar[tuple[float, ...]] = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise UserError(f"lenience: lenience is {self.lenience}, but it lies in (0, 1]. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        if block.greedy:  # undefined; the decoder refuses such a request
            return block.strict
        assert block.uniforms is not None
        # u <= p(x) / (l q(x))
        return block.uniforms[:, :-1] * self.lenience * block.draft_q <= block.draft_logprob.exp()


# ---- SGLang's thresholds: target-only acceptance with two inflation knobs (sgl-project/sglang, speculative sampling).


@dataclass(frozen=True)
class SglThreshold(Rule):
    """Sampled: accept where u <= p(x) / acc or p(x) >= single. Greedy: accept a match or where p(x) >= single.

    The draft's probabilities are ignored on purpose: with acc = single = 1 the text has the distribution p for any
    draft, though with fewer accepted tokens than the strict test. Therefore the rule replaces that test.
    """

    acc: float = 1.0
    """What p(x) is divided by before the draw, in (0, 1]; 1 is lossless. Without effect when greedy."""
    single: float = 1.0
    """Target probability that is enough without a draw, in (0, 1]; 1 is lossless."""
    id: ClassVar[str] = "sgl-threshold"
    knob: ClassVar[str | None] = "single"
    looser: ClassVar[Literal["up", "down"]] = "down"
    superset = False
    grid: ClassVar[tuple[float, ...]] = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __post_init__(self) -> None:
        if not (0 < self.acc <= 1 and 0 < self.single <= 1):
            raise UserError(
                f"sgl-threshold: acc {self.acc} and single {self.single} lie in (0, 1]. Both at 1 are lossless."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        p_BK = block.draft_logprob.exp()
        sure_BK = p_BK >= self.single
        if block.greedy:
            if self.acc < 1:
                warnings.warn("sgl-threshold: acc has no effect when greedy; set single instead.", stacklevel=2)
            return block.strict | sure_BK
        assert block.uniforms is not None
        u_BK = block.uniforms[:, :-1]
        lossless_BK = (u_BK <= p_BK) & (p_BK > 0)  # what remains where looseness is not allowed
        return lossless_BK | (((u_BK * self.acc <= p_BK) | sure_BK) & allowed(block))

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        """Greedy: t*. Sampled: a draw from p, behind a refusal without the refused token."""
        return own_token(block if block.greedy else replace(block, q=None), length_B)


# ---- Which positions of a block lie between the think markers, for rules that tell thinking from answering.


class Thinking(Context):
    """Fills `Block.thinking`; the markers themselves are never accepted loosely."""

    needs_eager = "asks where the think markers are"

    def __init__(self, markers: tuple[int, int]) -> None:
        """`markers` are the ids of the tokens that begin and end thinking."""
        self.markers = self.protocol_ids = markers

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """Positions between the markers [B, K]; behind an end marker in the draft the answer begins."""
        now_B = torch.tensor([self.is_thinking(row) for row in rows], device=block.draft_ids.device)
        ends_BK = (block.draft_ids == self.markers[1]).long()
        return {"thinking": now_B[:, None] & (ends_BK.cumsum(-1) - ends_BK == 0)}

    def is_thinking(self, row: Any) -> bool:
        """Whether the text of a row ends between the markers; only what is new of it is read."""
        seen, thinking = row.memory.get("thinking", (0, False))
        thinking = between_markers(row.text[seen:], thinking, self.markers)
        row.memory["thinking"] = (len(row.text), thinking)
        return thinking


def find_markers(tokenizer: Any, names: Sequence[str]) -> tuple[int, int]:
    """Ids of the tokens that begin and end thinking.

    Raises:
        UserError: there is no tokenizer, or it does not know them as single tokens.
    """
    if tokenizer is None:
        raise UserError("The rule looks between think markers. Pass tokenizer=... to the decoder, or set scope: all.")
    vocabulary = tokenizer.get_vocab()
    for name in names:
        if name not in vocabulary:
            raise UserError(
                f"The tokenizer does not know the think marker '{name}' as one token. Pass think_markers=(begin, end) "
                "with the model's own, or set scope: all to apply the rule everywhere."
            )
    begin, end = (vocabulary[name] for name in names)
    return begin, end


def between_markers(ids: Sequence[int], thinking: bool, markers: tuple[int, int]) -> bool:
    """Whether the text goes on inside the think markers after `ids`, given that it did (or not) before."""
    for token in ids:
        thinking = token == markers[0] or (thinking and token != markers[1])
    return thinking


# ---- TensorRT-LLM's relaxed acceptance: while thinking, a top candidate nearly as probable as the best may stay.


@dataclass(frozen=True)
class TrtRelaxed(Rule):
    """Accept where x is among the top k and p(x) >= p(t*) - delta, between the think markers.

    delta is a difference of probabilities, as in the released kernel. In the mode "ratio" it is a share of p(t*):
    p(x) >= (1 - delta) p(t*). From 0 (strict) to 1 (top k alone) both modes loosen.
    """

    delta: float = 0.6
    """How far below the best token a tolerated one may lie: in probability, or as a share of p(t*); 0 is strict."""
    k: int = 10
    """Rank, counted from 1, that is still tolerated; 1 is strict."""
    mode: Literal["diff", "ratio"] = "diff"
    """What delta is."""
    scope: Literal["think", "all"] = "think"
    """think: only between the think markers; all: everywhere, also for models that do not think."""
    id: ClassVar[str] = "trt-relaxed"
    knob: ClassVar[str | None] = "delta"
    looser: ClassVar[Literal["up", "down"]] = "up"
    temperatures: ClassVar[str] = "greedy"
    alternative: ClassVar[str] = "'prob-ratio'"
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"mode": "ratio"}, {"k": 3}, {"k": 3, "mode": "ratio"})

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 1 or self.k < 1:
            raise UserError(f"trt-relaxed: delta {self.delta} lies in [0, 1] (0 is strict), k {self.k} is 1 or more.")
        if self.mode not in ("diff", "ratio") or self.scope not in ("think", "all"):
            raise UserError(
                f"trt-relaxed: mode '{self.mode}', scope '{self.scope}' do not fit: the mode is 'diff' or 'ratio', the "
                "scope 'think' or 'all'."
            )

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """Where the think markers are; of no interest where the rule applies everywhere."""
        return Context() if self.scope == "all" else Thinking(find_markers(tokenizer, think_markers))

    def accept(self, block: Block, state: State) -> Tensor:
        if self.delta == 0 or self.k == 1:  # a tie with t* is no reason to overrule the strict test
            return block.strict
        p_BK, top_BK = block.draft_logprob.exp(), block.top_logprob[:, :-1].exp()
        slack_BK = self.delta * (top_BK if self.mode == "ratio" else torch.ones_like(top_BK))
        near_BK = (top_BK - p_BK <= slack_BK) & (block.draft_rank < self.k)
        if self.scope == "all":
            return near_BK
        if block.thinking is None:
            raise UserError("trt-relaxed looks between think markers, and none were given. Set scope: all.")
        return near_BK & block.thinking


# ---- MARS: where the target's two best tokens are nearly equal, either is fine (arXiv 2601.15498).


def two_best(block: Block) -> tuple[Tensor, Tensor]:
    """The two largest logits at each drafted position, each [B, K]."""
    first_BK, second_BK = block.logits[:, :-1].topk(2, dim=-1).values.unbind(-1)
    return first_BK, second_BK


@dataclass(frozen=True)
class Mars(Rule):
    """Accept one of the target's two best tokens where z(2) / z(1) > theta, as published.

    The ratio means what it should only for positive logits: shifting all of them leaves p as it is but not the ratio.
    The released code relaxes sampled requests alone and its strict branch is not lossless; here the gate stands beside
    the lossless test at every temperature.
    """

    theta: float = 0.9
    """Ratio of the logits above which both tokens count; 1 is strict for positive logits, infinity for all."""
    id: ClassVar[str] = "mars"
    knob: ClassVar[str | None] = "theta"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.99, 0.98, 0.97, 0.95, 0.92, 0.9, 0.87, 0.83, 0.8, 0.7, 0.5, 0.0)

    def __post_init__(self) -> None:
        if self.theta != self.theta:
            raise UserError("mars: theta is not a number. Give a ratio of logits; 1 is strict for positive logits.")

    def accept(self, block: Block, state: State) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (second_BK / first_BK > self.theta)


@dataclass(frozen=True)
class MarsMargin(Rule):
    """Accept one of the target's two best tokens where z(1) - z(2) <= margin, which no shift of the logits changes.

    The difference is that of ln p at the request's temperature: halving the temperature doubles it.
    """

    margin: float = 0.5
    """Largest tolerated difference of the logits in nats; below 0 is strict."""
    id: ClassVar[str] = "mars-margin"
    knob: ClassVar[str | None] = "margin"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

    def __post_init__(self) -> None:
        if self.margin != self.margin:
            raise UserError("mars-margin: margin is not a number. Give a difference of logits in nats.")

    def accept(self, block: Block, state: State) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (first_BK - second_BK <= self.margin)


# ---- The blind control: tolerate mismatches at a given rate, whatever they are.


@dataclass(frozen=True)
class Random(Rule):
    """Accept each mismatch with probability `rate`, reproducibly for the request's seed."""

    rate: float = 0.1
    """Share of mismatches tolerated; 0 is strict, 1 keeps every draft token."""
    id: ClassVar[str] = "random"
    knob: ClassVar[str | None] = "rate"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
    needs: ClassVar[frozenset[str]] = frozenset({"uniforms"})

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise UserError(f"random: rate is {self.rate}, but a share lies in [0, 1]. 0 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        assert block.uniforms is not None
        # After a refusal by the strict test u is no longer uniform on (0, 1). The fractional part of a multiple of u
        # is nearly uniform and needs no second random number per position.
        return (block.uniforms[:, :-1] * 4096.0) % 1.0 < self.rate
