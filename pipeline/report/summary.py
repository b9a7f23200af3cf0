"""reports/summary.json and reports/frontier.csv: the numbers that everything else shows."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gistgate.certificates.judged import level
from gistgate.core.files import read_json, read_json_lines
from gistgate.core.utils import UserError
from gistgate.measure.statistics import accuracy_difference, ratio_of_rates, ratio_of_sums
from pipeline.decode import calibration_file, evaluation_folder
from pipeline.outcomes import IDLE, as_json, summed, told
from pipeline.params import Params

# ---- What the stages found, read once and checked: the raw material of summary, figures and page.


THEIRS = "transformers_"
"""What the names of transformers' own decodings begin with."""
PLAIN, STRICT = "plain", "exact"
"""Evaluation folders of plain decoding and of the lossless reference."""


@dataclass(frozen=True)
class Results:
    """Everything the last run found, by method or head."""

    calibration: dict[str, dict[str, Any]]
    """reports/calibration/<group>/<method>.json; methods without a knob may have none."""
    evaluation: dict[str, dict[str, Any]]
    """reports/evaluation/<method>/summary.json, "plain" among them."""
    samples: dict[str, dict[str, float]]
    """Prompt id -> score in [0, 1], by method."""
    benchmark: dict[str, Any]
    """reports/benchmark.json."""
    heads: dict[str, dict[str, Any]]
    """models/heads/<head>/metrics.json."""
    curves: dict[str, dict[str, Any]]
    """models/heads/<head>/curves.json."""
    trace: dict[str, Any] | None = None
    """reports/trace.json, which only the core report shows."""
    adversarial: dict[str, Any] | None = None
    """reports/adversarial.json, which is about the core methods and which results older than that stage lack."""
    judgements: dict[str, Any] | None = None
    """reports/table/judgements.json, where the large table is reported."""

    def scores(self, method: str) -> list[float]:
        """Scores of a method in the order of the strict run's prompts.

        Raises:
            UserError: the two were evaluated on different prompts.
        """
        strict, own = self.samples[STRICT], self.samples[method]
        if strict.keys() != own.keys():
            raise UserError(
                f"'{method}' and '{STRICT}' were evaluated on different prompts, so they cannot be paired. "
                "Run the stage `evaluate` again."
            )
        return [own[name] for name in strict]

    def seconds(self, contender: str) -> list[float]:
        """Seconds of a contender per prompt, its repeats added up."""
        return [sum(repeats) for repeats in self.timing(contender)["seconds"]]

    def tokens(self, contender: str) -> list[int]:
        """New tokens of a contender per prompt and repeat."""
        found: list[int] = self.timing(contender)["tokens"]
        return found

    def was_timed(self, contender: str) -> bool:
        """Whether the benchmark has times of it; a baseline of transformers may have none where it cannot run."""
        return not contender.startswith(THEIRS) or contender in self.benchmark["baselines"]

    def timing(self, contender: str) -> dict[str, Any]:
        """The benchmark's entry of a method or baseline; a method's name wins."""
        entries = {**self.benchmark["baselines"], **self.benchmark["methods"]}
        if contender not in entries:
            raise UserError(f"reports/benchmark.json has no times of '{contender}'. Run the stage `benchmark` again.")
        entry: dict[str, Any] = entries[contender]
        return entry


def read_results(params: Params, reports: Path = Path("reports"), heads: Path = Path("models/heads")) -> Results:
    """Read the outputs of calibrate, evaluate, benchmark and train for what params.yaml names.

    Raises:
        UserError: a file is missing or damaged, or the lossless reference is not among the methods.
    """
    if STRICT not in params.methods:
        raise UserError("params.yaml: 'methods.lossless' lacks 'exact', the reference of every difference. Add it.")
    evaluated = {name: evaluation_folder(params, name, reports) for name in [PLAIN, *params.methods]}
    calibrated = {name: calibration_file(params, name, reports) for name in params.methods}
    own = reports / params.reports.relative_to("reports")
    return Results(
        calibration={
            name: read_json(path)
            for name, path in calibrated.items()
            if params.methods[name].knob is not None or path.exists()
        },
        evaluation={name: read_json(folder / "summary.json") for name, folder in evaluated.items()},
        samples={
            name: {row["id"]: float(row["correct"]) for row in read_json_lines(folder / "samples.jsonl")}
            for name, folder in evaluated.items()
        },
        benchmark=read_json(own / "benchmark.json"),
        heads={name: read_json(heads / name / "metrics.json") for name in params.train.heads},
        trace=read_json(told) if (told := own / "trace.json").exists() else None,
        adversarial=read_json(misled) if (misled := reports / "adversarial.json").exists() else None,
        judgements=read_json(judged) if (judged := own / "judgements.json").exists() else None,
        curves={name: read_json(heads / name / "curves.json") for name in params.train.heads},
    )


