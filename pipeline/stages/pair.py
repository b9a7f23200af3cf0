"""Make the pair ready: `python -m pipeline.stages.pair` trains the embedded one from scratch
(data/world and models/embedded), or checks that another one fits together, and writes
models/pair.json: who they are, and for the embedded pair how well they answer and what strict
verification gives."""

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
    else:
        report = check_pair(params.pair)
        # The stage owes DVC the folder.
        write_text(
            EMBEDDED / "README.md", f"The pair {params.pair} is in use; nothing was trained.\n"
        )
        for role in ROLES:
            shutil.rmtree(EMBEDDED / role, ignore_errors=True)
        write_json(PAIR_REPORT, report)


def replaced(block: PairTrainingParams, changes: dict[str, Any], file: str) -> PairTrainingParams:
    """The block with what the pair's file says instead, key by key."""
    known = asdict(block)
    inner = {
        key: {**known[key], **value}
        for key, value in changes.items()
        if isinstance(known.get(key), dict)
    }
    return build(PairTrainingParams, {**known, **changes, **inner}, "training", file)


def train_embedded(params: Params) -> None:
    """Train tokenizer, target and draft, save them and write what they can do."""
    done = side_by_side(trainer, params, ROLES, params.decoding.workers, "train", "model")
    losses = dict(zip(ROLES, done, strict=True))
    report = {**measure(params), "weights": fingerprint(EMBEDDED)}
    write_json(PAIR_REPORT, report)
    track(params, report, losses)
    wanted = params.pair_training.min_target_accuracy
    if report["target"]["accuracy"] is not None and report["target"]["accuracy"] < wanted:
        raise UserError(
            f"The target answers {report['target']['accuracy']:.1%}, fewer than"
            f" pair_training.min_target_accuracy ({wanted:.1%}). Raise pair_training.target.steps"
            " or lower the demand."
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


def track(params: Params, report: dict[str, Any], losses: dict[str, list[float]]) -> None:
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


def measure(params: Params, block: int = 8) -> dict[str, Any]:
    """Accuracy of both models and strict tau, on the last problems of the test file, which no claim
    is made on.
    """
    pair = load_pair(params)
    count = params.pair_training.check_problems
    problems = read_json_lines(WORLD / "test.jsonl")[-count:] if count else []
    prompts = [pair.tokenizer(prompt_text(problem["question"])).input_ids for problem in problems]
    strict = Decoder(
        pair.target, ModelDrafter(pair.draft_model), Exact(), block, tokenizer=pair.tokenizer
    )
    plain = Decoder(pair.draft_model, None, Exact(), 0, tokenizer=pair.tokenizer)
    request: Any = {
        "max_new_tokens": 160,
        "eos_ids": [pair.tokenizer.eos_token_id],
        "batch_size": 100,
    }
    written = {
        role: decode_all(one, prompts, **request)
        for role, one in zip(ROLES, (strict, plain), strict=True)
    }
    report: dict[str, Any] = {
        **check_pair(params.pair),
        "seed": params.seed,
        "problems": len(problems),
        "block": block,
        "strict_mean_accepted_length": None,
    }
    answers = [problem["answer"] for problem in problems]
    for role in ROLES:
        report[role]["parameters"] = getattr(pair, role).num_parameters()
        ids = [answer.ids for answer in written[role]]
        report[role]["accuracy"] = share = (
            accuracy(pair.tokenizer, ids, answers) if problems else None
        )
        shown = (
            "not measured"
            if share is None
            else f"answers {share:.1%} of {len(problems)} problems greedily"
        )
        print(f"{role}: {report[role]['parameters']:,} parameters, {shown}")
    if problems:
        tau = total([answer.statistics for answer in written["target"]]).mean_accepted_length
        report["strict_mean_accepted_length"] = tau
        print(f"strict verification: {tau:.2f} tokens per round at K = {block}")
    return report


if __name__ == "__main__":
    run(main)
