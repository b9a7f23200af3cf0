"""Label every mismatch: force the draft token, let the target go on, and ask the task whether the meaning was kept.

    python -m pipeline.label strict | gated

Reads data/mismatches/<policy>, writes data/labels/<policy>/rows-*.safetensors and summary.json beside them. The first
rollout of a mismatch is greedy; where it says harm, several sampled ones after the draft token and after the target's
own tell how sure that is. An interruption costs one shard: finished ones wait in .scratch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tqdm import tqdm

from gistgate.files import read_json_lines, write_json
from pipeline.decode import make_decoder, read_prompts, request_of
from pipeline.labelling import Labeller, outcome_rates, references_of
from pipeline.pairs import load_pair
from pipeline.params import MethodParams, read_params
from pipeline.scratch import Shards, read_shards, sources
from pipeline.stage import item, run
from pipeline.tasks import load_task
from pipeline.collect import SOURCES
from pipeline.trunks import unpack
from pipeline.watch import concatenated

REFERENCE = Path("data/reference/train.jsonl")
MODULES = (*SOURCES, "pipeline.label", "pipeline.labelling", "pipeline.rollouts")


def main() -> None:
    policy, params = item(), read_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    source, output = Path("data/mismatches") / policy, Path("data/labels") / policy
    settings = [policy, params.pair, params.seed, params.decoding, params.label]
    shards = Shards(f"label-{policy}", *settings, source, REFERENCE, *pair.files, *sources(*MODULES))
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    references = references_of(read_json_lines(REFERENCE))
    labeller = Labeller(decoder, task, pair.tokenizer, prompts, params, request_of(prompts, pair), references)
    tables = read_shards(source)
    for index, table in enumerate(tqdm(tables, desc=f"label, {policy}", unit="shard")):
        shards.make(index, lambda table=table: labeller.label(*unpack(table)), {"policy": policy})
    shards.publish(len(tables), output)
    write_json(output / "summary.json", outcome_rates(concatenated(read_shards(output))))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    run(main)
