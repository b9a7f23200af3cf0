"""Everything that is timed against each other: transformers' own decoding, ours plain and strict, every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gistgate.decoding.decoder import Decoder
from pipeline.common.decoders import make_decoder, request_of
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import operating_point
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params
from pipeline.speed import baselines
from pipeline.speed.clock import Contender, compiled, ours, theirs

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
            gate = load_gate(point.head, pair) if point.head else None
            decoder = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate, engine=engine)
            field.append(Contender(name, ours(decoder, request), point.block, builds=builds))
    return field


def static(pair: Pair, prompts: list[dict[str, Any]]) -> Contender:
    """transformers' compiled step on a static cache, which not every model and machine can have."""
    request = request_of(prompts, pair)
    slots = max(len(prompt["ids"]) for prompt in prompts) + request["max_new_tokens"]
    return Contender("transformers_static", compiled(theirs(pair, request), pair, slots), 0, True)
