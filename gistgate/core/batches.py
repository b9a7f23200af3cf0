"""Many prompts through one decoder: a finished row leaves its slot to the next prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from gistgate.core.cache import Texts
from gistgate.core.decoder import Decoder
from gistgate.core.request import (
    Generation,
    PrefixState,
    Slots,
    check_ids,
    check_prompts,
    check_rows,
)


def decode_all(
    decoder: Decoder,
    prompts: Texts,
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
    progress: Callable[[int], object] = lambda _num: None,
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
        memory: remembers the prompts for the next setting that decodes them; needs the eager
            engine, and no costs.
        request: the other arguments of `Decoder.generate`.
    """
    # Before sorting, so that a refusal names the caller's own place.
    check_ids(decoder.parts.models, prompts)
    check_prompts(decoder.parts.models, [len(prompt) for prompt in prompts], 0)
    check_rows(len(prompts), seeds, costs)
    # The longest first: those that come in together need little padding, and memory that does not
    # suffice is noticed.
    order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place]))
    texts = [list(prompts[place]) for place in order]
    request["seeds"] = order if seeds is None else [seeds[place] for place in order]
    request["slots"] = Slots(batch_size, progress)
    if memory is None:
        ordered = None if costs is None else [costs[place] for place in order]
        answers = decoder.generate(texts, costs=ordered, **request)
    else:
        prefixes = memory.prefixes(decoder, texts, batch_size)
        ends = [(len(text) - 1, text[-1:]) for text in texts]
        lengths = [len(text) for text in texts]
        done = decoder.resume(prefixes, ends, lengths, remember=False, **request)
        answers = [answer for answer, _ in done]
    return [answer for _, answer in sorted(zip(order, answers), key=itemgetter(0))]


class PromptCache:
    """Prompts that many settings decode are read once: both models' keys and values wait for the
    next setting.
    """

    def __init__(self, limit_mb: int) -> None:
        """Remember up to a limit of memory; prompts beyond it are read anew each time."""
        self.room = limit_mb * 1_000_000
        self._known: dict[tuple[str, tuple[int, ...]], PrefixState] = {}

    def prefixes(self, decoder: Decoder, texts: Texts, ahead: int) -> Iterator[PrefixState]:
        """What both models of `decoder` remember of these texts; unknown ones are read `ahead` at a
        time.
        """
        kind = type(decoder.drafter).__name__
        for start in range(0, len(texts), ahead):
            keys = [(kind, tuple(text)) for text in texts[start : start + ahead]]
            missing = [key for key in keys if key not in self._known]
            fresh = {}
            if missing:
                fresh = dict(zip(missing, decoder.remember([text for _, text in missing])))
            for key, prefix in fresh.items():
                if prefix.num_bytes <= self.room:
                    self.room -= prefix.num_bytes
                    self._known[key] = prefix
            for key in keys:
                yield fresh.get(key) or self._known[key]
