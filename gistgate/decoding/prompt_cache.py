"""Prompts that many settings decode are read once: both models' keys and values wait for the next setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gistgate.decoding.batches import longest_first, read_ahead
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Generation, Memory
from gistgate.request.slots import Slots, Usage, ignore


class Prefilled:
    """Remembered prompts of one pair, up to a limit of memory; the rest is read anew each time."""

    def __init__(self, limit_mb: int) -> None:
        self.room = limit_mb * 1_000_000
        self._known: dict[tuple[str, tuple[int, ...]], Memory] = {}

    def decode_all(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        batch_size: int,
        seeds: Sequence[int],
        progress: Callable[[int], object] = ignore,
        usage: Usage | None = None,
        **request: Any,
    ) -> list[Generation]:
        """As `gistgate.decoding.batches.decode_all`; prompts that are not known are read a batch at a time."""
        order = longest_first(prompts)
        texts = [list(prompts[index]) for index in order]

        def read(places: range) -> list[Memory]:
            return self._memories(decoder, [texts[place] for place in places])

        done = decoder.resume(
            read_ahead(read, len(texts), batch_size),
            [(len(text) - 1, text[-1:]) for text in texts],
            [len(text) for text in texts],
            seeds=[seeds[index] for index in order],
            remember=False,
            slots=Slots(batch_size, progress, usage or Usage()),
            **request,
        )
        answers = dict(zip(order, (answer for answer, _ in done), strict=True))
        return [answers[index] for index in range(len(prompts))]

    def _memories(self, decoder: Decoder, texts: list[list[int]]) -> list[Memory]:
        kind = type(decoder.drafter).__name__
        keys = [(kind, tuple(text)) for text in texts]
        missing = [text for text, key in zip(texts, keys, strict=True) if key not in self._known]
        fresh = dict(zip(map(tuple, missing), decoder.remember(missing) if missing else [], strict=True))
        memories = [self._known.get(key) or fresh[tuple(key[1])] for key in keys]
        for text, memory in fresh.items():
            if (size := memory.num_bytes) <= self.room:
                self.room -= size
                self._known[kind, text] = memory
        return memories
