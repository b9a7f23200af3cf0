"""One method on one split at one setting, paired with the strict reference, and kept once it is decoded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gistgate.certificates.search import Setting
from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from gistgate.files import read_json_lines, write_json_lines
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash, identify_model, identify_tokenizer
from gistgate.integrations.lm_eval.task import load_task
from gistgate.request.statistics import Statistics, total
from pipeline.common.decoders import make_decoder, read_prompts, run_split
from pipeline.common.gates import load_gate
from pipeline.common.prompt_cache import Prefilled
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.common.scope import task_hash
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, Params
from pipeline.studies.retrieval.drafters import files_behind

SOURCES = (
    "gistgate.block", "gistgate.rules", "gistgate.drafters", "gistgate.decoding", "gistgate.gates",
    "gistgate.optional.retrieval", "pipeline.common.decoders", "pipeline.studies.retrieval.drafters", "pipeline.common.prompt_cache", "gistgate.integrations.lm_eval.task",
    "pipeline.certification.outcomes",
)  # fmt: skip
"""Modules whose source decides what is decoded."""


@dataclass(frozen=True)
class Run:
    """A decoded split."""

    setting: Setting
    """What was decoded with."""
    loose: Array
    """Scores of the prompts [N], in [0, 1]."""
    strict: Array
    """Scores of the strict reference on the same prompts [N]."""
    statistics: Statistics
    """Summed over the prompts, without seconds."""

    @property
    def differences(self) -> Array:
        """d = strict - loose [N]."""
        return self.strict - self.loose

    @property
    def measured(self) -> tuple[Array, float]:
        """Differences and tau: what the choice of settings asks for."""
        return self.differences, self.statistics.mean_accepted_length


class Bench:
    """What all methods share: the pair, the task, prompts and references."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.pair, self.task = load_pair(params), load_task(params)
        self.prompts = {split: read_prompts(split) for split in ("development", "calibration")}
        self.prefilled = Prefilled(params.decoding.prompt_memory_mb)
        self.strict = {split: strict_scores(split, prompts) for split, prompts in self.prompts.items()}

    @cached_property
    def dependencies(self) -> str:
        """Fingerprint of what every decoded setting depends on, whatever the method."""
        pair, params = self.pair, self.params
        models = [asdict(identify_model(model)) for model in (pair.target, pair.draft)]
        return fingerprint(
            models, identify_tokenizer(pair.tokenizer).vocabulary, task_hash(self.task, params),
            params.decoding.batch_size, params.seed, *sources(*SOURCES),
        )  # fmt: skip


class Arm:
    """One method."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name = bench, name
        self.params, self.method = bench.params, bench.params.method(name)

    @cached_property
    def gate(self) -> Gate | None:
        """The gate that the rule asks; None for a rule without one."""
        return load_gate(self.method.head, self.bench.pair) if self.method.head else None

    def run(self, split: str, setting: Setting) -> Run:
        """The split at this setting: from the scratch folder, or decoded now."""
        path = self.path(split, setting)
        if not path.exists():
            write_json_lines(path, self.decode(split, setting))
        rows = read_json_lines(path)
        counted = total([Statistics.from_dict({**row["statistics"], "seconds": {}}) for row in rows])
        return Run(setting, np.array([row["score"] for row in rows], float), self.bench.strict[split], counted)

    def decode(self, split: str, setting: Setting) -> list[dict[str, Any]]:
        """Decode and score a split; one row per prompt, in order."""
        bench, settings = self.bench, self.settings(setting)
        decoder = make_decoder(bench.pair, self.method, settings, self.params.block_of(self.name), gate=self.gate)
        title = f"{self.name} {'' if setting.value is None else setting.value}, {split}"
        outcomes = run_split(decoder, bench.task, bench.pair, bench.prompts[split], self.params, title, bench.prefilled)
        return [
            {"id": outcome.id, "score": outcome.score, "statistics": outcome.statistics.as_dict(timed=False)}
            for outcome in outcomes
        ]

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the rule."""
        return self.method.settings(setting.variant, setting.value)

    def path(self, split: str, setting: Setting) -> Path:
        """Where a decoded setting waits; strict decoding is already there, as the reference."""
        method, gate = self.method, self.gate
        if method == MethodParams("exact") and self.params.block_of(self.name) == self.params.decoding.block:
            return Path("data/reference") / f"{split}.jsonl"
        name = fingerprint(
            self.bench.dependencies, method.rule, method.drafter, self.params.block_of(self.name),
            self.settings(setting), *files_of(self.settings(setting)), *files_behind(method.drafter),
            gate and gate_hash(gate), Path("data/prompts") / f"{split}.jsonl",
        )  # fmt: skip
        return SCRATCH / "calibrate" / f"{self.name}-{split}-{name}.jsonl"


def files_of(settings: dict[str, Any]) -> list[Path]:
    """The files that settings of a rule name: their content decides, not their place."""
    paths = [Path(value) for value in settings.values() if isinstance(value, str)]
    return [path for path in paths if path.is_file()]


def strict_scores(split: str, prompts: list[dict[str, Any]]) -> Array:
    """Scores of the strict reference, in the order of the prompts [N].

    Raises:
        UserError: the reference was made from other prompts, or there are none.
    """
    rows = read_json_lines(Path("data/reference") / f"{split}.jsonl")
    if not prompts or [row["id"] for row in rows] != [prompt["id"] for prompt in prompts]:
        raise UserError(
            f"data/reference/{split}.jsonl ({len(rows)} answers) does not belong to data/prompts/{split}.jsonl "
            f"({len(prompts)} prompts). Run the stage `reference` again."
        )
    return np.array([row["score"] for row in rows], float)
