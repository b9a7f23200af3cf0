"""What a rule is, and how its opinion becomes the accepted prefix of a block.

Axis letters: as in `block`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.utils import UserError, fits, hints, in_words, shown


class Context:
    """What a rule knows besides the block: by default nothing."""

    protocol_ids: tuple[int, ...] = ()  # tokens that are never accepted loosely
    # Why the compiled engine cannot provide it, as the end of a sentence about the rule.
    needs_eager: str = ""

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """Fields of the block to fill in before the rule judges it; `rows` are the `Row`s of the
        block.
        """
        return {}


class Rule:
    """Says for each position of a block whether the draft token may stay, given that all before it
    stay.

    Rules are frozen dataclasses; their fields are their settings. `accept` is pure tensor code
    without a host synchronisation. The defaults are those of a rule that needs nothing but the
    target's rows and remembers nothing. Subclasses say who they are as class keywords: `class
    Prob(Rule, id="prob", knob="r", looser="down")`.
    """

    id: ClassVar[str]
    knob: ClassVar[str | None]  # the scalar setting that calibration moves; None when there is none
    looser: ClassVar[Literal["up", "down"]]  # which way the knob accepts more
    # Of "gate", "q" (draft probabilities) and "uniforms" (also when greedy).
    needs: ClassVar[frozenset[str]] = frozenset()
    # Requests that it is defined for: "all", "greedy" or "sampled".
    temperatures: ClassVar[str] = "all"
    grid: ClassVar[tuple[float, ...]] = ()  # default values of the knob, from strict to loose
    # Other settings that compete on development prompts, 1 to 4.
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    lossless: ClassVar[bool] = False
    """True when the rule leaves the target's distribution alone by itself, along another path than
    `block.strict`: its opinion counts as it is, and all that it accepts is strict."""
    # Subclass of `gistgate.core.session.Verifier` that reads a draft; None: itself.
    verifier: ClassVar[Any] = None
    superset: bool = (
        True  # composed as `strict OR rule`; False: its opinion replaces the strict one
    )

    def __init_subclass__(cls, **traits: Any) -> None:
        for name, value in traits.items():
            setattr(cls, name, value)

    def __post_init__(self) -> None:
        """Refuse settings of another kind or out of their ranges."""
        for name, hint in hints(type(self)).items():
            value = getattr(self, name)
            if not fits(value, hint):
                raise UserError(
                    f"{self.id}: '{name}' is {shown(value)}, but it has to be {in_words(hint)}."
                )

    @property
    def known_by(self) -> tuple[object, ...]:
        """What tells its verdicts apart from those of other rules: settings, and tables beside
        them.
        """
        return (repr(self),)

    def accept(self, block: Block) -> Tensor:
        """The positions that may stay [B, K], bool."""
        raise NotImplementedError

    def changed(self, **settings: Any) -> Self:
        """A copy with other settings, which shares whatever the rule remembers beside them."""
        return replace(self, **settings)  # type: ignore[type-var]

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        """The target's token behind the accepted prefix [B]."""
        return own_token(block, length_B)

    def advance(self, block: Block, acceptance: Acceptance, rows: Sequence[Any]) -> None:
        """Remember what matters of a block, on its `Row`s or beside the settings."""

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """What the rule has to know about the tokenizer and about each request."""
        return Context()


def allowed(block: Block) -> Tensor:
    """Where looseness is permitted at all [B, K].

    Not at tokens with p = 0, not outside the request's scope, not where x or t* steers the protocol
    (a loose end token would end the answer), and not at the first token, which decides most about
    an answer. Stop strings are texts, so that a loose token can complete one.
    """
    may = block.valid & (block.draft_logit > -torch.inf)
    if block.protocol is not None and block.protocol.numel():
        ids_BK2 = torch.stack([block.draft_ids, block.top_ids[:, :-1]], dim=-1)
        # A handful of ids: comparing them all melts into one kernel of a compiled round, which
        # `isin` would not.
        may &= (ids_BK2[..., None] != block.protocol).all(-1).all(-1)
    if block.inside is not None:
        may &= block.inside
    return may if block.first is None else may & ~block.first


def settle(rule: Rule, block: Block) -> Acceptance:
    """Longest accepted prefix, the reasons along it, and the target's own token behind it."""
    opinion_BK = rule.accept(block)
    strict_BK = block.strict
    if rule.lossless:
        strict_BK = opinion_BK & block.valid
        stays_BK = strict_BK
    elif opinion_BK is strict_BK:
        stays_BK = strict_BK
    elif rule.superset:
        stays_BK = strict_BK | (opinion_BK & allowed(block))
    else:
        stays_BK = opinion_BK & (strict_BK | allowed(block))
        if block.first is not None:  # such a rule may refuse what the strict rule accepts
            stays_BK = torch.where(block.first, strict_BK, stays_BK)
    length_B = leading(stays_BK)
    own_B = rule.own(block, length_B)
    if block.begins is not None and not rule.lossless:
        # The first token of an answer is the strict rule's.
        own_B = torch.where(block.begins & (length_B == 0), own_token(block, length_B), own_B)
    return Acceptance(length_B, own_B, reasons(strict_BK))


def leading(stays_BK: Tensor) -> Tensor:
    """Number of True values in front of the first False of every row [B]."""
    num = stays_BK.shape[-1]
    if not num:
        return stays_BK.new_zeros(len(stays_BK), dtype=torch.long)
    places_K = torch.arange(num, device=stays_BK.device)
    return torch.where(stays_BK, num, places_K).amin(-1)


def reasons(strict_BK: Tensor) -> Tensor:
    """Reason of every position, were it accepted [B, K]."""
    places_K = torch.arange(strict_BK.shape[-1], device=strict_BK.device)
    after_loose_BK = places_K > leading(strict_BK)[:, None]
    carried_BK = torch.where(after_loose_BK, int(Reason.CARRIED), int(Reason.STRICT))
    return torch.where(strict_BK, carried_BK, int(Reason.LOOSE))


def own_token(block: Block, length_B: Tensor, ratios: Tensor | None = None) -> Tensor:
    """The token that the target adds behind the accepted prefix [B].

    Greedy: its argmax. Sampled: a draw from p behind a whole draft, else from the residual
    norm([p - q]_+), which makes the pair of test and draw distributed as p exactly
    (arXiv 2211.17192). Path `ratios` [B, K + 1] scale p in the residual.
    """
    last = block.width - 1
    if block.greedy or last < 0:
        return target_draw(block, length_B)
    logp_BV = row_at(block.logprobs, length_B)
    next_B = length_B.clamp_max(last)
    p_BV = logp_BV.exp() if ratios is None else logp_BV.double().exp()
    scaled_BV = p_BV if ratios is None else row_at(ratios, length_B)[:, None] * p_BV
    if block.q is None:
        next_ids_B = row_at(block.draft_ids, next_B)
        q_BV = torch.zeros_like(p_BV).scatter(-1, next_ids_B[:, None], 1.0)
    else:
        q_BV = row_at(block.q, next_B)
    residual_BV = (scaled_BV - q_BV).clamp_min(0)
    is_refused_B = length_B < block.valid.sum(-1)
    is_left_B = residual_BV.sum(-1) > 0  # where nothing is left, p and q are nearly equal
    weights_BV = torch.where((is_refused_B & is_left_B)[:, None], residual_BV, p_BV)
    return block.draw(weights_BV)


def row_at(values: Tensor, place_B: Tensor) -> Tensor:
    """Of `values [B, R, ..]` one row of each."""
    return values[torch.arange(len(place_B), device=place_B.device), place_B]


def target_draw(block: Block, length_B: Tensor) -> Tensor:
    """The token that p itself chooses behind the accepted prefix [B], for rules that replace the
    strict test.
    """
    if block.greedy:
        return row_at(block.top_ids, length_B)
    return block.draw(row_at(block.logprobs, length_B).exp())


@dataclass(frozen=True)
class Exact(Rule, id="exact", knob=None, looser="up"):
    """Accept while the draft token equals the target's argmax (greedy) or while u <= p(x) / q(x)
    (sampled).
    """

    def accept(self, block: Block) -> Tensor:
        return block.strict
