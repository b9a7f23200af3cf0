"""Outcomes: one method decoded on prompts at its settings, each setting once, and scored against strict decoding.

Models do not occur here: whoever builds `Outcomes` hands in a function that decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gistgate.certificates.scores import Ids, Prompt, Scorer
from gistgate.certificates.tango import Array
from gistgate.files import fingerprint, named_files, read_json_lines, write_json_lines
from gistgate.request.statistics import Statistics, total

CHUNK = 256
"""Prompts that are decoded between two looks at the outcomes."""


@dataclass(frozen=True)
class Answer:
    """One decoded prompt."""

    ids: Ids
    """The new tokens."""
    statistics: Statistics
    """What was counted, without seconds."""


Decode = Callable[[dict[str, Any], Sequence[Prompt], int], list[Answer]]
"""Answers of a rule at these settings to prompts, the first of which has this index in its split."""
Strict = Callable[[Sequence[Prompt], int], list[Ids]]
"""Strict answers to prompts, the first of which has this index in its split."""


@dataclass(frozen=True)
class Decoded:
    """Some prompts, decoded at one setting."""

    differences: Array
    """d = strict - loose score [N]."""
    statistics: list[Statistics] = field(default_factory=list)
    """What was counted, by prompt."""
    tokens: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """Tokens of the strict answer, of the loose answer, and the most that an answer may have [N, 3]."""

    @property
    def counted(self) -> Statistics:
        """What was counted, summed over the prompts."""
        return total(self.statistics)

    def __add__(self, other: Decoded) -> Decoded:
        tokens = np.concatenate([self.tokens, other.tokens])
        return Decoded(np.r_[self.differences, other.differences], self.statistics + other.statistics, tokens)

    @property
    def lengths(self) -> dict[str, float]:
        """Mean lengths in tokens, and shares of capped answers (as long as they may be), strict beside loose.

        Published lossy verifiers lost their accuracy by answers that never end, so these stand beside every certified
        line. Empty where no lengths are known.
        """
        if not len(self.tokens):
            return {}
        strict, loose, limit = self.tokens.T
        return {
            "mean_tokens": float(loose.mean()),
            "strict_mean_tokens": float(strict.mean()),
            "capped": float((loose >= limit).mean()),
            "strict_capped": float((strict >= limit).mean()),
        }


NOTHING = Decoded(np.zeros(0))


@dataclass(frozen=True)
class Outcomes:
    """One method on prompts by split."""

    prompts: Mapping[str, Sequence[Prompt]]
    """Prompts by split; `development` chooses settings, `calibration` certifies them."""
    scorer: Scorer
    """What quality means."""
    strict: Strict
    """Strict decoding, the reference."""
    loose: Decode
    """The method."""
    chunk: int | None = CHUNK
    """Prompts that are decoded at once; None decodes a whole split at once."""

    def decoded(self, split: str, settings: dict[str, Any], start: int = 0, stop: int | None = None) -> Decoded:
        """Prompts `start` to `stop` of a split at these settings of the rule."""
        prompts = self.prompts[split][start:stop]
        strict, loose = self.strict(prompts, start), self.loose(settings, prompts, start)
        d = self.scorer.differences(prompts, strict, [answer.ids for answer in loose])
        rows = zip(strict, loose, prompts, strict=True)
        tokens = [(len(one), len(other.ids), prompt["max_new_tokens"]) for one, other, prompt in rows]
        return Decoded(d, [answer.statistics for answer in loose], np.array(tokens, float).reshape(-1, 3))

    def chunks(self, split: str, settings: dict[str, Any], n: int) -> Iterator[Decoded]:
        """The first n prompts of a split, chunk by chunk, in their order; a chunk is decoded when it is asked for."""
        size = self.chunk or n
        for start in range(0, n, size):
            yield self.decoded(split, settings, start, min(start + size, n))


class Watcher(Protocol):
    """Hears of files of answers, such as to keep what they have cost."""

    def made(self, piece: Path) -> None:
        """The answers of this file were decoded; they are written next."""

    def read(self, piece: Path) -> None:
        """The answers of this file are handed out, just decoded or known before."""


def cached(decode: Decode, folder: Path, name: str, *depends: Any, watcher: Watcher | None = None) -> Decode:
    """The same function, but answers that were decoded once are read from `folder`; `watcher` hears of the files.

    A file is named by a fingerprint of `depends` (everything that decides answers besides settings and prompts), the
    settings with the files that they name, and the prompts.
    """

    def answers(settings: dict[str, Any], prompts: Sequence[Prompt], start: int) -> list[Answer]:
        asked = [[prompt["ids"], prompt["stops"], prompt["max_new_tokens"]] for prompt in prompts]
        path = folder / f"{name}-{fingerprint(*depends, settings, *named_files(settings), start, asked)}.jsonl"
        if not path.exists():
            done = decode(settings, prompts, start)
            if watcher is not None:
                watcher.made(path)
            write_json_lines(path, [{"ids": a.ids, "statistics": a.statistics.as_dict(timed=False)} for a in done])
        if watcher is not None:
            watcher.read(path)
        return [Answer(row["ids"], untimed(row["statistics"])) for row in read_json_lines(path)]

    return answers


def untimed(counted: dict[str, Any]) -> Statistics:
    """Statistics as `Statistics.as_dict(timed=False)` wrote them."""
    return Statistics.from_dict({**counted, "seconds": {}})
