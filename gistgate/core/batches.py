"""Many prompts through one decoder: a finished row leaves its slot to the next prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gistgate.core.decoder import Decoder
from gistgate.core.request import (
    Generation,
    PrefixState,
    Slots,
    Usage,
    check_ids,
    check_prompts,
    check_rows,
)


def decode_all(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
    progress: Callable[[int], object] = lambda _finished: None,
    usage: Usage | None = None,
    memory: PromptCache | None = None,
    **request: Any,
) -> list[Generation]:
    """Decode every prompt and return the answers in the order of the prompts.

    The compiled engine cannot fill slots and decodes batch after batch.

    Args:
        decoder: does the work.
        prompts: token ids of each prompt.
        batch_size: rows decoded together; ids do not depend on it (up to near ties of the
            arithmetic), unless the decoder's `speculate_up_to` lies between two sizes.
        seeds: one per prompt; default: the prompt's place.
        costs: one per prompt, as in `Decoder.generate`.
        progress: called with the number of prompts just finished, one prompt at a time.
        usage: counts the slots, and those that had a row.
        memory: remembers the prompts for the next setting that decodes them; needs the eager
            engine, and no costs.
        request: the other arguments of `Decoder.generate`.
    """
    check_ids(
        decoder.parts.models, prompts
    )  # before sorting, so that a refusal names the caller's own place
    check_prompts(decoder.parts.models, [len(prompt) for prompt in prompts], 0)
    check_rows(len(prompts), seeds, costs)
    # The longest first: those that come in together need little padding, and memory that does not
    # suffice is noticed.
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    texts = [list(prompts[index]) for index in order]
    slots = Slots(batch_size, progress, usage or Usage())
    own_seeds = order if seeds is None else [seeds[index] for index in order]
    if memory is None:
        own_costs = None if costs is None else [costs[index] for index in order]
        done = decoder.generate(texts, seeds=own_seeds, costs=own_costs, slots=slots, **request)
    else:
        prefixes = memory.prefixes(decoder, texts, batch_size)
        ends = [(len(text) - 1, text[-1:]) for text in texts]
        lengths = [len(text) for text in texts]
        both = decoder.resume(
            prefixes, ends, lengths, seeds=own_seeds, remember=False, slots=slots, **request
        )
        done = [answer for answer, _ in both]
    answers = dict(zip(order, done, strict=True))
    return [answers[index] for index in range(len(prompts))]


class PromptCache:
    """Prompts that many settings decode are read once: both models' keys and values wait for the
    next setting.
    """

    def __init__(self, limit_mb: int) -> None:
        """Remember up to a limit of memory; the rest is read anew each time."""
        self.room = limit_mb * 1_000_000
        self._known: dict[tuple[str, tuple[int, ...]], PrefixState] = {}

    def prefixes(
        self, decoder: Decoder, texts: list[list[int]], ahead: int
    ) -> Iterator[PrefixState]:
        """What both models of `decoder` remember of these texts; unknown ones are read `ahead` at a
        time.
        """
        kind = type(decoder.drafter).__name__
        for start in range(0, len(texts), ahead):
            some = list(map(tuple, texts[start : start + ahead]))
            missing = [text for text in some if (kind, text) not in self._known]
            fresh = dict(zip(missing, decoder.remember(missing) if missing else [], strict=True))
            for text, prefix in fresh.items():
                if (size := prefix.num_bytes) <= self.room:
                    self.room -= size
                    self._known[kind, text] = prefix
            yield from [fresh.get(text) or self._known[kind, text] for text in some]
