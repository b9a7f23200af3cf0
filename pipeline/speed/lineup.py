"""Everything that is timed against each other: transformers' own decoding, ours plain and strict, every method."""

from __future__ import annotations

from typing import Any

from pipeline.common.decoders import make_decoder, request_of
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import operating_point
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params
from pipeline.speed.clock import Contender, Decode, ours, theirs


def contenders(params: Params, pair: Pair, prompts: list[dict[str, Any]]) -> list[Contender]:
    """The baselines, then every method at its operating point for the headline budget."""
    request, common, own = request_of(prompts, pair), params.decoding.block, params.decoding.strict_block
    exact, engine = MethodParams("exact"), params.benchmark.engine
    points = {name: operating_point(params, name) for name in params.methods}
    strictly = tuple(name for name, point in points.items() if point.rule == "exact" and point.drafter == pair.drafter)
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)
    field = [
        Contender("plain", ours(plain, request), 0, True),
        Contender("strict", ours(make_decoder(pair, exact, {}, own, engine=engine), request), own, True, strictly),
        Contender(
            f"strict_{common}", ours(make_decoder(pair, exact, {}, common, engine=engine), request), common, True
        ),
        Contender("transformers_generate", theirs(pair, request), 0, True),
        Contender("transformers_assisted", assisted(pair, request, own), own, True),
        Contender(f"transformers_assisted_{common}", assisted(pair, request, common), common, True),
    ]
    for name, point in points.items():
        if name not in strictly:
            gate = load_gate(point.head, pair) if point.head else None
            decoder = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate, engine=engine)
            field.append(Contender(name, ours(decoder, request), point.block))
    return field


def assisted(pair: Pair, request: dict[str, Any], block: int) -> Decode:
    """transformers' assisted generation: with the draft model, or by prompt lookup for a pair that has none."""
    if pair.draft is None:
        return theirs(pair, request, prompt_lookup_num_tokens=block)
    return theirs(pair, request, block)
