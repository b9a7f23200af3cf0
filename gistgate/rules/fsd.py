"""Fuzzy speculative decoding: trust any token of a draft that is close to the target (arXiv 2502.20704)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, own_token
from gistgate.rules.divergences import ag, coarse, draft_probs, js, kl, tv
from gistgate.rules.replacements import target_draw

DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "js": js,
    "ag": ag,
    "kl": lambda p, q: kl(q, p),
    "reverse-kl": kl,
    "tv": tv,
    "topk": lambda p, q: js(*coarse(p, q)),
}
"""Div(p, q) by name."""


@dataclass(frozen=True)
class FSD(LooseRule):
    """Accept where Div(p, q) <= threshold.

    Reduced, only the tokens that the strict test refused are judged so. The full variant judges every token so: where
    the distributions are far apart it refuses even an exact match (and, greedy, writes the same token as its own).
    """

    threshold: float = 0.4
    """Largest tolerated divergence: nats, for "tv" a share; below 0 none. It means something else for every div."""
    div: Literal["js", "ag", "kl", "reverse-kl", "tv", "topk"] = "js"
    """"js" is Jensen-Shannon (at most ln 2), "ag" what the released code calls so (its arguments reversed), "kl"
    KL(q || p) as there, "reverse-kl" KL(p || q), "tv" total variation, "topk" Jensen-Shannon of the target's 50 best
    tokens and the rest as one."""
    reduced: bool = True
    """True: strict OR fuzzy. False: fuzzy alone, as published."""
    replacement: Literal["p", "residual"] = "residual"
    """Distribution that replaces a refused token in sampled requests: the residual, which keeps the reduced variant
    lossless where it tolerates nothing, or p, as published for the full variant."""
    id: ClassVar[str] = "fsd"
    knob: ClassVar[str | None] = "threshold"
    looser: ClassVar[Literal["up", "down"]] = "up"
    needs: ClassVar[frozenset[str]] = frozenset({"q"})
    grid: ClassVar[tuple[float, ...]] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2)
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"div": "ag"},
        {"div": "tv"},
        {"reduced": False, "replacement": "p"},
    )

    def __post_init__(self) -> None:
        if self.div not in DIVERGENCES or self.replacement not in ("p", "residual"):
            raise UserError(
                f"fsd: div '{self.div}', replacement '{self.replacement}' do not fit: div is one of "
                f"{', '.join(DIVERGENCES)}, replacement 'p' or 'residual'."
            )

    @property
    def superset(self) -> bool:  # type: ignore[override]
        return self.reduced

    def accept(self, block: Block, state: State) -> Tensor:
        # accept(j)  <=>  Div(p_j, q_j) <= threshold
        return DIVERGENCES[self.div](block.logprobs[:, :-1].exp(), draft_probs(block)) <= self.threshold

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        return (target_draw if self.replacement == "p" else own_token)(block, length_B)
