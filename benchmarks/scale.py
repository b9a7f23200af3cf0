"""What labels cost on large targets: rates that a finished run has measured, and what follows from them by a formula.

    python -m benchmarks.scale [--labels 9000] [--answer 250] [--results FOLDER]

In the folder of a finished run. Writes scale.json, in which `measured` holds what the run has counted and timed, and
`extrapolated` what nobody has measured. docs/scale.md explains the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.bench import RESULTS
from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines
from gistgate.gates.features import LOOK_AHEAD, SCALARS
from pipeline.common.code import running, write_result
from pipeline.common.entry import run
from pipeline.labels.cost import REPORTS
from pipeline.labels.schema import FEATURE_FOLDER, LABEL_FOLDER, MISMATCH_FOLDER, REFERENCE
from pipeline.params import read_params
from pipeline.speed.clock import machine

BANDWIDTH, OPERATIONS = 3.35e12, 989e12
"""Bytes and dense bfloat16 operations per second of an H100 SXM, from its data sheet."""
REACHED = 0.1
"""Share of the limit of a GPU that the slower of two extrapolations assumes."""


@dataclass(frozen=True)
class Target:
    """A large target in bfloat16."""

    parameters: float
    width: int
    """Numbers of a hidden state."""


TARGETS = {"7B": Target(7.6e9, 3584), "70B": Target(70.6e9, 8192)}
"""Shapes of published families."""


def main(labels: int = 9000, answer: float = 250.0, results: Path = RESULTS) -> None:
    """Write the costs of so many labels on answers of so many tokens."""
    found = measured()
    targets = {name: extrapolated(found, target, labels, answer) for name, target in TARGETS.items()}
    for name, one in targets.items():
        print(f"{name}: {one['gpu_hours']:.2f} GPU hours at the limit, {one['storage_gb']:.2f} GB of features")
    payload = {"measured": found, "extrapolated": {"labels": labels, "answer_tokens": answer, **targets}}
    write_result(results / "scale.json", {**payload, "machine": machine()}, running())


def measured() -> dict[str, float]:
    """What the run in this folder has counted and timed, all passes together, with the rows that it rolls out at once.

    Raises:
        UserError: there is no such run, or its rollouts were not timed.
    """
    passes = [read_json(path) for path in sorted(REPORTS.glob("*.json"))]
    rates = [
        one["greedy_rollouts"]["tokens_per_second"]["plain"]
        for one in passes
        if "tokens_per_second" in (one["greedy_rollouts"] or {})
    ]
    if not rates or not REFERENCE.exists():
        raise UserError(f"{REPORTS} holds no timed labels. Run `make repro` here, with label.way at auto.")
    labels, seconds = (sum(one[name] for one in passes) for name in ("labels", "seconds"))
    tokens, rate = sum(one["rollout_tokens"] for one in passes), fmean(rates)
    features = FEATURE_FOLDER / "strict", FEATURE_FOLDER / "gated"
    return {
        "labels": labels,
        "labels_per_hour": 3600 * labels / seconds,
        "rollout_tokens_per_label": tokens / labels,
        "tokens_read_per_label": sum(one["target_tokens"] + one["draft_tokens"] for one in passes) / labels,
        "rows": read_params().label.batch_size,
        "plain_tokens_per_second": rate,
        "overhead": seconds * rate / tokens,
        "answer_tokens": fmean(len(row["ids"]) for row in read_json_lines(REFERENCE)),
        "feature_bytes_per_label": size_of(*features) / labels,
        "other_bytes_per_label": size_of(LABEL_FOLDER, MISMATCH_FOLDER) / labels,
    }


def extrapolated(found: dict[str, float], target: Target, labels: int, answer: float) -> dict[str, float]:
    """GPU hours and storage of a target. Nothing of this was measured."""
    rate = fastest(target, found["rows"])
    tokens = labels * found["rollout_tokens_per_label"] * answer / found["answer_tokens"]
    hours = tokens * found["overhead"] / (3600 * rate)
    return {
        "width": target.width,
        "weights_gb": 2 * target.parameters / 1e9,
        "tokens_per_second": rate,
        "rollout_tokens_millions": tokens / 1e6,
        "gpu_hours": hours,
        "gpu_hours_slower": hours / REACHED,
        "storage_gb": labels * (feature_bytes(target.width) + found["other_bytes_per_label"]) / 1e9,
    }


def fastest(target: Target, rows: float) -> float:
    """Tokens per second and GPU that plain decoding of so many rows cannot exceed: a step reads all weights once."""
    step = max(2 * target.parameters / BANDWIDTH, 2 * target.parameters * rows / OPERATIONS)
    return rows / step


def feature_bytes(width: int) -> int:
    """Bytes of the default features of a label: two states, the scalars and the look-ahead, in float32."""
    return 4 * (2 * width + len(SCALARS) + 3 * LOOK_AHEAD)


def size_of(*folders: Path) -> int:
    """Bytes of all shards below some folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*.safetensors"))


if __name__ == "__main__":
    run(main, kept=False)
