"""One answer, token by token: why each token is there, and what gate and target thought of it."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Row


@dataclass(frozen=True)
class TracedToken:
    """One token of an answer."""

    text: str  # what it adds to the text
    reason: str  # strict, loose, carried, own or loop
    kept: float | None  # the gate's probability that the draft token keeps the meaning; None where no gate judged it
    probability: float  # the target's probability of the token

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


class Watch:
    """Keeps what a block says about the tokens that stay. Watches one row."""

    layers: Collection[str] = frozenset()
    wants_q: bool = False

    def __init__(self) -> None:
        # (gate's probability, target's probability) per token, those behind the stop included
        self.seen: list[tuple[float | None, float]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        length = int(acceptance.length[0])
        given = [None] * length if block.gate_probs is None else block.gate_probs[0, :length].tolist()
        kept = [None if one is None or one < 0 else one for one in given]  # below 0: no segment that one could judge
        self.seen += zip(kept, block.draft_logprob[0, :length].exp().tolist(), strict=True)
        own = block.logprobs[0, length, acceptance.own_ids[0]]
        self.seen.append((None, float(own.exp())))


def trace(decoder: Decoder, ids: Sequence[int], tokenizer: Any, **request: Any) -> tuple[Generation, list[TracedToken]]:
    """Continue one prompt and say of every token why it is there; `request` goes to `Decoder.generate`."""
    watch = Watch()
    answer = decoder.watched_by(watch).generate([ids], **request)[0]
    texts = pieces(tokenizer, answer.ids)
    tokens = [
        TracedToken(text, Reason(reason).name.lower(), kept, probability)
        for text, reason, (kept, probability) in zip(texts, answer.reasons, watch.seen, strict=False)
    ]
    return answer, tokens


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token adds to the decoded text; their sum is the text."""
    parts, shown = [], ""
    for end in range(1, len(ids) + 1):
        # Half a character decodes to a placeholder: it is shown with the token that completes it.
        text = tokenizer.decode(ids[:end]).rstrip("\ufffd")
        parts.append(text[len(shown) :])
        shown = text
    return parts
