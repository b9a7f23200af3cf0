"""Train the draft of a pair whose file says `of`: the target answers the prompts of the split
`draft`, on which no gate learns, and a model that is cut to a few layers learns these answers.
`python -m pipeline.stages.draft` writes models/draft, an ordinary folder of transformers with the
tokens that the draft may propose beside it, and models/draft.json: what it cost, and how often the
draft agrees with the target. For other pairs it trains nothing and says so.
"""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.files import fingerprint, load_tensors, write_atomic, write_json, write_text
from gistgate.core.identity import weights_fingerprint
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.choose import NONE, Choice
from gistgate.models.lighter import Subset
from pipeline import tracking
from pipeline.decode import decode_split, make_decoder
from pipeline.pair.pair import (
    DraftSource,
    Pair,
    PairSource,
    load_model,
    load_tokenizer,
    read_pair,
)
from pipeline.pair.student import Proposals, Student, agreement, cut, teach
from pipeline.pair.training import Example
from pipeline.params import Params, read_params
from pipeline.paths import DRAFT, DRAFT_REPORT, VOCABULARY, prompts_of
from pipeline.run import Shards, run
from pipeline.task import read_prompts

CHECKED = 10  # one answer in so many is not trained on: the agreement is measured on it
FEWEST = 2 * CHECKED  # answers
PLAIN = Choice("exact", {}, 0, NONE)
Table = dict[str, Tensor]  # answers of a shard: their ids one behind the other, and lengths


def main() -> None:
    params = read_params()
    source = read_pair(params.pair)
    if source.draft is None or source.draft.of is None:
        shutil.rmtree(DRAFT, ignore_errors=True)
        write_text(DRAFT / "README.md", f"The pair {params.pair} trains no draft.\n")
        write_json(DRAFT_REPORT, {})
        return
    num = params.prompts.draft
    if num < FEWEST:
        raise UserError(
            f"The pair trains a draft, and 'prompts.draft' in params.yaml is {num}. Set it to 1000,"
            f" or at least to {FEWEST}."
        )
    count = math.ceil(num / params.label.batch_size)
    target = source.target
    files = [prompts_of("draft")]
    if target.is_folder:
        files.append(Path(target.model) / (target.gguf_file or ""))
    shards = Shards("draft", params.label.batch_size, target, *files)
    job = (answering, params, params.decoding.workers)
    if shards.fill(count, *job, "answers of the target", {}):
        tables = [load_tensors(shards.path(index)) for index in range(count)]
        # The answers stay: another training asks the target nothing.
        passes = shards.folder / fingerprint(source.draft, params.seed)
        train(params, source, source.draft, tables, passes)
        shutil.rmtree(passes)


def answering(params: Params) -> Callable[[int], Table]:
    """Lets the target answer one shard of prompts after another, without a draft."""
    source = read_pair(params.pair)
    pair = Pair(load_model(source.target), None, load_tokenizer(source), params.pair)
    decoder = make_decoder(pair, PLAIN)
    prompts = read_prompts("draft")
    size = params.label.batch_size

    def produce(index: int) -> Table:
        begin = time.perf_counter()
        part = prompts[index * size : (index + 1) * size]
        title = f"shard {index + 1}"
        answers = decode_split(decoder, pair, part, params, title, batch_size=size)
        return {
            "ids": torch.tensor([token for answer in answers for token in answer.ids]),
            "lengths": torch.tensor([len(answer.ids) for answer in answers]),
            "seconds": torch.tensor(time.perf_counter() - begin),
        }

    return produce


def train(
    params: Params, source: PairSource, draft: DraftSource, tables: list[Table], passes: Path
) -> None:
    """Cut the model, train it on the answers in `tables`, and write what the stage owes; finished
    passes wait in a folder.
    """
    pl.seed_everything(params.seed, verbose=False)
    examples = examples_of(tables)
    held = examples[::CHECKED]
    lessons = [example for place, example in enumerate(examples) if place % CHECKED]
    tokenizer = load_tokenizer(source)
    model = load_model(source.origin)
    dtype = model.dtype
    agrees = {"whole": agreement(model, Proposals(model), held)}
    layers = cut(model, draft.layers, lessons)
    subset = None
    if draft.vocabulary:
        texts = [ids[start:] for ids, start in lessons]
        ends = eos_ids(model, tokenizer)
        subset = Subset.count(texts, draft.vocabulary, tokenizer, model, ends)
    head = Proposals(model, subset.ids if subset else None)
    agrees["cut"] = agreement(model, head, held)
    student = Student(model, head, lessons, draft, params.seed)
    teach(student, passes)
    agrees["trained"] = agreement(model, head, held)
    write_draft(model.to(dtype), tokenizer, subset)
    report = {
        "of": source.origin.model,
        "layers": layers,
        "coverage": subset and subset.coverage,
        "answers": {
            "trained": len(lessons),
            "held_out": len(held),
            "tokens": sum(len(ids) - start for ids, start in examples),
        },
        "agreement": agrees,
        "loss": fmean(student.losses[-student.steps :]),
        "seconds": {
            "answers": sum(float(table["seconds"]) for table in tables),
            "training": student.seconds,
        },
        "fingerprint": weights_fingerprint(model),
    }
    write_json(DRAFT_REPORT, report)
    with tracking.run(params, "draft", kind="draft") as record:
        record.log_params(asdict(draft))
        record.log_metrics(report)
        record.log_curve("loss", student.losses)
        record.log_data(prompts_of("draft"), "training")
    print(
        f"{DRAFT}: layers {', '.join(map(str, layers))}, trained on {len(lessons)} answers. On"
        f" {len(held)} others its first choice is the target's token in {agrees['trained']:.1%} of"
        f" the places, before the training in {agrees['cut']:.1%}, that of the whole model in"
        f" {agrees['whole']:.1%}."
    )


def write_draft(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, subset: Subset | None
) -> None:
    """Write the folder of the draft, whole or not at all."""

    def write(part: Path) -> None:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        if subset:
            bound = replace(subset, draft=weights_fingerprint(model))
            bound.save(part / VOCABULARY.name)

    write_atomic(DRAFT, write)


def examples_of(tables: list[Table]) -> list[Example]:
    """The prompts of the split with the target's answers behind them."""
    prompts = (prompt["ids"] for prompt in read_prompts("draft"))
    examples = []
    for table in tables:
        for answer in table["ids"].split(table["lengths"].tolist()):
            prompt = next(prompts)
            examples.append(([*prompt, *answer.tolist()], len(prompt)))
    return examples


if __name__ == "__main__":
    run(main)
