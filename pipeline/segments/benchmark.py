"""Speed of certified segments beside token rules, prompt by prompt in one process.

    python -m pipeline.segments.benchmark

Reads data/prompts, models/heads, models/segments and reports/segments/calibration, writes
reports/segments/benchmark.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipeline.stage import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.statistics import Statistics, total
from gistgate.files import read_json, write_json
from pipeline.decode import make_decoder, read_prompts, request_of
from pipeline.params import MethodParams, Params, read_params
from pipeline.segments.calibrate import REPORTS, Bench
from pipeline.segments.methods import METHODS


def main() -> None:
    params = read_params()
    torch.set_num_threads(params.benchmark.threads)
    bench = Bench(params)
    decoders = {**token_decoders(bench, params), **segment_decoders(bench)}
    prompts = read_prompts("test")[: params.benchmark.prompts]
    report = race(decoders, prompts, request_of(prompts, bench.pair), params.benchmark.repeats)
    write_json(Path("reports/segments/benchmark.json"), report)


def token_decoders(bench: Bench, params: Params) -> dict[str, Decoder]:
    """Plain decoding, strict verification at its best K and at the common one, and the token gate alone."""
    exact, gated = MethodParams("exact"), MethodParams("autojudge", learned=True, head=bench.own.head)
    settings, block = {"risk": bench.own.risk}, params.decoding.block
    return {
        "plain": make_decoder(bench.pair, MethodParams("exact", "none"), {}, 0),
        f"strict tokens, K = {params.decoding.strict_block}": make_decoder(
            bench.pair, exact, {}, params.decoding.strict_block
        ),
        f"strict tokens, K = {block}": make_decoder(bench.pair, exact, {}, block),
        f"token gate, K = {block}": make_decoder(bench.pair, gated, settings, block, gate=bench.gate),
        f"token gate, K = {bench.own.limit}": make_decoder(
            bench.pair, gated, settings, bench.own.limit, gate=bench.gate
        ),
    }


def segment_decoders(bench: Bench) -> dict[str, Decoder]:
    """Every way of judging segments at its certified value; those that have none are left out, single points stay."""
    found = {}
    for name, method in METHODS.items():
        value = read_json(REPORTS / f"{name}.json")["certified"] if method.certified else method.grid[0]
        if value is not None:
            title = f"segments: {name} {value:g}" if method.certified else f"segments: {name}, not certified"
            found[title] = method.decoder(bench.pair, bench.probes, value, bench.gate, bench.own.risk)
    return found


def race(
    decoders: dict[str, Decoder], prompts: list[dict[str, Any]], request: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Tokens per second and counts of every decoder; each prompt's best time of `repeats` counts."""
    seconds = {name: [float("inf")] * len(prompts) for name in decoders}
    counted: dict[str, list[Statistics]] = {name: [] for name in decoders}
    for again in range(repeats):
        for place, prompt in enumerate(tqdm(prompts, desc="race", unit="prompt", mininterval=5)):
            for name, decoder in decoders.items():
                statistics = decoder.generate([prompt["ids"]], seeds=[place], **request)[0].statistics
                seconds[name][place] = min(seconds[name][place], statistics.seconds["total"])
                if not again:
                    counted[name].append(statistics)
    report = {}
    for name in decoders:
        one = total(counted[name])
        report[name] = {
            "tokens_per_second": one.tokens / sum(seconds[name]),
            "tau": one.mean_accepted_length,
            "draft_forwards_per_token": one.draft_forwards / one.tokens,
            "loose_per_100": one.loose_per_100,
        }
    return report


if __name__ == "__main__":
    run(main)
