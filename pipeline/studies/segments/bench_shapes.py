"""When do segments beat tokens: speed by segment length, share of accepted segments and quality of the draft.

    python -m pipeline.studies.segments.bench_shapes [--prompts 6] [--results FOLDER]

Needs the embedded pair and data/prompts. The opinion is a constant, so that the share of accepted segments is set and
the texts mean nothing: speed is compared per token. The draft gets worse by noise on its weights, in standard
deviations of each; `prompts` are those that no decoder answered with a loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from gistgate.decoding.decoder import Decoder
from gistgate.forward.context import num_ids
from gistgate.optional.segments.building import segment_decoder
from gistgate.optional.segments.judges import Constant
from gistgate.optional.segments.rule import SegmentDraw
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import MethodParams, read_params
from pipeline.studies.segments.benchmark import timed

STYLES = {"clauses": (r"re:[,.\n]\s*$", 16), "sentences": ("sentence", 24), "lines": ("step", 64)}
"""Boundaries and limit in tokens; these answers have two lines."""
RATES = (0.0, 0.5, 0.8, 1.0)
NOISES = (0.0, 0.5)
BLOCKS = (4, 8)


def main(prompts: int = 6, results: Path = RESULTS) -> None:
    torch.set_num_threads(1)
    params, chosen = read_params(), read_prompts("test")[:prompts]
    report = {}
    for noise in NOISES:
        pair = worse(load_pair(params), noise, params.seed)
        report[f"noise {noise:g}"] = by_kind(timed(decoders(pair), chosen, request_of(chosen, pair), params))
        print(f"noise {noise:g}: done", flush=True)
    save("segments", {"by_draft": report}, results)


def decoders(pair: Pair) -> dict[str, Decoder]:
    """Strict tokens at several K, and every kind of segment at every share of accepted ones."""
    found = {f"strict, K = {k}": make_decoder(pair, MethodParams("exact"), {}, k) for k in BLOCKS}
    for name, (style, limit) in STYLES.items():
        for rate in RATES:
            found[f"{name}/{rate:g}"] = segment_decoder(
                pair.target,
                pair.draft_model,
                pair.tokenizer,
                Constant(rate),
                SegmentDraw(),
                style=style,
                limit=limit,
                vocabulary=num_ids(pair.tokenizer),
            )
    return found


def by_kind(found: dict[str, Any]) -> dict[str, Any]:
    """Speed and tau of every kind of segment by the share of accepted ones, beside the best strict K."""
    decoders, reference = found["decoders"], found["reference"]
    segments = {
        kind: {
            f"{rate:g}": {
                "faster": decoders[f"{kind}/{rate:g}"]["faster_per_token"],
                "tau": decoders[f"{kind}/{rate:g}"]["tau"],
            }
            for rate in RATES
        }
        for kind in STYLES
    }
    about = {name: found[name] for name in ("reference", "prompts")}
    return {**about, "tau": decoders[reference]["tau"], "segments": segments}


def worse(pair: Pair, noise: float, seed: int) -> Pair:
    """The pair with noise on the draft's weights; `noise` in standard deviations of each tensor."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in pair.draft_model.parameters():
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    return pair


if __name__ == "__main__":
    run(main, kept=False)