LEVEL = 0.9
"""Two-sided confidence of the intervals; their lower ends hold with 95 %."""
REFERENCES = {
    "vs_plain": "plain",
    "vs_strict": "strict",
    "vs_static": "transformers_static",
    "vs_assisted": "transformers_assisted",
    "vs_lookup": "transformers_lookup",
}
"""Speed ratio -> baseline it compares with, each at its own best K; those of transformers cannot run everywhere."""
PER_TOKEN = "per_token"
"""Tokens per second, as a multiple of those of plain decoding: answers that rounding or looseness changes differ in
length."""
SPECULATION = ("transformers_assisted", "transformers_lookup")
"""The baselines whose K development prompts chose."""
CERTIFIED = (
    "certified", "knob", "fixed", "confidence", "n", "losses", "gains", "loss", "bound", "bound_kind",
    "mean_tokens", "strict_mean_tokens", "capped", "strict_capped",
)  # fmt: skip
"""What a summary keeps of a calibration, for each budget."""
COLUMNS = (
    "method",
    "rule",
    "split",
    "knob",
    "fixed",
    "n",
    "accuracy",
    "loss",
    "mean_accepted_length",
    "loose_per_100",
    "certified_budgets",
)

Summary = dict[str, Any]


def summarise(params: Params, results: Results) -> Summary:
    """The whole summary: plain decoding, every method at the headline budget, every head."""
    return {
        "pair": params.pair,
        "task": params.task,
        "seed": params.seed,
        "headline_budget": params.headline_budget,
        "looks": params.calibrate.looks,
        "timed": timed(results),
        IDLE: idle_shares(results),
        "plain": {"accuracy": results.evaluation[PLAIN]["accuracy"]},
        "methods": {name: method_summary(name, params, results) for name in params.methods},
        "heads": {
            name: {key: metrics.get(key) for key in ("auc", "ap", "brier", "ece")}
            for name, metrics in results.heads.items()
        },
    }


def timed(results: Results) -> Summary:
    """On how many prompts speeds were measured, and the K of transformers' speculation (0: its own defaults)."""
    blocks = {name: results.timing(name)["block"] for name in SPECULATION if results.was_timed(name)}
    told = {name: results.benchmark.get(name) for name in ("chosen_on", "failed", "machine")}
    return {"n": len(results.seconds("plain")), "blocks": blocks, **told}


def idle_shares(results: Results) -> dict[str, float | None]:
    """The share of the slots of a stage that held no row, over all that was decoded for the methods.

    It is None where a method's file does not tell, as files of earlier versions, and where nothing was decoded.
    """
    stages = {"calibrate": results.calibration, "evaluate": results.evaluation}
    return {name: as_json(summed(map(told, files.values())))[IDLE] for name, files in stages.items()}


def method_summary(name: str, params: Params, results: Results) -> Summary:
    """One method at the headline budget. Without a certified setting it ran strictly, and knob and bound are null."""
    method, evaluation = params.methods[name], results.evaluation[name]
    difference = accuracy_difference(results.scores(name), results.scores(STRICT), level=LEVEL, seed=params.seed)
    return {
        "rule": method.rule,
        "drafter": method.drafter,
        "block": evaluation["block"],
        "timed_block": results.timing(name)["block"],
        "budget": params.headline_budget,
        "confidence": level(params.calibrate.confidence, params.calibrate.looks),
        "knob": evaluation["knob"],
        "certified_bound": certified_bound(name, params, results),
        "certificates": certificates(name, results),
        "accuracy": evaluation["accuracy"],
        "accuracy_difference": difference.as_dict(),
        "mean_accepted_length": evaluation["mean_accepted_length"],
        "loose_per_100": evaluation["loose_per_100"],
        "speed": speeds(name, params, results),
        "cut": evaluation["cut"],
        "adversarial": adversarial(name, results),
        "target_forwards": evaluation["statistics"]["forwards"],
        "n": evaluation["n"],
    }


