"""Many prompts through one decoder: a finished row leaves its slot to the next prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Generation, Memory
from gistgate.request.slots import Slots, Usage, ignore


def decode_all(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
    costs: Sequence[float] | None = None,
    progress: Callable[[int], object] = ignore,
    usage: Usage | None = None,
    **request: Any,
) -> list[Generation]:
    """Decode every prompt and return the answers in the order of the prompts.

    The compiled engine cannot fill slots and decodes batch after batch.

    Args:
        decoder: does the work.
        prompts: token ids of each prompt.
        batch_size: rows decoded together; ids do not depend on it (up to near ties of the arithmetic), unless the
            decoder's `speculate_up_to` lies between two sizes.
        seeds: one per prompt; default: the prompt's place.
        costs: one per prompt, as in `Decoder.generate`.
        progress: called with the number of prompts just finished, one prompt at a time.
        usage: counts how many slots had a row; `usage.idle` is the share that had none.
        request: the other arguments of `Decoder.generate`.

    Raises:
        UserError: a batch size below 1, or what `Decoder.generate` refuses.
    """
    seeds = list(range(len(prompts))) if seeds is None else seeds
    order = longest_first(prompts)
    done = decoder.generate(
        [prompts[index] for index in order],
        seeds=in_order(seeds, order),
        costs=None if costs is None else in_order(costs, order),
        slots=Slots(batch_size, progress, usage or Usage()),
        **request,
    )
    answers = dict(zip(order, done, strict=True))
    return [answers[index] for index in range(len(prompts))]


def in_order(values: Sequence[Any], order: Sequence[int]) -> Sequence[Any]:
    """The values of the rows in this order; too many or too few are left for `Decoder.generate` to refuse."""
    return [values[index] for index in order] if len(values) == len(order) else values


def longest_first(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The places of prompts by falling length: those that come in together need little padding, and memory that does
    not suffice is noticed at the beginning."""
    return sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))


def read_ahead(read: Callable[[range], list[Memory]], total: int, ahead: int) -> Iterator[Memory]:
    """The memories of `total` rows; `read` is asked for `ahead` of them when the first of these is needed."""
    for start in range(0, total, ahead):
        yield from read(range(start, min(total, start + ahead)))
