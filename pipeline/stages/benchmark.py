"""Time every method against every baseline, prompt by prompt in one process and prefill included:
`python -m pipeline.stages.benchmark` writes reports/benchmark.json. `failed` says why something of
transformers does not run with this pair, `loops` how many prompts were dropped because of a
loop.
"""

from typing import Any

import torch

from gistgate.core.files import write_json
from gistgate.coverage.choose import Choice
from gistgate.measure import baselines, speed
from pipeline.decode import decoder_at, make_decoder, strict_decoder
from pipeline.operating import operating_point
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.paths import REPORTS
from pipeline.run import run
from pipeline.task import read_prompts, request_of


def ours(
    params: Params,
    pair: Pair,
    request: dict[str, Any],
    engine: str,
) -> list[speed.Contender]:
    """Plain and strict decoding, then every method at its operating point for the headline budget.
    Strict decoding runs at its own best K as well, and all methods that run strictly share its
    times.
    """
    strictly = []
    loose = []
    for name in params.methods:
        point = operating_point(params, name)
        if point.rule == "exact" and point.drafter == pair.drafter:
            strictly.append(name)
        else:
            decoder = decoder_at(pair, point, engine=engine)
            loose.append(speed.contender(name, decoder, request))
    common = params.decoding.block
    plain = make_decoder(pair, Choice("exact", {}, 0, "none"), engine=engine)
    strict = strict_decoder(pair, params.decoding.strict_block, engine=engine)
    at_common = strict_decoder(pair, common, engine=engine)
    return [
        speed.contender("plain", plain, request, is_baseline=True),
        speed.contender("strict", strict, request, is_baseline=True, also=tuple(strictly)),
        speed.contender(f"strict_{common}", at_common, request, is_baseline=True),
        *loose,
    ]


def generates(pair: Pair, request: dict[str, Any]) -> speed.Contender:
    """transformers' `generate` without a draft."""
    return speed.Contender("transformers_generate", baselines.theirs(pair, request), 0, True)


def slots_of(prompts: list[dict[str, Any]]) -> int:
    """Tokens that the longest prompt and its answer may take."""
    return max(len(prompt["ids"]) + int(prompt["max_new_tokens"]) for prompt in prompts)


def main() -> None:
    params = read_params()
    block = params.benchmark
    torch.set_num_threads(block.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: block.prompts]
    request = request_of(prompts, pair)
    batches = [[prompt["ids"]] for prompt in prompts]
    development = [prompt["ids"] for prompt in read_prompts("development")[: block.development]]
    speculating, refused = baselines.chosen(pair, request, development)
    static = baselines.static(pair, request, slots_of(prompts))
    able, failed = speed.working([static], batches[0])
    library = [generates(pair, request), *speculating, *able]
    field = [*ours(params, pair, request, block.engine), *library]
    laps = speed.race(field, batches, block.repeats, "benchmark")
    report = speed.by_kind(field, speed.times_of(field, laps))
    about = {"chosen_on": len(development), "failed": failed | refused, "machine": speed.machine()}
    write_json(REPORTS / "benchmark.json", report | about)


if __name__ == "__main__":
    run(main)
