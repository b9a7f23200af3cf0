"""Find for every way of judging segments the loosest value whose loss is certified at the headline budget.

    python -m pipeline.studies.segments.calibrate

Reads data/prompts, data/reference, models/heads and models/segments, writes reports/segments/calibration. Development
prompts choose two values at most; these are decoded on the calibration prompts from strict to loose until one fails.
Points that nobody certifies are measured on the first development prompts. Decoded values wait in the scratch folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.loss_curve import error_apart
from gistgate.certificates.tango import Array
from gistgate.files import read_json, read_json_lines, write_json, write_json_lines
from gistgate.identity import gate_hash
from gistgate.integrations.lm_eval.task import load_task
from gistgate.optional.segments.files import load_probes
from gistgate.request.statistics import Statistics, total
from pipeline.certification.outcomes import strict_scores
from pipeline.common.decoders import read_prompts, run_split
from pipeline.common.gates import load_gate
from pipeline.common.pool import side_by_side
from pipeline.common.prompt_cache import Prefilled
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.common.scope import task_hash
from pipeline.pairs.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.studies.segments.methods import METHODS, Method, Parts, methods_of
from pipeline.studies.segments.params import local_models, read_segment_params
from pipeline.studies.segments.train import FOLDER

REPORTS = Path("reports/segments/calibration")
SPLITS = ("development", "calibration")
SOURCES = (
    "gistgate.block", "gistgate.decoding", "gistgate.drafters", "gistgate.gates", "gistgate.rules",
    "gistgate.optional.segments", "pipeline.common.decoders", "pipeline.common.prompt_cache", "pipeline.studies.segments.methods", "gistgate.integrations.lm_eval.task",
)  # fmt: skip
SETTINGS = 2
"""Values per method that development prompts may send to certification."""


def main() -> None:
    params, methods = read_params(), methods_of(read_segment_params())
    # Those that take their value from another method wait for it.
    for group in ([name for name in methods if not methods[name].like], [n for n in methods if methods[n].like]):
        side_by_side(calibrator, params, group, params.decoding.workers, "calibrate", "method")


def calibrator(params: Params) -> Callable[[str], None]:
    """Calibrates one method after another on the same pair and prompts."""
    bench = Bench(params)
    return lambda name: write_json(REPORTS / f"{name}.json", calibrate(bench, name))


class Bench:
    """Pair, task, prompts, references and probes, shared by all methods."""

    def __init__(self, params: Params) -> None:
        self.params, self.pair, self.task = params, load_pair(params), load_task(params)
        self.probes, self.own = load_probes(FOLDER, self.pair.target, self.pair.draft), read_segment_params()
        self.gate = load_gate(self.own.head, self.pair)
        self.parts = Parts(self.pair, self.probes, self.gate, self.own)
        self.prefilled = Prefilled(params.decoding.prompt_memory_mb)
        self.prompts = {split: read_prompts(split) for split in SPLITS}
        self.strict = {split: strict_scores(split, prompts) for split, prompts in self.prompts.items()}
        self.name = fingerprint(
            FOLDER, gate_hash(self.gate), self.own.risk, self.own.reward_model, *local_models(self.own.reward_model),
            *self.pair.files, *(Path(f"data/prompts/{split}.jsonl") for split in SPLITS), task_hash(self.task, params),
            params.seed, params.decoding.batch_size, *sources(*SOURCES),
        )  # fmt: skip

    def decoded(self, name: str, value: float, split: str, first: int | None = None) -> tuple[Array, Statistics]:
        """Differences strict - loose [N] and what was counted, on the `first` prompts of a split or on all."""
        part = split if first is None else f"{split}-{first}"
        path = SCRATCH / f"segment-calibrate-{self.name}" / f"{name}-{value:g}-{part}.jsonl"
        if not path.exists():
            decoder, title = METHODS[name].decoder(self.parts, value), f"{name} {value:g}, {part}"
            done = run_split(
                decoder, self.task, self.pair, self.prompts[split][:first], self.params, title, self.prefilled
            )
            write_json_lines(path, [{"score": o.score, "statistics": o.statistics.as_dict(timed=False)} for o in done])
        rows = read_json_lines(path)
        counted = total([Statistics.from_dict({**row["statistics"], "seconds": {}}) for row in rows])
        return self.strict[split][:first] - np.array([row["score"] for row in rows], float), counted


def calibrate(bench: Bench, name: str) -> dict[str, Any]:
    """One method: what development saw, what was tested, and what is certified."""
    method, budget = METHODS[name], bench.params.headline_budget
    if not method.certified:
        value = value_of(*method.like) if method.like else method.grid[0]
        return {"certified": None, "development": [point(bench, name, value, "development", method.prompts)]}
    seen = develop(bench, name, method, budget) if len(method.grid) > 1 else []
    values = promising(seen, bench.params, budget) if seen else list(method.grid)
    tested: list[dict[str, Any]] = []
    verdict = fixed_sequence(differences(bench, name, values, tested), budget, bench.params.calibrate.confidence)
    for one, bound in zip(tested, verdict.bounds, strict=True):
        one["bound"] = asdict(bound)
    certified = None if verdict.passed is None else values[verdict.passed]
    return {
        "certified": certified, "refusal": verdict.refusal, "budget": budget, "development": seen,
        "calibration": tested,
    }  # fmt: skip


def operating(report: dict[str, Any]) -> dict[str, Any]:
    """Where a method is compared: its certified point, else the first that was tested, else the one there is."""
    points: list[dict[str, Any]] = report.get("calibration") or report["development"]
    return next((one for one in points if one["value"] == report["certified"]), points[0])


def value_of(name: str, entry: str) -> float:
    """An entry of the point where another method is compared."""
    value: float = operating(read_json(REPORTS / f"{name}.json"))[entry]
    return value


def develop(bench: Bench, name: str, method: Method, budget: float) -> list[dict[str, Any]]:
    """The grid on development prompts, until the loss is twice the budget."""
    seen = []
    for value in method.grid:
        seen.append(point(bench, name, value, "development"))
        if seen[-1]["loss"] > 2 * budget:
            break
    return seen


def promising(seen: Sequence[dict[str, Any]], params: Params, budget: float) -> list[float]:
    """The values to test, strict to loose: the loosest that should pass, and the one before it.

    A value should pass where its loss leaves room below the budget for the bound, in standard errors of a calibration
    split, and for the reserve, in those of the two splits' difference.
    """
    z, reserve, n = norm.ppf(params.calibrate.confidence), params.calibrate.reserve, params.prompts.calibration

    def room(one: dict[str, Any]) -> float:
        return z * one["deviation"] / n**0.5 + reserve * error_apart(one["deviation"] ** 2, n, one["n"])

    fitting = [one["value"] for one in seen if one["loss"] + room(one) <= budget]
    return (fitting or [seen[0]["value"]])[-SETTINGS:]


def differences(bench: Bench, name: str, values: list[float], tested: list[dict[str, Any]]) -> Iterator[Array]:
    """Calibration differences of each value, decoded only when the sequence gets there."""
    for value in values:
        tested.append(point(bench, name, value, "calibration"))
        yield bench.decoded(name, value, "calibration")[0]


def point(bench: Bench, name: str, value: float, split: str, first: int | None = None) -> dict[str, Any]:
    """What a value costs and saves on the `first` prompts of a split, or on all."""
    d, counted = bench.decoded(name, value, split, first)
    return {
        "value": value,
        "n": len(d),
        "loss": float(d.mean()),
        "deviation": float(d.std()),
        "tau": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
        "draft_forwards_per_token": counted.draft_forwards / max(1, counted.tokens),
        **segments_of(counted),
    }


def segments_of(counted: Statistics) -> dict[str, Any]:
    """Segments per hundred tokens, the shares that the opinion passed and that were kept, and what opinions noted."""
    extra, segments = counted.extra, counted.extra.get("segments", 0.0)
    noted = {name: count for name, count in extra.items() if not name.startswith("segments")}
    return {
        "segments_per_100": 100 * segments / max(1, counted.tokens),
        "passed": extra.get("segments_passed", 0.0) / max(1.0, segments),
        "kept": extra.get("segments_kept", 0.0) / max(1.0, segments),
        **({"noted": noted} if noted else {}),
    }


if __name__ == "__main__":
    run(main)
