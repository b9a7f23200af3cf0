"""Speed of certified segments beside token rules, prompt by prompt in one process.

    python -m pipeline.studies.segments.benchmark

Reads data/prompts, models/heads, models/segments and reports/segments/calibration, writes
reports/segments/benchmark.json. Segments run where they are compared in calibration. Seconds are those of the
processor, with one thread whatever params.yaml says, so that the models have to be on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.params import MethodParams, Params, read_params
from pipeline.report.paired_statistics import ratio_of_sums
from pipeline.speed.clock import Contender, Prompts, Timed, machine, ours
from pipeline.speed.race import race
from pipeline.studies.segments.calibrate import REPORTS, Segments, operating
from pipeline.studies.segments.methods import methods_of

SLOW = ("score", "pair")
"""Ways of judging that are not timed: they take several times the target's forwards."""


@dataclass(frozen=True)
class OnProcessor(Contender):
    """Timed in seconds of the processor: with one thread they are what the clock of an idle machine would show."""

    def timed(self, prompts: Prompts) -> Timed:
        started = process_time()
        answers, forwards = self.decode(prompts)
        return Timed.of(process_time() - started, answers, forwards)


def main() -> None:
    params = read_params()
    torch.set_num_threads(1)  # the processor's seconds are those of all threads together
    segments = Segments(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    decoders = {**token_decoders(segments, params), **segment_decoders(segments)}
    results = timed(decoders, prompts, request_of(prompts, segments.pair), params)
    write_json(Path("reports/segments/benchmark.json"), {**results, "machine": machine()})


def strict_names(params: Params) -> dict[str, int]:
    """Strict verification of tokens, at its own best K and at the common one."""
    return {f"strict, K = {k}": k for k in (params.decoding.strict_block, params.decoding.block)}


def token_decoders(segments: Segments, params: Params) -> dict[str, Decoder]:
    """Plain decoding, strict verification, and the token gate alone at both lengths."""
    exact, gated = MethodParams("exact"), MethodParams("autojudge", learned=True, head=segments.own.head)
    settings = {"risk": segments.own.risk}
    strict = {name: make_decoder(segments.pair, exact, {}, k) for name, k in strict_names(params).items()}
    gates = {
        f"token gate, K = {k}": make_decoder(segments.pair, gated, settings, k, gate=segments.gate)
        for k in (params.decoding.block, segments.own.limit)
    }
    return {"plain": make_decoder(segments.pair, MethodParams("exact", "none"), {}, 0), **strict, **gates}


def segment_decoders(segments: Segments) -> dict[str, Decoder]:
    """Every way of judging segments, where calibration compares it."""
    return {
        f"segments: {name}": method.decoder(segments.parts, operating(read_json(REPORTS / f"{name}.json"))["value"])
        for name, method in methods_of(segments.own).items()
        if name not in SLOW
    }


def timed(
    decoders: dict[str, Decoder], prompts: list[dict[str, Any]], request: dict[str, Any], params: Params
) -> dict[str, Any]:
    """What each decoder does per second and forward, and how that compares to the better strict one.

    Each prompt's best time of the repeats counts; `prompts` are those that are left without the loops.

    Raises:
        UserError: a target is not on a CPU.
    """
    if elsewhere := [one.target.device for one in decoders.values() if one.target.device.type != "cpu"]:
        raise UserError(
            f"Seconds of the processor are compared here, and the target is on {elsewhere[0]}. Hide the GPU with "
            "CUDA_VISIBLE_DEVICES=, or name `device: cpu` in the pair's file."
        )
    field = [OnProcessor(name, ours(decoder, request), decoder.block) for name, decoder in decoders.items()]
    found = race(field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark")
    seconds = {name: np.array(one["seconds"]).min(axis=1) for name, one in found.items()}
    speed = {name: sum(found[name]["tokens"]) / seconds[name].sum() for name in found}
    reference = max((name for name in found if name.startswith("strict")), key=lambda name: speed[name])
    return {
        "reference": reference,
        "prompts": len(seconds[reference]),
        "loops": found[reference]["loops"],
        "decoders": {
            name: {
                "tokens_per_second": speed[name],
                "tau": sum(one["tokens"]) / sum(one["target_forwards"]),
                "faster_per_answer": ratio_of_sums(seconds[reference], seconds[name]).as_dict(),
                "faster_per_token": ratio_of_sums(
                    seconds[reference] / np.array(found[reference]["tokens"]), seconds[name] / np.array(one["tokens"])
                ).as_dict(),
            }
            for name, one in found.items()
        },
    }


if __name__ == "__main__":
    run(main)
