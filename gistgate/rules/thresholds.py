"""Rules that compare numbers of the target's row with thresholds: probability, ratio, rank, margin,
entropy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gistgate.core.block import Block
from gistgate.core.rule import Context, Rule, allowed, own_token, target_draw
from gistgate.core.utils import Amount, Count, Positive, PositiveShare, Real, Share, UserError


@dataclass(frozen=True)
class Prob(Rule, id="prob", knob="r", looser="down"):
    """Accept where p(x) >= r."""

    r: PositiveShare = 0.1  # smallest target probability of a tolerated draft token; 1 is strict
    grid = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)

    def accept(self, block: Block) -> Tensor:
        return block.draft_logprob >= math.log(self.r)


@dataclass(frozen=True)
class ProbRatio(Rule, id="prob-ratio", knob="r", looser="down"):
    """Accept where p(x) / p(t*) >= r."""

    # Smallest ratio of the draft token's probability to the best token's; 1 is strict.
    r: PositiveShare = 0.3
    grid = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002)

    def accept(self, block: Block) -> Tensor:
        # Neither a tie with t* nor, when sampling, t* itself may overrule the strict test at 1.
        if self.r == 1:
            return block.strict
        return block.log_ratio >= math.log(self.r)


@dataclass(frozen=True)
class TopK(Rule, id="top-k", knob="k", looser="up"):
    """Accept where x is among the target's k most probable tokens."""

    k: Count = 2  # rank, counted from 1, that is still tolerated; 1 is strict
    grid = (2, 3, 4, 5, 6, 8, 10, 15, 20)

    def accept(self, block: Block) -> Tensor:
        return block.draft_rank < self.k if self.k > 1 else block.strict


@dataclass(frozen=True)
class Random(Rule, id="random", knob="rate", looser="up"):
    """The blind control: accept each mismatch with probability `rate`, reproducibly for the
    request's seed.
    """

    rate: Share = 0.1  # share of mismatches tolerated; 0 is strict, 1 keeps every draft token
    grid = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
    needs = frozenset({"uniforms"})

    def accept(self, block: Block) -> Tensor:
        return block.second_tests < self.rate


@dataclass(frozen=True)
class Typical(Rule, id="typical", knob="scale", looser="down"):
    """Typical acceptance (arXiv 2401.10774): accept where p(x) > scale * min(eps, delta *
    exp(-H(p))).

    The form "ascend" is vllm-ascend's: scale * min(exp(-0.4 H), 0.95). As published, greedy
    requests are exact.
    """

    # 1 is the published rule, 0 keeps every token with p(x) > 0; above V / delta it is strict.
    scale: Amount = 1.0
    eps: PositiveShare = 0.09  # probability that is always enough (form "medusa")
    # Share of exp(-H), the probability of equally likely tokens, that is enough ("medusa").
    delta: Positive = 0.3
    form: Literal["medusa", "ascend"] = "medusa"
    # Strict OR typical; False, as published, can refuse what exact sampling accepts.
    superset: bool = True
    # Greedy requests keep the argmax alone, or are judged by p at temperature 1.
    greedy: Literal["exact", "raw"] = "exact"
    grid = (5.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01)
    variants = ({"greedy": "raw"}, {"greedy": "raw", "form": "ascend"})

    def accept(self, block: Block) -> Tensor:
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
        # The residual corrects the distribution after the strict test. Without that test there is
        # nothing to correct.
        return own_token(block, length_B) if self.superset else target_draw(block, length_B)


@dataclass(frozen=True)
class Lenience(Rule, id="lenience", knob="lenience", looser="down"):
    """Lenience (arXiv 2211.17192, appendix): accept with min(1, p(x) / (l q(x))); no token gets
    over p(x) / l.
    """

    lenience: PositiveShare = 0.5  # l in (0, 1]; 1 is strict
    temperatures = "sampled"
    grid = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)

    def accept(self, block: Block) -> Tensor:
        if block.greedy:  # undefined; the decoder refuses such a request
            return block.strict
        # accept(j)  <=>  u_j <= p(x_j) / (l q(x_j))
        return block.tests * self.lenience * block.draft_q <= block.draft_logprob.exp()


@dataclass(frozen=True)
class SglThreshold(Rule, id="sgl-threshold", knob="single", looser="down"):
    """SGLang's thresholds (sgl-project/sglang), without q: accept where u <= p(x) / acc or p(x) >=
    single.
    """

    # What p(x) is divided by before the draw; 1 is lossless; without effect when greedy.
    acc: PositiveShare = 1.0
    single: PositiveShare = 1.0  # target probability that is enough without a draw; 1 is lossless
    superset = False
    grid = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)

    def accept(self, block: Block) -> Tensor:
        p_BK = block.draft_logprob.exp()
        sure_BK = p_BK >= self.single
        if block.greedy:
            return block.strict | sure_BK
        u_BK = block.tests
        # accept(j)  <=>  u_j <= p(x_j), or, where looseness is allowed, u_j <= p(x_j) / acc or
        # p(x_j) >= single
        lossless_BK = (u_BK <= p_BK) & (p_BK > 0)
        return lossless_BK | (((u_BK * self.acc <= p_BK) | sure_BK) & allowed(block))

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        """Greedy: t*. Sampled: a draw from p, behind a refusal without the refused token."""
        return own_token(block if block.greedy else replace(block, q=None), length_B)


