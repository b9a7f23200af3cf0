"""What the stages found, read once and checked: the raw material of summary, figures and page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines
from pipeline.common.operating_point import calibration_file, evaluation_folder
from pipeline.params import Params

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
