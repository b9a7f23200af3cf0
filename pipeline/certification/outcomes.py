"""The methods of params.yaml as outcomes: decoded on the prompts of a run, and scored against its strict reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gistgate.certificates.calibration import Method
from gistgate.certificates.outcomes import Answer, Decode, Outcomes, Strict, cached, untimed
from gistgate.certificates.scores import TaskScore
from gistgate.certificates.tango import Array
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash
from gistgate.integrations.lm_eval.decoding import decode_prompts
from gistgate.integrations.lm_eval.prompts import Prompt
from gistgate.request.slots import Usage
from pipeline.certification.agreement import TOGETHER, Agreement, SharedAnswers, read_agreement, rules_of
from pipeline.certification.marks import maker_of, mark
from pipeline.certification.usage import PieceUsage
from pipeline.common.decoders import make_decoder, read_prompts, seeds_of
from pipeline.common.drafters import files_behind
from pipeline.common.gates import load_gate
from pipeline.common.progress import bar, decoding
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, Params
from pipeline.tasks.loading import load_task

SPLITS = ("development", "calibration")

Row = dict[str, Any]


class Setup:
    """What all methods of a run share: the pair, the task, the prompts, and prompts that are read once."""

    def __init__(self, params: Params, prompts: Mapping[str, list[Prompt]] | None = None) -> None:
        """`prompts` take the place of the run's, by split."""
        self.params = params
        self.pair, self.task = load_pair(params), load_task(params)
        own = prompts or {}
        self.fresh = frozenset(own)
        """Splits that the stage `reference` has not answered."""
        self.prompts = {split: own[split] if split in own else read_prompts(split) for split in SPLITS}
        names = [prompt["id"] for prompts in self.prompts.values() for prompt in prompts]
        if len(set(names)) < len(names):
            raise ValueError("two prompts have the same name, so that one would be compared with the other's answer")
        self.memory = Prefilled(params.decoding.prompt_memory_mb)
        self.scorer = TaskScore(self.task, self.pair.tokenizer)
        self.usage = defaultdict[str, PieceUsage](PieceUsage)
        """How the slots of decoded answers were used, by method; shared and strict answers decode nothing."""

    @cached_property
    def dependencies(self) -> str:
        """Fingerprint of what every decoded setting depends on, whatever the method."""
        return fingerprint(self.maker, self.params.decoding.batch_size, self.params.seed, *sources(__name__))

    @cached_property
    def maker(self) -> str:
        """What strict answers have to be made by."""
        return maker_of(self.pair)

    @cached_property
    def reference(self) -> dict[str, Row]:
        """The strict answers by prompt: those of the stage `reference`, or decoded here for fresh prompts."""
        return {row["id"]: row for split in self.prompts for row in self.answered(split)}

    def answered(self, split: str) -> list[Row]:
        """The strict answers to a split, with scores."""
        prompts = self.prompts[split]
        if split not in self.fresh:
            return read_reference(split, prompts, self.maker)
        decode, dtype = self.loose("exact", MethodParams("exact"), self.params.decoding.block), self.pair.target.dtype
        size = len(prompts) if dtype == torch.float32 else TOGETHER * self.params.decoding.batch_size
        starts = range(0, len(prompts), size)
        answers = [answer for start in starts for answer in decode({}, prompts[start : start + size], start)]
        return [
            {
                "id": prompt["id"],
                "ids": answer.ids,
                "score": self.scorer.score(prompt, answer.ids),
                "statistics": answer.statistics.as_dict(timed=False),
            }
            for prompt, answer in zip(prompts, answers, strict=True)
        ]

    def strict_scores(self, split: str) -> Array:
        """Scores of the strict answers to a split [N]."""
        return np.array([self.reference[prompt["id"]]["score"] for prompt in self.prompts[split]], float)

    def outcomes(self, name: str, chunk: int | None = None) -> Outcomes:
        """A method at K = `block_of(name)`, against the strict reference."""
        params, method = self.params, self.params.method(name)
        if method == MethodParams("exact") and params.block_of(name) == params.decoding.block:
            return Outcomes(self.prompts, self.scorer, self.strict, self.strict_answers, chunk)
        return Outcomes(self.prompts, self.scorer, self.strict, self.loose(name, method, params.block_of(name)), chunk)

    @property
    def strict(self) -> Strict:
        """Strict answers as the stage `reference` decoded them."""
        return lambda prompts, _start: [self.reference[prompt["id"]]["ids"] for prompt in prompts]

    def strict_answers(self, _settings: dict[str, Any], prompts: Sequence[Prompt], _start: int) -> list[Answer]:
        """The same with their statistics: strict decoding is its own reference."""
        rows = [self.reference[prompt["id"]] for prompt in prompts]
        return [Answer(row["ids"], untimed(row["statistics"])) for row in rows]

    def gate(self, name: str) -> Gate | None:
        """The gate that a method's rule asks; None for a rule without one."""
        head = self.params.method(name).head
        return load_gate(head, self.pair) if head else None

    def loose(self, name: str, method: MethodParams, block: int) -> Decode:
        """A method's answers at K = `block`: decoded once, then read from the scratch folder."""
        gate = load_gate(method.head, self.pair) if method.head else None
        depends = (
            self.dependencies, method.rule, method.drafter, block, *files_behind(method.drafter),
            gate and gate_hash(gate),
        )  # fmt: skip

        def fresh(
            settings: dict[str, Any], prompts: Sequence[Prompt], seeds: list[int], watcher: Agreement
        ) -> list[Answer]:
            decoder = make_decoder(self.pair, method, settings, block, gate=gate, observer=watcher)
            return self.decode(name, decoder, settings, prompts, seeds)

        shared = SharedAnswers(method.rule, rules_of(method), fresh)
        if not self.fresh and block == self.params.decoding.block and not method.head:
            self.teach(shared)

        def decode(settings: dict[str, Any], prompts: Sequence[Prompt], start: int) -> list[Answer]:
            return shared.decode(settings, prompts, seeds_of(self.params, prompts, start))

        return cached(decode, SCRATCH / "calibrate", name, *depends, watcher=self.usage[name])

    def teach(self, shared: SharedAnswers) -> None:
        """Hand over the strict answers that some settings give as well."""
        for split, prompts in self.prompts.items():
            agreement = {key: ids for key, ids in read_agreement(split).items() if key in shared.rules}
            for prompt, seed in zip(prompts, seeds_of(self.params, prompts), strict=True) if agreement else ():
                keys = [key for key, ids in agreement.items() if prompt["id"] in ids]
                shared.learn(prompt, seed, self.strict_answers({}, [prompt], 0)[0], keys)

    def kept(self, name: str, make: Callable[[dict[str, Any]], Decoder], *depends: Any) -> Decode:
        """Answers of the decoders that `make` returns, kept in the scratch folder."""

        def decode(settings: dict[str, Any], prompts: Sequence[Prompt], start: int) -> list[Answer]:
            return self.decode(name, make(settings), settings, prompts, seeds_of(self.params, prompts, start))

        return cached(decode, SCRATCH / "calibrate", name, *depends, watcher=self.usage[name])

    def decode(
        self, name: str, decoder: Decoder, settings: dict[str, Any], prompts: Sequence[Prompt], seeds: list[int]
    ) -> list[Answer]:
        """Answers of one decoder, with a progress bar; `usage` counts their slots under the name."""
        values = ", ".join(f"{key} {value}" for key, value in settings.items())
        with bar(title=f"{name} {values}".strip(), unit="prompt", total=len(prompts)) as progress:
            size, usage = self.params.decoding.batch_size, Usage()
            watch = decoding(progress, usage)
            answers = decode_prompts(decoder, prompts, seeds, size, self.memory, watch, usage)
        self.usage[name].add(usage)
        return answers


