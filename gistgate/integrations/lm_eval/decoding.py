"""Answers to the prompts of a task, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gistgate.certificates.outcomes import Answer
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.integrations.lm_eval.prompts import Prompt
from gistgate.request.slots import Usage
from gistgate.request.stopping import eos_ids


def decode_prompts(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    batch_size: int,
    memory: Prefilled,
    progress: Callable[[int], object] = lambda _: None,
    usage: Usage | None = None,
) -> list[Answer]:
    """Answers in the order of the prompts; prompts that `memory` knows are not read again."""
    done = memory.decode_all(
        decoder,
        [prompt["ids"] for prompt in prompts],
        batch_size=batch_size,
        seeds=list(seeds),
        progress=progress,
        usage=usage,
        max_new_tokens=prompts[0]["max_new_tokens"],
        stops=prompts[0]["stops"],
        eos_ids=eos_ids(decoder.target, decoder.tokenizer),
    )
    return [Answer(answer.ids, answer.statistics) for answer in done]
