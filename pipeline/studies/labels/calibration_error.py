"""How far the served gate's probabilities are from the truth, on texts of the gate itself.

    python -m pipeline.studies.labels.calibration_error      models/heads -> reports/studies/calibration_error.json
    python -m pipeline.studies.labels.calibration_error --problems 40      the first 40 -> calibration_error-40.json

Problems that no stage has used, `make certify` included, are decoded with the gate at `collect.pilot_risk`. Every
mismatch on these texts is labelled as the training labels are, and P(kept) is compared with the labels in 15 bins of
equal mass. The number of problems is `certify.ece_problems`. Finished parts wait in .scratch, so the next start goes on
behind them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import bootstrap
from torch import Tensor

from gistgate.certificates.tango import Array
from gistgate.files import load_tensors
from gistgate.integrations.lm_eval.prompts import Prompt
from pipeline.certification.further import new_prompts
from pipeline.common.code import write_result
from pipeline.common.decoders import make_decoder, request_of
from pipeline.common.entry import run
from pipeline.common.gates import gate_folder, load_gate
from pipeline.common.resume import Shards, sources
from pipeline.heads.metrics import expected_calibration_error, probability_metrics, rank_metrics, reliability
from pipeline.labels.collecting import gated_texts, opinion
from pipeline.labels.cost import Cost
from pipeline.labels.labelling import Labeller
from pipeline.labels.mismatches import MismatchRecorder
from pipeline.labels.tables import Table, concatenated, picked
from pipeline.labels.texts import Texts
from pipeline.labels.tools import tools_of
from pipeline.pairs.pair import Pair, load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params
from pipeline.studies.certify.certify import calibration_prompts
from pipeline.studies.certify.params import read_certify_params
from pipeline.tasks.loading import load_task, task_parts

OUTPUT = Path("reports/studies/calibration_error.json")
SHARD = 20
"""Problems decoded and labelled together; an interruption loses at most one shard."""
RESAMPLES = 1000
UNSURE = 0.9
"""P(kept) below which rows are measured apart; nearly all rows are above it and fill most bins of equal mass."""


def main(
    problems: Annotated[int | None, typer.Option(help="Problems to measure on, else all new ones.")] = None,
) -> None:
    params = read_params()
    torch.set_grad_enabled(False)
    report = measured(labelled(params, problems))
    write_result(
        OUTPUT if problems is None else OUTPUT.with_stem(f"calibration_error-{problems}"),
        report,
        "pipeline.studies.labels.calibration_error",
    )
    low, high = report["ece_interval"]
    print(f"ECE {report['ece']:.4f} ({low:.4f} to {high:.4f}) on {report['n']} rows of {report['problems']} problems")


def labelled(params: Params, problems: int | None = None) -> Table:
    """Labels of the new problems (of the first `problems`), shard by shard."""
    pair, task, head = load_pair(params), load_task(params), params.train.headline_head
    prompts = new_prompts(params, read_certify_params().ece_problems, "labels", beside=calibration_prompts(params))
    shards = Shards(
        "study-calibration", *task_parts(params), params.seed, params.decoding.deciding, params.label,
        params.collect.pilot_risk, gate_folder(head), [prompt["ids"] for prompt in prompts], *pair_files(params.pair),
        *sources("pipeline.studies.labels.calibration_error"),
    )  # fmt: skip
    strict = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    starts = range(0, len(prompts[:problems]), SHARD)
    for index, start in enumerate(starts):

        def produce(start: int = start) -> dict[str, Tensor]:
            part = prompts[start : start + SHARD]
            request = request_of(part, pair)
            own = strict.generate([prompt["ids"] for prompt in part], **request)
            table, texts = collected(params, pair, part)
            references = {number: answer.ids for number, answer in enumerate(own)}
            tools = tools_of(params, pair, task, part, references, "speculative", Cost())
            done = Labeller(tools, part, params.label, params.seed).label(table, texts)
            return {**done, "problem": done["problem"] + start}

        shards.make(index, produce, {})
        print(f"{index + 1} of {len(starts)} parts", flush=True)
    table = concatenated([load_tensors(shards.path(index)) for index in range(len(starts))])
    return table if problems is None else picked(table, table["problem"] < problems)


def collected(params: Params, pair: Pair, prompts: list[Prompt]) -> tuple[Table, Texts]:
    """Every mismatch on the gate's own texts, with the gate's P(kept) beside it, and these texts."""
    gate = load_gate(params.train.headline_head, pair)
    recorder = MismatchRecorder(params.decoding.block, more=opinion)
    table, texts = gated_texts(params, pair, gate, prompts, range(len(prompts)), recorder)
    return table, {(text.problem, text.policy): text for text in texts}


def measured(table: Table) -> dict[str, Any]:
    """Calibration error with its interval over problems, the reliability bins, and the same of unsure rows."""
    kept, probability = table["kept"].double().numpy(), table["probability"].double().numpy()
    low = probability < UNSURE
    return {
        "n": len(kept),
        "problems": int(table["problem"].unique().numel()),
        "kept": float(kept.mean()),
        **rank_metrics(kept, probability),
        **probability_metrics(kept, probability),
        "ece_interval": ece_interval(kept, probability, table["problem"].numpy()),
        "reliability": reliability(kept, probability),
        "unsure": {"below": UNSURE, "n": int(low.sum()), **of_unsure(kept[low], probability[low])},
    }


def of_unsure(kept: Array, probability: Array) -> dict[str, Any]:
    """Mean prediction of the gate, mean label and calibration error of these rows; None without rows."""
    if not len(kept):
        return {"predicted": None, "observed": None, "ece": None}
    bins = reliability(kept, probability)
    return {
        "predicted": float(probability.mean()),
        "observed": float(kept.mean()),
        "ece": expected_calibration_error(bins),
    }


def ece_interval(kept: Array, probability: Array, problem: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of the calibration error, drawn by problem; resampling widens it upwards a little."""
    rows = [np.flatnonzero(problem == one) for one in np.unique(problem)]

    def error(problems: np.ndarray) -> float:
        drawn = np.concatenate([rows[at] for at in problems])
        return expected_calibration_error(reliability(kept[drawn], probability[drawn]))

    found = bootstrap(
        (np.arange(len(rows)),), error, vectorized=False, method="percentile", n_resamples=RESAMPLES, rng=seed
    )
    return [float(end) for end in found.confidence_interval]


if __name__ == "__main__":
    run(main)
