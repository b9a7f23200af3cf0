"""Make the pair ready: `python -m pipeline.stages.pair` trains the embedded one from scratch
(data/world and models/embedded), or checks that another one fits together, and writes
models/pair.json: who they are, and for the embedded pair how well they answer and what strict
verification gives.
"""

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytorch_lightning as pl
from transformers.utils.logging import disable_progress_bar

from gistgate.core.batches import decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, read_json_lines, write_atomic, write_json, write_text
from gistgate.core.request import total
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from pipeline import tracking
from pipeline.pair.pair import check_pair, load_pair, read_pair
from pipeline.pair.training import accuracy, train_model
from pipeline.pair.world import documents, prompt_text, train_tokenizer, write_task_files
from pipeline.params import PairTrainingParams, Params, build, read_params
from pipeline.paths import EMBEDDED, PAIR_REPORT, PAIRS, WORLD
from pipeline.run import run, side_by_side

ROLES = ("target", "draft")
BLOCK = 8  # K of the strict decoding that is reported, in tokens
SHOWN = 10  # steps of a point of the tracked curves
disable_progress_bar()  # of single files


def main() -> None:
    params = read_params()
    for name in params.methods:  # what is wrong with one is said now, not after hours
        params.method(name)
    pl.seed_everything(params.seed, verbose=False)
    write_task_files(params.world, params.seed, WORLD)
    training = read_pair(params.pair).training
    if training is not None:
        block = replaced(params.pair_training, training, f"{PAIRS / params.pair}.yaml")
        train_embedded(replace(params, pair_training=block))
        return
    report = check_pair(params.pair)
    for role in ROLES:
        shutil.rmtree(EMBEDDED / role, ignore_errors=True)
    note = f"The pair {params.pair} is in use; nothing was trained.\n"
    write_text(EMBEDDED / "README.md", note)  # the stage owes DVC the folder
    write_json(PAIR_REPORT, report)


def replaced(block: PairTrainingParams, changes: dict[str, Any], file: str) -> PairTrainingParams:
    """The block with what the pair's file says instead, key by key."""
    values = asdict(block)
    for key, change in changes.items():
        if key in ROLES:
            change = {**values[key], **change}
        values[key] = change
    return build(PairTrainingParams, values, "training", file)


def train_embedded(params: Params) -> None:
    """Train tokenizer, target and draft, save them and write what they can do."""
    curves = side_by_side(trainer, params, ROLES, params.decoding.workers, "train", "model")
    report = {**measure(params), "weights": fingerprint(EMBEDDED)}
    write_json(PAIR_REPORT, report)
    track(params, report, dict(zip(ROLES, curves)))
    least = params.pair_training.min_target_accuracy
    accuracy = report["target"]["accuracy"]
    if accuracy is not None and accuracy < least:
        raise UserError(
            f"The target answers {accuracy:.1%}, fewer than pair_training.min_target_accuracy"
            f" ({least:.1%}). Raise pair_training.target.steps or lower the demand."
        )


def trainer(params: Params) -> Callable[[str], list[float]]:
    """Trains and saves one model after the other, and returns its losses."""
    tokenizer = train_tokenizer()

    def work(role: str) -> list[float]:
        size = getattr(params.pair_training, role)
        corpus = documents(params.world, params.seed, "corpus", size.documents, dialect=role)
        seed = 2 * params.seed + ROLES.index(role)
        model, losses = train_model(role, size, params.pair_training, tokenizer, corpus, seed)
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id

        def write(part: Path) -> None:
            model.float().save_pretrained(part)
            tokenizer.save_pretrained(part)

        write_atomic(EMBEDDED / role, write)
        return losses

    return work


def track(
    params: Params,
    report: dict[str, Any],
    losses: dict[str, list[float]],
) -> None:
    """A run with the settings of the training, what both models can do, and their losses: means of
    so many steps.
    """
    with tracking.run(params, "pair", kind="pair") as record:
        record.log_params({"world": asdict(params.world), **asdict(params.pair_training)})
        record.log_metrics({role: report[role] for role in ROLES})
        for role, values in losses.items():
            means = [fmean(values[start : start + SHOWN]) for start in range(0, len(values), SHOWN)]
            record.log_curve(f"{role}.loss", means, SHOWN)
        record.log_data(WORLD, "training")


def measure(params: Params) -> dict[str, Any]:
    """Accuracy of both models and strict tau, on the last problems of the test file, which no claim
    is made on.
    """
    pair = load_pair(params, trained=False)
    tokenizer = pair.tokenizer
    count = params.pair_training.check_problems
    problems = read_json_lines(WORLD / "test.jsonl")[-count:] if count else []
    report: dict[str, Any] = {
        **check_pair(params.pair),
        "seed": params.seed,
        "problems": len(problems),
        "block": BLOCK,
        "strict_mean_accepted_length": None,
    }
    drafter = ModelDrafter(pair.draft_model)
    decoders = {
        "target": Decoder(pair.target, drafter, Exact(), BLOCK, tokenizer=tokenizer),
        "draft": Decoder(pair.draft_model, None, Exact(), 0, tokenizer=tokenizer),
    }
    prompts = [tokenizer(prompt_text(problem["question"])).input_ids for problem in problems]
    solutions = [problem["answer"] for problem in problems]
    ends = [tokenizer.eos_token_id]
    for role, decoder in decoders.items():
        report[role] |= {"parameters": decoder.target.num_parameters(), "accuracy": None}
        print(f"{role}: {report[role]['parameters']:,} parameters")
        if not problems:
            continue
        answers = decode_all(decoder, prompts, max_new_tokens=160, eos_ids=ends, batch_size=100)
        share = accuracy(tokenizer, [answer.ids for answer in answers], solutions)
        report[role]["accuracy"] = share
        print(f"{role}: answers {share:.1%} of {len(problems)} problems greedily")
        if role == "target":
            tau = total([answer.statistics for answer in answers]).mean_accepted_length
            report["strict_mean_accepted_length"] = tau
            print(f"strict verification: {tau:.2f} tokens per round at K = {BLOCK}")
    return report


if __name__ == "__main__":
    run(main)
