"""Time every method against every baseline, prompt by prompt in one process and prefill included:
`python -m pipeline.stages.benchmark` writes reports/benchmark.json. `failed` says why something of
transformers or llama.cpp does not run with this pair, `loops` how many prompts were dropped because
of a loop. Every prompt's times wait in .scratch, so that an interruption loses one prompt at most.
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gistgate.core.files import fingerprint, write_json
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.measure import baselines, llama_cpp, speed
from pipeline.decode import decoder_at, make_decoder, strict_decoder, surroundings
from pipeline.operating import operating_point
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.paths import REPORTS, SCRATCH
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
        is_strict = point.rule == "exact" and point.drafter == pair.drafter
        if is_strict or not point.certified:  # no speed is said of what is refused
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


def llama_cpp_plain(
    pair: Pair,
    request: dict[str, Any],
    slots: int,
) -> tuple[list[speed.Contender], dict[str, str]]:
    """llama.cpp on the target's own file, or why it cannot run."""
    file = getattr(pair.target, "gguf_file", None)
    try:
        if file is None:
            raise UserError("The target comes from no GGUF file.")
        threads = torch.get_num_threads()
        server = llama_cpp.contender(Path(file), pair.tokenizer, request, slots, threads)
    except UserError as error:
        return [], {llama_cpp.LLAMA_CPP: str(error)}
    return [server], {}


def main() -> None:
    params = read_params()
    block = params.benchmark
    torch.set_num_threads(block.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: block.prompts]
    request = request_of(prompts, pair)
    batches = [[prompt["ids"]] for prompt in prompts]
    points = [asdict(operating_point(params, name)) for name in params.methods]
    parts = (block, params.decoding.deciding, points, request, batches, *surroundings(pair))
    scratch = SCRATCH / f"benchmark-{fingerprint(*parts)}"
    development = [prompt["ids"] for prompt in read_prompts("development")[: block.development]]
    speculating, refused = baselines.chosen(pair, request, development)
    slots = slots_of(prompts)
    able, failed = speed.working([baselines.static(pair, request, slots)], batches[0])
    others, missing = llama_cpp_plain(pair, request, slots)
    library = [generates(pair, request), *speculating, *able, *others]
    field = [*ours(params, pair, request, block.engine), *library]
    laps = speed.race(field, batches, block.repeats, "benchmark", scratch)
    report = speed.by_kind(field, speed.times_of(field, laps))
    about = {
        "chosen_on": len(development),
        "engine": block.engine,
        "failed": failed | refused | missing,
        "machine": speed.machine(),
    }
    write_json(REPORTS / "benchmark.json", report | about)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    run(main)