def speeds(name: str, params: Params, results: Results) -> dict[str, Any]:
    """How much less time a method's answers take than those of the baselines, and its tokens per second to plain's."""
    own, plain = results.seconds(name), results.seconds("plain")
    to_baselines = {
        key: ratio_of_sums(results.seconds(base), own, level=LEVEL, seed=params.seed).as_dict()
        for key, base in REFERENCES.items()
        if results.was_timed(base)
    }
    rates = ratio_of_rates(plain, results.tokens("plain"), own, results.tokens(name), level=LEVEL, seed=params.seed)
    return {**to_baselines, PER_TOKEN: rates.as_dict()}


def certified_bound(name: str, params: Params, results: Results) -> float | None:
    """Upper bound on the loss that calibration proved for the headline budget; 0 for strict decoding itself.

    A lossless rule with another drafter has a bound of its own, because rounding changes some of its answers.
    """
    if name == STRICT or (params.methods[name].knob is None and name not in results.calibration):
        return 0.0
    found = at_budget(results.calibration[name], params.headline_budget)
    return found["bound"] if found and found["certified"] else None


def certificates(name: str, results: Results) -> dict[str, Any]:
    """What every budget's bound was computed from, and how long answers were; empty for a lossless rule."""
    found = results.calibration.get(name, {"budgets": {}})["budgets"]
    return {budget: {key: entry[key] for key in CERTIFIED if key in entry} for budget, entry in found.items()}


def adversarial(name: str, results: Results) -> dict[str, Any] | None:
    """What the method changed in the answers to adversarial prompts; None where nobody looked."""
    found = (results.adversarial or {"methods": {}})["methods"].get(name)
    return None if found is None else {key: value for key, value in found.items() if key != "by_kind"}


def at_budget(calibration: dict[str, Any], budget: float) -> dict[str, Any] | None:
    """The verdict of a calibration on one budget."""
    return next((entry for key, entry in calibration["budgets"].items() if float(key) == budget), None)


def frontier(results: Results) -> list[dict[str, Any]]:
    """Every setting that was tried, on development and calibration prompts, strict to loose."""
    return [
        frontier_row(name, calibration, split, setting)
        for name, calibration in results.calibration.items()
        for split, key in (("development", "development"), ("calibration", "settings"))
        for setting in calibration.get(key, [])
    ]


def frontier_row(name: str, calibration: dict[str, Any], split: str, setting: dict[str, Any]) -> dict[str, Any]:
    """One setting: its net loss against strict, and the budgets that it is certified for.

    The settings are tested from strict to loose, and all in front of the one that a budget keeps have passed it too.
    """
    knobs = [one["knob"] for one in calibration["settings"]]
    budgets = [
        budget
        for budget, verdict in sorted(calibration["budgets"].items(), key=lambda pair: float(pair[0]))
        if split == "calibration" and verdict["certified"]
        and knobs.index(setting["knob"]) <= knobs.index(verdict["knob"])
    ]  # fmt: skip
    return {
        "method": name,
        "rule": calibration["rule"],
        "split": split,
        "knob": setting["knob"],
        "fixed": setting.get("fixed", {}),
        "n": setting["n"],
        "accuracy": setting["accuracy"],
        "loss": setting["loss"],
        "mean_accepted_length": setting["mean_accepted_length"],
        "loose_per_100": setting["loose_per_100"],
        "certified_budgets": budgets,
    }


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The frontier as a table; settings as JSON, budgets separated by blanks."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fixed = json.dumps(row["fixed"], sort_keys=True)
        writer.writerow({**row, "fixed": fixed, "certified_budgets": " ".join(row["certified_budgets"])})
    return out.getvalue()
