"""Speed of every drafter with every rule at its certified setting, prompt by prompt in one process.

    python -m pipeline.studies.retrieval.benchmark

Writes reports/retrieval/benchmark.json: seconds as the stage `benchmark` writes them, and how many times as fast as
each reference every method is, with 90 % intervals over prompts.
"""

from __future__ import annotations

from typing import Any

import torch

from gistgate.files import write_json
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.operating_point import operating_point
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import MethodParams, Params
from pipeline.report.paired_statistics import ratio_of_sums
from pipeline.speed.clock import Contender, machine, ours
from pipeline.speed.race import by_kind, race
from pipeline.studies.retrieval.evaluate import decoder_of
from pipeline.studies.retrieval.params import REPORTS, retrieval_params

REFERENCES = ("plain", "lookup-exact", "corpus-exact", "model-exact", "sen-exact")


def main() -> None:
    params = retrieval_params()
    torch.set_num_threads(params.benchmark.threads)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    field = contenders(params, load_pair(params), prompts)
    times = race(field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark")
    found = ratios(times)
    for name, one in found.items():
        print(f"{name:20} {one['tokens_per_second']:7.1f} tokens per second, tau {one['mean_accepted_length']:.2f}")
    write_json(REPORTS / "benchmark.json", {**by_kind(field, times), "ratios": found, "machine": machine()})


def contenders(params: Params, pair: Pair, prompts: list[dict[str, Any]]) -> list[Contender]:
    """Plain decoding, and every method where it may run."""
    request, engine = request_of(prompts, pair), params.benchmark.engine
    builds = engine == "compiled"
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)
    points = {name: operating_point(params, name, reports=REPORTS) for name in params.methods}
    return [
        Contender("plain", ours(plain, request), 0, True, builds),
        *(
            Contender(name, ours(decoder_of(point, pair, engine=engine), request), point.block, builds=builds)
            for name, point in points.items()
        ),
    ]


def ratios(times: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tokens per second, tau, and speed against each reference; a prompt's repeats are added up."""
    seconds = {name: [sum(repeats) for repeats in one["seconds"]] for name, one in times.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, one in times.items():
        repeats = len(one["seconds"][0])
        found[name] = {
            "tokens_per_second": repeats * sum(one["tokens"]) / sum(seconds[name]),
            "mean_accepted_length": sum(one["tokens"]) / sum(one["target_forwards"]),
        }
        for reference in REFERENCES:
            if reference in times and reference != name:
                found[name][f"vs_{reference}"] = ratio_of_sums(seconds[reference], seconds[name]).as_dict()
    return found


if __name__ == "__main__":
    run(main)
