"""Time every method against every baseline, prompt by prompt in one process and prefill included:
`python -m pipeline.stages.benchmark` writes reports/benchmark.json. `failed` says why something of
transformers does not run with this pair, `loops` how many prompts were dropped because of a
loop."""

from typing import Any

import torch

from gistgate.core.files import write_json
from gistgate.measure import baselines, speed
from pipeline.decode import decoder_at, make_decoder
from pipeline.methods import MethodParams
from pipeline.operating import operating_point
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.paths import REPORTS
from pipeline.run import run
from pipeline.task import read_prompts, request_of


def ours(params: Params, pair: Pair, request: dict[str, Any], engine: str) -> list[speed.Contender]:
    """Plain and strict decoding, then every method at its operating point for the headline budget.
    Strict decoding runs at its own best K as well, and all methods that run strictly share its
    times."""
    common = params.decoding.block
    own = params.decoding.strict_block
    points = {name: operating_point(params, name) for name in params.methods}
    strictly = tuple(
        name
        for name, point in points.items()
        if point.rule == "exact" and point.drafter == pair.drafter
    )
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)
    exact = MethodParams("exact")
    strict, strict_common = (
        make_decoder(pair, exact, {}, block, engine=engine) for block in (own, common)
    )
    loose = {name: point for name, point in points.items() if name not in strictly}
    return [
        speed.contender("plain", plain, request, is_baseline=True),
        speed.contender("strict", strict, request, is_baseline=True, also=strictly),
        speed.contender(f"strict_{common}", strict_common, request, is_baseline=True),
        *(
            speed.contender(name, decoder_at(pair, point, engine=engine), request)
            for name, point in loose.items()
        ),
    ]


def generates(pair: Pair, request: dict[str, Any]) -> speed.Contender:
    """transformers' `generate` without a draft."""
    return speed.Contender("transformers_generate", baselines.theirs(pair, request), 0, True)


def slots_of(prompts: list[dict[str, Any]]) -> int:
    """Tokens that the longest prompt and its answer may take."""
    return max(len(prompt["ids"]) + int(prompt["max_new_tokens"]) for prompt in prompts)


def main() -> None:
    params = read_params()
    torch.set_num_threads(params.benchmark.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    request = request_of(prompts, pair)
    development = [
        prompt["ids"] for prompt in read_prompts("development")[: params.benchmark.development]
    ]
    speculating, refused = baselines.chosen(pair, request, development)
    able, failed = speed.working(
        [baselines.static(pair, request, slots_of(prompts))], [prompts[0]["ids"]]
    )
    library = [generates(pair, request), *speculating, *able]
    field = [*ours(params, pair, request, params.benchmark.engine), *library]
    laps = speed.race(
        field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark"
    )
    about = {"chosen_on": len(development), "failed": failed | refused, "machine": speed.machine()}
    write_json(
        REPORTS / "benchmark.json", {**speed.by_kind(field, speed.times_of(field, laps)), **about}
    )


if __name__ == "__main__":
    run(main)
