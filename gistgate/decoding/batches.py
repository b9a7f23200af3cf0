"""Many prompts through one decoder, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Generation


def decode_all(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    progress: Callable[[int], object] | None = None,
    **request: Any,
) -> list[Generation]:
    """Decode every prompt and return the answers in the order of the prompts.

    Args:
        decoder: does the work.
        prompts: token ids of each prompt.
        batch_size: rows decoded together; ids do not depend on it (up to near ties of the arithmetic).
        seeds: one per prompt; default: the prompt's place.
        progress: called with the number of prompts just finished.
        request: the other arguments of `Decoder.generate`.
    """
    seeds = list(range(len(prompts))) if seeds is None else seeds
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: dict[int, Generation] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        done = decoder.generate([prompts[i] for i in batch], seeds=[seeds[i] for i in batch], **request)
        answers.update(zip(batch, done, strict=True))
        if progress is not None:
            progress(len(batch))
    return [answers[index] for index in range(len(prompts))]
