"""reports/summary.json and reports/frontier.csv: the numbers that everything else shows."""

import csv
import io
import json
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from gistgate.certificates.ledger import level
from gistgate.core.files import read_json, read_json_lines
from gistgate.core.utils import UserError
from gistgate.measure.statistics import accuracy_difference, ratio_of_rates, ratio_of_sums
from pipeline.operating import at_budget
from pipeline.params import Params
from pipeline.paths import HEADS, REPORTS, calibration_file, evaluation_folder

Summary = dict[str, Any]
ByName = dict[str, dict[str, Any]]

PLAIN = "plain"  # evaluation of plain decoding
STRICT = "exact"  # evaluation of the lossless reference
LEVEL = 0.95  # two-sided confidence of all intervals
REFERENCES = {
    "vs_plain": "plain",
    "vs_strict": "strict",
    "vs_static": "transformers_static",
    "vs_assisted": "transformers_assisted",
    "vs_lookup": "transformers_lookup",
    "vs_llama_cpp": "llama_cpp",
}
"""Speed ratio -> baseline it compares with, each at its own best K; those of other libraries cannot
run everywhere.
"""
PER_TOKEN = {"per_token": "plain", "per_token_strict": "strict"}
"""Ratio of tokens per second -> baseline that it compares with: answers may differ in length."""
SPECULATION = ("transformers_assisted", "transformers_lookup")
"""The baselines whose K development prompts chose."""
EVALUATED = ("block", "knob", "accuracy", "mean_accepted_length", "loose_per_100", "cut", "n")
"""What a summary keeps of an evaluation."""
CERTIFIED = (
    "certified",
    "knob",
    "fixed",
    "confidence",
    "n",
    "losses",
    "gains",
    "loss",
    "bound",
    "bound_kind",
    "mean_tokens",
    "strict_mean_tokens",
    "capped",
    "strict_capped",
)
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


@dataclass(frozen=True)
class Results:
    """Everything the last run found, by method or head."""

    benchmark: dict[str, Any]
    times: ByName  # of methods and baselines; baselines of transformers that cannot run have none
    heads: ByName
    curves: ByName
    adversarial: ByName  # empty where nobody looked
    calibration: ByName = field(default_factory=dict)  # methods without a knob may have none
    evaluation: ByName = field(default_factory=dict)  # "plain" among them
    samples: ByName = field(default_factory=dict)  # prompt id -> score in [0, 1]

    def scores(self, method: str) -> list[float]:
        """Scores of a method in the order of the strict run's prompts."""
        strict = self.samples[STRICT]
        scores = self.samples[method]
        assert strict.keys() == scores.keys(), f"{method} has other test prompts than {STRICT}"
        return [scores[name] for name in strict]

    def seconds(self, contender: str) -> list[float]:
        """Seconds of a contender per prompt, its repeats added up."""
        return [sum(repeats) for repeats in self.times[contender]["seconds"]]


def read_results(params: Params) -> Results:
    """The outputs of calibrate, evaluate, benchmark, adversarial and train for what params.yaml
    names.
    """
    if STRICT not in params.methods:
        raise UserError(
            "params.yaml: 'methods' lacks 'exact', the reference of every difference. Add it."
        )
    misled = REPORTS / "adversarial.json"
    benchmark = read_json(REPORTS / "benchmark.json")
    results = Results(
        benchmark=benchmark,
        times={**benchmark["baselines"], **benchmark["methods"]},
        heads={name: read_json(HEADS / name / "metrics.json") for name in params.train.heads},
        curves={name: read_json(HEADS / name / "curves.json") for name in params.train.heads},
        adversarial=read_json(misled)["methods"] if misled.exists() else {},
    )
    for name, method in params.methods.items():
        file = calibration_file(name)
        if method.knob is not None or file.exists():
            results.calibration[name] = read_json(file)
    for name in (PLAIN, *params.methods):
        folder = evaluation_folder(name)
        rows = read_json_lines(folder / "samples.jsonl")
        results.samples[name] = {row["id"]: float(row["correct"]) for row in rows}
        results.evaluation[name] = read_json(folder / "summary.json")
    return results


def summarise(params: Params, results: Results) -> Summary:
    """The whole summary: plain decoding, every method at the headline budget, every head."""
    heads = {}
    for name, metrics in results.heads.items():
        heads[name] = {key: metrics.get(key) for key in ("auc", "ap", "brier", "ece")}
    # K of transformers' speculation; 0: its own defaults
    blocks = {name: results.times[name]["block"] for name in SPECULATION if name in results.times}
    return {
        "pair": params.pair,
        "task": params.task,
        "seed": params.seed,
        "headline_budget": params.headline_budget,
        "looks": params.calibrate.looks,
        "timed": {
            "n": len(results.seconds("plain")),
            "blocks": blocks,
            **{name: results.benchmark.get(name) for name in ("chosen_on", "failed", "machine")},
        },
        "plain": {"accuracy": results.evaluation[PLAIN]["accuracy"]},
        "baselines": {
            name: {"block": times["block"], "speed": speeds(name, params, results)}
            for name, times in results.benchmark["baselines"].items()
        },
        "methods": {name: method_summary(name, params, results) for name in params.methods},
        "heads": heads,
    }


