"""Label every mismatch: force the draft token, let the target go on, and ask the task whether the meaning was kept.

    python -m pipeline.stages.label strict | gated

Reads data/mismatches/<policy>, writes data/labels/<policy>/rows-*.safetensors and summary.json beside them. The first
rollout of a mismatch is greedy; where it says harm, several sampled ones after the draft token and after the target's
own tell how sure that is. An interruption costs one shard: finished ones wait in .scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from gistgate.files import read_json_lines, write_json
from gistgate.integrations.lm_eval.task import load_task
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.pool import side_by_side
from pipeline.common.resume import Shards, num_shards, read_shards, sources
from pipeline.labels.labelling import Labeller, outcome_rates, references_of
from pipeline.labels.mismatches import concatenated
from pipeline.labels.texts import unpack
from pipeline.pairs.pair import load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params
from pipeline.stages.collect import MISMATCHES, REFERENCE


def main(policy: str) -> None:
    params = read_params()
    output, shards = Path("data/labels") / policy, shards_of(params, policy)
    count = num_shards(MISMATCHES / policy)
    side_by_side(labelling, (params, policy), range(count), params.decoding.workers, f"label, {policy}", "shard")
    shards.publish(count, output)
    write_json(output / "summary.json", outcome_rates(concatenated(read_shards(output))))


def shards_of(params: Params, policy: str) -> Shards:
    """Where finished shards wait."""
    files = [MISMATCHES / policy, REFERENCE, *pair_files(params.pair), *sources("pipeline.stages.label")]
    return Shards(f"label-{policy}", policy, params.pair, params.seed, params.decoding, params.label, *files)


def labelling(settings: tuple[Params, str]) -> Callable[[int], None]:
    """Labels one shard after another."""
    params, policy = settings
    torch.set_grad_enabled(False)
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    references = references_of(read_json_lines(REFERENCE))
    labeller = Labeller(decoder, task, pair.tokenizer, prompts, params, request_of(prompts, pair), references)
    shards, tables = shards_of(params, policy), read_shards(MISMATCHES / policy)

    def work(index: int) -> None:
        shards.make(index, lambda: labeller.label(*unpack(tables[index])), {"policy": policy})

    return work


if __name__ == "__main__":
    run(main)
