"""One answer, token by token: why each token is there, and what gate and target thought of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.decoder import Decoder
from gistgate.core.parts import Observer
from gistgate.core.request import Generation, Row, text_behind


@dataclass(frozen=True)
class TracedToken:
    """One token of an answer."""

    text: str  # what it adds to the text
    reason: str  # strict, loose, carried, own or loop
    # the gate's probability that the draft token keeps the meaning; None where no gate judged it
    kept: float | None
    probability: float  # the target's probability of the token


class Watch(Observer):
    """Keeps what blocks say about the tokens that stay. Watches one row."""

    def __init__(self) -> None:
        # (gate's probability, target's probability) per token, those behind the stop included
        self.seen: list[tuple[float | None, float]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        length = int(acceptance.length[0])
        judged: list[float | None] = [None] * length
        if block.gate_probs is not None:
            # Below 0: no segment that a gate could judge.
            judged = [prob if prob >= 0 else None for prob in block.gate_probs[0, :length].tolist()]
        self.seen += zip(judged, block.draft_logprob[0, :length].exp().tolist(), strict=True)
        added = block.logprobs[0, length, acceptance.own_ids[0]]
        self.seen.append((None, float(added.exp())))


def trace(
    decoder: Decoder, prompt: Sequence[int], tokenizer: Any, **request: Any
) -> tuple[Generation, list[TracedToken]]:
    """Continue the ids of one prompt and say of every token why it is there; `request` goes to
    `Decoder.generate`.
    """
    watch = Watch()
    answer = decoder.watched_by(watch).generate([prompt], **request)[0]
    tokens = []
    before = ""
    for end, (reason, opinions) in enumerate(zip(answer.reasons, watch.seen), start=1):
        # Half a character decodes to a placeholder: it is shown with the token that completes it.
        text = text_behind(tokenizer, prompt, answer.ids[:end]).rstrip("\ufffd")
        tokens.append(TracedToken(text[len(before) :], Reason(reason).name.lower(), *opinions))
        before = text
    return answer, tokens
