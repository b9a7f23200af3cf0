"""Time every method against every baseline, prompt by prompt in one process.

    python -m pipeline.stages.benchmark          writes reports/benchmark.json

Each prompt is decoded by all contenders before the next prompt begins, in an order that rotates, so that a machine that
slows down slows all of them. A prompt that any contender answers with a loop is dropped for all; `loops` says how many
were dropped. One row at a time; times include prefill. Loose methods run at their certified setting and K. Strict
decoding runs at its own best K as well, and all methods that run strictly share its times. transformers' assisted
generation and prompt lookup run at the K, or the defaults, that is fastest on development prompts. Whatever of
transformers does not run with this pair is listed under `failed` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from gistgate.core.decoder import Decoder
from gistgate.core.files import write_json
from gistgate.measure import speed as baselines
from gistgate.measure.speed import Contender, by_kind, chosen, compiled, machine, ours, race, theirs, working
from pipeline.decode import load_gate, make_decoder, operating_point, read_prompts, request_of
from pipeline.methods import MethodParams
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.run import run

NAMES = {baselines.ASSISTED: "transformers_assisted", baselines.LOOKUP: "transformers_lookup"}
"""What transformers' speculation is called among the contenders."""


def contenders(params: Params, pair: Pair, prompts: list[dict[str, Any]], blocks: Mapping[str, int]) -> list[Contender]:
    """Our own baselines, then every method at its operating point for the headline budget.

    `blocks` is what `baselines.chosen` found for transformers' speculation.
    """
    request, common, own = request_of(prompts, pair), params.decoding.block, params.decoding.strict_block
    exact, engine = MethodParams("exact"), params.benchmark.engine
    points = {name: operating_point(params, name) for name in params.methods}
    strictly = tuple(name for name, point in points.items() if point.rule == "exact" and point.drafter == pair.drafter)
    builds = engine == "compiled"
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)

    def strict_at(block: int) -> Decoder:
        return make_decoder(pair, exact, {}, block, engine=engine)

    field = [
        Contender("plain", ours(plain, request), 0, True, builds),
        Contender("strict", ours(strict_at(own), request), own, True, builds, strictly),
        Contender(f"strict_{common}", ours(strict_at(common), request), common, True, builds),
        Contender("transformers_generate", theirs(pair, request), 0, True),
        *(replace(one, name=NAMES[one.name], is_baseline=True) for one in baselines.at(pair, request, blocks)),
    ]
    for name, point in points.items():
        if name not in strictly:
            gate = load_gate(point.as_method(), pair)
            decoder = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate, engine=engine)
            field.append(Contender(name, ours(decoder, request), point.block, builds=builds))
    return field


def static(pair: Pair, prompts: list[dict[str, Any]]) -> Contender:
    """transformers' compiled step on a static cache, which not every model and machine can have."""
    request = request_of(prompts, pair)
    slots = max(len(prompt["ids"]) for prompt in prompts) + request["max_new_tokens"]
    return Contender("transformers_static", compiled(theirs(pair, request), pair, slots), 0, True)


def main() -> None:
    benchmark(read_params())


def benchmark(params: Params) -> None:
    """Time every method of `params` and write benchmark.json beside their other results."""
    torch.set_num_threads(params.benchmark.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    development = read_prompts("development")[: params.benchmark.development]
    blocks, refused = chosen(pair, request_of(prompts, pair), [prompt["ids"] for prompt in development])
    able, failed = working([static(pair, prompts)], [prompts[0]["ids"]])
    failed |= {NAMES[name]: why for name, why in refused.items()}
    field = [*contenders(params, pair, prompts, blocks), *able]
    times = race(field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark")
    about = {"chosen_on": len(development), "failed": failed, "machine": machine()}
    write_json(params.reports / "benchmark.json", {**by_kind(field, times), **about})


if __name__ == "__main__":
    run(main)
