"""What both models remember of the texts that rollouts start from: each text is read once, whoever asks for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Memory


class Memories:
    """Remembered texts, those used last, up to a limit of memory."""

    def __init__(self, decoder: Decoder, batch_size: int, limit_mb: int = 1000) -> None:
        """`decoder` reads what is missing, at most `batch_size` texts at once; `limit_mb` may be exceeded by those of
        one call."""
        self.decoder, self.batch_size, self.limit = decoder, batch_size, limit_mb * 1_000_000
        self.read = 0
        """Texts that were read here; the others were taken in."""
        self._known: OrderedDict[tuple[int, ...], Memory] = OrderedDict()
        self._held = 0

    def of(self, texts: Sequence[tuple[int, ...]]) -> list[Memory]:
        """The memory of each text (prompt and answer as token ids)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        # Texts of about the same length waste no padding.
        missing.sort(key=len)
        self.read += len(missing)
        for start in range(0, len(missing), self.batch_size):
            for memory in self.decoder.remember(missing[start : start + self.batch_size]):
                self.put(memory)
        found = [self._known[text] for text in texts]
        for text in texts:
            self._known.move_to_end(text)
        self._forget(keep=len(set(texts)))
        return found

    def put(self, memory: Memory) -> None:
        """Take in what was read elsewhere."""
        key = tuple(memory.text)
        if key not in self._known:
            self._held += memory.num_bytes
        self._known[key] = memory

    def _forget(self, keep: int) -> None:
        """Drop the texts that were used longest ago, but none of the last `keep`."""
        while self._held > self.limit and len(self._known) > keep:
            _, memory = self._known.popitem(last=False)
            self._held -= memory.num_bytes
