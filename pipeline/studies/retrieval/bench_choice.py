"""What the drafter `choice` should expect at first: its prior and how much that counts, on development prompts.

    python -m pipeline.studies.retrieval.bench_choice [--prompts 24] [--priors 0.5,0.65,0.8,0.9] [--weights 4,16,64]

Runs in the folder of a finished run: strict decoding with every prior and weight, and its options alone, one row at a
time, on the eager engine, at the costs of pipeline/studies/retrieval/params.yaml. `choices` says how often each option
was taken.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.bench import RESULTS, ratios, save, side_by_side
from benchmarks.counts import numbers
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.forward.context import num_ids
from gistgate.request.statistics import total
from gistgate.rules import make_rule
from pipeline.common.decoders import make_drafter, read_prompts
from pipeline.common.entry import run
from pipeline.speed.clock import Contender, ours
from pipeline.studies.retrieval.drafters import choice
from pipeline.studies.retrieval.params import read_retrieval_params

OPTIONS = ("corpus", "lookup", "model")
"""What is chosen among, in the order of their places in `choices`."""


def main(
    prompts: int = 24,
    priors: str = "0.5,0.65,0.8,0.9",
    weights: str = "4,16,64",
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    tried = [(prior, weight) for prior in numbers(priors, "--priors") for weight in numbers(weights, "--weights")]
    workload = replace(Workload.load(0), prompts=read_prompts("development")[:prompts])
    params = read_retrieval_params().choice
    drafters = {name: make_drafter(workload.pair, name) for name in ("none", *OPTIONS)}
    drafters |= {
        f"prior {prior:g}, weight {weight:g}": choice(workload.pair, replace(params, prior=prior, weight=weight))
        for prior, weight in tried
    }
    block = workload.params.decoding.block
    decoders = {
        name: Decoder(
            workload.pair.target,
            drafter,
            make_rule("exact"),
            block if drafter else 0,
            tokenizer=workload.pair.tokenizer,
            vocabulary=num_ids(workload.pair.tokenizer),
        )
        for name, drafter in drafters.items()
    }
    field = [Contender(name, ours(decoder, workload.request), decoder.block) for name, decoder in decoders.items()]
    arms = ratios(side_by_side(field, [[ids] for ids in workload.ids]), ("none", "corpus"))
    for name in arms:
        answers = [decoders[name].generate([ids], **workload.request)[0] for ids in workload.ids]
        if counts := total([answer.statistics for answer in answers]).extra:
            arms[name]["choices"] = counts
            print(name, counts, flush=True)
    save("choice", {"pair": workload.pair.name, "options": OPTIONS, "arms": arms}, results)


if __name__ == "__main__":
    run(main, kept=False)
