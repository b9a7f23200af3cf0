"""Train the probes of both models, compare them, and keep one of each.

    python -m pipeline.studies.segments.train

Reads data/segments, writes models/segments and reports/segments/probes.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.errors import UserError
from gistgate.files import read_json_lines, write_json
from gistgate.optional.segments.files import Probes
from gistgate.optional.segments.probes import POOLINGS
from pipeline.heads.split import ProblemParts, split_by_problem
from pipeline.pairs.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.studies.segments.collect import ROLES, SAMPLES
from pipeline.studies.segments.fitting import fit_probe, measure
from pipeline.studies.segments.params import LOSSES, SegmentParams, read_segment_params
from pipeline.studies.segments.states import Examples, examples_of

FOLDER = Path("models/segments")


def main() -> None:
    params, own = read_params(), read_segment_params()
    pair, rows = load_pair(params), read_json_lines(SAMPLES)
    check_samples(rows)
    models = {"target": pair.target, "draft": pair.draft_model}
    examples = {role: examples_of(rows, models[role], role, own.judge, own.limit) for role in ROLES}
    report, probes = {}, {}
    for role in ROLES:
        report[role], probes[role] = compare(examples[role], role, params, own)
    Probes(probes["target"], probes["draft"], own.style, own.limit).save(
        FOLDER, pair.target, pair.draft_model, settings=asdict(own), seed=params.seed
    )
    write_json(Path("reports/segments/probes.json"), report)


def check_samples(rows: Sequence[dict[str, Any]]) -> None:
    """Refuse samples that cannot be split.

    Raises:
        UserError: a model finished segments in fewer than four problems.
    """
    for role in ROLES:
        num = len({row["problem"] for row in rows if role in row["roles"]})
        if num < 4:
            raise UserError(
                f"{SAMPLES}: the {role} finished segments in {num} problems, and four are needed. Raise `limit` or "
                "`problems`, or choose another `style`."
            )


class Trial:
    """One model's segments, split by problem."""

    def __init__(self, examples: Examples, params: Params, own: SegmentParams) -> None:
        self.examples, self.params, self.own = examples, params, own
        self.parts = split_by_problem(examples.problem, params.train, params.seed)

    def check(self, writers: tuple[str, ...], parts: ProblemParts) -> None:
        """Refuse a split of which a part has no segment of one of these writers.

        Raises:
            UserError: it is so.
        """
        masks = {"train": parts.train, "validation": parts.validation, "test": parts.test}
        for (name, mask), writer in product(masks.items(), writers):
            if not int(self.examples.drawn[writer][mask].sum()):
                raise UserError(
                    f"The {writer} finished no segment in the part `{name}`. Raise `problems`, `samples` or `limit` in "
                    "pipeline/studies/segments/params.yaml, or the part's share in params.yaml."
                )

    def fit(self, writers: tuple[str, ...], pooling: str, loss: str, parts: ProblemParts | None = None) -> Any:
        """A probe for these choices."""
        parts = parts or self.parts
        train, validation = parts.train | parts.calibration, parts.validation
        one = self.examples
        return fit_probe(one.where(train), one.where(validation), writers, pooling, loss, self.own, self.params.seed)

    def measure(self, probe: Any, writers: tuple[str, ...], parts: ProblemParts | None = None) -> dict[str, Any]:
        """What it is worth on the test problems, on segments of each of these writers."""
        parts = parts or self.parts
        seen, test = self.examples.where(parts.train), self.examples.where(parts.test)
        report = {}
        for writer in writers:
            count = seen.drawn[writer].float()
            base = float((seen.share * count).sum() / count.sum())
            report[writer] = measure(probe, test, writer, base)
        return report


def compare(examples: Examples, role: str, params: Params, own: SegmentParams) -> tuple[dict[str, Any], Any]:
    """Poolings and losses, who wrote the training segments, what a split by sample would have claimed; and the probe.

    Both probes judge what the draft has written, so that is what both are trained on, the target's on its own as well.
    """
    trial, report, chosen = Trial(examples, params, own), {}, None
    writers = ROLES if role == "target" else ("draft",)
    leaking = by_sample(len(examples.problem), trial.parts, params.seed)
    for parts in (trial.parts, leaking):
        trial.check(writers, parts)
    for pooling in POOLINGS:
        for loss in LOSSES:
            probe = trial.fit(writers, pooling, loss)
            report[f"{pooling}, {loss}"] = trial.measure(probe, writers)
            if (pooling, loss) == (own.pooling, own.loss):
                chosen = probe
    if role == "target":
        report["own segments only"] = trial.measure(trial.fit((role,), own.pooling, own.loss), writers)
    probe = trial.fit(writers, own.pooling, own.loss, leaking)
    report["split by sample"] = trial.measure(probe, writers, leaking)
    return report, chosen


def by_sample(num: int, parts: ProblemParts, seed: int) -> ProblemParts:
    """Parts of the same sizes that divide samples, not problems: neighbours fall on both sides."""
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    found: dict[str, Tensor] = {}
    for name in ("train", "validation", "calibration", "test"):
        size = int(getattr(parts, name).sum())
        found[name] = torch.zeros(num, dtype=torch.bool)
        found[name][order[:size]] = True
        order = order[size:]
    return ProblemParts(**found)


if __name__ == "__main__":
    run(main)
