"""How far off is a shadow run? Estimate every method's tau from strict texts and compare it with the real one.

    python -m pipeline.studies.guards.shadow          all calibrated methods on all test prompts -> reports/shadow.json
    python -m pipeline.studies.guards.shadow 300      the first 300 test prompts

Reads the settings that calibration certified and what `evaluate` measured; both speak of the same prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from gistgate.block import Acceptance, Block, Reason
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.integrations.lm_eval.task import Task
from gistgate.observing.shadow import shadow, would_be
from gistgate.request.statistics import Statistics, total
from pipeline.common.code import write_result
from pipeline.common.decoders import make_decoder, read_prompts, run_split
from pipeline.common.entry import run
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import Operating, evaluation_folder, operating_point
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.report.paired_statistics import ratio_of_sums
from pipeline.tasks.loading import load_task

REPORT = Path("reports/shadow.json")
COMMONEST = 10
"""Mismatched pairs that the report names."""


def main(limit: Annotated[int | None, typer.Argument(min=1, help="Test prompts, else all.")] = None) -> None:
    params = read_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("test")[:limit]
    rows = [
        shadowed(params, point, pair, task, prompts)
        for name in params.methods
        if (point := operating_point(params, name)).knob is not None
    ]
    write_result(REPORT, {"prompts": len(prompts), "methods": rows}, "pipeline.studies.guards.shadow")
    print(table(rows))


def shadowed(
    params: Params, point: Operating, pair: Pair, task: Task, prompts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """One method: the estimate, the real value on the same prompts, and which differences it would have let stand."""
    gate = load_gate(point.head, pair) if point.head else None
    pairs = Pairs()
    decoder = shadow(make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate), pairs)
    outcomes = run_split(decoder, task, pair, prompts, params, f"shadow {point.method}")
    found = would_be(total([outcome.statistics for outcome in outcomes]))
    real = real_statistics(params, point.method, [prompt["id"] for prompt in prompts])
    estimates = [outcome.statistics.extra for outcome in outcomes]
    return {
        "method": point.method,
        "knob": point.knob,
        **asdict(found),
        "real_tau": total(real).mean_accepted_length,
        "real_loose_per_100": total(real).loose_per_100,
        "estimate_over_real": off(estimates, real),
        "pairs": pairs.commonest(pair),
    }


def real_statistics(params: Params, method: str, ids: Sequence[str]) -> list[Statistics]:
    """What `evaluate` counted on these prompts.

    Raises:
        UserError: it did not decode them.
    """
    path = evaluation_folder(params, method) / "samples.jsonl"
    known = {row["id"]: Statistics.from_dict({**row["statistics"], "seconds": {}}) for row in read_json_lines(path)}
    if missing := [name for name in ids if name not in known]:
        raise UserError(f"{path} lacks the prompt {missing[0]}. Run the stage `evaluate` again.")
    return [known[name] for name in ids]


def off(estimates: Sequence[dict[str, float]], real: Sequence[Statistics]) -> dict[str, float]:
    """Estimated over real tau with its bootstrap interval over prompts: above 1 promises too much.

    Every prompt weighs by its share of tokens per forward, so the ratio is one of means over prompts.
    """
    promised = np.array([row["shadow_tokens"] / row["shadow_judged"] for row in estimates])
    return ratio_of_sums(promised, [one.mean_accepted_length for one in real]).as_dict()


class Pairs:
    """Counts (the target's token, the draft's token) where a rule would have let the draft's stand."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()

    def __call__(self, block: Block, would: Acceptance) -> None:
        places = torch.arange(block.draft_ids.shape[1], device=would.length.device) < would.length[:, None]
        loose = places & (would.reasons == int(Reason.LOOSE))
        self.seen.update(zip(block.top_ids[:, :-1][loose].tolist(), block.draft_ids[loose].tolist(), strict=True))

    def commonest(self, pair: Pair) -> list[dict[str, Any]]:
        """The pairs that stand most often, as text."""
        return [
            {"target": pair.tokenizer.decode([a]), "draft": pair.tokenizer.decode([b]), "times": times}
            for (a, b), times in self.seen.most_common(COMMONEST)
        ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Estimates beside real values, one line per method."""
    lines = [f"{'method':12}{'strict':>8}{'first':>8}{'off':>8}{'shadow':>8}{'off':>8}{'real':>8}"]
    for row in rows:
        real = row["real_tau"]
        both = "".join(f"{row[name]:8.2f}{100 * (row[name] / real - 1):+7.1f}%" for name in ("first_step", "tau"))
        lines.append(f"{row['method']:12}{row['strict']:8.2f}{both}{real:8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