def two_best(block: Block) -> tuple[Tensor, Tensor]:
    """The two largest logits at each drafted position, each [B, K]."""
    best_BK2 = block.logits[:, :-1].topk(2, dim=-1).values
    return best_BK2[..., 0], best_BK2[..., 1]


@dataclass(frozen=True)
class Mars(Rule, id="mars", knob="theta", looser="down"):
    """MARS (arXiv 2601.15498): accept one of the target's two best tokens where z(2) / z(1) >
    theta.

    Shifting all logits leaves p as it is but not the ratio. Unlike in the released code the test
    beside it is lossless.
    """

    # Ratio of the logits above which both count; 1 is strict for positive ones, infinity for all.
    theta: Real = 0.9
    grid = (0.99, 0.98, 0.97, 0.95, 0.92, 0.9, 0.87, 0.83, 0.8, 0.7, 0.5, 0.0)

    def accept(self, block: Block) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (second_BK / first_BK > self.theta)


@dataclass(frozen=True)
class MarsMargin(Rule, id="mars-margin", knob="margin", looser="up"):
    """Accept one of the target's two best tokens where z(1) - z(2) <= margin, at the request's
    temperature.
    """

    margin: Real = 0.5  # largest tolerated difference of the logits in nats; below 0 is strict
    grid = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

    def accept(self, block: Block) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (first_BK - second_BK <= self.margin)


class Thinking(Context):
    """Fills `Block.thinking`; the markers themselves are never accepted loosely."""

    needs_eager = "asks where the think markers are"

    def __init__(self, markers: tuple[int, int]) -> None:
        """`markers` are the ids of the tokens that begin and end thinking."""
        self.markers = self.protocol_ids = markers

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """Positions between the markers [B, K]; behind an end marker in the draft the answer
        begins.
        """
        now_B = torch.tensor([self.is_thinking(row) for row in rows], device=block.draft_ids.device)
        ends_BK = (block.draft_ids == self.markers[1]).long()
        ended_before_BK = ends_BK.cumsum(-1) - ends_BK > 0
        return {"thinking": now_B[:, None] & ~ended_before_BK}

    def is_thinking(self, row: Any) -> bool:
        """Whether the text of a row ends between the markers; only what is new of it is read."""
        seen, thinking = row.memory.get("thinking", (0, False))
        thinking = between_markers(row.text[seen:], thinking, self.markers)
        row.memory["thinking"] = (len(row.text), thinking)
        return thinking


def find_markers(tokenizer: Any, names: Sequence[str]) -> tuple[int, int]:
    """Ids of the tokens that begin and end thinking."""
    if tokenizer is None:
        raise UserError(
            "The rule looks between think markers. Pass tokenizer=... to the decoder, or set scope:"
            " all."
        )
    vocabulary = tokenizer.get_vocab()
    for name in names:
        if name not in vocabulary:
            raise UserError(
                f"The tokenizer does not know the think marker '{name}' as one token. Pass"
                " think_markers=(begin, end) with the model's own, or set scope: all to apply the"
                " rule everywhere."
            )
    begin, end = names
    return vocabulary[begin], vocabulary[end]


def between_markers(ids: Sequence[int], thinking: bool, markers: tuple[int, int]) -> bool:
    """Whether the text goes on inside the think markers after `ids`, given that it did (or not)
    before.
    """
    for token in ids:
        thinking = token == markers[0] or (thinking and token != markers[1])
    return thinking


@dataclass(frozen=True)
class TrtRelaxed(Rule, id="trt-relaxed", knob="delta", looser="up"):
    """TensorRT-LLM's relaxed acceptance: keep x among the top k with p(x) >= p(t*) - delta, between
    think markers.

    delta is a difference of probabilities, as in the released kernel. In the mode "ratio" it is a
    share of p(t*): p(x) >= (1 - delta) p(t*). From 0 (strict) to 1 (top k alone) both modes loosen.
    """

    # How far below the best token a tolerated one may lie, see mode; 0 is strict.
    delta: Share = 0.6
    k: Count = 10  # rank, counted from 1, that is still tolerated; 1 is strict
    mode: Literal["diff", "ratio"] = "diff"
    # Only between the markers, or everywhere (models that do not think).
    scope: Literal["think", "all"] = "think"
    temperatures = "greedy"
    grid = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    variants = ({}, {"mode": "ratio"}, {"k": 3}, {"k": 3, "mode": "ratio"})

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """Where the think markers are; of no interest where the rule applies everywhere."""
        if self.scope == "all":
            return Context()
        return Thinking(find_markers(tokenizer, think_markers))

    def accept(self, block: Block) -> Tensor:
        if self.delta == 0 or self.k == 1:  # a tie with t* is no reason to overrule the strict test
            return block.strict
        p_BK = block.draft_logprob.exp()
        top_BK = block.top_logprob[:, :-1].exp()
        slack_BK = self.delta * top_BK if self.mode == "ratio" else self.delta
        near_BK = (top_BK - p_BK <= slack_BK) & (block.draft_rank < self.k)
        if self.scope == "all":
            return near_BK
        assert block.thinking is not None, "the decoder fills it from `context`"
        return near_BK & block.thinking
