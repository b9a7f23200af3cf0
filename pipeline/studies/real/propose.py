"""Measure which K suits the pair on this machine, for strict decoding, one row at a time.

python -m pipeline.studies.real.propose [--params FILE]      data/prompts -> block.json, in the copy of the study

The K of the fastest strict decoding becomes decoding.strict_block. A loose rule keeps more than strict verification and
less than everything, so that its speed lies between the two, and decoding.block is the K with the largest product of
both. K is part of a certificate; the sweep of `benchmarks.block` shows what another one would do.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from gistgate.drafters.costs import Costs
from gistgate.files import write_json
from gistgate.observing.outlook import Outlook, measure, outlook, strict_run
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, read_params
from pipeline.speed.clock import machine
from pipeline.studies.real.params import FILE, ProposeParams, read_study
from pipeline.studies.real.study import PROPOSAL


def main(params: Annotated[Path, typer.Option(help="File of the study.")] = FILE) -> None:
    asked = read_study(params).propose or ProposeParams()
    timing = read_params().benchmark
    torch.set_num_threads(timing.threads)
    pair, prompts = load_pair(read_params()), read_prompts("train")[: asked.prompts]
    ids = [prompt["ids"] for prompt in prompts]
    request = {**request_of(prompts, pair), "max_new_tokens": asked.max_new_tokens}
    decoder = make_decoder(pair, MethodParams("exact"), {}, max(asked.blocks), engine=timing.engine)
    costs = measure(decoder, ids, sorted({min(asked.blocks), max(asked.blocks)}), **request)
    counted = strict_run(decoder, ids, max(asked.blocks), **request)
    found = [outlook(costs, counted.histogram, block) for block in asked.blocks]
    strict = max(found, key=lambda one: one.strict)
    loose = max(found, key=lambda one: one.strict * one.ceiling)
    write_json(
        PROPOSAL,
        {
            "decoding": {"block": loose.block, "strict_block": strict.block},
            "costs": asdict(costs),
            "outlooks": [asdict(one) for one in found],
            "prompts": len(ids),
            "machine": machine(),
        },
    )
    print(
        "\n".join(
            [said(costs), *map(line, found), f"proposed K: {loose.block}, for strict verification {strict.block}"]
        )
    )


def said(costs: Costs) -> str:
    """The measured costs."""
    verified = ", ".join(f"v({k}) = {cost:.2f}" for k, cost in costs.verify.items())
    falls = costs.verify[max(costs.verify)] < costs.verify[min(costs.verify)]
    doubt = ". More tokens cannot cost less: measure again, with other prompts or on an idle machine" if falls else ""
    return f"target step {1000 * costs.step:.0f} ms, draft step c = {costs.draft:.2f}, {verified}{doubt}"


def line(one: Outlook) -> str:
    """What one K promises."""
    return f"K {one.block}: tau {one.tau:.2f}, strict {one.strict:.2f} times plain, at most {one.ceiling:.2f}"


if __name__ == "__main__":
    run(main)