def method_summary(name: str, params: Params, results: Results) -> Summary:
    """One method at the headline budget. Without a certified setting it ran strictly, and knob and
    bound are null.
    """
    method = params.methods[name]
    evaluation = results.evaluation[name]
    calibration = results.calibration.get(name, {"budgets": {}})
    misled = results.adversarial.get(name)
    scores = (results.scores(name), results.scores(STRICT))
    certificates = {}
    for budget, entry in calibration["budgets"].items():
        certificates[budget] = {key: entry[key] for key in CERTIFIED if key in entry}
    return {
        **{key: evaluation[key] for key in EVALUATED},
        "rule": method.rule,
        "drafter": method.drafter,
        "timed_block": results.times[name]["block"],
        "budget": params.headline_budget,
        "confidence": level(params.calibrate.confidence, params.calibrate.looks),
        "certified_bound": certified_bound(name, params, results),
        "certificates": certificates,
        "accuracy_difference": asdict(accuracy_difference(*scores, level=LEVEL, seed=params.seed)),
        "speed": speeds(name, params, results) if is_as_certified(name, params, results) else {},
        "adversarial": misled and {key: value for key, value in misled.items() if key != "by_kind"},
        "target_forwards": evaluation["statistics"]["forwards"],
    }


def is_as_certified(name: str, params: Params, results: Results) -> bool:
    """Whether the decoder that was timed, with single requests, is the one that is certified. Only
    in float32 answers depend neither on the rows decoded together nor on the engine nor, if they
    are strict, on K.
    """
    calibration = results.calibration.get(name)
    if calibration is None:  # a method without a knob
        return True
    if certified_bound(name, params, results) is None:
        return False
    scope = calibration["proof"]["scope"]
    if scope["target"]["dtype"] == "float32":
        return True
    certified = (scope["batching"]["rows"], scope["engine"], scope["block"])
    timed = (1, results.benchmark["engine"], results.times[name]["block"])
    return bool(certified == timed)


def speeds(name: str, params: Params, results: Results) -> dict[str, Any]:
    """How much less time the answers of a method or baseline take than those of the baselines, per
    answer and per token, and the mean seconds of one.
    """
    drawn: dict[str, Any] = {"level": LEVEL, "seed": params.seed}
    seconds = results.seconds(name)
    ratios = {
        key: ratio_of_sums(results.seconds(baseline), seconds, **drawn)
        for key, baseline in REFERENCES.items()
        if baseline in results.times
    }
    tokens = results.times[name]["tokens"]
    for key, baseline in PER_TOKEN.items():
        rate = (results.seconds(baseline), results.times[baseline]["tokens"])
        ratios[key] = ratio_of_rates(*rate, seconds, tokens, **drawn)
    values: dict[str, Any] = {key: asdict(ratio) for key, ratio in ratios.items()}
    return {**values, "seconds": fmean(seconds) / len(results.times[name]["seconds"][0])}


def certified_bound(name: str, params: Params, results: Results) -> float | None:
    """Upper bound on the loss that calibration proved for the headline budget; 0 for strict
    decoding itself.
    """
    if params.is_reference(name) or name not in results.calibration:
        return 0.0
    entry = at_budget(results.calibration[name]["budgets"], params.headline_budget)
    return entry["bound"] if entry and entry["certified"] else None


def frontier(results: Results) -> list[dict[str, Any]]:
    """Every setting that was tried, on development and calibration prompts: its net loss against
    strict, and the budgets that it is certified for, since all settings in front of the one that a
    budget keeps have passed it too.
    """
    rows = []
    for name, calibration in results.calibration.items():
        knobs = [setting["knob"] for setting in calibration["settings"]]
        last = {}
        for budget in sorted(calibration["budgets"], key=float):
            verdict = calibration["budgets"][budget]
            if verdict["certified"]:
                last[budget] = knobs.index(verdict["knob"])
        shared = {"method": name, "rule": calibration["rule"], "fixed": {}}
        for split, key in (("development", "development"), ("calibration", "settings")):
            for setting in calibration.get(key, []):
                row = {**shared, **setting, "split": split}
                row["certified_budgets"] = [
                    budget
                    for budget in last
                    if split == "calibration" and knobs.index(setting["knob"]) <= last[budget]
                ]
                rows.append({column: row[column] for column in COLUMNS})
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The frontier as a table; settings as JSON, budgets separated by blanks."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fixed = json.dumps(row["fixed"], sort_keys=True)
        writer.writerow(
            {**row, "fixed": fixed, "certified_budgets": " ".join(row["certified_budgets"])}
        )
    return out.getvalue()