def method_of(params: Params, name: str) -> Method:
    """A method of params.yaml as the certification engine wants it."""
    given = params.method(name)
    return Method(
        rule=given.rule,
        drafter=given.drafter,
        block=params.block_of(name),
        knob=given.knob,
        grid=tuple(given.grid),
        fixed=given.fixed,
        variants=tuple(given.variants),
    )


def read_reference(split: str, prompts: Sequence[Prompt], maker: str) -> list[Row]:
    """The strict reference of a split, in the order of its prompts; answers of earlier versions have no mark.

    Raises:
        UserError: the reference was made from other prompts or by another pair, or there are none.
    """
    rows = read_json_lines(Path("data/reference") / f"{split}.jsonl")
    if not prompts or [row["id"] for row in rows] != [prompt["id"] for prompt in prompts]:
        raise UserError(
            f"data/reference/{split}.jsonl ({len(rows)} answers) does not belong to data/prompts/{split}.jsonl "
            f"({len(prompts)} prompts). Run the stage `reference` again."
        )
    for row, prompt in zip(rows, prompts, strict=True):
        if row.get("mark") not in (None, mark(maker, prompt["ids"])):
            raise UserError(
                f"data/reference/{split}.jsonl answers other prompts than data/prompts/{split}.jsonl, or was made with "
                "other weights or another tokenizer. Run `dvc repro --force --single-item reference`, then go on."
            )
    return rows
