"""One method on a list of prompts, paired with strict decoding, in chunks that are kept once they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gistgate.certificates.scores import Ids, Prompt, Scorer
from gistgate.certificates.search import Setting
from gistgate.certificates.tango import Array
from gistgate.decoding.decoder import Decoder
from gistgate.files import read_json_lines, write_json_lines
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash, identify_model, identify_tokenizer
from gistgate.request.statistics import Statistics, total
from pipeline.certification.outcomes import SOURCES, files_of
from pipeline.common.decoders import make_decoder, request_of
from pipeline.common.prompt_cache import Prefilled
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams
from pipeline.studies.retrieval.drafters import files_behind

CHUNK = 256
"""Prompts between two looks at the outcomes."""
STRICT = MethodParams("exact")


@dataclass(frozen=True)
class Decoded:
    """Some prompts, decoded at one setting."""

    differences: Array
    """d = strict - loose score [N]."""
    statistics: list[Statistics] = field(default_factory=list)
    """What was counted, by prompt."""

    @property
    def counted(self) -> Statistics:
        """Summed over the prompts."""
        return total(self.statistics)

    def __add__(self, other: Decoded) -> Decoded:
        return Decoded(np.r_[self.differences, other.differences], self.statistics + other.statistics)


NOTHING = Decoded(np.zeros(0))


class Ground:
    """What all methods share: pair, prompts by split, score, and what is remembered between settings."""

    def __init__(
        self, pair: Pair, prompts: dict[str, list[Prompt]], scorer: Scorer, batch_size: int, memory_mb: int = 1000
    ) -> None:
        self.pair, self.prompts, self.scorer, self.batch_size = pair, prompts, scorer, batch_size
        self.prefilled = Prefilled(memory_mb)

    @cached_property
    def dependencies(self) -> str:
        """Fingerprint of what every answer depends on, whatever the method."""
        models = [asdict(identify_model(model)) for model in (self.pair.target, self.pair.draft)]
        tokenizer = identify_tokenizer(self.pair.tokenizer).vocabulary
        return fingerprint(models, tokenizer, self.batch_size, *sources(*SOURCES, "pipeline.certification.trial"))


class Trial:
    """One method with its gate and K on common ground."""

    def __init__(self, ground: Ground, method: MethodParams, block: int, gate: Gate | None = None) -> None:
        self.ground, self.method, self.block, self.gate = ground, method, block, gate

    def decoded(self, split: str, setting: Setting, start: int = 0, stop: int | None = None) -> Decoded:
        """Prompts `start` to `stop` of a split at this setting."""
        prompts = self.ground.prompts[split][start:stop]
        drafter = self.method.drafter
        strict, _ = self.answers(MethodParams("exact", drafter=drafter), {}, None, prompts)
        loose, counted = self.answers(self.method, self.settings(setting), self.gate, prompts)
        return Decoded(self.ground.scorer.differences(prompts, strict, loose), counted)

    def chunks(self, split: str, setting: Setting, n: int, size: int = CHUNK) -> Iterator[Decoded]:
        """The first n prompts of a split, chunk by chunk, in their order."""
        for start in range(0, n, size):
            yield self.decoded(split, setting, start, min(start + size, n))

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the rule."""
        return self.method.settings(setting.variant, setting.value)

    def answers(
        self, method: MethodParams, settings: dict[str, Any], gate: Gate | None, prompts: Sequence[Prompt]
    ) -> tuple[list[Ids], list[Statistics]]:
        """Token ids and counts of every answer: from the scratch folder, or decoded now."""
        asked = [[prompt["ids"], prompt["stops"], prompt["max_new_tokens"]] for prompt in prompts]
        name = fingerprint(
            self.ground.dependencies, method.rule, method.drafter, self.block, settings, *files_of(settings),
            *files_behind(method.drafter), gate and gate_hash(gate), asked,
        )  # fmt: skip
        path = SCRATCH / "certificates" / f"{method.rule}-{name}.jsonl"
        if not path.exists():
            decoder = make_decoder(self.ground.pair, method, settings, self.block, gate=gate)
            write_json_lines(path, self.decode(decoder, prompts))
        return read_answers(path)

    def decode(self, decoder: Decoder, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """One row per prompt, in order."""
        done = self.ground.prefilled.decode_all(
            decoder,
            [prompt["ids"] for prompt in prompts],
            batch_size=self.ground.batch_size,
            seeds=list(range(len(prompts))),
            progress=lambda _: None,
            **request_of(prompts, self.ground.pair),
        )
        return [{"ids": answer.ids, "statistics": answer.statistics.as_dict(timed=False)} for answer in done]


def read_answers(path: Path) -> tuple[list[Ids], list[Statistics]]:
    """What `Trial.answers` keeps."""
    rows = read_json_lines(path)
    return [row["ids"] for row in rows], [Statistics.from_dict({**row["statistics"], "seconds": {}}) for row in rows]
