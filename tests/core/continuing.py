"""Answers that have begun already, so that no first token of an answer, which is always strict, is among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation


def continued(
    decoder: Decoder, texts: Sequence[Sequence[int]], max_new_tokens: int, **request: Any
) -> list[Generation]:
    """What `decoder` writes behind `texts`, whose last token counts as the first of the answer."""
    whole = [(len(text), []) for text in texts]
    begun = [len(text) - 1 for text in texts]
    rows = decoder.resume(
        decoder.remember(texts), whole, begun, max_new_tokens=max_new_tokens + 1, remember=False, **request
    )
    return [Generation(one.ids[1:], one.reasons[1:], one.finish, one.statistics) for one, _ in rows]
